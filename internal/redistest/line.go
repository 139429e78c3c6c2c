package redistest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// LineKey returns the key of the line of waiters for a name without braces.
func LineKey(name string) string { return "{" + name + "}:waiting" }

// LineOf returns the waiters in a line, the first one first.
func LineOf(tb testing.TB, rdb redis.UniversalClient, key string) []string {
	tb.Helper()
	line, err := rdb.ZRange(tb.Context(), key, 0, -1).Result()
	require.NoError(tb, err)
	return line
}

// AwaitLine waits until n waiters are in a line.
func AwaitLine(tb testing.TB, rdb redis.UniversalClient, key string, n int) {
	tb.Helper()
	Poll(tb, func() bool { return len(LineOf(tb, rdb, key)) == n })
}

// Overtaken is longer than releases let others overtake those in a line.
const Overtaken = 5 * time.Millisecond

// AwaitWaited waits until all in a line have waited for d.
func AwaitWaited(tb testing.TB, rdb redis.UniversalClient, key string, d time.Duration) {
	tb.Helper()
	Poll(tb, func() bool {
		last, err := rdb.ZRevRangeWithScores(tb.Context(), key, 0, 0).Result()
		require.NoError(tb, err)
		return len(last) == 1 && rdb.Time(tb.Context()).Val().UnixMilli() >= int64(last[0].Score)+d.Milliseconds()
	})
}
