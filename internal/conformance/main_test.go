package conformance_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Parallel(6) // most tests wait for leases and servers rather than for the CPU
	redistest.Main(m, redistest.DefaultWheel)
}

// read returns the text of a file, which is named from the root of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	require.NoError(t, err)
	return string(text)
}
