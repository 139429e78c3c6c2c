package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// prediction is a limit in a random state that denies a request.
type prediction struct {
	tolerance time.Duration // by which RetryAfter may be too long
	// prepare brings the limit into a state, and returns the request.
	prepare func(t *testing.T, rdb *redis.Client, c *ratelimit.Client, name string, rng *rand.Rand) asking
}

// asking asks in the name of a process that knows nothing.
type asking func(t *testing.T, c *ratelimit.Client) ratelimit.Result

// askLimiter asks for n permits of a key.
func askLimiter(name string, n int64, limit ratelimit.Limit, algorithm ratelimit.Algorithm) asking {
	return func(t *testing.T, c *ratelimit.Client) ratelimit.Result {
		k := c.Limiter("k", limit, ratelimit.WithAlgorithm(algorithm), ratelimit.WithHashTag(name))
		r, err := k.AllowN(t.Context(), name, n)
		require.NoError(t, err)
		return r
	}
}

// prepareGCRA uses the whole burst, and sometimes that of a larger limit.
func prepareGCRA(t *testing.T, _ *redis.Client, c *ratelimit.Client, name string, rng *rand.Rand) asking {
	t.Helper()
	before := ratelimit.PerSecond(20).WithBurst(4 + rng.Int64N(20))
	limit := ratelimit.Limit{Rate: 7 + rng.Int64N(20), Per: time.Second, Burst: 4}
	require.True(t, askLimiter(name, before.Burst, before, ratelimit.GCRA)(t, c).Allowed)
	askLimiter(name, 1, limit, ratelimit.GCRA)(t, c)
	return askLimiter(name, 4, limit, ratelimit.GCRA)
}

// prepareWindow writes a window that is used up or has not begun, under a limit that may have been higher.
func prepareWindow(t *testing.T, rdb *redis.Client, _ *ratelimit.Client, name string, rng *rand.Rand) asking {
	t.Helper()
	limit, used, left := perSeconds(10, 1), 8+rng.Int64N(60), 200+rng.Int64N(800)
	if rng.IntN(2) == 0 {
		used, left = rng.Int64N(60), 1100+rng.Int64N(200)
	}
	key := ratelimit.TaggedKey("k", name, name, ratelimit.FixedWindow)
	require.NoError(t, rdb.Do(t.Context(), "SET", key, fmt.Sprintf("%d:1000", used), "PX", left).Err())
	return askLimiter(name, 3, limit, ratelimit.FixedWindow)
}

// prepareSliding uses up a sliding window, and sometimes has used one before it, or under a limit that was higher.
func prepareSliding(t *testing.T, rdb *redis.Client, _ *ratelimit.Client, name string, rng *rand.Rand) asking {
	t.Helper()
	limit, previous, current := perSeconds(10, 1), rng.Int64N(20), 8+rng.Int64N(20)
	least := 300 * time.Millisecond // of the window, so that there is time for a denial
	if rng.IntN(2) == 0 {
		previous, current = 20+rng.Int64N(20), rng.Int64N(8)
		least = 700 * time.Millisecond // later, the share of the previous window leaves room
	}
	now := rdb.Time(t.Context()).Val()
	if rest := now.Truncate(time.Second).Add(time.Second).Sub(now); rest < least {
		require.NoError(t, newWheel(t).Sleep(t.Context(), rest))
		now = now.Add(rest)
	}
	key := ratelimit.TaggedKey("k", name, name, ratelimit.SlidingWindow)
	state := fmt.Sprintf("%d:%d:%d:1000", now.Unix(), previous, current)
	require.NoError(t, rdb.Set(t.Context(), key, state, 2*time.Second).Err())
	return askLimiter(name, 3, limit, ratelimit.SlidingWindow)
}

// prepareLog fills a log in steps, and sometimes lowers its rate.
func prepareLog(t *testing.T, _ *redis.Client, c *ratelimit.Client, name string, rng *rand.Rand) asking {
	t.Helper()
	l, rate, w := c.StoredLimiter("log:{"+name+"}"), 5+rng.Int64N(20), newWheel(t)
	require.NoError(t, l.SetRate(t.Context(), perSeconds(rate, 1)))
	for left := rate; left > 0; {
		n := min(left, 1+rng.Int64N(5))
		_, err := l.AllowN(t.Context(), n)
		require.NoError(t, err)
		require.NoError(t, w.Sleep(t.Context(), time.Duration(rng.Int64N(40))*time.Millisecond))
		left -= n
	}
	if rng.IntN(2) == 0 {
		require.NoError(t, l.SetRate(t.Context(), perSeconds(4, 1), ratelimit.WithState()))
	}
	return func(t *testing.T, c *ratelimit.Client) ratelimit.Result {
		r, err := c.StoredLimiter("log:{"+name+"}").AllowN(t.Context(), 3)
		require.NoError(t, err)
		return r
	}
}

// prepareAll combines a limit of each algorithm. Either may take longer.
func prepareAll(t *testing.T, rdb *redis.Client, c *ratelimit.Client, name string, rng *rand.Rand) asking {
	t.Helper()
	if rng.IntN(2) == 0 {
		prepareGCRA(t, rdb, c, name, rng)
	}
	prepareWindow(t, rdb, c, name, rng)
	return func(t *testing.T, c *ratelimit.Client) ratelimit.Result {
		tag := ratelimit.WithHashTag(name)
		r, err := c.All(
			c.Limiter("k", ratelimit.PerSecond(10), tag).Part(name),
			c.Limiter("k", perSeconds(10, 1), tag, ratelimit.WithAlgorithm(ratelimit.FixedWindow)).Part(name).Cost(3),
		).Allow(t.Context())
		require.NoError(t, err)
		return r
	}
}

