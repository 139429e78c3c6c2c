package ratelimit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Guarantees: Q16.
func TestLimiter_StrangersShareNoQuota(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	ctx, limit := t.Context(), ratelimit.PerHour(3)
	type pair struct{ prefix, key string }
	for what, pairs := range map[string][]pair{
		"a key in braces":                {{"p", name}, {"p", "{" + name + "}"}},
		"a prefix within the key":        {{"x:login", name}, {"x", "login:{" + name + "}"}, {"x", "login:" + name}},
		"what an escaped key looks like": {{"p", name + "{"}, {"p", name + "%7B"}, {"p", name + "%257B"}},
		"a window's":                     {{"p", name + "}:window"}, {"p", name + ":window"}, {"p", name + "%7D:window"}},
		"long ones":                      {{"p", name + strings.Repeat("a", 200)}, {"p", name + strings.Repeat("a", 201)}},
		"no bytes, and odd ones":         {{"p" + name, ""}, {"p" + name, "\x00"}, {"p" + name, "\xff\xfe"}, {"p" + name, "{}"}, {"p" + name, "a}b"}, {"p" + name, "a{b"}},
	} {
		for _, algorithm := range kinds {
			for _, p := range pairs {
				k := c.Limiter(p.prefix, limit, ratelimit.WithAlgorithm(algorithm))
				r, err := k.AllowN(ctx, p.key, 3)
				require.NoError(t, err, "%s %q", what, p)
				require.True(t, r.Allowed, "%s %q", what, p)
				require.Zero(t, r.Remaining, "%s %q", what, p)
				r, err = k.Allow(ctx, p.key)
				require.NoError(t, err)
				require.False(t, r.Allowed)
			}
		}
	}
}

func TestRedisKey(t *testing.T) {
	t.Parallel()
	const gcra, window, sliding = ratelimit.GCRA, ratelimit.FixedWindow, ratelimit.SlidingWindow
	long := strings.Repeat("long}", 30)
	for want, got := range map[string]string{
		"login:{ada}":                       ratelimit.RedisKey("login", "ada", gcra),
		"login:{ada}:window":                ratelimit.RedisKey("login", "ada", window),
		"login:{ada}:sliding":               ratelimit.RedisKey("login", "ada", sliding),
		"login:{2001:db8::1}":               ratelimit.RedisKey("login", "2001:db8::1", gcra),
		"login:{}":                          ratelimit.RedisKey("login", "", gcra),
		"login:{%7Bada%7D 100%25 \x00\xff}": ratelimit.RedisKey("login", "{ada} 100% \x00\xff", gcra),
	} {
		require.Equal(t, want, got)
	}
	key := ratelimit.RedisKey("p", long, gcra)
	require.Regexp(t, `^p:\{long%7Dlong%7Dlong%7Dlong%7Dlong%7Dlong%7Dlo%sha256:[0-9a-f]{64}\}$`, key)
	require.Less(t, len(ratelimit.RedisKey("p", strings.Repeat("x", 1<<20), gcra)), 150)
	require.NotEqual(t, key, ratelimit.RedisKey("p", key[3:len(key)-1], gcra), "no key looks like a hashed one")
}

// In a cluster keys spread over the slots, and a hash tag in a key decides nothing.
// Guarantees: Q16.
func TestLimiter_KeysSpreadOverTheSlots(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	slots := map[int64]int{}
	for i := range 2000 {
		slot, err := rdb.ClusterKeySlot(t.Context(), ratelimit.RedisKey("p", fmt.Sprintf("{pinned}%d", i), ratelimit.GCRA)).Result()
		require.NoError(t, err)
		slots[slot]++
	}
	require.Greater(t, len(slots), 1700)
}

// With a hash tag, all keys have the slot of the key that is the tag, and still no two of them meet.
// Guarantees: Q16.
func TestLimiter_HashTag(t *testing.T) {
	t.Parallel()
	const gcra, window, sliding = ratelimit.GCRA, ratelimit.FixedWindow, ratelimit.SlidingWindow
	require.Equal(t, "p:{mail}:key:ada", ratelimit.TaggedKey("p", "mail", "ada", gcra))
	require.Equal(t, "p:{mail}:window:%7Bada%7D", ratelimit.TaggedKey("p", "mail", "{ada}", window))
	require.Equal(t, "p:{mail}:sliding:%7Bada%7D", ratelimit.TaggedKey("p", "mail", "{ada}", sliding))
	seen := map[string]string{}
	odd := []string{"", "a", "a}b", "{a}", ":window", ":key:", "key", "window", ":sliding", "sliding", "%7D", strings.Repeat("long}", 30)}
	for _, tag := range odd {
		for _, key := range odd {
			for _, algorithm := range kinds {
				of, found := fmt.Sprintf("%q %q %d", tag, key, algorithm), ratelimit.TaggedKey("p", tag, key, algorithm)
				require.Empty(t, seen[found], "%s is that of %s too", found, of)
				seen[found] = of
				if tag != "" {
					require.Equal(t, scripts.Slot(ratelimit.RedisKey("q", tag, gcra)), scripts.Slot(found), of)
				}
			}
		}
	}
	c, _, _, name := shared(t)
	service := c.Limiter("k", ratelimit.PerHour(1), ratelimit.WithHashTag(name))
	other := c.Limiter("k", ratelimit.PerHour(1), ratelimit.WithHashTag(name+"2"))
	for _, k := range []*ratelimit.Limiter{service, other, c.Limiter("k", ratelimit.PerHour(1))} {
		r, err := k.Allow(t.Context(), name)
		require.NoError(t, err)
		require.True(t, r.Allowed, "each has a count of its own")
	}
}

