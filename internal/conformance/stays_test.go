package conformance_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// stay is a key of docs/keys.md and how long it stays.
type stay struct {
	object, key string
	most        time.Duration // -1: for ever
	variant     time.Duration // with an idle expiry or a keep-alive
	pattern     *regexp.Regexp
}

var lifetimes = map[string]time.Duration{
	"the lease": 30 * time.Second, "16 s": 16 * time.Second, "1 min": time.Minute, "10 min": 10 * time.Minute,
	"24 h": 24 * time.Hour, "idle expiry": time.Hour, "lease and idle expiry": time.Hour + 30*time.Second,
	"until then": 2 * time.Second, "window": time.Minute, "two windows": 2 * time.Minute,
	"keep-alive":         2 * time.Hour,
	"interval and 1 min": 2 * time.Minute,
	"for ever":           -1,
}

// staysOf returns the keys among the rows of docs/keys.md that objects write.
func staysOf(t *testing.T, rows []keyRow) (stays []stay) {
	t.Helper()
	words := strings.NewReplacer("NAME", "name", "PREFIX", "name", "HOLD", `[0-9a-f-]{36}:\d+`,
		"CLIENT", `[0-9a-f]{32}`, "N", `\d+`)
	for _, row := range rows {
		if row.key[0] == '&' || row.stays == "-" {
			continue
		}
		most, variant, two := strings.Cut(row.stays, "; ")
		if !two {
			variant = most
		}
		for _, lifetime := range []string{most, variant} {
			require.Contains(t, lifetimes, lifetime, row.key)
		}
		pattern := regexp.MustCompile("^" + words.Replace(regexp.QuoteMeta(row.key)) + "$")
		stays = append(stays, stay{row.object, row.key, lifetimes[most], lifetimes[variant], pattern})
	}
	return stays
}

// holding is one use of the library, of an object and perhaps a variant: do makes keys in Redis, and end ends the use.
type holding struct {
	use string
	do  func() (end func())
}

func (l *library) holdings(t *testing.T) []holding {
	ctx := t.Context()
	type mutex interface {
		Lock(ctx context.Context) (*redislock.Lock, error)
	}
	awaitKeys := func(n int64) { // until a waiter waits, and Redis knows of it
		redistest.Poll(t, func() bool {
			return len(l.rdb.PubSubChannels(ctx, "*name*").Val()) > 0 && l.rdb.DBSize(ctx).Val() >= n
		})
	}
	lockBehind := func(take func(context.Context) (*redislock.Lock, error), m mutex, keys int64) func() func() {
		return func() func() {
			held, err := take(ctx)
			require.NoError(t, err)
			waits, cancel := context.WithCancel(ctx)
			waited := make(chan error, 1)
			go func() {
				_, err := m.Lock(waits)
				waited <- err
			}()
			awaitKeys(keys)
			return func() {
				cancel()
				require.ErrorIs(t, <-waited, context.Canceled)
				require.NoError(t, held.Unlock(ctx))
			}
		}
	}
	lock := func(m mutex, keys int64) func() func() { return lockBehind(m.Lock, m, keys) }
	counting := func(c *semaphore.Client) func() func() {
		return func() func() {
			s := c.CountingSemaphore("name")
			require.NoError(t, second(s.TrySetPermits(ctx, 2)))
			require.NoError(t, s.Acquire(ctx, 2))
			waited := make(chan struct{})
			cancel := s.AcquireFunc(ctx, 1, func(error) { close(waited) })
			redistest.Poll(t, func() bool { return l.rdb.Exists(ctx, "{name}:waiting").Val() == 1 })
			return func() {
				cancel()
				<-waited
				require.NoError(t, s.Release(ctx, 2))
			}
		}
	}
	grants := func(s *semaphore.Semaphore) func() func() {
		return func() func() {
			require.NoError(t, second(s.TrySetPermits(ctx, 2)))
			grant, err := s.Acquire(ctx, 2)
			require.NoError(t, err)
			waited := make(chan struct{})
			cancel := s.AcquireFunc(ctx, 1, func(*semaphore.Grant, error) { close(waited) })
			awaitKeys(5)
			return func() {
				cancel()
				<-waited
				require.NoError(t, grant.Release(ctx))
			}
		}
	}
	limiter := func(opts ...ratelimit.LimiterOption) func() func() {
		return func() func() {
			require.NoError(t, second(l.limits.Limiter("name", ratelimit.PerMinute(60), opts...).Allow(ctx, "KEY")))
			return func() {}
		}
	}
	stored := func(scope ratelimit.Scope, opts ...ratelimit.SetOption) func() func() {
		return func() func() {
			limit := l.limits.StoredLimiter("name")
			require.NoError(t, second(limit.TrySetRate(ctx, ratelimit.PerMinute(10), append([]ratelimit.SetOption{ratelimit.WithScope(scope)}, opts...)...)))
			require.NoError(t, second(limit.Allow(ctx)))
			return func() {}
		}
	}
	idle, err := semaphore.New(l.rdb, semaphore.WithWheel(l.wheel), semaphore.WithIdleExpiry(time.Hour))
	require.NoError(t, err)
	redistest.CloseWith(t, idle.Close)
	delays, err := delay.New(l.rdb, delay.WithWheel(l.wheel))
	require.NoError(t, err)
	redistest.CloseWith(t, delays.Close)
	rw := l.locks.RWMutex("name")
	return []holding{
		{"Mutex", lock(l.locks.Mutex("name"), 2)},
		{"FairMutex", lock(l.locks.FairMutex("name"), 4)},
		{"RWMutex", lockBehind(rw.RLock, rw, 3)},
		{"Mutex, WithFencing", lock(l.locks.Mutex("name", redislock.WithFencing()), 3)},
		{"FairMutex, WithFencing", lock(l.locks.FairMutex("name", redislock.WithFencing()), 5)},
		{"RWMutex, WithFencing", lock(l.locks.RWMutex("name", redislock.WithFencing()), 3)},
		{"Limiter", limiter()},
		{"Limiter, fixed windows", limiter(ratelimit.WithAlgorithm(ratelimit.FixedWindow))},
		{"Limiter, sliding windows", limiter(ratelimit.WithAlgorithm(ratelimit.SlidingWindow))},
		{"StoredLimiter", stored(ratelimit.Overall)},
		{"StoredLimiter, scope PerClient", stored(ratelimit.PerClient)},
		{"StoredLimiter, keep-alive", stored(ratelimit.Overall, ratelimit.WithKeepAlive(2*time.Hour))},
		{"CountingSemaphore", counting(l.semaphores)},
		{"Semaphore", grants(l.semaphores.Semaphore("name", 0))},
		{"FairSemaphore", grants(l.semaphores.FairSemaphore("name", 0))},
		{"Queue", func() func() {
			queue := delays.Queue("name", delay.WithRetry(1, delay.Backoff(time.Second, time.Second)))
			serving, stop := context.WithCancel(ctx)
			served, runs := make(chan error, 1), make(chan struct{})
			go func() {
				served <- queue.Serve(serving, 1, func(ctx context.Context, task *delay.Task) error {
					if task.ID == "fails" {
						return errors.New("no stock")
					}
					close(runs)
					<-ctx.Done()
					return ctx.Err()
				})
			}()
			require.NoError(t, queue.Schedule(ctx, "fails", 0, nil))
			redistest.Poll(t, func() bool { return l.rdb.Exists(ctx, "{name}:delay:failed").Val() == 1 })
			require.NoError(t, queue.Schedule(ctx, "runs", 0, nil))
			<-runs
			require.NoError(t, queue.Schedule(ctx, "runs", time.Hour, nil))
			require.NoError(t, queue.Schedule(ctx, "waits", time.Hour, nil))
			_, err := queue.Pause(ctx)
			require.NoError(t, err)
			return func() {
				stop()
				require.NoError(t, <-served)
			}
		}},
		{"CountingSemaphore, idle expiry", counting(idle)},
		{"Semaphore, idle expiry", grants(idle.Semaphore("name", 0))},
		{"FairSemaphore, idle expiry", grants(idle.FairSemaphore("name", 0))},
	}
}

