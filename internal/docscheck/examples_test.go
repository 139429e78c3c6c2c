package docscheck_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// withoutOutput returns the names of the Examples in test files that go test compiles but does not run, because no output
// is given.
func withoutOutput(files ...*ast.File) (names []string) {
	for _, example := range doc.Examples(files...) {
		if example.Output == "" && !example.EmptyOutput {
			names = append(names, "Example"+example.Name)
		}
	}
	return names
}

// Every Example of a public package runs, and its output is compared.
func TestExamples_AllRun(t *testing.T) {
	t.Parallel()
	for _, folder := range publicFolders {
		names, err := filepath.Glob(folder + "/example*_test.go")
		require.NoError(t, err)
		for _, name := range names {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			require.NoError(t, err)
			require.Empty(t, withoutOutput(file), name)
		}
	}

	const examples = "package p\n\nfunc ExampleA() {\n\t// Output: a\n}\n\nfunc ExampleB() {\n}\n"
	file, err := parser.ParseFile(token.NewFileSet(), "example_test.go", strings.NewReader(examples), parser.ParseComments)
	require.NoError(t, err)
	require.Equal(t, []string{"ExampleB"}, withoutOutput(file))
}
