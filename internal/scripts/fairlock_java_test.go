package scripts_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Java threads wait in the same queue.
func TestFairLock_WithJava(t *testing.T) {
	t.Parallel()

	t.Run("waits behind a Java thread, which acquires in its turn", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.acquireOrEnqueue("go:1")
		l.javaEnqueue("java:1", 5*time.Minute)
		require.False(t, l.acquireOrEnqueue("go:2"))
		l.javaEnqueue("java:2", 5*time.Minute)
		require.Equal(t, []string{"java:1", "go:2", "java:2"}, l.queue())
		woken := l.listen("java:1")
		require.Equal(t, 1, l.release("go:1"))
		require.True(t, woken())
		require.False(t, l.acquireOrEnqueue("go:2"))
		l.javaAcquire("java:1")
		require.False(t, l.acquireOrEnqueue("go:2"))
		due := l.javaTimeouts()
		require.Greater(t, due["go:2"], float64(fairWait), "Java's shift of the times keeps it alive for Java")
		require.Greater(t, due["java:2"], due["go:2"])
		require.NoError(t, l.rdb.Del(t.Context(), l.name).Err()) // Java unlocks
		require.True(t, l.acquireOrEnqueue("go:2"))
		require.Equal(t, []string{"java:2"}, l.queue())
		woken = l.listen("java:2")
		l.release("go:2")
		require.True(t, woken())
		l.javaAcquire("java:2")
		require.Empty(t, l.queue())
	})

	t.Run("stays behind a Java thread with a longer wait", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.acquireOrEnqueue("a:1")
		l.javaEnqueue("java:1", time.Hour)
		for range 2 {
			l.acquireOrEnqueue("go:1")
			require.Greater(t, l.javaTimeouts()["go:1"], l.javaTimeouts()["java:1"])
		}
	})

	t.Run("skips a dead Java thread after its time", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.javaEnqueue("java:1", 0)
		require.True(t, l.acquireOrEnqueue("go:1"))
		l.javaEnqueue("java:2", time.Minute)
		l.release("go:1")
		require.False(t, l.acquireOrEnqueue("go:2"), "its time has not passed")
		require.Equal(t, []string{"java:2", "go:2"}, l.queue())
	})

	t.Run("keeps its position beside Java threads with shorter times", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.acquireOrEnqueue("a:1")
		l.acquireOrEnqueue("go:1")
		l.rdb.ZIncrBy(t.Context(), scripts.FairLockKeys(l.name)[2], -2*fairWait, "go:1")
		require.False(t, l.acquireOrEnqueue("go:1"))
		require.Greater(t, l.javaTimeouts()["go:1"], float64(fairWait), "an attempt corrects its time")
	})
}

// javaTimeouts returns, in ms from now, when Redisson would skip each waiter.
func (l fairLock) javaTimeouts() map[string]float64 {
	now := float64(l.rdb.Time(l.t.Context()).Val().UnixMilli())
	due := make(map[string]float64)
	for _, z := range l.rdb.ZRangeWithScores(l.t.Context(), scripts.FairLockKeys(l.name)[2], 0, -1).Val() {
		due[z.Member.(string)] = z.Score - now
	}
	return due
}

// javaEnqueue enqueues a Java thread as Redisson documents.
func (l fairLock) javaEnqueue(id string, wait time.Duration) {
	l.t.Helper()
	ctx, keys := l.t.Context(), scripts.FairLockKeys(l.name)
	base := float64(l.rdb.Time(ctx).Val().UnixMilli())
	if last := l.rdb.ZRangeWithScores(ctx, keys[2], -1, -1).Val(); len(last) > 0 {
		base = last[0].Score
	} else if held := l.rdb.PTTL(ctx, l.name).Val(); held > 0 {
		base += float64(held.Milliseconds())
	}
	require.NoError(
		l.t, l.rdb.ZAdd(ctx, keys[2], redis.Z{Score: base + float64(wait.Milliseconds()), Member: id}).Err(),
	)
	require.NoError(l.t, l.rdb.RPush(ctx, keys[1], id).Err())
}

// javaAcquire takes the free lock for the first in the queue, a Java thread, as Redisson documents.
func (l fairLock) javaAcquire(id string) {
	l.t.Helper()
	ctx, keys := l.t.Context(), scripts.FairLockKeys(l.name)
	require.Equal(l.t, id, l.rdb.LPop(ctx, keys[1]).Val())
	l.rdb.ZRem(ctx, keys[2], id)
	for _, other := range l.rdb.ZRange(ctx, keys[2], 0, -1).Val() {
		l.rdb.ZIncrBy(ctx, keys[2], -fairWait, other)
	}
	l.rdb.HSet(ctx, l.name, id, 1)
	l.rdb.PExpire(ctx, l.name, 30*time.Second)
}
