package conformance_test

import (
	"context"
	"errors"
	"iter"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// packages are the packages whose rights docs/operations.md documents.
var packages = map[string]struct {
	// check checks a client with objects of all kinds, or without objects.
	check func(t *testing.T, rdb redis.UniversalClient, objects bool) (*cogwheel.Report, error)
	// basics uses every kind of object in every way.
	basics func(t *testing.T, connect func() redis.UniversalClient)
}{
	"redislock": {
		check: func(t *testing.T, rdb redis.UniversalClient, objects bool) (*cogwheel.Report, error) {
			c, err := redislock.New(rdb, redislock.WithWheel(redistest.Wheel(t)))
			require.NoError(t, err)
			redistest.CloseWith(t, c.Close)
			if !objects {
				return c.Check(t.Context())
			}
			opts := []redislock.LockOption{redislock.WithFencing(), redislock.WithReplicas(1, time.Second)}
			return c.Check(t.Context(),
				c.Mutex("app:a", opts...), c.FairMutex("app:b", opts...), c.RWMutex("app:c", opts...),
				c.MultiMutex([]string{"app:d", "app:e"}))
		},
		basics: lockBasics,
	},
	"semaphore": {
		check: func(t *testing.T, rdb redis.UniversalClient, objects bool) (*cogwheel.Report, error) {
			c, err := semaphore.New(rdb, semaphore.WithWheel(redistest.Wheel(t)))
			require.NoError(t, err)
			redistest.CloseWith(t, c.Close)
			if !objects {
				return c.Check(t.Context())
			}
			return c.Check(t.Context(), c.CountingSemaphore("app:a"), c.Semaphore("app:b", 0), c.FairSemaphore("app:c", 0))
		},
		basics: semaphoreBasics,
	},
	"ratelimit": {
		check: func(t *testing.T, rdb redis.UniversalClient, objects bool) (*cogwheel.Report, error) {
			c, err := ratelimit.New(rdb, ratelimit.WithWheel(redistest.Wheel(t)), ratelimit.WithTimeout(redistest.Patience/3))
			require.NoError(t, err)
			redistest.CloseWith(t, c.Close)
			if !objects {
				return c.Check(t.Context())
			}
			limit, window := ratelimit.PerHour(1), ratelimit.WithAlgorithm(ratelimit.FixedWindow)
			return c.Check(t.Context(), c.Limiter("app:a", limit), c.Limiter("app:b", limit, window), c.StoredLimiter("app:c"))
		},
		basics: limitBasics,
	},
	"delay": {
		check: func(t *testing.T, rdb redis.UniversalClient, objects bool) (*cogwheel.Report, error) {
			c, err := delay.New(rdb, delay.WithWheel(redistest.Wheel(t)))
			require.NoError(t, err)
			redistest.CloseWith(t, c.Close)
			if !objects {
				return c.Check(t.Context())
			}
			return c.Check(t.Context(), c.Queue("app:a"))
		},
		basics: delayBasics,
	},
}

// kindOf splits rights into commands, keys and channels.
func kindOf(rights []string, kind string) (some []string) {
	for _, right := range rights {
		if strings.HasPrefix(right, kind) {
			some = append(some, right)
		}
	}
	slices.Sort(some)
	return some
}

// matches reports whether the pattern of a right allows a key or channel.
func matches(t *testing.T, pattern, missing string) bool {
	t.Helper()
	literal := strings.NewReplacer("[", `\[`, "/", "|")
	ok, err := path.Match(literal.Replace(pattern), strings.ReplaceAll(missing, "/", "|"))
	require.NoError(t, err)
	return ok
}

// The documented rights are exactly the rights that Check names: the same commands, and a pattern for every key and
// channel.
func TestRights_AreThoseThatCheckAsksFor(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	for name, pkg := range packages {
		documented := redistest.DocumentedRights(t, name, "app:")
		all, err := pkg.check(t, rdb, false)
		require.NoError(t, err)
		require.Equal(t, kindOf(all.Rights, "+"), kindOf(documented, "+"), name)
		require.Equal(t, all.Rights, kindOf(all.Rights, "+"), "without objects there are no keys and channels")
		some, err := pkg.check(t, rdb, true)
		require.NoError(t, err)
		require.Equal(t, kindOf(all.Rights, "+"), kindOf(some.Rights, "+"), name)
		for _, kind := range []string{"~", "&"} {
			patterns := kindOf(documented, kind)
			used := map[string]bool{}
			for _, right := range kindOf(some.Rights, kind) {
				at := slices.IndexFunc(patterns, func(pattern string) bool { return matches(t, pattern, right) })
				require.GreaterOrEqual(t, at, 0, "%s: no pattern for %s", name, right)
				used[patterns[at]] = true
			}
			require.Len(t, used, len(patterns), "%s: every pattern of %v is needed", name, patterns)
		}
	}
}

// Without one of the documented rights, Check names that right and no other.
func TestRights_CheckNamesTheOneThatIsMissing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, pkg := range packages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rights := redistest.DocumentedRights(t, name, "app:")
			check := func(user string, rights []string) (*cogwheel.Report, error) {
				return pkg.check(t, server.Client(t, server.User(t, name+user, rights...)), true)
			}
			report, err := check("all", rights)
			require.NoError(t, err, "%v", report)
			require.Empty(t, report.Missing())
			require.NotContains(t, []string{"warning", "failure"}, string(report.Level()), "%v", report)
			for _, right := range rights {
				without := slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == right })
				report, err := check(strings.Trim(right, "+~&*:"), without)
				require.NotEmpty(t, report.Missing(), "without %s: %v", right, report)
				for _, missing := range report.Missing() {
					require.True(t, missing == right || right[0] != '+' && matches(t, right, missing),
						"without %s Check names %s", right, missing)
				}
				if err != nil {
					require.Contains(t, err.Error(), "user "+report.User+" may not ")
					require.True(t, redis.HasErrorPrefix(errNoPerm(err), "NOPERM"), "%v", err)
				}
			}
			report, err = check("nearly-all", []string{"~*", "&*", "+@all", "-info", "-echo", "-keys"})
			require.NoError(t, err, "rights that are not needed")
			require.Empty(t, report.Missing(), "%v", report)
		})
	}
}

