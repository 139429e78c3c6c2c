package main_test

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNothingLeft(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux hands orphans to an ancestor")
	}
	tool := filepath.Join(t.TempDir(), "nothingleft")
	out, err := exec.Command("go", "build", "-o", tool, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)

	for _, tt := range []struct {
		name, script string
		code         int
		says         string
	}{
		{"a command that leaves nothing passes", "sleep 0.1 & wait", 0, ""},
		{"a child that ends soon after its parent is not a leak", "sleep 0.2 &", 0, ""},
		{"the exit code is the command's", "exit 7", 7, "exit status 7"},
		{"a child left behind fails a command that passed", "sleep 60 & exit 0", 1, ": sleep 60"},
		{"so does one in a session of its own", "setsid sleep 61 & exit 0", 1, ": sleep 61"},
		{"so does the child of a child", "(sh -c 'sleep 62; true' &)", 1, ": sleep 62"},
		{"a child left behind does not hide a failure", "sleep 63 & exit 7", 7, ": sleep 63"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stderr strings.Builder
			cmd := exec.Command(tool, "sh", "-c", tt.script)
			cmd.Stderr = &stderr
			_ = cmd.Run()
			require.Equal(t, tt.code, cmd.ProcessState.ExitCode(), "%s", stderr.String())
			if tt.says == "" {
				require.Empty(t, stderr.String())
			}
			require.Contains(t, stderr.String(), tt.says)
		})
	}
}
