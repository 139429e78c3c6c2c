package redistest

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// Clock is the wall clock of a server. Its monotonic clock stays that of the machine.
type Clock struct{ path string }

//go:embed testdata/clock.c
var clockSource []byte

// HasClocks reports whether this machine has what [StartOnClock] needs: Linux and a C compiler.
func HasClocks() bool {
	_, err := exec.LookPath("cc")
	return err == nil && runtime.GOOS == "linux"
}

// StartOnClock starts a server as Start does, whose wall clock the test can set. It skips the test on a machine
// on which that is not possible. It does not use libfaketime, which ends in a recursion in a redis-server whose
// allocator is jemalloc.
func StartOnClock(tb testing.TB, args ...string) (*Server, *Clock) {
	tb.Helper()
	if !HasClocks() {
		tb.Skip("the clock of a server can be set on Linux, with a C compiler")
	}
	dir := tb.TempDir()
	c := &Clock{filepath.Join(dir, "offset")}
	c.Set(tb, 0)
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		tb.Fatal(err)
	}
	if said, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		tb.Fatalf("redistest: %v: %s", err, said)
	}
	return startOwned(tb, args, "", "LD_PRELOAD="+library, "REDISTEST_CLOCK="+c.path), c
}

// Set makes the clock show the time of the machine plus the offset, which has whole seconds.
func (c *Clock) Set(tb testing.TB, offset time.Duration) {
	tb.Helper()
	next := c.path + ".next"
	err := os.WriteFile(next, fmt.Appendf(nil, "%d\n", int64(offset.Seconds())), 0o600)
	if err == nil {
		err = os.Rename(next, c.path) // at once, as the server may be reading
	}
	if err != nil {
		tb.Fatalf("redistest: set the clock: %v", err)
	}
}