// errNoPerm returns the answer of the server that an error wraps.
func errNoPerm(err error) error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range many.Unwrap() {
			return one
		}
	}
	return err
}

// A user with only the documented rights can use every kind of object in every way: no command is refused, and none
// is sent without a right.
func TestRights_Suffice(t *testing.T) {
	t.Parallel()
	for name, pkg := range packages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			rights := redistest.DocumentedRights(t, name, "app:")
			login := server.User(t, "app", rights...)
			admin := server.Client(t)
			require.NoError(t, admin.ConfigResetStat(t.Context()).Err())
			pkg.basics(t, func() redis.UniversalClient {
				return server.Client(t, login, func(o *redis.Options) { o.DisableIdentity = true })
			})
			refused, err := admin.ACLLog(t.Context(), 100).Result()
			require.NoError(t, err)
			for _, r := range refused {
				// Check asks for INFO, the library for CLIENT INFO to share scripts, and go-redis for CLIENT MAINT_NOTIFICATIONS.
				// Redis 6.2 logs no subcommands.
				ours := slices.Contains([]string{"info", "client|info", "client|maint_notifications", "client"}, r.Object)
				require.True(t, ours, "%+v", r)
			}
			stats, err := admin.Info(t.Context(), "commandstats").Result()
			require.NoError(t, err)
			sent := regexp.MustCompile(`cmdstat_([a-z|_]+):`).FindAllStringSubmatch(stats, -1)
			require.Greater(t, len(sent), 20)
			others := []string{
				"hello", "client|maint_notifications", "client|setinfo", "client|info", "acl|log", "config|resetstat", "info",
				"client", "acl", "config", // Redis 6.2 counts no subcommands
			}
			for _, s := range sent {
				require.True(t, slices.Contains(rights, "+"+s[1]) || slices.Contains(others, s[1]), s[1])
			}
		})
	}
}

