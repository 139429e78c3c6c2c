package mutants_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/mutants"
)

const root = "../.."

// Each edit fits its file, and each part of a pattern names a test.
func TestMutants_Fit(t *testing.T) {
	t.Parallel()
	all, err := mutants.Read(root)
	require.NoError(t, err)
	require.NotEmpty(t, all)
	for _, m := range all {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			_, err := m.Overlay(root, t.TempDir())
			require.NoError(t, err)
			if m.Folder == "" {
				return
			}
			names := testsOf(t, m.Folder)
			for pattern := range strings.SplitSeq(m.Run, "|") {
				test, _, _ := strings.Cut(pattern, "/")
				require.Regexp(t, "(?m)"+test, names, "no test of %s", m.Folder)
			}
		})
	}
}

var testName = regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w+)`)

// testsOf returns the names of the tests in a folder.
func testsOf(t *testing.T, folder string) (names string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range testName.FindAllStringSubmatch(string(text), -1) {
			names += match[1] + "\n"
		}
	}
	return names
}
