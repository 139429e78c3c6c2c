package redislock_test

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
	"github.com/cogwheel-go/cogwheel/redislock"
)

// tripHook records how calls travel: pipelines of several scripts, and scripts with several keys.
type tripHook struct{ pipelines, shared atomic.Int64 }

func (h *tripHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *tripHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.see(cmd)
		return next(ctx, cmd)
	}
}

func (h *tripHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		calls := 0
		for _, cmd := range cmds {
			calls += h.see(cmd)
		}
		if calls > 1 {
			h.pipelines.Add(1)
		}
		return next(ctx, cmds)
	}
}

func (h *tripHook) see(cmd redis.Cmder) (calls int) {
	if !strings.HasPrefix(cmd.Name(), "eval") {
		return 0
	}
	if fmt.Sprint(cmd.Args()[2]) != "1" {
		h.shared.Add(1)
	}
	return 1
}

// Each way in which calls of several callers travel together can be switched off, and the calls succeed without it.
func TestOptions_SwitchesOff(t *testing.T) {
	t.Parallel()
	const callers = 200
	// lockAll has many callers lock and unlock a name each, until done, or for 10 rounds.
	lockAll := func(t *testing.T, c *redislock.Client, done func() bool) {
		t.Helper()
		for round := 0; round < 10 || !done(); round++ {
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					l, err := c.Mutex(fmt.Sprintf("%s:%d", redistest.Name(t), i)).Lock(context.Background())
					if err == nil {
						err = l.Unlock(context.Background())
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			require.NoError(t, within(t, patience).Err())
		}
	}
	for what, tt := range map[string]struct {
		opts              []redislock.Option
		pipelines, shared bool
	}{
		"by default, calls share pipelines and scripts": {nil, true, true},
		"WithSharedScripts(false): a script has one lock": {
			[]redislock.Option{redislock.WithSharedScripts(false)}, true, false,
		},
		"WithBatching(false): a round trip has one call": {
			[]redislock.Option{redislock.WithBatching(false)}, false, false,
		},
		"the last option counts": {[]redislock.Option{
			redislock.WithBatching(false), redislock.WithSharedScripts(false),
			redislock.WithBatching(true), redislock.WithSharedScripts(true),
		}, true, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb, h := redistest.Start(t).Client(t), &tripHook{}
			c := newClient(t, rdb, tt.opts...)
			rdb.AddHook(h)
			lockAll(t, c, func() bool {
				return (h.pipelines.Load() > 0 || !tt.pipelines) && (h.shared.Load() > 0 || !tt.shared)
			})
			require.Equal(t, tt.pipelines, h.pipelines.Load() > 0)
			require.Equal(t, tt.shared, h.shared.Load() > 0)
		})
	}

	t.Run("WithSharedScripts(false): a renewal has one lock", func(t *testing.T) {
		t.Parallel()
		for _, shares := range []bool{true, false} {
			rdb := redistest.Start(t).Client(t)
			c := newClient(t, rdb, redislock.WithSharedScripts(shares),
				redislock.WithLockDefaults(redislock.WithLease(redistest.SafeLease)))
			const held = 20
			for i := range held {
				mustLock(t, c.Mutex(fmt.Sprintf("%s:%d", redistest.Name(t), i)))
			}
			// As scripts are counted before the first renewals and after the last, a count below that of the renewals
			// shows that one was shared.
			scripts := func() int { return serverCalls(t, rdb, "evalsha") + serverCalls(t, rdb, "eval") }
			before, extended := scripts(), serverCalls(t, rdb, "pexpire")
			renewals := func() int { return serverCalls(t, rdb, "pexpire") - extended }
			if shares {
				poll(t, func() bool { n := renewals(); return scripts()-before < n })
			} else {
				poll(t, func() bool { return renewals() >= held })
				n := renewals()
				require.GreaterOrEqual(t, scripts()-before, n)
				require.Zero(t, serverCalls(t, rdb, "client|info"))
			}
		}
	})

	t.Run("WithLockDefaults(WithHandoff(0, 0)): each acquisition asks Redis", func(t *testing.T) {
		t.Parallel()
		const waiters = 20
		for _, on := range []bool{true, false} {
			handoff := redislock.WithHandoff(waiters, time.Minute) // longer than any machine needs
			if !on {
				handoff = redislock.WithHandoff(0, 0)
			}
			rdb := redistest.Start(t).Client(t)
			n := &commandCounter{n: make(map[string]int)}
			rdb.AddHook(n)
			m := newClient(t, rdb, redislock.WithLockDefaults(handoff)).Mutex(redistest.Name(t))
			held := mustLock(t, m)
			order := startLockFuncs(t, m, waiters)
			before := n.scriptCalls()
			mustUnlock(t, held)
			for range waiters {
				<-order
			}
			if on {
				require.Less(t, n.scriptCalls()-before, waiters)
			} else {
				require.GreaterOrEqual(t, n.scriptCalls()-before, 2*waiters-1, "an acquisition and a release each")
			}
		}
	})
}
