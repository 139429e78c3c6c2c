package redislock_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// childEnv makes the test binary act as another process; see child_process_test.go.
const childEnv = "REDISLOCK_TEST_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		if err := runChild(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Most tests wait for leases and servers rather than for the CPU.
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := flag.Set("test.parallel", "16"); err != nil {
			panic(err)
		}
	}
	redistest.Main(m, redistest.DefaultWheel)
}
