package ratelimit_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// scriptHook counts scripts, and the pipelines that have several.
type scriptHook struct {
	mu                 sync.Mutex
	scripts, pipelines int
}

func (h *scriptHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *scriptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.see(cmd)
		return next(ctx, cmd)
	}
}

func (h *scriptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.see(cmds...)
		return next(ctx, cmds)
	}
}

func (h *scriptHook) see(cmds ...redis.Cmder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.scripts
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "evalsha") {
			h.scripts++
		}
	}
	if h.scripts > before+1 {
		h.pipelines++
	}
}

func (h *scriptHook) counts() (scripts, pipelines int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.scripts, h.pipelines
}

// Each way in which decisions save scripts or round trips can be switched off, and the decisions stay the same.
func TestOptions_SwitchesOff(t *testing.T) {
	t.Parallel()
	const callers = 200
	limit := ratelimit.PerHour(callers / 2)
	hooked := func(t *testing.T, opts ...ratelimit.Option) (*ratelimit.Client, *scriptHook) {
		rdb, h := redistest.Shared(t).Client(t), &scriptHook{}
		rdb.AddHook(h)
		return newClient(t, rdb, opts...), h
	}
	// granted has callers ask for a permit each, at the same time, and returns how many were granted.
	granted := func(t *testing.T, ask func(i int) (ratelimit.Result, error)) (n int) {
		t.Helper()
		results := make(chan ratelimit.Result, callers)
		for i := range callers {
			go func() {
				r, err := ask(i)
				if err != nil {
					t.Error(err)
				}
				results <- r
			}()
		}
		for range callers {
			if r := <-results; r.Allowed {
				n++
			}
		}
		return n
	}

	for what, algorithm := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			t.Run("WithBatching: calls for a key share scripts, unless it is false", func(t *testing.T) {
				t.Parallel()
				for _, on := range []bool{true, false} {
					c, h := hooked(t, ratelimit.WithBatching(on), ratelimit.WithLocalDenial(false))
					k, key := c.Limiter("k", limit, ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
					ctx := within(t, patience) // ends: the calls do not run on the goroutines of their callers
					require.EqualValues(t, limit.Burst, granted(t, func(int) (ratelimit.Result, error) {
						return k.Allow(ctx, key)
					}))
					scripts, _ := h.counts()
					if on {
						require.Less(t, scripts, callers)
					} else {
						require.GreaterOrEqual(t, scripts, callers)
					}
				}
			})

			t.Run("WithBatching: keys share pipelines, unless it is false", func(t *testing.T) {
				t.Parallel()
				for _, on := range []bool{true, false} {
					c, h := hooked(t, ratelimit.WithBatching(on))
					k, key := c.Limiter("k", limit, ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
					round := func() (pipelines int) {
						require.Equal(t, callers, granted(t, func(i int) (ratelimit.Result, error) {
							return k.Allow(context.Background(), fmt.Sprint(key, i))
						}))
						_, pipelines = h.counts()
						return pipelines
					}
					if on {
						redistest.Poll(t, func() bool { return round() > 0 })
					} else {
						require.Zero(t, round())
					}
				}
			})

			t.Run("WithLocalDenial: a denial is remembered, unless it is false", func(t *testing.T) {
				t.Parallel()
				for _, on := range []bool{true, false} {
					c, h := hooked(t, ratelimit.WithLocalDenial(on))
					k, key := c.Limiter("k", ratelimit.PerHour(1), ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
					deny := func() ratelimit.Result {
						r, err := k.Allow(t.Context(), key)
						require.NoError(t, err)
						return r
					}
					for deny().Allowed {
					}
					before, _ := h.counts()
					local := 0
					for range 20 {
						r := deny()
						require.False(t, r.Allowed)
						upTo, err := k.AllowUpTo(t.Context(), key, 1)
						require.NoError(t, err)
						require.Zero(t, upTo.Granted)
						if r.Source == ratelimit.SourceLocal {
							local++
						}
					}
					after, _ := h.counts()
					if on {
						require.Positive(t, local)
						require.Less(t, after-before, 40)
					} else {
						require.Equal(t, 40, after-before)
					}
					var crowd atomic.Int64 // many at once: the client knows the denial while others ask
					require.Zero(t, granted(t, func(int) (ratelimit.Result, error) {
						r, err := k.Allow(t.Context(), key)
						if r.Source == ratelimit.SourceLocal {
							crowd.Add(1)
						}
						return r, err
					}))
					require.Equal(t, on, int64(local)+crowd.Load() > 0)
				}
			})
		})
	}

	t.Run("without both, the policy decides in a hang, and a call overtakes no waiter", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		off := []ratelimit.Option{ratelimit.WithBatching(false), ratelimit.WithLocalDenial(false)}
		patient := newClient(t, server.Client(t), off...)
		k := patient.Limiter("k", ratelimit.PerHour(1))
		r, err := k.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		k.WaitFunc(ctx, "key", 1, func(err error) { over <- err })
		r, err = k.Allow(t.Context(), "key")
		require.NoError(t, err)
		require.False(t, r.Allowed)
		cancel()
		require.ErrorIs(t, <-over, context.Canceled)

		hasty := newClient(t, server.Client(t), append(off, ratelimit.WithTimeout(20*time.Millisecond))...)
		k = hasty.Limiter("k", ratelimit.PerHour(1))
		server.Pause()
		_, err = k.Allow(t.Context(), "key")
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err = patient.Limiter("k", ratelimit.PerHour(1)).Allow(ctx, "other")
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		server.Resume()
	})
}
