package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// The clock of a server cannot be set here. For a limiter it is the same if the server's clock steps back by
// an hour, or if all that was written steps an hour ahead, its expiry included.

// grantsNow counts what can be had at once, as seen by a process that remembers nothing.
func grantsNow(t *testing.T, rdb redis.UniversalClient, f func(c *ratelimit.Client) func(context.Context) (ratelimit.Result, error)) int {
	t.Helper()
	allow, granted := f(newClient(t, rdb)), 0
	for range 1000 {
		r, err := allow(t.Context())
		require.NoError(t, err)
		if !r.Allowed {
			return granted
		}
		granted++
	}
	return granted
}

func serverNow(t *testing.T, rdb redis.UniversalClient) int64 {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	return now.UnixMicro()
}

// Guarantees: Q3.
func TestClock_GCRA(t *testing.T) {
	t.Parallel()
	const hour = int64(time.Hour / time.Microsecond)
	limit := ratelimit.PerHour(10) // 6 minutes each, so that none comes back during the test
	for what, state := range map[string]struct {
		text func(now int64) string
		want int
	}{
		"a clock that stepped back by two hours grants one burst": {func(now int64) string { return fmt.Sprint(now + 2*hour) }, 10},
		"as it is written":   {func(now int64) string { return fmt.Sprintf("%d:1:3:3601", now+2*hour) }, 10},
		"whole":              {func(now int64) string { return fmt.Sprintf("%d:3601", now+2*hour) }, 10},
		"by a year":          {func(now int64) string { return fmt.Sprint(now + 365*24*hour) }, 10},
		"with a fraction":    {func(now int64) string { return fmt.Sprintf("%d:1:3", now+2*hour) }, 10},
		"beyond all numbers": {func(int64) string { return "1e300" }, 10},
		"no number":          {func(int64) string { return "nan" }, 10},
		"infinite":           {func(int64) string { return "inf" }, 10},
		"a clock that stepped ahead grants one burst":           {func(now int64) string { return fmt.Sprint(now - hour) }, 10},
		"that stepped back by a little denies for so long":      {func(now int64) string { return fmt.Sprint(now + hour + 30e6) }, 0},
		"that did not step at all goes on where it was (check)": {func(now int64) string { return fmt.Sprint(now + hour/2) }, 5},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			_, rdb, _, name := shared(t)
			key := "k:{" + name + "}"
			ask := func(c *ratelimit.Client) func(context.Context) (ratelimit.Result, error) {
				return func(ctx context.Context) (ratelimit.Result, error) { return c.Limiter("k", limit).Allow(ctx, name) }
			}
			require.NoError(t, rdb.Set(t.Context(), key, state.text(serverNow(t, rdb)), 0).Err())
			require.Equal(t, state.want, grantsNow(t, rdb, ask))
			require.Zero(t, grantsNow(t, rdb, ask), "healed: it counts again")
			if state.want > 0 {
				require.Positive(t, rdb.PTTL(t.Context(), key).Val())
				require.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), time.Hour+time.Millisecond)
			}
			r, err := ask(newClient(t, rdb))(t.Context())
			require.NoError(t, err)
			require.LessOrEqual(t, r.RetryAfter, time.Hour+time.Minute)
		})
	}
}

// Guarantees: Q3.
func TestClock_FixedWindow(t *testing.T) {
	t.Parallel()
	_, rdb, _, name := shared(t)
	limit, key := ratelimit.PerMinute(10), "k:{"+name+"}:window"
	ask := func(c *ratelimit.Client) func(context.Context) (ratelimit.Result, error) {
		return func(ctx context.Context) (ratelimit.Result, error) {
			return c.Limiter("k", limit, ratelimit.WithAlgorithm(ratelimit.FixedWindow)).Allow(ctx, name)
		}
	}
	for _, ttl := range []time.Duration{time.Hour, 0, 122 * time.Second} {
		require.NoError(t, rdb.Set(t.Context(), key, 10, ttl).Err())
		require.Equal(t, 10, grantsNow(t, rdb, ask), "a window that ends later than any can is none")
		require.Zero(t, grantsNow(t, rdb, ask))
		require.LessOrEqual(t, rdb.PTTL(t.Context(), key).Val(), time.Minute)
		require.Positive(t, rdb.PTTL(t.Context(), key).Val())
	}
	require.NoError(t, rdb.Set(t.Context(), key, 7, 59*time.Second).Err())
	require.Equal(t, 3, grantsNow(t, rdb, ask), "check: another goes on")
	require.NoError(t, rdb.Set(t.Context(), key, 10, 119*time.Second).Err())
	require.Zero(t, grantsNow(t, rdb, ask), "a clock that stepped back by a little denies for so long")
}

// shift moves entries of a log in time.
func shift(t *testing.T, rdb *redis.Client, permits string, by time.Duration, entries int64) {
	t.Helper()
	for _, z := range rdb.ZRangeWithScores(t.Context(), permits, 0, entries-1).Val() {
		z.Score += float64(by.Milliseconds())
		require.NoError(t, rdb.ZAdd(t.Context(), permits, z).Err())
	}
}

