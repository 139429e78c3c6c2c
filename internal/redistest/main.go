package redistest

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

// shared is the one server of the test binary, started by the first Shared.
var shared struct {
	mu     sync.Mutex
	inMain bool
	server *Server
}

var names atomic.Int64

// tryDial is a goroutine of go-redis that a pool starts when a whole pool's worth
// of dials has failed. It sees that the pool was closed within a second, which is
// longer than the search for leaks waits.
const tryDial = "github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"

// Main runs the tests of a package, stops the server that [Shared] may have
// started, fails the run if a goroutine was left behind, and exits. It starts
// nothing itself. Call it from TestMain.
func Main(m *testing.M, opts ...goleak.Option) {
	opts = append(opts, goleak.IgnoreAnyFunction(tryDial))
	goleak.VerifyTestMain(mainRun{m}, opts...)
}

// mainRun puts the end of the shared server between the tests and the search
// for leaks.
type mainRun struct{ m *testing.M }

func (r mainRun) Run() int {
	shared.mu.Lock()
	shared.inMain = true
	shared.mu.Unlock()
	defer stopShared()
	return r.m.Run()
}

// Shared returns the server that all tests of this binary share. It is started
// by the first call. Tests keep apart by prefixing every key and channel with
// [Name], so they can run in parallel; they must neither pause nor flush it. The
// binary's TestMain must call [Main].
func Shared(tb testing.TB) *Server {
	tb.Helper()
	s, err := sharedServer()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func sharedServer() (*Server, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.inMain {
		return nil, fmt.Errorf("redistest: Shared needs a TestMain that calls redistest.Main")
	}
	if shared.server != nil {
		return shared.server, nil
	}
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return nil, err
	}
	s, err := launch(dir, nil, "")
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	shared.server = s
	return s, nil
}

func stopShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		return
	}
	shared.server.end()
	_ = os.RemoveAll(shared.server.Dir())
	shared.server = nil
}

// Name returns a name no other call in this binary returns, made from the
// test's name. It holds neither braces nor glob characters, so it can be used
// whole, in a hash tag or in a pattern.
func Name(tb testing.TB) string {
	tame := strings.Map(func(r rune) rune {
		if strings.ContainsRune("{}*?[]\\ ", r) {
			return '_'
		}
		return r
	}, tb.Name())
	return fmt.Sprintf("%s:%d", tame, names.Add(1))
}
