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

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// keyRow is a key or channel of an object in docs/keys.md. A channel begins with "&".
type keyRow struct{ object, key, stays string }

// keyRows reads the table of docs/keys.md.
func keyRows(t *testing.T) (rows []keyRow) {
	t.Helper()
	_, text, found := strings.Cut(read(t, "docs/keys.md"), "\n## By object\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "\n## ")
	objects := ""
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !strings.Contains(cells[2], "`") {
			continue
		}
		if named := strings.TrimSpace(cells[1]); named != "" {
			objects = strings.ReplaceAll(named, "`", "")
		}
		prefix := ""
		if strings.HasPrefix(cells[2], " channel ") {
			prefix = "&"
		}
		for _, key := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[2], -1) {
			for object := range strings.SplitSeq(objects, " and ") {
				rows = append(rows, keyRow{object, prefix + key[1], strings.TrimSpace(cells[4])})
			}
		}
	}
	return rows
}

// documented returns the keys and channels of docs/keys.md by object.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, row := range keyRows(t) {
		all[row.object] = append(all[row.object], row.key)
	}
	for _, keys := range all {
		slices.Sort(keys)
	}
	return all
}

var placeholders = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+(:write)?`), "HOLD"},
	{regexp.MustCompile(`:cogwheel_check$`), ":CLIENT"},
	{regexp.MustCompile(`:call:\d+:`), ":call:N:"},
	{regexp.MustCompile(`[0-9a-f]{32}`), "CLIENT"},
}

// withPlaceholders replaces the ids in a key or channel, such as that of a hold, by placeholders.
func withPlaceholders(key string) string {
	for _, p := range placeholders {
		key = p.pattern.ReplaceAllString(key, p.with)
	}
	return key
}

// needed returns the keys and channels of a report's Rights.
func needed(t *testing.T, r *cogwheel.Report, err error) (keys []string) {
	t.Helper()
	require.NoError(t, err)
	for _, right := range r.Rights {
		if key, isKey := strings.CutPrefix(right, "~"); isKey {
			keys = append(keys, withPlaceholders(key))
		} else if right[0] == '&' {
			keys = append(keys, withPlaceholders(right))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// The packages use exactly the keys and channels of docs/keys.md.
func TestOperations_KeysAndChannels(t *testing.T) {
	t.Parallel()
	l, ctx := newLibrary(t), t.Context()
	const name = "NAME"
	delays, err := delay.New(l.rdb, delay.WithWheel(l.wheel))
	require.NoError(t, err)
	redistest.CloseWith(t, delays.Close)
	check := func(r *cogwheel.Report, err error) []string {
		t.Helper()
		return needed(t, r, err)
	}
	used := map[string][]string{
		"Mutex":                          check(l.locks.Check(ctx, l.locks.Mutex(name, redislock.WithFencing()))),
		"Mutex, WithStringKey":           {name},
		"FairMutex":                      check(l.locks.Check(ctx, l.locks.FairMutex(name, redislock.WithFencing()))),
		"RWMutex":                        check(l.locks.Check(ctx, l.locks.RWMutex(name, redislock.WithFencing()))),
		"Semaphore":                      check(l.semaphores.Check(ctx, l.semaphores.Semaphore(name, 0))),
		"FairSemaphore":                  check(l.semaphores.Check(ctx, l.semaphores.FairSemaphore(name, 0))),
		"CountingSemaphore":              check(l.semaphores.Check(ctx, l.semaphores.CountingSemaphore(name))),
		"StoredLimiter":                  check(l.limits.Check(ctx, l.limits.StoredLimiter(name))),
		"Queue":                          check(delays.Check(ctx, delays.Queue(name))),
		"StoredLimiter, scope PerClient": {"{NAME}:permits:CLIENT", "{NAME}:value:CLIENT"},
		"Limiter":                        {l.limits.Limiter("PREFIX", ratelimit.PerSecond(1)).RedisKey("KEY")},
		"Limiter, fixed windows": {
			l.limits.Limiter("PREFIX", ratelimit.PerSecond(1), ratelimit.WithAlgorithm(ratelimit.FixedWindow)).RedisKey("KEY"),
		},
		"Limiter, sliding windows": {
			l.limits.Limiter("PREFIX", ratelimit.PerSecond(1), ratelimit.WithAlgorithm(ratelimit.SlidingWindow)).RedisKey("KEY"),
		},
	}
	require.Equal(t, used, documented(t))
	withString := check(l.locks.Check(ctx, l.locks.Mutex(name, redislock.WithFencing(), redislock.WithStringKey())))
	require.Equal(t, used["Mutex"], withString, "the other keys are those of Mutex")
}

// Every key that is in Redis while an object is in use is documented.
func TestOperations_NoOtherKeys(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	ctx, w := redistest.Within(t, redistest.Patience), redistest.Wheel(t)
	locks, err := redislock.New(rdb, redislock.WithWheel(w), redislock.WithLockDefaults(redislock.WithFencing()))
	require.NoError(t, err)
	redistest.CloseWith(t, locks.Close)
	semaphores, err := semaphore.New(rdb, semaphore.WithWheel(w))
	require.NoError(t, err)
	redistest.CloseWith(t, semaphores.Close)
	limits, err := ratelimit.New(rdb, ratelimit.WithWheel(w), ratelimit.WithTimeout(redistest.Patience/3))
	require.NoError(t, err)
	redistest.CloseWith(t, limits.Close)

	var all []string
	for _, keys := range documented(t) {
		all = append(all, keys...)
	}
	inUse := func(object string, use func() error) {
		require.NoError(t, rdb.FlushAll(ctx).Err())
		require.NoError(t, use(), object)
		keys, err := rdb.Keys(ctx, "*").Result()
		require.NoError(t, err)
		require.NotEmpty(t, keys, object)
		for _, key := range keys {
			require.Contains(t, all, withPlaceholders(key), object)
		}
	}
	inUse("Mutex", func() error { return second(locks.Mutex("NAME").TryLock(ctx)) })
	inUse("RWMutex", func() error { return second(locks.RWMutex("NAME").TryRLock(ctx)) })
	inUse("RWMutex", func() error { return second(locks.RWMutex("NAME").TryLock(ctx)) })
	inUse("FairMutex", func() error {
		err := second(locks.FairMutex("NAME").TryLock(ctx))
		locks.FairMutex("NAME").LockFunc(ctx, func(*redislock.Lock, error) {})
		redistest.Poll(t, func() bool { return rdb.Exists(ctx, "cogwheel_lock_alive:{NAME}").Val() == 1 })
		return err
	})
	require.NoError(t, locks.Close(ctx)) // or else the waiter takes NAME when it has been flushed
	inUse("Semaphore", func() error {
		s := semaphores.Semaphore("NAME", 0)
		return errors.Join(second(s.TrySetPermits(ctx, 1)), second(s.Acquire(ctx, 1)))
	})
	inUse("FairSemaphore", func() error {
		s := semaphores.FairSemaphore("NAME", 0)
		err := errors.Join(second(s.TrySetPermits(ctx, 1)), second(s.Acquire(ctx, 1)))
		s.AcquireFunc(ctx, 1, func(*semaphore.Grant, error) {})
		redistest.Poll(t, func() bool { return rdb.Exists(ctx, "{NAME}:fair:waiting").Val() == 1 })
		return err
	})
	inUse("CountingSemaphore", func() error {
		s := semaphores.CountingSemaphore("NAME")
		return errors.Join(second(s.TrySetPermits(ctx, 1)), s.Acquire(ctx, 1), s.Release(ctx, 1))
	})
	inUse("StoredLimiter", func() error {
		l := limits.StoredLimiter("NAME")
		return errors.Join(l.SetRate(ctx, ratelimit.PerHour(1)), second(l.Allow(ctx)))
	})
	inUse("StoredLimiter, scope PerClient", func() error {
		l := limits.StoredLimiter("NAME")
		return errors.Join(l.SetRate(ctx, ratelimit.PerHour(1), ratelimit.WithScope(ratelimit.PerClient)), second(l.Allow(ctx)))
	})
	inUse("Queue", func() error {
		delays, err := delay.New(rdb, delay.WithWheel(w))
		require.NoError(t, err)
		redistest.CloseWith(t, delays.Close)
		queue := delays.Queue("NAME", delay.WithRetry(1, delay.Backoff(time.Second, time.Second)))
		runs := make(chan struct{})
		go func() {
			_ = queue.Serve(context.WithoutCancel(ctx), 1, func(ctx context.Context, task *delay.Task) error {
				if task.ID == "fails" {
					return errors.New("no stock")
				}
				close(runs)
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		err = errors.Join(queue.Schedule(ctx, "fails", 0, nil), queue.Schedule(ctx, "runs", 0, nil))
		<-runs
		redistest.Poll(t, func() bool { return rdb.Exists(ctx, "{NAME}:delay:failed").Val() == 1 })
		_, err2 := queue.Pause(ctx)
		return errors.Join(err, err2, queue.Schedule(ctx, "runs", time.Hour, nil), queue.Schedule(ctx, "waits", time.Hour, nil))
	})
	inUse("Limiter", func() error {
		window := limits.Limiter("PREFIX", ratelimit.PerHour(1), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
		return errors.Join(second(limits.Limiter("PREFIX", ratelimit.PerHour(1)).Allow(ctx, "KEY")), second(window.Allow(ctx, "KEY")))
	})
}
