package ratelimit_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// inOutage runs f in a bubble with a Client that has LocalShare(2), beside a server that answers what is set.
func inOutage(t *testing.T, f func(t *testing.T, c *ratelimit.Client, answer func(string))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := &redistest.Replying{RoundTrip: time.Millisecond}
		rdb := server.Client(t)
		w, err := wheel.New()
		require.NoError(t, err)
		c, err := ratelimit.New(rdb, ratelimit.WithWheel(w), ratelimit.WithLogger(slog.New(slog.DiscardHandler)),
			ratelimit.WithPolicy(ratelimit.LocalShare(2)), ratelimit.WithBreaker(1, time.Second))
		require.NoError(t, err)
		f(t, c, func(text string) { server.Set(redistest.ParseReply(text)) })
		require.NoError(t, c.Close(t.Context()))
		require.NoError(t, rdb.Close())
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
		time.Sleep(time.Hour)
	})
}

// LocalShare knows the limit of a StoredLimiter for as long as an outage lasts.
func TestLocalShare_KeepsAStoredLimitDuringAnOutage(t *testing.T) {
	t.Parallel()
	inOutage(t, func(t *testing.T, c *ratelimit.Client, answer func(string)) {
		answer("( 60 60000 59 0 0 0 )")
		l := c.StoredLimiter("l")
		r, err := l.Allow(t.Context())
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceRedis, r.Source)
		answer("!LOADING_Redis_is_loading")
		for range 100 {
			r, err := l.Allow(t.Context())
			require.NoError(t, err)
			require.Equal(t, ratelimit.SourceDegraded, r.Source)
			require.True(t, r.Allowed, "half of one permit a second")
			time.Sleep(5 * time.Second)
		}
	})
}

// A tenant whose plan changes in an outage has no second share.
func TestLocalShare_IsOneForAllLimitsOfAKey(t *testing.T) {
	t.Parallel()
	inOutage(t, func(t *testing.T, c *ratelimit.Client, answer func(string)) {
		answer("!LOADING_Redis_is_loading")
		k := c.Limiter("k", ratelimit.PerHour(20))
		granted := int64(0)
		for rate := range int64(20) {
			r, err := k.With(ratelimit.PerHour(20-rate)).AllowUpTo(t.Context(), "key", 20)
			require.NoError(t, err)
			granted += r.Granted
		}
		require.EqualValues(t, 10, granted)
	})
}

// A share without permits says when the next one comes.
func TestLocalShare_AllowUpToNamesTheNextPermit(t *testing.T) {
	t.Parallel()
	inOutage(t, func(t *testing.T, c *ratelimit.Client, answer func(string)) {
		answer("!LOADING_Redis_is_loading")
		l := c.Limiter("k", ratelimit.PerHour(20))
		for _, granted := range []int64{10, 0} {
			r, err := l.AllowUpTo(t.Context(), "key", 20)
			require.NoError(t, err)
			require.Equal(t, granted, r.Granted)
			require.Equal(t, granted == 0, r.RetryAfter > 0)
			require.LessOrEqual(t, r.RetryAfter, 6*time.Minute)
		}
	})
}

// New connections are answered, but the pool has none for the limiter: then no decision waits for its timeout.
// Guarantees: Q38.
func TestBreaker_OpensWhileThePoolIsExhausted(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 1, -1 })
	c := newClient(t, rdb, ratelimit.WithTimeout(100*time.Millisecond), ratelimit.WithBreaker(2, 10*time.Millisecond))
	k, name := c.Limiter("k", ratelimit.PerHour(100)), redistest.Name(t)
	held := rdb.Conn()
	require.NoError(t, held.Ping(t.Context()).Err())
	redistest.Poll(t, func() bool {
		_, err := k.Allow(t.Context(), name)
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		return c.Stats().Down
	})
	require.NoError(t, held.Close())
	redistest.Poll(t, func() bool { return second(k.Allow(t.Context(), name)) == nil })
}

// A waiter that came in an outage, so that its line has never asked, is served after it although the limit was changed
// meanwhile.
func TestWait_OutlastsAResetInAnOutage(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	c := newClient(t, rdb, ratelimit.WithBreaker(1, 10*time.Millisecond))
	stored := c.StoredLimiter(redistest.Name(t))
	require.NoError(t, stored.SetRate(t.Context(), ratelimit.PerHour(5)))
	waits := map[string]func(context.Context) error{"stored": stored.Wait}
	changes := map[string]func() error{}
	for _, a := range shadowAlgorithms {
		k := c.Limiter(a.String(), ratelimit.PerHour(5), ratelimit.WithAlgorithm(a))
		waits[a.String()] = func(ctx context.Context) error { return k.WaitN(ctx, "key", 4) }
		changes[a.String()] = func() error { return k.Reset(t.Context(), "key") }
	}
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	redistest.Poll(t, func() bool {
		require.ErrorIs(t, second(c.Limiter("k", ratelimit.PerHour(9)).Allow(t.Context(), "key")), ratelimit.ErrUnavailable)
		return c.Stats().Down
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(map[string]chan error)
	for what, wait := range waits {
		end := make(chan error, 1)
		ended[what] = end
		go func() { end <- wait(ctx) }()
	}
	redistest.Poll(t, func() bool { return c.Stats().Waiting == len(waits) })
	for _, change := range changes {
		require.NoError(t, change())
	}
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	require.NoError(t, stored.SetRate(t.Context(), ratelimit.PerHour(6)))
	for what, end := range ended {
		require.NoError(t, <-end, what)
	}
}
