package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// oldRedisson takes n permits as Redisson 3.13.3 to 3.16.3 do: an entry is a float and the permits, and what its
// script reads there of entries that are older than the interval is added to the value. It returns whether they were
// granted.
const oldRedisson = `
local rate, interval = unpack(redis.call('HMGET', KEYS[1], 'rate', 'interval'))
local n, now = tonumber(ARGV[1]), tonumber(ARGV[2])
local left = tonumber(redis.call('GET', KEYS[2]) or rate)
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], 0, now - interval)) do
  local id, permits = struct.unpack('fI', entry)
  left = left + permits
  redis.call('ZREM', KEYS[3], entry)
end
if left >= n then
  redis.call('ZADD', KEYS[3], now, struct.pack('fI', ARGV[3], n))
  left = left - n
end
redis.call('SET', KEYS[2], left)
return left >= 0 and redis.call('ZSCORE', KEYS[3], struct.pack('fI', ARGV[3], n)) and 1 or 0`

// entriesOf reads the permits of all entries of a log by an expression of Redisson's scripts.
func entriesOf(ctx context.Context, rdb *redis.Client, name, packing string) ([]int64, error) {
	script := `local all = {}
for i, entry in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local id, permits = struct.unpack('` + packing + `', entry)
  all[i] = permits
end
return all`
	return rdb.Eval(ctx, script, ratelimit.LogKeys(name)[2:]).Int64Slice()
}

// Each call that makes entries makes them such that the first and the last packing of Redisson have the permits where
// this one does.
func TestStoredLimiter_EntriesAreReadByEveryRedissonButOne(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for what, call := range map[string]func(c *ratelimit.Client, l *ratelimit.StoredLimiter, n int64) error{
		"Allow": func(_ *ratelimit.Client, l *ratelimit.StoredLimiter, n int64) error {
			_, err := l.AllowN(ctx, n)
			return err
		},
		"AllowUpTo": func(_ *ratelimit.Client, l *ratelimit.StoredLimiter, n int64) error {
			if n < 1<<32-1 { // the entry is made smaller
				require.NoError(t, l.SetRate(ctx, perSeconds(n, 60)))
			}
			_, err := l.AllowUpTo(ctx, 1<<32-1)
			return err
		},
		"Wait": func(_ *ratelimit.Client, l *ratelimit.StoredLimiter, n int64) error { return l.WaitN(ctx, n) },
		"Reserve": func(_ *ratelimit.Client, l *ratelimit.StoredLimiter, n int64) error {
			_, err := l.Reserve(ctx, n)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, n := range []int64{2, 3, 255, 256, 70_000, 1<<32 - 1} {
				c, rdb, _, name := shared(t)
				l := c.StoredLimiter(name + fmt.Sprint(n))
				require.NoError(t, l.SetRate(ctx, perSeconds(1<<32-1, 60)))
				require.NoError(t, call(c, l, n))
				for _, packing := range []string{"fI", "Bc0I"} {
					found, err := entriesOf(ctx, rdb, name+fmt.Sprint(n), packing)
					require.NoError(t, err)
					require.Equal(t, []int64{n}, found, packing)
				}
				_, err := entriesOf(ctx, rdb, name+fmt.Sprint(n), "Lc0I")
				require.ErrorContains(t, err, "too short", "Redisson 3.16.4 to 3.16.8 fail, and grant nothing")
			}
		})
	}
}

func TestStoredLimiter_AnOldRedissonGrantsNoMoreThanTheRate(t *testing.T) {
	t.Parallel()
	l, rdb, name := storedLimiter(t, perSeconds(10, 60), ratelimit.Overall)
	for _, n := range []int64{1, 2, 3, 4} {
		take(t, l, n, true)
	}
	shift(t, rdb, ratelimit.LogKeys(name)[2], -61*time.Second, 4) // they have expired
	now, granted := time.Now().UnixMilli(), int64(0)
	for i := range 100 {
		n, err := rdb.Eval(t.Context(), oldRedisson, ratelimit.LogKeys(name), 1, now, float64(i)).Int64()
		require.NoError(t, err)
		granted += n
	}
	require.EqualValues(t, 10, granted)
	require.Equal(t, "0", rdb.Get(t.Context(), ratelimit.LogKeys(name)[1]).Val())
	found, err := entriesOf(t.Context(), rdb, name, "fI")
	require.NoError(t, err)
	require.Len(t, found, 10)
	requireLeft(t, newClient(t, rdb).StoredLimiter(name), 0)
}

// The permits stand among the bytes of the id. The others are random.
func TestStoredLimiter_IDsOfEntriesAreRandom(t *testing.T) {
	t.Parallel()
	l, rdb, name := storedLimiter(t, perSeconds(1000, 60), ratelimit.Overall)
	for range 200 {
		take(t, l, 1, true)
	}
	entries := rdb.ZRange(t.Context(), ratelimit.LogKeys(name)[2], 0, -1).Val()
	require.Len(t, entries, 200)
	var seen [21]map[byte]bool
	for _, entry := range entries {
		require.Len(t, entry, 21)
		for i := range seen {
			if seen[i] == nil {
				seen[i] = map[byte]bool{}
			}
			seen[i][entry[i]] = true
		}
	}
	random := 0
	for _, values := range seen {
		if len(values) > 100 { // 200 random bytes have some 140 different values
			random++
		} else {
			require.Len(t, values, 1)
		}
	}
	require.Equal(t, 96/8, random)
}
