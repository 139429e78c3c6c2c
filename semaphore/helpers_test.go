package semaphore_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Short names of what tests of all packages share.
const patience = redistest.Patience

var (
	newWheel = redistest.Wheel
	within   = redistest.Within
	poll     = redistest.Poll
)

// newClient returns a client that is closed with the test.
func newClient(t testing.TB, rdb redis.UniversalClient, opts ...semaphore.Option) *semaphore.Client {
	t.Helper()
	c, err := semaphore.New(rdb, append([]semaphore.Option{semaphore.WithWheel(newWheel(t))}, opts...)...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

// shared returns a client on the shared server, the plain client below it, and a name.
func shared(t testing.TB) (*semaphore.Client, *redis.Client, string) {
	t.Helper()
	rdb := redistest.Shared(t).Client(t)
	return newClient(t, rdb), rdb, redistest.Name(t)
}

// awaitListeners returns when n clients are subscribed to the semaphore's channel, in a cluster on whichever node, sharded or not.
func awaitListeners(t testing.TB, rdb redis.UniversalClient, name string, n int64) {
	t.Helper()
	channel := scripts.SemChannel(name)
	poll(t, func() bool {
		var listening atomic.Int64
		count := func(subs *redis.MapStringIntCmd) error {
			listening.Add(subs.Val()[channel])
			return subs.Err()
		}
		cluster, ok := rdb.(*redis.ClusterClient)
		if !ok {
			require.NoError(t, count(rdb.PubSubNumSub(t.Context(), channel)))
		} else {
			require.NoError(t, cluster.ForEachShard(t.Context(), func(ctx context.Context, node *redis.Client) error {
				return errors.Join(count(node.PubSubNumSub(ctx, channel)), count(node.PubSubShardNumSub(ctx, channel)))
			}))
		}
		return listening.Load() == n
	})
}

// spin keeps the processor until d is over: a pause shorter than a tick of the wheel.
func spin(d time.Duration) {
	for began := time.Now(); time.Since(began) < d; {
		runtime.Gosched()
	}
}

// call is something under way on a goroutine of its own.
type call struct {
	done chan struct{}
	err  error
	took time.Duration
}

func start(f func() error) *call {
	c := &call{done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(c.done)
		c.err = f()
		c.took = time.Since(began)
	}()
	return c
}

func (c *call) wait(t testing.TB) error {
	t.Helper()
	select {
	case <-c.done:
	case <-within(t, patience).Done():
		require.FailNow(t, "still waiting")
	}
	return c.err
}

func (c *call) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// counter counts the script calls of a client that the server has answered.
type counter struct {
	mu   sync.Mutex
	n    int
	open int
}

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(0, 1)
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") {
			c.add(1, -1)
		} else {
			c.add(0, -1)
		}
		return err
	}
}

func (c *counter) add(n, open int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	c.open += open
}

// underWay is how many commands wait for their answer.
func (c *counter) underWay() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

func (c *counter) scripts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// counted returns a client whose scripts are counted.
func counted(t testing.TB, rdb *redis.Client, opts ...semaphore.Option) (*semaphore.Client, *counter) {
	t.Helper()
	n := &counter{}
	rdb.AddHook(n)
	return newClient(t, rdb, opts...), n
}

func set(t testing.TB, s *semaphore.Semaphore, n int64) {
	t.Helper()
	ok, err := s.TrySetPermits(t.Context(), n, 0)
	require.NoError(t, err)
	require.True(t, ok)
}

func available(t testing.TB, s interface {
	Available(context.Context) (int64, error)
},
) int64 {
	t.Helper()
	n, err := s.Available(t.Context())
	require.NoError(t, err)
	return n
}

// permits is what the three kinds of semaphore have in common. back gives permits back.
type permits interface {
	Available(context.Context) (int64, error)
	set(t testing.TB, n int64)
	take(ctx context.Context, n int64) (back, error)
	try(ctx context.Context, n int64) (back, error) // nil, nil if they are not free
	takeFunc(ctx context.Context, n int64, f func(back, error)) (cancel func())
}

type back func(context.Context) error

type counting struct{ *semaphore.Semaphore }

func (s counting) set(t testing.TB, n int64) { set(t, s.Semaphore, n) }

func (s counting) back(n int64, err error) (back, error) {
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return s.Release(ctx, n) }, nil
}

func (s counting) take(ctx context.Context, n int64) (back, error) {
	return s.back(n, s.Acquire(ctx, n))
}

func (s counting) try(ctx context.Context, n int64) (back, error) {
	if ok, err := s.TryAcquire(ctx, n); err != nil || !ok {
		return nil, err
	}
	return s.back(n, nil)
}

func (s counting) takeFunc(ctx context.Context, n int64, f func(back, error)) func() {
	return s.AcquireFunc(ctx, n, func(err error) { f(s.back(n, err)) })
}

type leasing struct{ *semaphore.Leased }

func (l leasing) set(t testing.TB, n int64) { setLeased(t, l.Leased, n) }

func (l leasing) back(g *semaphore.Grant, err error) (back, error) {
	if err != nil {
		return nil, err
	}
	return g.Release, nil
}

func (l leasing) take(ctx context.Context, n int64) (back, error) { return l.back(l.Acquire(ctx, n)) }

func (l leasing) try(ctx context.Context, n int64) (back, error) {
	b, err := l.back(l.TryAcquire(ctx, n))
	if errors.Is(err, semaphore.ErrNoPermits) {
		return nil, nil
	}
	return b, err
}

func (l leasing) takeFunc(ctx context.Context, n int64, f func(back, error)) func() {
	return l.AcquireFunc(ctx, n, func(g *semaphore.Grant, err error) { f(l.back(g, err)) })
}

// kind is a kind of semaphore.
type kind struct {
	name    string
	open    func(c *semaphore.Client, name string) permits
	channel func(name string) string // on which a release is announced; a fair semaphore has one for each process
}

var kinds = []kind{
	{"counting", func(c *semaphore.Client, name string) permits { return counting{c.Semaphore(name)} }, scripts.SemChannel},
	{"leased", func(c *semaphore.Client, name string) permits { return leasing{c.Leased(name)} }, scripts.SemChannel},
	{"fair", func(c *semaphore.Client, name string) permits { return leasing{c.FairLeased(name)} }, func(name string) string {
		return scripts.PrefixName("cogwheel_fair", name) + ":*"
	}},
}

// eachKind runs a test on every kind.
func eachKind(t *testing.T, f func(t *testing.T, k kind)) {
	t.Helper()
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			f(t, k)
		})
	}
}

// awaitWaiting returns when n clients listen for permits of the semaphore.
func (k kind) awaitWaiting(t testing.TB, rdb redis.UniversalClient, name string, n int) { //nolint:unparam // says what it waits for
	t.Helper()
	poll(t, func() bool {
		channels, err := rdb.PubSubChannels(t.Context(), k.channel(name)).Result()
		require.NoError(t, err)
		listening := 0
		subs, err := rdb.PubSubNumSub(t.Context(), channels...).Result()
		require.NoError(t, err)
		for _, clients := range subs {
			listening += int(clients)
		}
		return listening == n
	})
}

// awaitQueued returns when Redis knows of n requests that wait. Only a fair semaphore tells it of those behind the first of a process.
func (k kind) awaitQueued(t testing.TB, rdb redis.UniversalClient, name string, n int64) {
	t.Helper()
	if k.name == "fair" {
		poll(t, func() bool { return rdb.ZCard(t.Context(), scripts.SuffixName(name, "fair:queue")).Val() == n })
	}
}
