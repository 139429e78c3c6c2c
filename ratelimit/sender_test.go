package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// mostPipelines is the largest number of pipelines to one server at a time: package calls sends two, and more while up to
// sixteen are slow.
const mostPipelines = 2 + 16

// delayed returns a limiter client whose replies are slow, so that others arrive meanwhile.
func delayed(t *testing.T) (*ratelimit.Client, *redis.Client, *redistest.FaultDialer, *counter) {
	t.Helper()
	d, n := &redistest.FaultDialer{}, &counter{}
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) {
		o.Dialer, o.DialerRetries, o.PoolSize = d.Dial, 1, mostPipelines
	})
	rdb.AddHook(n)
	c := newClient(t, rdb)
	_, err := c.Limiter("warm", ratelimit.PerHour(1)).Allow(t.Context(), redistest.Name(t))
	require.NoError(t, err)
	d.Delay(0, 100*time.Millisecond)
	return c, rdb, d, n
}

// each calls f for so many keys at the same time.
func each(keys int, f func(i int)) {
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

func TestSender_CallersOfDifferentKeysShareRoundTrips(t *testing.T) {
	t.Parallel()
	const keys = 200
	for what, algorithm := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, _, _, trips := delayed(t)
			k, name := c.Limiter("k", ratelimit.PerHour(3), ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
			allow := func(want bool, left int64) func(i int) {
				return func(i int) {
					r, err := k.Allow(t.Context(), fmt.Sprint(name, i))
					require.NoError(t, err)
					require.Equal(t, want, r.Allowed)
					require.Equal(t, left, r.Remaining)
				}
			}
			for left := int64(2); left >= 0; left-- {
				n := trips.trips(func() { each(keys, allow(true, left)) })
				require.Less(t, n, int64(keys/4), "calls that arrive while a pipeline is under way join the next one")
				t.Logf("%d keys in %d round trips", keys, n)
			}
			each(keys, allow(false, 0))
			require.Equal(t, int64(3*keys+1), c.Stats().Allowed)
			require.Equal(t, int64(keys), c.Stats().Denied)
		})
	}
}

func TestSender_WaitersOfDifferentKeysShareRoundTrips(t *testing.T) {
	t.Parallel()
	const keys = 100
	c, _, _, trips := delayed(t)
	k, name := c.Limiter("k", ratelimit.PerHour(3)), redistest.Name(t)
	n := trips.trips(func() {
		each(keys, func(i int) { require.NoError(t, k.Wait(within(t, patience), fmt.Sprint(name, i))) })
	})
	require.Less(t, n, int64(keys/2))
	t.Logf("%d waiters in %d round trips", keys, n)
}

func TestSender_ABadKeyIsItsCallersAlone(t *testing.T) {
	t.Parallel()
	const keys = 60
	c, rdb, _, trips := delayed(t)
	k, name := c.Limiter("k", ratelimit.PerHour(3)), redistest.Name(t)
	_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := 0; i < keys; i += 3 {
			p.LPush(t.Context(), fmt.Sprintf("k:{%s%d}", name, i), 1)
		}
		return nil
	})
	require.NoError(t, err)
	n := trips.trips(func() {
		each(keys, func(i int) {
			r, err := k.Allow(t.Context(), fmt.Sprint(name, i))
			if i%3 == 0 {
				require.ErrorIs(t, err, ratelimit.ErrWrongKind)
			} else {
				require.NoError(t, err)
				require.True(t, r.Allowed)
			}
		})
	})
	require.Less(t, n, int64(keys/2))
	require.False(t, c.Stats().Down)
}

