package ratelimit_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// barrier is a hook that keeps commands from the server while it is shut, and counts the keys that they name.
type barrier struct {
	mu     sync.Mutex
	opened chan struct{} // nil while it is open

	keys, batches, most atomic.Int64
}

func (b *barrier) shut() (open func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	opened := make(chan struct{})
	b.opened = opened
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.opened = nil
		close(opened)
	})
}

func (b *barrier) pass(cmds ...redis.Cmder) {
	b.mu.Lock()
	opened := b.opened
	b.mu.Unlock()
	if opened == nil {
		return
	}
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") {
			b.keys.Add(int64(cmd.Args()[2].(int)))
		}
	}
	n := b.batches.Add(1)
	defer b.batches.Add(-1)
	for most := b.most.Load(); n > most && !b.most.CompareAndSwap(most, n); most = b.most.Load() {
	}
	<-opened
}

func (*barrier) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *barrier) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		b.pass(cmd)
		return next(ctx, cmd)
	}
}

func (b *barrier) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		b.pass(cmds...)
		return next(ctx, cmds)
	}
}

// A call whose caller has left before it was sent is never sent. However many leave, they leave while all that was sent
// is held up, and however many calls there are, few goroutines send them.
// Guarantees: Q14.
func TestAllow_ACallThatWasAbandonedIsNeverSent(t *testing.T) {
	redistest.SkipIfShort(t)
	const callers, most = 12_000, 18
	b := &barrier{}
	// Nothing is suspect because it is slow: a check would find the server well and let more batches go.
	rdb := redistest.Start(t).Client(t, func(o *redis.Options) { o.ReadTimeout = time.Hour })
	rdb.AddHook(b)
	c := newClient(t, rdb, ratelimit.WithTimeout(time.Hour))
	k := c.Limiter("k", ratelimit.PerHour(10))
	require.NoError(t, second(k.Allow(t.Context(), "first")))
	open := b.shut()
	defer open()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, callers)
	for i := range callers {
		go func() { ended <- second(k.Allow(ctx, fmt.Sprint(i))) }()
	}
	redistest.Poll(t, func() bool { return ratelimit.Kept(c) >= callers && b.batches.Load() == most })
	sent := b.keys.Load()
	require.Less(t, sent, int64(callers))
	cancel()
	for range callers {
		require.ErrorIs(t, <-ended, context.Canceled)
	}
	t.Logf("%d of %d calls sent", sent, callers)
	open()
	require.NoError(t, c.Close(t.Context()))
	require.Equal(t, sent, b.keys.Load())
	require.EqualValues(t, most, b.most.Load())
	require.Equal(t, sent+1, rdb.DBSize(t.Context()).Val())
}

// A reservation that was abandoned before it was sent is never sent, and one that was is given back.
// Guarantees: Q14.
func TestReserve_WhatWasAbandonedIsGivenBack(t *testing.T) {
	t.Parallel()
	for what, reserve := range map[string]func(ctx context.Context, c *ratelimit.Client, k *ratelimit.Limiter, key string) error{
		"Reserve": func(ctx context.Context, _ *ratelimit.Client, k *ratelimit.Limiter, key string) error {
			return second(k.Reserve(ctx, key, 4))
		},
		"TryReserve": func(ctx context.Context, _ *ratelimit.Client, k *ratelimit.Limiter, key string) error {
			return second(k.TryReserve(ctx, key, 4))
		},
		"TryReserve of several limits": func(ctx context.Context, c *ratelimit.Client, k *ratelimit.Limiter, key string) error {
			return second(c.All(k.Part(key), c.Limiter("other", ratelimit.PerHour(10)).Part(key).Cost(2)).TryReserve(ctx, 4))
		},
	} {
		for kind, algorithm := range kinds {
			t.Run(what+", "+kind, func(t *testing.T) {
				t.Parallel()
				b := &barrier{}
				rdb := redistest.Shared(t).Client(t)
				rdb.AddHook(b)
				c := newClient(t, rdb)
				k, name := c.Limiter("k", ratelimit.PerHour(10), ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
				other := c.Limiter("other", ratelimit.PerHour(10))
				require.NoError(t, second(k.Peek(t.Context(), name)))
				open := b.shut()
				defer open()
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- reserve(ctx, c, k, name) }()
				redistest.Poll(t, func() bool { return b.batches.Load() == 1 })
				cancel()
				require.ErrorIs(t, <-ended, context.Canceled)
				open()
				returns := int64(1)
				if strings.Contains(what, "several") {
					returns = 2
				}
				redistest.Poll(t, func() bool { return c.Stats().Scripts >= 2+returns })
				redistest.Poll(t, func() bool {
					r, err := k.Peek(t.Context(), name)
					both, otherErr := other.Peek(t.Context(), name)
					return err == nil && otherErr == nil && r.Remaining == 10 && both.Remaining == 10
				})
			})
		}
	}
}