// calls runs f on a goroutine of its own and returns its error.
func calls(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func lockBasics(t *testing.T, connect func() redis.UniversalClient) {
	ctx := redistest.Within(t, redistest.Patience)
	w := redistest.Wheel(t)
	newClient := func() *redislock.Client {
		// Within an hour nothing but a message wakes a waiter.
		c, err := redislock.New(connect(), redislock.WithWheel(w), redislock.WithPoll(time.Hour))
		require.NoError(t, err)
		redistest.CloseWith(t, c.Close)
		return c
	}
	c, other := newClient(), newClient()
	fenced, lease := redislock.WithFencing(), redislock.WithLease(redistest.SafeLease)
	for name, kinds := range map[string][2]func(c *redislock.Client, opts ...redislock.LockOption) *redislock.Mutex{
		"plain":  {plainMutex, plainMutex},
		"fair":   {fairMutex, fairMutex},
		"writer": {writeMutex, writeMutex},
		"reader": {readMutex, writeMutex},
	} {
		m, conflicting := kinds[0](c, fenced, lease), kinds[1](other, fenced)
		for round := range 2 {
			l, err := m.Lock(ctx)
			require.NoError(t, err, name)
			_, err = conflicting.TryLock(ctx)
			require.ErrorIs(t, err, redislock.ErrLocked, name)
			waiting := calls(func() error { return conflicting.Do(ctx, func(context.Context) error { return nil }) })
			for before := l.Deadline(); round == 0 && l.Deadline().Equal(before); { // until it is renewed
				require.NoError(t, w.Sleep(ctx, 10*time.Millisecond))
			}
			require.NoError(t, l.Extend(ctx, time.Minute))
			state, err := m.State(ctx)
			require.NoError(t, err, name)
			require.True(t, state.Locked)
			require.NoError(t, l.Unlock(ctx))
			require.NoError(t, <-waiting, name)
		}
		l, err := m.Lock(ctx)
		require.NoError(t, err)
		freed, err := kinds[0](other).ForceUnlock(ctx)
		require.NoError(t, err)
		require.True(t, freed)
		require.ErrorIs(t, l.Unlock(ctx), redislock.ErrLost)
		_, err = kinds[0](c, redislock.WithReplicas(1, time.Millisecond)).Lock(ctx)
		require.ErrorIs(t, err, redislock.ErrReplicas)
	}
	writer, err := c.RWMutex("app:writer").Lock(ctx)
	require.NoError(t, err)
	reader, err := c.RWMutex("app:writer").Downgrade(ctx, writer)
	require.NoError(t, err)
	beside, err := other.RWMutex("app:writer").RLock(ctx)
	require.NoError(t, err)
	require.NoError(t, reader.Unlock(ctx))
	require.NoError(t, beside.Unlock(ctx))
	both, err := c.MultiMutex([]string{"app:one", "app:two"}).Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, both.Unlock(ctx))
	report, err := c.Check(ctx, c.MultiMutex([]string{"app:one", "app:two"}))
	require.NoError(t, err, "%v", report)
}

func plainMutex(c *redislock.Client, opts ...redislock.LockOption) *redislock.Mutex {
	return c.Mutex("app:plain", opts...)
}

func fairMutex(c *redislock.Client, opts ...redislock.LockOption) *redislock.Mutex {
	return c.FairMutex("app:fair", opts...)
}

func writeMutex(c *redislock.Client, opts ...redislock.LockOption) *redislock.Mutex {
	return c.RWMutex("app:rw", opts...).Writer()
}

func readMutex(c *redislock.Client, opts ...redislock.LockOption) *redislock.Mutex {
	return c.RWMutex("app:rw", opts...).Reader()
}

