package docscheck_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// publicFolders are the folders whose exported names are a promise. Those of contrib and cmd are not.
var publicFolders = []string{".", "wheel", "renewal", "redislock", "ratelimit", "ratelimit/httplimit", "semaphore", "delay", "cogwheeltest"}

// A change of the exported API has to be made on purpose: in docs/api.txt too, which `make api` writes.
func TestAPI_IsTheOneOfTheList(t *testing.T) {
	t.Parallel()
	var api strings.Builder
	for _, folder := range publicFolders {
		exportedAPI(t, &api, folder)
	}
	if os.Getenv("UPDATE_API") != "" {
		require.NoError(t, os.WriteFile("docs/api.txt", []byte(api.String()), 0o600))
	}
	require.Equal(t, read(t, "docs/api.txt"), api.String(), "if the change is deliberate: make api, and a line in CHANGELOG.md")
}

// exportedAPI writes the exported declarations of a package, without comments and bodies.
func exportedAPI(t *testing.T, out *strings.Builder, folder string) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	names, err := filepath.Glob(folder + "/*.go")
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	pkg, err := doc.NewFromFiles(fset, files, folder)
	require.NoError(t, err)

	fmt.Fprintf(out, "package %s\n\n", strings.Replace(folder, ".", "cogwheel", 1))
	write := func(node any) {
		var text bytes.Buffer
		config := printer.Config{Mode: printer.UseSpaces | printer.TabIndent, Tabwidth: 8}
		require.NoError(t, config.Fprint(&text, fset, node))
		out.WriteString(text.String() + "\n\n")
	}
	values := func(groups []*doc.Value) {
		for _, group := range groups {
			write(group.Decl)
		}
	}
	functions := func(list []*doc.Func) {
		for _, f := range list {
			f.Decl.Body = nil
			write(f.Decl)
		}
	}
	values(pkg.Consts)
	values(pkg.Vars)
	functions(pkg.Funcs)
	for _, typ := range pkg.Types {
		write(typ.Decl)
		values(typ.Consts)
		values(typ.Vars)
		functions(typ.Funcs)
		functions(typ.Methods)
	}
}

// Every public package is in the list: a folder with Go files that is not internal, a program or a tool.
func TestAPI_CoversEveryPackage(t *testing.T) {
	t.Parallel()
	var found []string
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		top, _, _ := strings.Cut(path, string(filepath.Separator))
		if entry.IsDir() {
			if slices.Contains([]string{"examples", "benchmarks", "contrib", "cmd", "bin", "docs", "robustness"}, top) ||
				entry.Name() == "internal" || strings.HasPrefix(top, ".") && path != "." {
				return filepath.SkipDir
			}
			return nil
		}
		folder := filepath.ToSlash(filepath.Dir(path))
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !slices.Contains(found, folder) {
			found = append(found, folder)
		}
		return nil
	}))
	require.ElementsMatch(t, publicFolders, found)
}
