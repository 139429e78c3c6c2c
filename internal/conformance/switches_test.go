package conformance_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// saving is a way in which a client saves scripts or round trips.
type saving uint8

const (
	pipelined saving = 1 << iota // a round trip has several scripts
	shared                       // a script has several calls
	local                        // a call is denied without a script
)

// pipelines counts the round trips that have several scripts.
type pipelines struct{ n atomic.Int64 }

func (h *pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		scripts := 0
		for _, cmd := range cmds {
			if strings.HasPrefix(cmd.Name(), "eval") {
				scripts++
			}
		}
		if scripts > 1 {
			h.n.Add(1)
		}
		return next(ctx, cmds)
	}
}

// serverCalls returns how often the server has run a command.
func serverCalls(t *testing.T, rdb *redis.Client, command string) (n int64) {
	t.Helper()
	stats, err := rdb.InfoMap(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	if stat := stats["Commandstats"]["cmdstat_"+command]; stat != "" { // absent before the first call
		_, err = fmt.Sscanf(stat, "calls=%d", &n)
		require.NoError(t, err)
	}
	return n
}

// used makes calls, and returns how many Redis and how many the client has answered.
type used func() (byRedis, byClient int64)

const callers = 200

func usedLocks(t *testing.T, rdb *redis.Client, opts ...redislock.Option) used {
	t.Helper()
	c, err := redislock.New(rdb, append(opts, redislock.WithWheel(redistest.Wheel(t)))...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	name := redistest.Name(t)
	return func() (byRedis, byClient int64) {
		redistest.Each(t, 10*callers, func(i int) error {
			l, err := c.Mutex(fmt.Sprint(name, i)).Lock(context.Background())
			if err != nil {
				return err
			}
			return l.Unlock(context.Background())
		})
		return 2 * 10 * callers, 0
	}
}

// usedRenewals holds 20 locks.
func usedRenewals(t *testing.T, rdb *redis.Client, opts ...redislock.Option) used {
	t.Helper()
	c, err := redislock.New(rdb, append(opts, redislock.WithWheel(redistest.Wheel(t)))...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	const held = 20
	name := redistest.Name(t)
	redistest.Each(t, held, func(i int) error {
		return second(c.Mutex(fmt.Sprint(name, i), redislock.WithLease(lease)).Lock(context.Background()))
	})
	seen := int64(0)
	return func() (byRedis, byClient int64) {
		before := seen
		redistest.Poll(t, func() bool {
			seen = c.Stats().Renewal.Renewed
			return seen-before >= held
		})
		return seen - before, 0
	}
}

func usedSemaphores(t *testing.T, rdb *redis.Client, opts ...semaphore.Option) used {
	t.Helper()
	c, err := semaphore.New(rdb, append(opts, semaphore.WithWheel(redistest.Wheel(t)))...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	name := redistest.Name(t)
	return func() (byRedis, byClient int64) {
		redistest.Each(t, 10*callers, func(i int) error {
			g, err := c.Semaphore(fmt.Sprint(name, i), 1).Acquire(context.Background(), 1)
			if err != nil {
				return err
			}
			return g.Release(context.Background())
		})
		return 2 * 10 * callers, 0
	}
}

func openLimits(t *testing.T, rdb *redis.Client, opts []ratelimit.Option) *ratelimit.Client {
	t.Helper()
	opts = append(opts, ratelimit.WithWheel(redistest.Wheel(t)), ratelimit.WithTimeout(redistest.Patience/3))
	c, err := ratelimit.New(rdb, opts...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

// usedLimits makes decisions about one key and about many, and has one key denied.
func usedLimits(algorithm ratelimit.Algorithm) func(*testing.T, *redis.Client, ...ratelimit.Option) used {
	return func(t *testing.T, rdb *redis.Client, opts ...ratelimit.Option) used {
		t.Helper()
		c := openLimits(t, rdb, opts)
		limit := c.Limiter("many", ratelimit.PerHour(callers/2), ratelimit.WithAlgorithm(algorithm))
		once := c.Limiter("once", ratelimit.PerHour(1), ratelimit.WithAlgorithm(algorithm))
		return func() (byRedis, byClient int64) {
			var granted, ofRedis, ofClient atomic.Int64
			note := func(r ratelimit.Result, err error) error {
				granted.Add(r.Granted)
				if r.Source == ratelimit.SourceLocal {
					ofClient.Add(1)
				} else {
					ofRedis.Add(1)
				}
				return err
			}
			key := redistest.Name(t)
			ctx := redistest.Within(t, redistest.Patience) // ends: the calls do not run on the goroutines of their callers
			redistest.Each(t, callers, func(int) error { return note(limit.Allow(ctx, key)) })
			require.EqualValues(t, callers/2, granted.Swap(0))
			redistest.Each(t, callers, func(i int) error { return note(limit.Allow(context.Background(), fmt.Sprint(key, i))) })
			require.EqualValues(t, callers, granted.Swap(0))

			scripts, calls := serverCalls(t, rdb, "evalsha"), ofRedis.Load()
			for allowed := true; allowed; allowed = granted.Swap(0) > 0 {
				require.NoError(t, note(once.Allow(t.Context(), key)))
			}
			for range 20 {
				require.NoError(t, note(once.Allow(t.Context(), key)))
				require.NoError(t, note(once.AllowUpTo(t.Context(), key, 1)))
			}
			require.Equal(t, ofRedis.Load()-calls, serverCalls(t, rdb, "evalsha")-scripts, "a call alone shares nothing")
			redistest.Each(t, callers, func(int) error { return note(once.Allow(t.Context(), key)) })
			require.Zero(t, granted.Load())
			return ofRedis.Load(), ofClient.Load()
		}
	}
}

// usedKeys makes one decision about each of many keys.
func usedKeys(algorithm ratelimit.Algorithm) func(*testing.T, *redis.Client, ...ratelimit.Option) used {
	return func(t *testing.T, rdb *redis.Client, opts ...ratelimit.Option) used {
		t.Helper()
		limit := openLimits(t, rdb, opts).Limiter("each", ratelimit.PerHour(1), ratelimit.WithAlgorithm(algorithm))
		return func() (byRedis, byClient int64) {
			key := redistest.Name(t)
			redistest.Each(t, 10*callers, func(i int) error {
				r, err := limit.Allow(context.Background(), fmt.Sprint(key, i))
				if err == nil && !r.Allowed {
					err = fmt.Errorf("request %d was denied", i)
				}
				return err
			})
			return 10 * callers, 0
		}
	}
}

// with passes options to what uses a client.
func with[O any](
	use func(t *testing.T, rdb *redis.Client, opts ...O) used, opts ...O,
) func(t *testing.T, rdb *redis.Client) used {
	return func(t *testing.T, rdb *redis.Client) used {
		t.Helper()
		return use(t, rdb, opts...)
	}
}

// Clients save scripts and round trips; shared scripts can be switched off, and calls succeed without them.
func TestSwitches(t *testing.T) {
	t.Parallel()
	const all = pipelined | shared
	type row struct {
		what      string
		use       func(t *testing.T, rdb *redis.Client) used
		on, never saving
	}
	rows := []row{
		{"locks", with(usedLocks), all, 0},
		{"locks, WithSharedScripts(false)", with(usedLocks, redislock.WithSharedScripts(false)), pipelined, shared},
		{"locks, the last option counts", with(
			usedLocks, redislock.WithSharedScripts(false), redislock.WithSharedScripts(true),
		), all, 0},
		{"renewals", with(usedRenewals), shared, 0},
		{"renewals, WithSharedScripts(false)", with(usedRenewals, redislock.WithSharedScripts(false)), 0, shared},
		{"semaphores", with(usedSemaphores), all, 0},
		{"semaphores, WithSharedScripts(false)", with(usedSemaphores, semaphore.WithSharedScripts(false)), pipelined, shared},
		{"semaphores, the last option counts", with(
			usedSemaphores, semaphore.WithSharedScripts(false), semaphore.WithSharedScripts(true),
		), all, 0},
	}
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.GCRA, ratelimit.FixedWindow, ratelimit.SlidingWindow} {
		use, what := usedLimits(algorithm), "limits, "+algorithm.String()
		rows = append(rows, row{what, with(use), all | local, 0})
	}
	gcra, windows := usedKeys(ratelimit.GCRA), usedKeys(ratelimit.FixedWindow)
	rows = append(rows,
		row{"limits of many keys", with(gcra), all, 0},
		row{"limits of many keys, WithSharedScripts(false)", with(gcra, ratelimit.WithSharedScripts(false)), pipelined, shared},
		row{"windows of many keys", with(windows), pipelined, shared},
	)
	for _, tt := range rows {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			rdb, h := redistest.Start(t).Client(t), &pipelines{}
			for _, s := range scripts.All() { // a script that the server does not know is sent twice
				require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
			}
			rdb.AddHook(h)
			use := tt.use(t, rdb)
			ctx, calls, before := redistest.Within(t, redistest.Patience), int64(0), serverCalls(t, rdb, "evalsha")
			for seen := saving(0); calls == 0 || seen&tt.on != tt.on; {
				require.NoError(t, ctx.Err())
				byRedis, byClient := use()
				calls += byRedis
				if h.n.Load() > 0 {
					seen |= pipelined
				}
				if serverCalls(t, rdb, "evalsha")-before < calls {
					seen |= shared
				}
				if byClient > 0 {
					seen |= local
				}
				require.Zero(t, seen&tt.never)
			}
			if tt.never == shared { // which CLIENT INFO precedes
				require.Zero(t, serverCalls(t, rdb, "client|info"))
			}
		})
	}
}
