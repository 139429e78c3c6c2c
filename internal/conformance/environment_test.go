package conformance_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// readsEnvironment returns the calls in a source file that read the environment of the process.
func readsEnvironment(t *testing.T, name string, source any) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, source, 0)
	require.NoError(t, err)
	readers := []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv"}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			of, ok := s.X.(*ast.Ident)
			if ok && slices.Contains([]string{"os", "syscall"}, of.Name) && slices.Contains(readers, s.Sel.Name) {
				found = append(found, name+": "+of.Name+"."+s.Sel.Name)
			}
		}
		return true
	})
	return found
}

// A service configures the library by options alone: no package that it imports reads the environment.
func TestLibrary_ReadsNoEnvironment(t *testing.T) {
	t.Parallel()
	const module = "github.com/cogwheel-go/cogwheel"
	list := exec.Command("go", "list", "-deps", "-f", `{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}`,
		module, module+"/wheel", module+"/renewal", module+"/redislock", module+"/semaphore", module+"/ratelimit/...")
	list.Stderr = os.Stderr
	out, err := list.Output()
	require.NoError(t, err)
	dirs := append(strings.Fields(string(out)), "../../cogwheeltest") // a module of its own
	require.Greater(t, len(dirs), 10)
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, dir)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				require.Empty(t, readsEnvironment(t, file, nil))
			}
		}
	}
	require.NotEmpty(t, readsEnvironment(t, "control.go", `package p; import "os"; var x = os.Getenv("X")`))
}