func semaphoreBasics(t *testing.T, connect func() redis.UniversalClient) {
	ctx := redistest.Within(t, redistest.Patience)
	w := redistest.Wheel(t)
	newClient := func() *semaphore.Client {
		c, err := semaphore.New(connect(), semaphore.WithWheel(w), semaphore.WithPoll(time.Hour))
		require.NoError(t, err)
		redistest.CloseWith(t, c.Close)
		return c
	}
	c, other := newClient(), newClient()
	s := c.CountingSemaphore("app:counting")
	set, err := s.TrySetPermits(ctx, 3)
	require.NoError(t, err)
	require.True(t, set)
	require.NoError(t, s.AddPermits(ctx, 1))
	require.NoError(t, s.Acquire(ctx, 4))
	waiting := calls(func() error { return other.CountingSemaphore("app:counting").Acquire(ctx, 3) })
	require.ErrorIs(t, s.TryAcquire(ctx, 1), semaphore.ErrNoPermits)
	require.NoError(t, s.Release(ctx, 4))
	require.NoError(t, <-waiting)
	drained, err := s.Drain(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, drained)
	require.NoError(t, second(s.Available(ctx)))

	for name, kind := range map[string]func(*semaphore.Client, string, int64, ...semaphore.SemaphoreOption) *semaphore.Semaphore{
		"app:plain": (*semaphore.Client).Semaphore, "app:fair": (*semaphore.Client).FairSemaphore,
	} {
		l := kind(c, name, 0, semaphore.WithLease(redistest.SafeLease))
		require.NoError(t, second(l.TrySetPermits(ctx, 1)))
		require.NoError(t, l.AddPermits(ctx, 1))
		require.NoError(t, l.SetPermits(ctx, 3))
		g, err := l.Acquire(ctx, 3)
		require.NoError(t, err)
		_, err = kind(other, name, 0).TryAcquire(ctx, 1)
		require.ErrorIs(t, err, semaphore.ErrNoPermits)
		waiting := calls(func() error {
			g, err := kind(other, name, 0).Acquire(ctx, 2)
			if err != nil {
				return err
			}
			return kind(other, name, 0).ReleaseIDs(ctx, g.IDs()...)
		})
		for before := g.Deadline(); g.Deadline().Equal(before); { // until it is renewed
			require.NoError(t, w.Sleep(ctx, 10*time.Millisecond))
		}
		require.NoError(t, g.Extend(ctx, time.Minute))
		require.NoError(t, second(l.State(ctx)))
		require.NoError(t, l.UpdateLease(ctx, g.IDs()[0], time.Minute))
		require.NoError(t, g.Release(ctx))
		require.NoError(t, <-waiting, name)
		short := kind(c, name, 0, semaphore.WithLease(time.Second), semaphore.WithoutRenewal())
		require.NoError(t, second(short.Acquire(ctx, 3)))
		g, err = l.Acquire(ctx, 1) // when the lease has ended
		require.NoError(t, err)
		require.NoError(t, g.Release(ctx))
		require.NoError(t, second(l.Available(ctx)))
	}
	report, err := c.Check(ctx, s)
	require.NoError(t, err, "%v", report)
}

// settles gives permits back, and charges a debt.
func settles(ctx context.Context, t *testing.T, limits int, tryReserve func(n int64) (ratelimit.Result, error)) {
	t.Helper()
	for used := range int64(4) {
		r, err := tryReserve(2)
		require.NoError(t, err)
		require.NotNil(t, r.Reservation)
		require.NoError(t, r.Reservation.Settle(ctx, slices.Repeat([]int64{used}, limits)...))
	}
}

func limitBasics(t *testing.T, connect func() redis.UniversalClient) {
	ctx := redistest.Within(t, redistest.Patience)
	c, err := ratelimit.New(connect(), ratelimit.WithWheel(redistest.Wheel(t)), ratelimit.WithTimeout(redistest.Patience/3))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	limit := ratelimit.Limit{Rate: 20, Per: 200 * time.Millisecond, Burst: 20}
	for _, k := range []*ratelimit.Limiter{
		c.Limiter("app:gcra", limit), c.Limiter("app:window", limit, ratelimit.WithAlgorithm(ratelimit.FixedWindow)),
		c.Limiter("app:sliding", limit, ratelimit.WithAlgorithm(ratelimit.SlidingWindow)),
	} {
		r, err := k.AllowN(ctx, "user:7", 20)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, k.Wait(ctx, "user:7"))
		require.NoError(t, second(k.AllowUpTo(ctx, "user:7", 3)))
		require.NoError(t, second(k.Peek(ctx, "user:7")))
		if reserved, err := k.Reserve(ctx, "user:7", 1); err == nil { // windows have no later permits
			require.NoError(t, second(reserved.Cancel(ctx)))
		}
		settles(ctx, t, 1, func(n int64) (ratelimit.Result, error) { return k.TryReserve(ctx, "user:8", n) })
		several := c.All(k.Part("user:9"), k.Part("user:10"))
		if several.Err() == nil { // not on a cluster
			settles(ctx, t, 2, func(n int64) (ratelimit.Result, error) { return several.TryReserve(ctx, n) })
		}
		require.NoError(t, k.Reset(ctx, "user:7"))
	}
	l := c.StoredLimiter("app:limiter")
	for _, scope := range []ratelimit.Scope{ratelimit.Overall, ratelimit.PerClient} {
		require.NoError(t, second(l.TrySetRate(ctx, limit, ratelimit.WithScope(scope))))
		r, err := l.AllowN(ctx, 20)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, l.Wait(ctx))
		require.NoError(t, second(l.AllowUpTo(ctx, 3)))
		require.NoError(t, second(l.Peek(ctx)))
		require.NoError(t, second(l.Return(ctx, r)))
		reserved, err := l.Reserve(ctx, 1)
		require.NoError(t, err)
		require.NoError(t, second(reserved.Cancel(ctx)))
		settles(ctx, t, 1, func(n int64) (ratelimit.Result, error) {
			require.NoError(t, l.SetRate(ctx, limit, ratelimit.WithScope(scope)))
			return l.TryReserve(ctx, n)
		})
		require.NoError(t, second(l.UpdateRate(ctx, limit, ratelimit.WithScope(scope), ratelimit.WithState())))
		require.NoError(t, l.SetRate(ctx, limit, ratelimit.WithScope(scope), ratelimit.WithKeepAlive(time.Minute)))
		require.NoError(t, second(l.Allow(ctx)))
		require.NoError(t, l.SetRate(ctx, limit, ratelimit.WithScope(scope)))
		require.NoError(t, second(l.Config(ctx)))
		require.NoError(t, second(l.Delete(ctx)))
	}
	report, err := c.Check(ctx, l)
	require.NoError(t, err, "%v", report)
}