// The table has every key that a use leaves in Redis, with the time that it stays, and no other key.
func TestStays(t *testing.T) {
	t.Parallel()
	stays := staysOf(t, keyRows(t))
	ctx, l := t.Context(), newLibraryOn(t, redistest.Start(t).Client(t))
	row := func(use, key string) int { // of the use itself, or else of its object
		for _, object := range append([]string{use}, strings.Split(use, ", ")...) {
			if at := slices.IndexFunc(stays, func(s stay) bool { return s.object == object && s.pattern.MatchString(key) }); at >= 0 {
				return at
			}
		}
		return -1
	}
	require.Equal(t, -1, row("Semaphore", "{name}:other"), "a key that stands in no row is found")
	type life struct {
		object, key string
		most        time.Duration
	}
	seen := map[life]bool{}
	look := func(use string, ended bool) {
		keys, err := l.rdb.Keys(ctx, "*").Result()
		require.NoError(t, err)
		for _, key := range keys {
			left, err := l.rdb.PTTL(ctx, key).Result()
			require.NoError(t, err)
			kept := strings.HasSuffix(key, ":kept") && left <= 50*time.Millisecond // for a waiter that was woken as it left
			if left == -2 || kept {                                                // gone, now or soon
				continue
			}
			at := row(use, key)
			require.GreaterOrEqual(t, at, 0, "%s: no row for %s, which stays for %v", use, key, left)
			s, most := stays[at], stays[at].most
			if strings.HasSuffix(use, ", idle expiry") || strings.HasSuffix(use, ", keep-alive") {
				most = s.variant
			}
			seen[life{s.object, s.key, most}] = true
			held := !ended && use == "CountingSemaphore, idle expiry" && most == time.Hour // stays while a permit is held
			require.True(t, (most < 0 || held) && left < 0 || left > 0 && left <= most, "%s: %s stays for %v", use, key, left)
		}
	}
	for _, h := range l.holdings(t) {
		require.NoError(t, l.rdb.FlushAll(ctx).Err())
		end := h.do()
		look(h.use, false)
		end()
		look(h.use, true)
	}
	for _, s := range stays {
		if strings.HasSuffix(s.key, ":kept") || s.object == "Mutex, WithStringKey" {
			continue // too short to be met; a key of the form of Mutex
		}
		for _, most := range []time.Duration{s.most, s.variant} {
			require.True(t, seen[life{s.object, s.key, most}], "%s: %s never stayed for %v", s.object, s.key, most)
		}
	}
}