func TestSender_AServerThatForgotTheScriptIsTold(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t))
	k := c.Limiter("k", ratelimit.PerHour(10))
	for range 5 {
		require.NoError(t, server.Client(t).ScriptFlush(t.Context()).Err())
		each(50, func(i int) {
			_, err := k.Allow(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
		})
	}
	each(50, func(i int) {
		r, err := k.Allow(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
		require.Equal(t, int64(4), r.Remaining, "each was charged once each time")
	})
}

// A pipeline whose reply is lost while new connections are refused fails all its callers, charges them once, and is one
// failure to the breaker.
func TestSender_ALostPipelineIsOneFailureAndChargesOnce(t *testing.T) {
	t.Parallel()
	const keys = 60
	c, rdb, d, _ := delayed(t)
	k, name := c.Limiter("k", ratelimit.PerHour(3)), redistest.Name(t)
	lost := d.LoseReply(fmt.Sprintf("{%s%d}", name, keys/2), 1, redistest.Cut) // of the pipeline with that key
	// These calls make the connections. No later pipeline needs a new one, however slowly its callers come.
	each(mostPipelines, func(int) { rdb.BLPop(t.Context(), time.Second, name) })
	d.Set(redistest.Refuse)
	var failed atomic.Int64
	each(keys, func(i int) {
		if _, err := k.Allow(t.Context(), fmt.Sprint(name, i)); err != nil {
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			failed.Add(1)
		}
	})
	<-lost
	t.Logf("%d callers of the pipeline", failed.Load())
	require.Positive(t, failed.Load())
	require.Equal(t, int64(1), c.Stats().Failures)
	require.False(t, c.Stats().Down)
	d.Set(redistest.Pass)
	d.Delay(0, 0)
	for i := range keys {
		require.Equal(t, int64(1), rdb.Exists(t.Context(), fmt.Sprintf("k:{%s%d}", name, i)).Val())
		r, err := k.Peek(t.Context(), fmt.Sprint(name, i))
		require.NoError(t, err)
		require.Equal(t, int64(2), r.Remaining)
	}
}

// Of the callers whose contexts have no deadline and are cancelled while Redis hangs, only the one that sends
// is kept, and not for long.
func TestSender_CallersThatJoinLeaveAtOnceWhenCancelled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 2*time.Second, -1 }))
	k := c.Limiter("k", ratelimit.PerHour(100))
	_, err := k.Allow(t.Context(), "warm")
	require.NoError(t, err)
	server.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	const callers = 20
	began := time.Now()
	ended := make(chan time.Duration, callers)
	for i := range callers {
		go func() {
			_, err := k.Allow(ctx, fmt.Sprint(i))
			if err == nil {
				t.Error("granted while Redis hangs")
			}
			ended <- time.Since(began)
		}()
	}
	await(t, "every call to be in its lane", func() bool { return ratelimit.States(k) >= callers })
	cancel()
	soon := 0
	for range callers {
		d := <-ended
		require.Less(t, d, patience)
		if d < 1500*time.Millisecond {
			soon++
		}
	}
	server.Resume()
	require.GreaterOrEqual(t, soon, callers-2)
}

// One node of a cluster that hangs holds up the keys of no other.
func TestSender_ANodeThatHangsHoldsUpItsOwnKeysOnly(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, noFailover...)
	rdb := cluster.Client(t, func(o *redis.ClusterOptions) { o.ReadTimeout, o.MaxRedirects = 3*time.Second, 1 })
	c := newClient(t, rdb, ratelimit.WithBreaker(1000, time.Second))
	k := c.Limiter("k", ratelimit.PerHour(100))
	hangs := cluster.Owner(t, "k:{0}")
	var theirs, others []string
	for i := 0; len(theirs) < 20 || len(others) < 40; i++ {
		name := fmt.Sprint(i)
		_, err := k.Allow(t.Context(), name)
		require.NoError(t, err)
		master, err := rdb.MasterForKey(t.Context(), "k:{"+name+"}")
		require.NoError(t, err)
		if master.Options().Addr == hangs.Addr() {
			theirs = append(theirs, name)
		} else {
			others = append(others, name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	hangs.Pause()
	var stuck sync.WaitGroup
	for _, name := range theirs {
		stuck.Go(func() { _, _ = k.Allow(ctx, name) })
	}
	stalled, began := redistest.Stalls(t), time.Now()
	for range 5 {
		each(len(others), func(i int) {
			_, err := k.Allow(t.Context(), others[i])
			require.NoError(t, err)
		})
	}
	require.Less(t, time.Since(began)-stalled(), 2*time.Second)
	hangs.Resume()
	cancel()
	stuck.Wait()
}