// FuzzRedisKey: distinct pairs of prefix and key never meet, and the tag of a key is its own.
// Guarantees: Q16.
func FuzzRedisKey(f *testing.F) {
	for _, s := range [][4]string{
		{"p", "bob", "p", "{bob}"},
		{"x:login", "bob", "x", "login:{bob}"},
		{"p", "%7B", "p", "{"},
		{"p", "", "p", "%"},
		{"p", "%sha256:", "p", strings.Repeat("x", 129)},
		{"p:", "a", "p", ":a"},
		{"p", "a}:window", "p", "a"},
		{"p", "a", "p", "a}:sliding"},
	} {
		f.Add(s[0], s[1], s[2], s[3], uint8(ratelimit.FixedWindow), uint8(ratelimit.GCRA))
	}
	f.Fuzz(func(t *testing.T, prefix, key, otherPrefix, otherKey string, algorithm, otherAlgorithm uint8) {
		if strings.ContainsAny(prefix+otherPrefix, "{}") {
			t.Skip("refused by Limiter")
		}
		a, otherA := ratelimit.Algorithm(algorithm%3), ratelimit.Algorithm(otherAlgorithm%3)
		one := ratelimit.RedisKey(prefix, key, a)
		other := ratelimit.RedisKey(otherPrefix, otherKey, otherA)
		same := prefix == otherPrefix && key == otherKey && a == otherA
		require.Equal(t, same, one == other, "%q %q", one, other)
		require.Equal(t, 1, strings.Count(one, "{"))
		require.Equal(t, 1, strings.Count(one, "}"))
		require.LessOrEqual(t, len(one), len(prefix)+3*128+len(":{}:sliding"))
	})
}

// FuzzTaggedKey: with hash tags, distinct limits and keys never meet either, and the slot is that of the tag.
func FuzzTaggedKey(f *testing.F) {
	for _, s := range [][6]string{
		{"p", "mail", "ada", "p", "mail", "{ada}"},
		{"p", "mail", ":key:", "p", "mail:key:", ""},
		{"p", "t", "window:x", "p", "t", "x"},
		{"p", "t", "x", "p", "t", "sliding:x"},
		{"p", "}:key:", "a", "p", "%7D:key:", "a"},
		{"p:{t", "t", "", "p", "t", ""},
		{"p", "\xff", "%", "p", "\xfe", "%25"},
		{"p", "t", "%sha256:", "p", "t", strings.Repeat("x", 129)},
		{"p", "", "a", "p", "t", "a"},
	} {
		for algorithm := range uint8(3) {
			f.Add(s[0], s[1], s[2], s[3], s[4], s[5], algorithm, uint8(ratelimit.GCRA))
		}
	}
	f.Fuzz(func(t *testing.T, prefix, tag, key, otherPrefix, otherTag, otherKey string, algorithm, otherAlgorithm uint8) {
		if strings.ContainsAny(prefix+otherPrefix, "{}") {
			t.Skip("refused by Limiter")
		}
		a, otherA := ratelimit.Algorithm(algorithm%3), ratelimit.Algorithm(otherAlgorithm%3)
		one := ratelimit.TaggedKey(prefix, tag, key, a)
		other := ratelimit.TaggedKey(otherPrefix, otherTag, otherKey, otherA)
		same := prefix == otherPrefix && tag == otherTag && key == otherKey && a == otherA
		require.Equal(t, same, one == other, "%q %q", one, other)
		if tag != "" {
			require.Equal(t, scripts.Slot(ratelimit.RedisKey("q", tag, ratelimit.GCRA)), scripts.Slot(one))
		}
		require.LessOrEqual(t, len(one), len(prefix)+2*(3*128)+len(":{}:sliding:"))
	})
}

// As in Redisson, a and {a} are limits of their own that share what was granted.
// Guarantees: Q16.
func TestStoredLimiter_ANameInBracesSharesWhatWasGranted(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	plain, braced := c.StoredLimiter(name), c.StoredLimiter("{"+name+"}")
	require.NoError(t, plain.SetRate(t.Context(), perSeconds(10, 60)))
	_, err := braced.Config(t.Context())
	require.ErrorIs(t, err, ratelimit.ErrNotSet, "the limit is another")
	require.NoError(t, braced.SetRate(t.Context(), perSeconds(10, 60)))
	take(t, plain, 4, true)
	requireLeft(t, braced, 6)
}

// RedisKey names the key that stands in Redis.
func TestLimiter_RedisKey(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	for _, algorithm := range kinds {
		k := c.Limiter("p:"+name, ratelimit.PerHour(3), ratelimit.WithAlgorithm(algorithm))
		for _, key := range []string{"user-7", "", "{a}%", strings.Repeat("long", 99)} {
			_, err := k.Allow(t.Context(), key)
			require.NoError(t, err)
			require.EqualValues(t, 1, rdb.Exists(t.Context(), k.RedisKey(key)).Val(), key)
		}
	}
}
