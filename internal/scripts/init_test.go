package scripts_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program that imports the package and uses no script pays for none.
func TestScripts_AreMadeAtTheirFirstUse(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$") //nolint:gosec // this test
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	trace, err := cmd.CombinedOutput()
	require.NoError(t, err, string(trace))
	found := regexp.MustCompile(`init \S+/internal/scripts @.* clock, (\d+) bytes`).FindSubmatch(trace)
	require.NotNil(t, found, string(trace))
	bytes, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	require.Less(t, bytes, 100_000) // 22 000; all texts are 1 100 000
}