// Guarantees: Q3.
func TestClock_SlidingLog(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		by    time.Duration
		moved int64
		want  int
	}{
		"a clock that stepped back by an hour grants one burst": {time.Hour, 10, 10},
		"also if it has granted something since":                {time.Hour, 9, 9},
		"a clock that stepped ahead grants one burst":           {-time.Hour, 10, 10},
		"that stepped back by a little denies for so long":      {time.Minute, 10, 0},
		"that did not step at all goes on (check)":              {0, 10, 0},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l, rdb, name := storedLimiter(t, perSeconds(10, 30), ratelimit.Overall)
			for range 10 {
				take(t, l, 1, true)
			}
			keys := ratelimit.LogKeys(name)
			shift(t, rdb, keys[2], c.by, c.moved)
			ask := func(c *ratelimit.Client) func(context.Context) (ratelimit.Result, error) {
				return c.StoredLimiter(name).Allow
			}
			require.Equal(t, c.want, grantsNow(t, rdb, ask))
			require.Zero(t, grantsNow(t, rdb, ask), "healed: it counts again")
			r, err := newClient(t, rdb).StoredLimiter(name).Allow(t.Context())
			require.NoError(t, err)
			require.LessOrEqual(t, r.RetryAfter, 30*time.Second+time.Minute)
			require.Equal(t, int64(10), rdb.ZCard(t.Context(), keys[2]).Val())
			require.Equal(t, "0", rdb.Get(t.Context(), keys[1]).Val())
		})
	}

	t.Run("a reservation does not wait for entries of a clock that stepped back", func(t *testing.T) {
		t.Parallel()
		l, rdb, name := storedLimiter(t, perSeconds(10, 1), ratelimit.Overall)
		take(t, l, 10, true)
		shift(t, rdb, ratelimit.LogKeys(name)[2], time.Hour, 10)
		r, err := l.Reserve(t.Context(), 10)
		require.NoError(t, err)
		require.Zero(t, r.Delay())
		r, err = l.Reserve(t.Context(), 10)
		require.NoError(t, err)
		require.Positive(t, r.Delay())
		require.LessOrEqual(t, r.Delay(), time.Second)
	})

	t.Run("and recovers within what it stepped back and an interval", func(t *testing.T) {
		t.Parallel()
		l, rdb, name := storedLimiter(t, perSeconds(10, 0.5), ratelimit.Overall)
		began := time.Now()
		take(t, l, 10, true)
		shift(t, rdb, ratelimit.LogKeys(name)[2], 500*time.Millisecond, 10)
		require.NoError(t, newClient(t, rdb).StoredLimiter(name).WaitN(within(t, patience), 10))
		require.Less(t, time.Since(began), 10*time.Second)
		require.Greater(t, time.Since(began), 900*time.Millisecond)
	})
}

// A service in Java stamps its entries with its own clock, and takes those for old that are older than an
// interval by it: if it is ahead, it removes our entries, as it does those of its own kind. No other side can
// prevent that, but it ends with the wrong clock.
func TestClock_AJavaServiceWhoseClockIsOff(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for _, skew := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			t.Parallel()
			limit, w := perSeconds(10, 0.5), newWheel(t)
			l, rdb, name := storedLimiter(t, limit, ratelimit.Overall)
			both := func(lasts, skew time.Duration) (ours, all []oracle.Grant) {
				j := java{t: t, rdb: rdb, name: name, skew: skew}
				began := time.Now()
				// A process that stands still for most of the time asks as often.
				for asked := 0; time.Since(began) < lasts || asked < int(lasts/(15*time.Millisecond)); asked++ {
					call := time.Now()
					r, err := l.Allow(t.Context())
					require.NoError(t, err)
					if r.Allowed {
						ours = append(ours, oracle.Between(call, time.Now(), 1))
						all = append(all, ours[len(ours)-1])
					}
					call = time.Now()
					if ok, _ := j.tryAcquire(1, false); ok {
						all = append(all, oracle.Between(call, time.Now(), 1))
					}
					require.NoError(t, w.Sleep(t.Context(), 5*time.Millisecond)) // the pace at which both ask
				}
				return ours, all
			}
			ours, _ := both(1500*time.Millisecond, skew)
			require.Greater(t, len(ours), 10, "we are not locked out")
			if skew < 0 {
				require.LessOrEqual(t, oracle.Excess(ours, oracle.Limit(limit).LogBound()), 0.0, "and keep the limit")
			}
			_, _ = both(600*time.Millisecond, 0)
			ours, all := both(1500*time.Millisecond, 0)
			require.NotEmpty(t, ours)
			// By milliseconds, as Java counts: an entry may leave one before its time.
			require.LessOrEqual(t, oracle.Excess(all, func(d time.Duration) float64 { return oracle.Limit(limit).LogBound()(d + 2*time.Millisecond) }), 0.0)
		})
	}
}