// prepareSlidingAndGCRA combines a sliding window with GCRA. Either may take longer.
func prepareSlidingAndGCRA(t *testing.T, rdb *redis.Client, c *ratelimit.Client, name string, rng *rand.Rand) asking {
	t.Helper()
	if rng.IntN(2) == 0 {
		prepareGCRA(t, rdb, c, name, rng)
	}
	prepareSliding(t, rdb, c, name, rng)
	return func(t *testing.T, c *ratelimit.Client) ratelimit.Result {
		tag := ratelimit.WithHashTag(name)
		r, err := c.All(
			c.Limiter("k", perSeconds(10, 1), tag, bySliding).Part(name).Cost(3),
			c.Limiter("k", ratelimit.PerSecond(10), tag).Part(name),
		).Allow(t.Context())
		require.NoError(t, err)
		return r
	}
}

var predictions = map[string]prediction{
	"GCRA":           {2 * time.Microsecond, prepareGCRA},
	"fixed window":   {3 * time.Millisecond, prepareWindow},
	"sliding window": {time.Millisecond, prepareSliding},
	"sliding log":    {2 * time.Microsecond, prepareLog},
	"all in one go":  {3 * time.Millisecond, prepareAll},
	"all, sliding":   {time.Millisecond, prepareSlidingAndGCRA},
}

// wrong returns how the RetryAfter of a denial differs from the time at which the request is granted, or "".
func (p prediction) wrong(t *testing.T, m *mutation, seed uint64) string {
	t.Helper()
	rdb, w, name := redistest.Shared(t).Client(t), newWheel(t), redistest.Name(t)
	plain := redistest.Shared(t).Client(t)
	if m != nil {
		rdb.AddHook(m)
	}
	ask := p.prepare(t, plain, newClient(t, plain), name, rand.New(rand.NewPCG(seed, 1)))
	probe := func() (r ratelimit.Result, sent, got time.Time) {
		c := newClient(t, rdb)
		sent = time.Now()
		r = ask(t, c)
		return r, sent, time.Now()
	}
	denied, sent, got := probe()
	if denied.Allowed {
		return "it was not denied"
	}
	early, late := sent.Add(denied.RetryAfter-p.tolerance), got.Add(denied.RetryAfter)
	for _, share := range []float64{0.2, 0.6, 0.95} {
		require.NoError(t, w.Sleep(t.Context(), time.Until(sent.Add(time.Duration(share*float64(denied.RetryAfter))))))
		if r, at, until := probe(); r.Allowed && until.Before(early) {
			return fmt.Sprintf("granted after %v instead of %v", at.Sub(sent), denied.RetryAfter)
		} else if r.Allowed {
			return "" // this machine is too busy to tell
		}
	}
	require.NoError(t, w.Sleep(t.Context(), time.Until(late)))
	if r, at, _ := probe(); !r.Allowed {
		return fmt.Sprintf("denied after %v instead of %v, for %v", at.Sub(sent), denied.RetryAfter, r.RetryAfter)
	}
	return ""
}

// Guarantees: Q30.
func TestReplay_RetryAfterIsWhenTheRequestIsGranted(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for what, p := range predictions {
		for seed := range uint64(8) {
			t.Run(fmt.Sprint(what, ", state ", seed), func(t *testing.T) {
				t.Parallel()
				require.Empty(t, p.wrong(t, nil, seed))
			})
		}
	}
}

// The negative controls: a script that looks at a later or an earlier time than it decides by is found.
func TestReplay_FindsARetryAfterThatIsWrong(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	const ms = 1000
	for what, c := range map[string]struct {
		kind, from string
		to         func(us int) string
		script     *scripts.Script
	}{
		"GCRA": {"GCRA", "reply[2], reply[3] = us, num", func(us int) string {
			// The state that a grant leaves lies ahead of now, or the reply is refused.
			return fmt.Sprintf("reply[2], reply[3] = any and us or us + %d, num", us)
		}, scripts.RateGCRA},
		"fixed window": {"fixed window", "local reply = {used, begins, ends, nil}", func(us int) string {
			const wrong = "begins > 0 and math.max(1, begins + %d) or 0, math.max(1, ends + %d)"
			return fmt.Sprintf("local reply = {used, "+wrong+", nil}", us/ms, us/ms)
		}, scripts.RateWindow},
		"sliding window": {"sliding window", "local reply = {s.previous, s.current, s.length, s.elapsed}", func(us int) string {
			const wrong = "math.min(math.max(s.elapsed - %d, 0), s.length - 1)"
			return fmt.Sprintf("local reply = {s.previous, s.current, s.length, "+wrong+"}", us/ms)
		}, scripts.RateSliding},
		"sliding log": {"sliding log", "answers[i] = -2 - math.max(1, at - now)", func(us int) string {
			return fmt.Sprintf("answers[i] = -2 - math.max(1, at - now + %d)", us)
		}, scripts.RateLog},
		"several limits": {"all in one go", "reply[#reply + 1] = l[field]", func(us int) string {
			wrong := fmt.Sprintf("({used = l.used and l.used + 10, ends = 1400 + %d})", us/ms)
			return "reply[#reply + 1] = " + wrong + "[field] or l[field]"
		}, scripts.RateAll},
	} {
		for how, us := range map[string]int{"too early": -150 * ms, "too late": 150 * ms} {
			if c.kind == "all in one go" && us < 0 {
				continue // the others of the limits deny
			}
			t.Run(what+", "+how, func(t *testing.T) {
				t.Parallel()
				m, found := mutate(t, c.script, c.from, c.to(us)), ""
				for seed := uint64(0); seed < 40 && found == ""; seed++ { // a slow machine forgives more
					found = predictions[c.kind].wrong(t, m, seed)
				}
				t.Log(found)
				require.NotEmpty(t, found)
			})
		}
	}
}
