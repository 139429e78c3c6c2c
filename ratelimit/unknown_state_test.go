package ratelimit_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// A later version of this library may add to the states that it writes. States with an unknown suffix count as used
// up until they expire, so that processes of both versions grant no more than those of one.

// unknownStates are such states of Limiter. NOW is replaced by the instant at which the burst will be there again.
var unknownStates = map[ratelimit.Algorithm][]string{
	ratelimit.GCRA: {
		"NOW:x", "NOW:", "NOW:1:", "NOW:1:3:", "NOW:1:3:60:", "NOW:1:3:60:2", "NOW:1:3:60:x", "NOW;60", "NOW:60s", "NOW:-1:3",
		"0:NOW:1:3:60", "0,NOW",
	},
	ratelimit.SlidingWindow: {"1:0:0:60000:x", "1:0:0:60000:", "1:0:0", "1:", "1", "1;0:0:60000", "1:0:0:60s", "1:0:0:60000@5", "1:0:0:60000@5:6:7", "1:0:0.5:60000"},
	ratelimit.FixedWindow:   {"0:60000:x", "0:60000:", "0:60000:1", "0:", "0;60000", "0:60s", "0.5:60000", "0:60000@", "0:60000@5:6"},
}

// immediate are the calls that grant permits at once. Each returns how many it has granted, or has seen.
var immediate = map[string]func(t *testing.T, c *ratelimit.Client, k *ratelimit.Limiter, key string) (int64, error){
	"Allow": func(t *testing.T, _ *ratelimit.Client, k *ratelimit.Limiter, key string) (int64, error) {
		r, err := k.Allow(t.Context(), key)
		return r.Granted, err
	},
	"AllowUpTo": func(t *testing.T, _ *ratelimit.Client, k *ratelimit.Limiter, key string) (int64, error) {
		r, err := k.AllowUpTo(t.Context(), key, 5)
		return r.Granted, err
	},
	"Peek": func(t *testing.T, _ *ratelimit.Client, k *ratelimit.Limiter, key string) (int64, error) {
		r, err := k.Peek(t.Context(), key)
		return r.Remaining, err
	},
	"a larger limit": func(t *testing.T, _ *ratelimit.Client, k *ratelimit.Limiter, key string) (int64, error) {
		r, err := k.With(ratelimit.PerMinute(1_000_000)).Allow(t.Context(), key)
		return r.Granted, err
	},
	"All": func(t *testing.T, c *ratelimit.Client, k *ratelimit.Limiter, key string) (int64, error) {
		r, err := several(c, k, key).Allow(t.Context())
		return r.Granted, err
	},
	"All.Peek": func(t *testing.T, c *ratelimit.Client, k *ratelimit.Limiter, key string) (int64, error) {
		r, err := several(c, k, key).Peek(t.Context())
		return r.Remaining, err
	},
	"Wait": func(t *testing.T, _ *ratelimit.Client, k *ratelimit.Limiter, key string) (int64, error) {
		return one(k.Wait(within(t, 10*time.Second), key))
	},
	"All.Wait": func(t *testing.T, c *ratelimit.Client, k *ratelimit.Limiter, key string) (int64, error) {
		return one(several(c, k, key).Wait(within(t, 10*time.Second)))
	},
	"Reserve": func(t *testing.T, _ *ratelimit.Client, k *ratelimit.Limiter, key string) (int64, error) {
		_, err := k.Reserve(t.Context(), key, 1)
		return one(err)
	},
}

// one is a permit, unless it would come too late.
func one(err error) (int64, error) {
	switch {
	case err == nil:
		return 1, nil
	case errors.Is(err, ratelimit.ErrWouldExceedDeadline):
		return 0, nil
	}
	return 0, err
}

// stateKey is where the state of a key is.
func stateKey(name string, algorithm ratelimit.Algorithm) string {
	return ratelimit.RedisKey("k", name, algorithm)
}

