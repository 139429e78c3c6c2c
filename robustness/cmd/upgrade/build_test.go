package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// program is the folder of the program in its module.
const program = "cmd/upgrade"

// moduleOf returns the folder of the program's module in a source, which was in internal at first.
func moduleOf(source string) string {
	former := filepath.Join(source, "internal", "robustness")
	if _, err := os.Stat(former); err == nil {
		return former
	}
	return filepath.Join(source, "robustness")
}

// root returns the folder of the repository.
func root(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(run(t, ".", "git", "rev-parse", "--show-toplevel"))
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%v", cmd)
	return string(out)
}

// build builds the program from the source in a folder.
func build(t *testing.T, source string, flags ...string) string {
	t.Helper()
	path, out, err := tryBuild(t, source, flags...)
	require.NoError(t, err, out)
	return path
}

func tryBuild(t *testing.T, source string, flags ...string) (path, out string, err error) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "upgrade")
	args := append([]string{"build", "-buildvcs=false", "-o", path}, flags...)
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./"+program)...)
	cmd.Dir = moduleOf(source)
	said, err := cmd.CombinedOutput()
	return path, string(said), err
}

// undefined is a message of the compiler about something that the library does not have.
var undefined = regexp.MustCompile(`(\w+\.go):\d+:\d+: undefined: (\w+\.\w+)`)

// buildAt builds the program from the source at a commit. A commit without the program gets that of today, without the
// files that need more than the library had.
func buildAt(t *testing.T, ref string) string {
	t.Helper()
	source := t.TempDir()
	run(t, root(t), "sh", "-c", `git archive "$0" | tar -x -C "$1"`, ref, source)
	folder := filepath.Join(moduleOf(source), program)
	if _, err := os.Stat(folder); err == nil {
		return build(t, source)
	}
	files, err := filepath.Glob("[^_]*.go")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(folder, 0o755))
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(folder, file), text, 0o644))
	}
	fmt.Println(ref, "does not have the program, and gets that of this version")
	for {
		path, out, err := tryBuild(t, source)
		if err == nil {
			return path
		}
		lacks := undefined.FindStringSubmatch(out)
		require.NotNil(t, lacks, out)
		require.NotEqual(t, "main.go", lacks[1], out)
		require.NoError(t, os.Remove(filepath.Join(folder, lacks[1])))
		fmt.Printf("%s does not have %s: left out %s\n", ref, lacks[2], lacks[1])
	}
}
