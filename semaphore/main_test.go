package semaphore_test

import (
	"testing"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Child(runChild)
	redistest.Parallel(12) // most tests wait for leases and servers rather than for the CPU
	redistest.Main(m, redistest.DefaultWheel)
}