// Guarantees: Q31.
func TestLimiter_AStateOfALaterVersionCountsAsUsedUp(t *testing.T) {
	t.Parallel()
	limit := ratelimit.PerMinute(60)
	for kind, algorithm := range kinds {
		for _, text := range unknownStates[algorithm] {
			t.Run(fmt.Sprintf("%s, %q", kind, text), func(t *testing.T) {
				t.Parallel()
				_, rdb, _, name := shared(t)
				key := stateKey(name, algorithm)
				text := strings.ReplaceAll(text, "NOW", fmt.Sprint(serverNow(t, rdb)))
				require.NoError(t, rdb.Set(t.Context(), key, text, 2*time.Minute).Err())
				for what, call := range immediate {
					c := newClient(t, rdb) // which knows nothing
					n, err := call(t, c, c.Limiter("k", limit, ratelimit.WithAlgorithm(algorithm)), name)
					require.NoError(t, err, what)
					require.Zero(t, n, what)
					require.Equal(t, text, rdb.Get(t.Context(), key).Val(), "%s leaves it to those who can read it", what)
				}

				c := newClient(t, rdb)
				k := c.Limiter("k", limit, ratelimit.WithAlgorithm(algorithm))
				began := time.Now()
				require.NoError(t, rdb.PExpire(t.Context(), key, 300*time.Millisecond).Err())
				require.NoError(t, k.Wait(within(t, patience), name), "it holds until it expires")
				require.GreaterOrEqual(t, time.Since(began), 290*time.Millisecond)
				r, err := k.Peek(t.Context(), name)
				require.NoError(t, err)
				require.EqualValues(t, 59, r.Remaining)

				require.NoError(t, rdb.Set(t.Context(), key, text, 2*time.Minute).Err())
				require.NoError(t, k.Reset(t.Context(), name))
				r, err = k.Allow(t.Context(), name)
				require.NoError(t, err)
				require.True(t, r.Allowed, "Reset forgets it")
			})
		}
	}
}

// laterVersion is a script that adds something to the states that it writes, and reads both forms.
func laterVersion(t *testing.T, s *scripts.Script, from, to string) *mutation {
	t.Helper()
	m := mutate(t, s, from, to)
	const read = "local value = redis.call('GET', state_key)\n"
	require.Contains(t, m.text, read)
	m.text = strings.Replace(m.text, read, read+"value = value and string.gsub(value, ':v2$', '')\n", 1)
	return m
}

// Guarantees: Q31.
func TestLimiter_TwoVersionsGrantNoMoreThanOne(t *testing.T) {
	t.Parallel()
	for kind, later := range map[string]*mutation{
		"GCRA": laterVersion(t, scripts.RateGCRA, "return gcra_text(us, num, den, burst_s, period, returned, tail),",
			"return gcra_text(us, num, den, burst_s, period, returned, tail) .. ':v2',"),
		"sliding windows": laterVersion(t, scripts.RateSliding, "local state, left = sliding_text(s)\n",
			"local state, left = sliding_text(s)\n  state = state .. ':v2'\n"),
		"windows": laterVersion(t, scripts.RateWindow, "local state = window_text(used, lasts, stamp)",
			"local state = window_text(used, lasts, stamp) .. ':v2'"),
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			_, ours, _, name := shared(t)
			theirs := redistest.Shared(t).Client(t)
			theirs.AddHook(later)
			total := int64(0)
			for range 40 {
				for _, rdb := range []*redis.Client{ours, theirs} {
					k := newClient(t, rdb).Limiter("k", ratelimit.PerHour(60), ratelimit.WithAlgorithm(kinds[kind]))
					r, err := k.AllowN(t.Context(), name, 2)
					require.NoError(t, err)
					total += r.Granted
				}
			}
			require.EqualValues(t, 60, total)
		})
	}
}

// A state that this version has written before is not given back in place of one that it cannot read.
// Guarantees: Q31.
func TestReservation_CancelLeavesAStateOfALaterVersion(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	k := c.Limiter("k", perSeconds(1, 30))
	_, err := k.Allow(t.Context(), name)
	require.NoError(t, err)
	reserved, err := k.Reserve(t.Context(), name, 1)
	require.NoError(t, err)
	key := stateKey(name, ratelimit.GCRA)
	later := rdb.Get(t.Context(), key).Val() + ":x"
	require.NoError(t, rdb.Set(t.Context(), key, later, time.Minute).Err())
	given, err := reserved.Cancel(t.Context())
	require.NoError(t, err)
	require.False(t, given)
	require.Equal(t, later, rdb.Get(t.Context(), key).Val())
}

