package redistest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// LineKey returns the key of the line of waiters for a name without braces.
func LineKey(name string) string { return "{" + name + "}:waiting" }

// LineOf returns the waiters in the line of a name, the first one first.
func LineOf(tb testing.TB, rdb redis.UniversalClient, name string) []string {
	tb.Helper()
	line, err := rdb.ZRange(tb.Context(), LineKey(name), 0, -1).Result()
	require.NoError(tb, err)
	return line
}

// AwaitLine waits until n waiters are in the line of a name.
func AwaitLine(tb testing.TB, rdb redis.UniversalClient, name string, n int) {
	tb.Helper()
	Poll(tb, func() bool { return len(LineOf(tb, rdb, name)) == n })
}

// AwaitWaited waits until all in the line of a name have waited for longer than releases let others overtake them.
func AwaitWaited(tb testing.TB, rdb redis.UniversalClient, name string) {
	tb.Helper()
	AwaitWaitedFor(tb, rdb, name, 5*time.Millisecond)
}

// AwaitWaitedFor waits until all in the line of a name have waited for d.
func AwaitWaitedFor(tb testing.TB, rdb redis.UniversalClient, name string, d time.Duration) {
	tb.Helper()
	Poll(tb, func() bool {
		last, err := rdb.ZRevRangeWithScores(tb.Context(), LineKey(name), 0, 0).Result()
		require.NoError(tb, err)
		return len(last) == 1 && rdb.Time(tb.Context()).Val().UnixMilli() >= int64(last[0].Score)+d.Milliseconds()
	})
}
