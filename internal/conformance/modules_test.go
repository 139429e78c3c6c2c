package conformance_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What go.mod requires is in the module graph of every importer: the embedded server, which is for tests, must not be.
func TestModule_RequiresNoEmbeddedServer(t *testing.T) {
	t.Parallel()
	for _, module := range []string{"alicebob/miniredis", "yuin/gopher-lua", "cogwheel/cogwheeltest"} {
		require.NotContains(t, read(t, "go.mod"), module)
		require.Contains(t, read(t, "examples/go.mod"), module, "the control")
	}
}