// unknownEntries are entries of a log in no packing of this library or of Redisson, with permits at the end that a
// reader of another packing would take for few.
var unknownEntries = []string{
	ratelimit.Member([16]byte{1}, 1) + "x", ratelimit.Member([16]byte{1}, 1)[:20], "abcd", "abcde", "\x01\x00\x00\x00",
	"\x20" + strings.Repeat("i", 16) + "\x01\x00\x00\x00", strings.Repeat("x", 300) + "\x01\x00\x00\x00",
}

// Guarantees: Q31.
func TestStoredLimiter_AnEntryOfALaterVersionCountsAsTheWholeRate(t *testing.T) {
	t.Parallel()
	limit := perSeconds(10, 60)
	for _, text := range unknownEntries {
		t.Run(fmt.Sprintf("%.30q", text), func(t *testing.T) {
			t.Parallel()
			first, rdb, name := storedLimiter(t, limit, ratelimit.Overall)
			held := take(t, first, 2, true)
			keys := ratelimit.LogKeys(name)
			enter := func(age time.Duration) {
				at := float64(serverNow(t, rdb))/1000 - float64(age.Milliseconds())
				require.NoError(t, rdb.ZAdd(t.Context(), keys[2], redis.Z{Score: at, Member: text}).Err())
			}
			enter(0)
			for what, call := range map[string]func(c *ratelimit.Client, l *ratelimit.StoredLimiter) (int64, error){
				"Allow": func(_ *ratelimit.Client, l *ratelimit.StoredLimiter) (int64, error) {
					r, err := l.Allow(t.Context())
					return r.Granted, err
				},
				"AllowUpTo": func(_ *ratelimit.Client, l *ratelimit.StoredLimiter) (int64, error) {
					r, err := l.AllowUpTo(t.Context(), 5)
					return r.Granted, err
				},
				"Peek": func(_ *ratelimit.Client, l *ratelimit.StoredLimiter) (int64, error) {
					r, err := l.Peek(t.Context())
					return r.Remaining, err
				},
				"Wait": func(_ *ratelimit.Client, l *ratelimit.StoredLimiter) (int64, error) {
					return one(l.Wait(within(t, 10*time.Second)))
				},
				"Reserve": func(_ *ratelimit.Client, l *ratelimit.StoredLimiter) (int64, error) {
					_, err := l.Reserve(within(t, 10*time.Second), 1)
					return one(err)
				},
				"SetRate": func(_ *ratelimit.Client, l *ratelimit.StoredLimiter) (int64, error) {
					require.NoError(t, l.SetRate(t.Context(), limit, ratelimit.WithState()))
					r, err := l.Allow(t.Context())
					return r.Granted, err
				},
			} {
				c := newClient(t, rdb)
				n, err := call(c, c.StoredLimiter(name))
				require.NoError(t, err, what)
				require.Zero(t, n, what)
			}
			given, err := first.Return(t.Context(), held)
			require.NoError(t, err)
			require.True(t, given)
			take(t, newClient(t, rdb).StoredLimiter(name), 1, false)

			// It leaves after the interval, and what it held is found.
			began := time.Now()
			enter(time.Minute - 300*time.Millisecond)
			require.NoError(t, newClient(t, rdb).StoredLimiter(name).WaitN(within(t, patience), 10))
			require.GreaterOrEqual(t, time.Since(began), 290*time.Millisecond)
			take(t, newClient(t, rdb).StoredLimiter(name), 1, false)
		})
	}
}

// Each packing that Redisson has ever had is counted.
func TestStoredLimiter_CountsEntriesOfEveryRedisson(t *testing.T) {
	t.Parallel()
	for packing, args := range map[string]string{
		"'fI', 0.5, 3": "3.13.3", "'Lc0I', 8, '12345678', 3": "3.16.4", "'Bc0I', 8, '12345678', 3": "3.17.0",
		"'Bc0I', 16, '1234567812345678', 3": "3.21.0",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			l, rdb, name := storedLimiter(t, perSeconds(10, 60), ratelimit.Overall)
			script := "return redis.call('ZADD', KEYS[1], ARGV[1], struct.pack(" + packing + "))"
			require.NoError(t, rdb.Eval(t.Context(), script, ratelimit.LogKeys(name)[2:], time.Now().UnixMilli()).Err())
			require.NoError(t, rdb.Set(t.Context(), ratelimit.LogKeys(name)[1], 7, 0).Err())
			requireLeft(t, l, 7)
			requireLeft(t, newClient(t, rdb).StoredLimiter(name), 7)
		})
	}
}