// No call fails because there are many.
func TestAllow_AnyNumberOfCallsAtOnce(t *testing.T) {
	redistest.SkipIfShort(t)
	c := newClient(t, redistest.Start(t).Client(t), ratelimit.WithTimeout(time.Hour))
	k := c.Limiter("k", ratelimit.PerHour(10))
	callers := testsize.WhenAlone(20_000, 50_000)
	ended := make(chan error, callers)
	for i := range callers {
		go func() { ended <- second(k.Allow(context.Background(), fmt.Sprint(i))) }()
	}
	for range callers {
		require.NoError(t, <-ended)
	}
	require.EqualValues(t, callers, c.Stats().Allowed)
}

// A call's time counts from its own arrival, not from that of others with whom it is sent.
func TestAllow_EachCallHasItsOwnTime(t *testing.T) {
	t.Parallel()
	b := &barrier{}
	rdb := redistest.Shared(t).Client(t)
	rdb.AddHook(b)
	const timeout = time.Second
	c := newClient(t, rdb, ratelimit.WithTimeout(timeout), ratelimit.WithPolicy(ratelimit.FailOpen()), ratelimit.WithBreaker(100, time.Hour))
	k, name := c.Limiter("k", ratelimit.PerHour(1000)), redistest.Name(t)
	require.NoError(t, second(k.Allow(t.Context(), name)))
	open := b.shut()
	defer open()
	took := make(chan time.Duration, 60)
	w := newWheel(t)
	for i := range 60 {
		if i == 5 || i == 40 {
			require.NoError(t, w.Sleep(t.Context(), timeout/3))
		}
		go func() {
			began := time.Now()
			r, err := k.Allow(t.Context(), name)
			if err != nil || r.Source != ratelimit.SourceDegraded {
				t.Error(r, err)
			}
			took <- time.Since(began)
		}()
	}
	for range 60 {
		require.GreaterOrEqual(t, <-took, timeout-time.Millisecond)
	}
}

// The redis client is left as it was, however many Clients were made for it.
// Guarantees: Q36.
func TestClose_LeavesNothingWithTheRedisClient(t *testing.T) {
	redistest.SkipIfShort(t)
	rdb := redistest.Shared(t).Client(t)
	w, ctx := newWheel(t), t.Context()
	depth := func() (frames int) {
		var hook depthHook
		rdb.AddHook(&hook)
		require.NoError(t, rdb.Ping(ctx).Err())
		return hook.frames
	}
	before := depth()
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	use := func() {
		c, err := ratelimit.New(rdb, ratelimit.WithWheel(w), ratelimit.WithTimeout(patience))
		require.NoError(t, err)
		require.NoError(t, second(c.Limiter("k", ratelimit.PerHour(1)).Allow(ctx, redistest.Name(t))))
		require.NoError(t, c.Close(ctx))
	}
	use()
	heapBefore, goroutines := heap(), runtime.NumGoroutine()
	for range 1000 {
		use()
	}
	grown := heap() - heapBefore
	require.Less(t, grown, int64(1000<<10), "1 KB each")
	require.Greater(t, grown, int64(-4<<20), "the measurement is worth something")
	redistest.Poll(t, func() bool { return runtime.NumGoroutine() < goroutines+10 }) // of 1000 Clients
	require.Equal(t, before+hookFrames, depth(), "the hook of the first measurement, and no more")
}

// hookFrames is how many frames one depthHook adds to the stack.
const hookFrames = 1

// depthHook notes how deep the stack is below which a command is processed.
type depthHook struct{ frames int }

func (*depthHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*depthHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *depthHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "ping" {
			h.frames = runtime.Callers(0, make([]uintptr, 1<<16))
		}
		return next(ctx, cmd)
	}
}

// Close ends soon while Redis hangs, whatever is in flight, with the timeouts that a redis client has by default.
func TestClose_IsShortWhileRedisHangs(t *testing.T) {
	redistest.SkipIfShort(t)
	for _, inFlight := range []int{0, 1, 50} {
		t.Run(fmt.Sprint(inFlight), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer rdb.Close()
			c, err := ratelimit.New(rdb, ratelimit.WithWheel(newWheel(t)))
			require.NoError(t, err)
			k := c.Limiter("k", ratelimit.PerHour(10))
			redistest.Poll(t, func() bool { return second(k.Allow(t.Context(), "first")) == nil })
			server.Pause()
			defer server.Resume()
			ended := make(chan error, inFlight)
			for i := range inFlight {
				go func() { ended <- second(k.Allow(t.Context(), fmt.Sprint(i))) }()
			}
			redistest.Poll(t, func() bool { return ratelimit.UnderWay(c) == inFlight })
			took := redistest.Running(t, func() { require.NoError(t, c.Close(t.Context())) })
			require.Less(t, took, rdb.Options().ReadTimeout+2*time.Second)
			for range inFlight {
				require.ErrorIs(t, answer(t, ended), ratelimit.ErrUnavailable)
			}
		})
	}
}
