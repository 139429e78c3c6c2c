package redisconn_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

func closing(t *testing.T, d *redisconn.Dedicated) {
	t.Helper()
	redistest.CloseWith(t, d.Close)
}

// acquire takes a lock by a batch, and returns its error.
func acquire(t *testing.T, d *redisconn.Dedicated, names ...string) (errs []error) {
	t.Helper()
	var batch []scripts.Call
	for _, name := range names {
		batch = append(batch, scripts.LockAcquire.Call([]string{name}, "me:1", 60_000))
	}
	for _, cmd := range d.RunBatch(redistest.Within(t, redistest.Patience), batch) {
		errs = append(errs, cmd.Err())
	}
	return errs
}

func TestDedicated_HasConnectionsOfItsOwn(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	var hooked int
	rdb.AddHook(countHook{&hooked})
	d := redisconn.NewDedicated(rdb, redistest.Wheel(t), 2)
	own := d.Single()
	require.Equal(t, []error{nil}, acquire(t, d, redistest.Name(t)))
	require.Zero(t, hooked, "hooks of the caller's client")
	require.Zero(t, rdb.PoolStats().TotalConns, "connections of the caller's client")
	require.EqualValues(t, 1, own.PoolStats().TotalConns)
	opt := own.Options()
	require.Equal(t, 2, opt.PoolSize)
	require.True(t, opt.ContextTimeoutEnabled)
	require.Zero(t, redisconn.Retries(own))
	require.Equal(t, rdb.Options().Addr, opt.Addr)
	require.Positive(t, redisconn.Retries(rdb))
	d.Follow(t.Context(), time.Hour)
	require.Same(t, own, d.Single(), "nothing to follow")
	require.NoError(t, d.Close(t.Context()))
	require.NoError(t, rdb.Ping(t.Context()).Err(), "the caller's client is open")
}

type countHook struct{ n *int }

func (h countHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h countHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h countHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		*h.n++
		return next(ctx, cmd)
	}
}

// A Ring whose shards are replaced is followed to the new ones, and one shard that is away fails its own
// calls only.
func TestDedicated_AsksTheRingForTheShard(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": servers[0].Addr(), "b": servers[1].Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	d := redisconn.NewDedicated(ring, redistest.Wheel(t), 2)
	closing(t, d)
	require.Nil(t, d.Single())
	names := []string{"n:0", "n:1", "n:2", "n:3", "n:4", "n:5", "n:6", "n:7"}
	for _, err := range acquire(t, d, names...) {
		require.NoError(t, err)
	}
	for _, name := range names {
		require.EqualValues(t, 1, ring.Exists(t.Context(), name).Val(), "where the caller finds it")
	}
	ring.SetAddrs(map[string]string{"a": servers[0].Addr(), "b": servers[2].Addr()})
	for _, err := range acquire(t, d, names...) {
		require.NoError(t, err)
	}
	for _, name := range names {
		require.EqualValues(t, 1, ring.Exists(t.Context(), name).Val(), "where the caller finds it now")
	}
	servers[2].Kill()
	failed := 0
	for i, err := range acquire(t, d, names...) {
		shard, _ := ring.GetShardClientForKey(names[i])
		if err != nil {
			failed++
			require.Equal(t, servers[2].Addr(), shard.Options().Addr)
		}
	}
	require.Less(t, failed, len(names))
}

// sentinels stand for those of a deployment: they say where the primary is.
type sentinels struct {
	mu      sync.Mutex
	primary string
	err     error
	hang    bool
	asked   int
}

func (s *sentinels) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	s.mu.Lock()
	s.asked++
	to, err, hang := s.primary, s.err, s.hang
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, network, to)
}

func (s *sentinels) looks() (n int) {
	s.set(func() { n = s.asked })
	return n
}

func (s *sentinels) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Both primaries are alive: the one that was deposed would go on answering for ever.
func TestDedicated_FollowsTheSentinels(t *testing.T) {
	t.Parallel()
	const lease = 300 * time.Millisecond // short: a look every 10 ms
	first, second := redistest.Start(t), redistest.Start(t)
	at := map[string]*redis.Client{"first": first.Client(t), "second": second.Client(t)}
	s := &sentinels{primary: first.Addr()}
	rdb := redis.NewClient(&redis.Options{Addr: "FailoverClient", Dialer: s.dial})
	t.Cleanup(func() { _ = rdb.Close() })
	d := redisconn.NewDedicated(rdb, redistest.Wheel(t), 4)
	closing(t, d)
	goesTo := func(where string) {
		t.Helper()
		name := redistest.Name(t)
		require.Equal(t, []error{nil}, acquire(t, d, name))
		for server, rdb := range at {
			want := int64(0)
			if server == where {
				want = 1
			}
			require.Equal(t, want, rdb.Exists(t.Context(), name).Val(), server)
		}
	}
	w := redistest.Wheel(t)
	pause := func() { require.NoError(t, w.Sleep(t.Context(), lease/10)) }

	d.Follow(t.Context(), lease)
	require.Zero(t, s.looks(), "there is no connection yet")
	goesTo("first")
	pause()
	d.Follow(t.Context(), lease)
	own := d.Single()
	goesTo("first")
	require.Same(t, own, d.Single())

	s.set(func() { s.primary = second.Addr() })
	goesTo("first")
	pause()
	d.Follow(t.Context(), lease)
	goesTo("second")
	require.NotSame(t, own, d.Single())

	// Sentinels that are away, or hang, change nothing, and cost little.
	s.set(func() { s.err = errors.New("no Sentinel") })
	pause()
	d.Follow(t.Context(), lease)
	goesTo("second")
	s.set(func() { s.hang = true })
	for range 3 {
		pause()
		require.Less(t, redistest.Running(t, func() { d.Follow(t.Context(), lease) }), 2*time.Second)
		goesTo("second")
	}
	asked := s.looks()
	d.Follow(t.Context(), lease)
	require.Equal(t, asked, s.looks(), "one look at a time")
	require.NoError(t, d.Close(t.Context()), "ends a look that hangs")
}

func TestDedicated_LooksOnceInAWhile(t *testing.T) {
	t.Parallel()
	s := &sentinels{primary: redistest.Shared(t).Addr()}
	rdb := redis.NewClient(&redis.Options{Addr: "FailoverClient", Dialer: s.dial})
	t.Cleanup(func() { _ = rdb.Close() })
	d := redisconn.NewDedicated(rdb, redistest.Wheel(t), 4)
	closing(t, d)
	require.Equal(t, []error{nil}, acquire(t, d, redistest.Name(t)))
	before, began := s.looks(), time.Now()
	for range 100 {
		d.Follow(t.Context(), time.Hour)
	}
	require.LessOrEqual(t, s.looks()-before, 2+int(time.Since(began)/time.Second), "at most one a second")
	require.GreaterOrEqual(t, s.looks()-before, 1)
}