func delayBasics(t *testing.T, connect func() redis.UniversalClient) {
	ctx := redistest.Within(t, redistest.Patience)
	w := redistest.Wheel(t)
	newClient := func() *delay.Client {
		// Within an hour nothing but a message wakes a process that serves.
		c, err := delay.New(connect(), delay.WithWheel(w), delay.WithPoll(time.Hour))
		require.NoError(t, err)
		redistest.CloseWith(t, c.Close)
		return c
	}
	c, other := newClient(), newClient()
	queue := c.Queue("app:queue")
	served := other.Queue("app:queue", delay.WithLease(redistest.SafeLease),
		delay.WithRetry(2, delay.Backoff(time.Millisecond, time.Millisecond)))
	serving, end := context.WithCancel(ctx)
	done := calls(func() error {
		return served.Serve(serving, 2, func(ctx context.Context, task *delay.Task) error {
			switch task.ID {
			case "fails":
				return errors.New("no stock")
			case "stays":
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
	})
	for _, id := range []string{"moves", "never"} {
		require.NoError(t, queue.Schedule(ctx, id, time.Hour, []byte("payload"), delay.WithMaxWait(time.Hour)))
	}
	for _, id := range []string{"succeeds", "fails", "stays"} {
		require.NoError(t, queue.Schedule(ctx, id, 0, nil, delay.IfAbsent()))
	}
	moved, err := queue.Reschedule(ctx, "moves", 0)
	require.NoError(t, err)
	require.True(t, moved)
	redistest.Poll(t, func() bool {
		s := other.Stats()
		return s.Done == 2 && s.Exhausted == 1 && s.Running == 1 && s.Renewal.Renewed > 0
	})
	require.NoError(t, queue.Schedule(ctx, "stays", time.Hour, nil))
	for range 2 { // the one that is kept for afterwards, and the one that runs
		_, err = queue.Cancel(ctx, "stays")
		require.NoError(t, err)
	}
	cancelled, err := queue.Cancel(ctx, "never")
	require.NoError(t, err)
	require.True(t, cancelled)
	redistest.Poll(t, func() bool {
		s, err := queue.State(ctx, "fails")
		require.NoError(t, err)
		return s.Phase == delay.PhaseFailed
	})
	for _, tasks := range []iter.Seq2[delay.State, error]{queue.PendingTasks(ctx), queue.FailedTasks(ctx)} {
		for _, err := range tasks {
			require.NoError(t, err)
		}
	}
	retried, err := queue.RetryFailed(ctx, "fails")
	require.NoError(t, err)
	require.True(t, retried)
	redistest.Poll(t, func() bool {
		deleted, err := queue.DeleteFailed(ctx, "fails")
		require.NoError(t, err)
		return deleted
	})
	_, err = queue.Pause(ctx)
	require.NoError(t, err)
	require.NoError(t, queue.Schedule(ctx, "paused", 0, nil))
	redistest.Poll(t, func() bool { return other.Stats().Paused == 1 })
	resumed, err := queue.Resume(ctx)
	require.NoError(t, err)
	require.True(t, resumed)
	redistest.Poll(t, func() bool { return other.Stats().Paused == 0 })
	end()
	require.NoError(t, <-done)
}
