package redistest

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// shared is the server of the test binary. The first call of Shared starts it.
var shared struct {
	mu     sync.Mutex
	server *Server
}

// inMain is set while Main runs and will stop the shared servers.
var inMain atomic.Bool

// sharedNodes is the cluster of the test binary. The first call of SharedCluster starts it.
var sharedNodes struct {
	mu      sync.Mutex
	cluster *Cluster
}

var names atomic.Int64

// tryDial is a goroutine that a pool of go-redis starts when all its dials have failed. It notices within a
// second that the pool was closed, which is longer than the search for leaks waits.
const tryDial = "github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"

// sentinelListeners are the goroutines of redis.NewFailoverClusterClient, whose Close does not end them. The library
// does not use PubSub.Channel, to which the last two belong.
var sentinelListeners = []string{
	"github.com/redis/go-redis/v9.(*sentinelFailover).listen",
	"github.com/redis/go-redis/v9.(*channel).initHealthCheck.func1",
	"github.com/redis/go-redis/v9.(*channel).initMsgChan.func1",
}

// Main runs the tests of a package, stops the servers of [Shared] and [SharedCluster], fails the run if a
// goroutine is left behind, and exits. It starts nothing itself. Call it from TestMain. Without -v it is
// [Quiet].
func Main(m *testing.M, opts ...goleak.Option) {
	flag.Parse()
	if !testing.Verbose() {
		Quiet()
	}
	for _, f := range append(sentinelListeners, tryDial) {
		opts = append(opts, goleak.IgnoreAnyFunction(f))
	}
	goleak.VerifyTestMain(mainRun{m}, opts...)
}

// ChildEnv is the environment variable that makes a test binary act as another process, in the role that it names.
const ChildEnv = "REDISTEST_ROLE"

// Child runs the role of a process that a test has started with [ChildEnv], and exits. In any other process it does
// nothing. Call it first in TestMain.
func Child(run func(role string) error) {
	role := os.Getenv(ChildEnv)
	if role == "" {
		return
	}
	Quiet()
	if err := run(role); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Parallel lets n tests run at a time, unless the command line says how many. It is for packages whose tests
// wait more than they compute. Call it from TestMain.
func Parallel(n int) {
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
			panic(err)
		}
	}
}

// Quiet discards what the library and go-redis log without a logger of the test's. Tests take servers away on
// purpose, and thousands of lines about that would hide the assertion that fails.
func Quiet() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	log.SetOutput(os.Stderr) // which SetDefault discards too; examples call log.Fatal
	redis.SetLogger(noLog{})
}

// noLog is a logger of go-redis that drops everything.
type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// mainRun stops the shared servers after the tests and before the search for leaks.
type mainRun struct{ m *testing.M }

func (r mainRun) Run() int {
	inMain.Store(true)
	defer stopShared()
	defer closeExamples()
	return r.m.Run()
}

// Shared returns the server that all tests of this binary share. The first call starts it. Tests keep apart
// by prefixing every key and channel with [Name], so they can run in parallel; they must not pause or flush
// it. The binary's TestMain must call [Main].
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
	if shared.server != nil {
		return shared.server, nil
	}
	s, err := launchShared([]string{"--databases", strconv.Itoa(databases)})
	shared.server = s
	return s, err
}

// SharedCluster returns the cluster that all tests of this binary share, under the rules of [Shared]. Like
// [StartCluster] it skips the test under -short.
func SharedCluster(tb testing.TB) *Cluster {
	tb.Helper()
	SkipIfShort(tb)
	sharedNodes.mu.Lock()
	defer sharedNodes.mu.Unlock()
	if sharedNodes.cluster != nil {
		return sharedNodes.cluster
	}
	c := &Cluster{}
	sharedNodes.cluster = c // also on failure, so that its processes are stopped
	for i := range 2 * masters {
		s, err := launchShared(clusterArgs)
		if err != nil {
			tb.Fatal(err)
		}
		if i < masters {
			c.Masters = append(c.Masters, s)
		} else {
			c.Replicas = append(c.Replicas, s)
		}
	}
	c.mustForm(tb)
	return c
}

// launchShared launches a server that ends with the binary.
func launchShared(args []string) (*Server, error) {
	if !inMain.Load() {
		return nil, fmt.Errorf("redistest: shared servers need a TestMain that calls redistest.Main")
	}
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return nil, err
	}
	s, err := launch(dir, args, "")
	if err != nil {
		_ = os.RemoveAll(dir)
	}
	return s, err
}

func stopShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	var all []*Server
	if shared.server != nil {
		all = append(all, shared.server)
	}
	sharedNodes.mu.Lock()
	defer sharedNodes.mu.Unlock()
	if sharedNodes.cluster != nil {
		all = append(all, sharedNodes.cluster.Nodes()...)
	}
	for _, s := range all {
		s.end()
		_ = os.RemoveAll(s.Dir())
	}
	shared.server, sharedNodes.cluster = nil, nil
}

// Name returns a name made from the test's name that no other call in this binary returns, nor anything that begins
// with it: names with numbers behind them are as different. It holds no braces or glob characters, so it can be used
// whole, in a hash tag or in a pattern.
func Name(tb testing.TB) string {
	tame := strings.Map(func(r rune) rune {
		if strings.ContainsRune("{}*?[]\\ ", r) {
			return '_'
		}
		return r
	}, tb.Name())
	return fmt.Sprintf("%s:%d.", tame, names.Add(1))
}
