package semaphore_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// childEnv makes the test binary act as another process; see processes_test.go.
const childEnv = "SEMAPHORE_TEST_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		redistest.Quiet()
		if err := runChild(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	redistest.Parallel(12) // most tests wait for leases and servers rather than for the CPU
	redistest.Main(m, redistest.DefaultWheel)
}
