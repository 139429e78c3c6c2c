package ratelimit_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// recorder keeps the arguments of every command.
type recorder struct {
	mu   sync.Mutex
	args []any
}

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.mu.Lock()
		r.args = append(r.args, cmd.Args()...)
		r.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (r *recorder) all() []any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.args
}

// timesIn returns the arguments that are a time of this year, in whatever unit.
func timesIn(args []any, now time.Time) (found []any) {
	const year = 365 * 24 * 3600
	for _, a := range args {
		v, err := strconv.ParseFloat(fmt.Sprint(a), 64)
		for _, unit := range []float64{1, 1e3, 1e6, 1e9} {
			if at := v / unit; err == nil && at > float64(now.Unix()-year) && at < float64(now.Unix()+year) {
				found = append(found, a)
			}
		}
	}
	return found
}

// impatient makes a client whose timeouts are short, but long enough for a slow machine. Connecting to a server that
// hangs succeeds.
func impatient(o *redis.Options) {
	o.MaxRetries, o.DialTimeout, o.ReadTimeout, o.WriteTimeout = -1, 5*time.Second, 300*time.Millisecond, 300*time.Millisecond
	o.DialerRetries = 1
}

// Guarantees: Q5.
func TestDown_PolicyDecidesAtTheSpeedOfMemory(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx := t.Context()
	limit := ratelimit.PerHour(100)
	open := ratelimit.WithBreaker(1, 20*time.Millisecond)
	policies := map[string]ratelimit.Option{
		"closed": ratelimit.WithPolicy(ratelimit.FailClosed()),
		"open":   ratelimit.WithPolicy(ratelimit.FailOpen()),
		"share":  ratelimit.WithPolicy(ratelimit.LocalShare(4)),
	}
	clients := map[string]*ratelimit.Client{}
	for what, p := range policies {
		clients[what] = newClient(t, server.Client(t, impatient), p, open)
		await(t, "an answer within the timeout", func() bool {
			r, err := clients[what].Limiter("k", limit).Allow(ctx, what)
			return err == nil && r.Source == ratelimit.SourceRedis
		})
	}
	server.Pause()
	for what, c := range clients {
		k := c.Limiter("k", limit)
		_, _ = k.Allow(ctx, what) // finds out
		require.True(t, c.Stats().Down)
		granted, failed := 0, 0
		stalled, began := redistest.Stalls(t), time.Now()
		for range 1000 {
			switch r, err := k.Allow(ctx, what); {
			case err != nil:
				require.ErrorIs(t, err, ratelimit.ErrUnavailable)
				failed++
			case r.Allowed:
				require.Equal(t, ratelimit.SourceDegraded, r.Source)
				granted++
			default:
				require.Positive(t, r.RetryAfter)
			}
		}
		require.Less(t, time.Since(began)-stalled(), 2*time.Second, "a thousand timeouts would take much longer")
		switch what {
		case "closed":
			require.Equal(t, 1000, failed)
		case "open":
			require.Equal(t, 1000, granted)
		case "share":
			require.LessOrEqual(t, granted, 25)
			require.GreaterOrEqual(t, granted, 24) // one went to the call that found out
		}
		require.GreaterOrEqual(t, c.Stats().Degraded, int64(1000))
	}

	// Waiters go on waiting, and are served once Redis is back.
	done := make(chan error, 1)
	clients["closed"].Limiter("k", limit).WaitFunc(ctx, "waiter", 1, func(err error) { done <- err })
	_, err := clients["closed"].Limiter("k", limit).Allow(within(t, 50*time.Millisecond), "other")
	require.Error(t, err)
	server.Resume()
	require.NoError(t, <-done)
	await(t, "the client to see that Redis is back", func() bool { return !clients["closed"].Stats().Down })
	r, err := clients["closed"].Limiter("k", limit).Allow(ctx, "after")
	require.NoError(t, err)
	require.Equal(t, ratelimit.SourceRedis, r.Source)
}

func TestDown_AContextEndsTheCallWhileRedisHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t))
	k := c.Limiter("k", ratelimit.PerHour(100))
	_, err := k.Allow(t.Context(), "u")
	require.NoError(t, err)
	server.Pause()
	defer server.Resume()
	stalled, began := redistest.Stalls(t), time.Now()
	_, err = k.Allow(within(t, 50*time.Millisecond), "u")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, k.Wait(within(t, 50*time.Millisecond), "u"), context.DeadlineExceeded)
	require.Less(t, time.Since(began)-stalled(), 2*time.Second)
}
