package scripts_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

const (
	fairWait  = 300_000
	fairAlive = 15_000
)

type fairLock struct {
	t    *testing.T
	rdb  redis.UniversalClient
	name string
}

func newFairLock(t *testing.T) fairLock {
	t.Helper()
	return fairLock{t, redistest.Shared(t).Client(t), redistest.Name(t)}
}

func (l fairLock) attempt(id string, waits int) []int64 {
	l.t.Helper()
	got, err := scripts.FairLockAcquire.Run(l.t.Context(), l.rdb, scripts.FairLockKeys(l.name),
		id, 30_000, waits, fairWait, fairAlive, "PUBLISH", scripts.FairLockChannel(l.name)).Int64Slice()
	require.NoError(l.t, err)
	return got
}

func (l fairLock) acquireOrEnqueue(id string) bool { l.t.Helper(); return l.attempt(id, 1)[0] == 1 }

// expireWaiter moves the waiter's last sign of life too far into the past.
func (l fairLock) expireWaiter(id string) {
	l.t.Helper()
	require.NoError(l.t, l.rdb.ZAdd(l.t.Context(), scripts.FairLockKeys(l.name)[3], redis.Z{Member: id}).Err())
}

func (l fairLock) release(id string) int {
	l.t.Helper()
	got, err := scripts.FairLockRelease.Run(
		l.t.Context(), l.rdb, scripts.FairLockKeys(l.name), id, fairWait, "PUBLISH", scripts.FairLockChannel(l.name),
	).Int()
	require.NoError(l.t, err)
	return got
}

func (l fairLock) queue() []string {
	return l.rdb.LRange(l.t.Context(), scripts.FairLockKeys(l.name)[1], 0, -1).Val()
}

// requireNoKeys checks that no key of the lock remains.
func (l fairLock) requireNoKeys() {
	l.t.Helper()
	for _, key := range scripts.FairLockKeys(l.name) {
		require.Zero(l.t, l.rdb.Exists(l.t.Context(), key).Val(), key)
	}
}

// listen subscribes as the waiter. The returned function reports whether it was woken since the last call.
func (l fairLock) listen(id string) func() bool {
	channel := scripts.LockChannel(l.name) + ":" + id
	sub := l.rdb.Subscribe(l.t.Context(), channel)
	l.t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(l.t.Context())
	require.NoError(l.t, err)
	return func() (woken bool) {
		l.t.Helper()
		require.NoError(l.t, l.rdb.Publish(l.t.Context(), channel, "|").Err())
		for {
			m, err := sub.ReceiveMessage(l.t.Context())
			require.NoError(l.t, err)
			if m.Payload == "|" {
				return woken
			}
			woken = true
		}
	}
}

// Guarantees: L23.
func TestFairLock(t *testing.T) {
	t.Parallel()

	t.Run("acquires a free lock in the plain lock's format and leaves no keys", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		for range 2 { // the second call is a retry after a lost reply
			require.Equal(t, []int64{1, 30_000}, l.attempt("me:1", 1))
		}
		require.Equal(t, map[string]string{"me:1": "1"}, l.rdb.HGetAll(t.Context(), l.name).Val())
		require.Empty(t, l.queue())
		require.Equal(t, 1, l.release("me:1"))
		require.Equal(t, 0, l.release("me:1"))
		l.requireNoKeys()
	})

	t.Run("serves in order of arrival; a repeated attempt keeps the position", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		require.True(t, l.acquireOrEnqueue("a:1"))
		for range 2 {
			for _, id := range []string{"b:1", "c:1", "d:1"} {
				got := l.attempt(id, 1)
				require.Zero(t, got[0])
				require.InDelta(t, 30_000, got[1], 1_000)
			}
			require.Equal(t, []string{"b:1", "c:1", "d:1"}, l.queue())
		}
		require.Equal(t, 1, l.release("a:1"))
		require.Zero(t, l.attempt("e:1", 0)[0], "TryLock does not overtake the queue")
		require.False(t, l.acquireOrEnqueue("c:1"))
		require.InDelta(t, fairAlive, l.attempt("e:1", 0)[1], 1_000, "until the first in the queue counts as dead")
		require.Equal(t, []int64{0, 300}, l.attempt("d:1", 1), "the first in the queue is about to acquire")
		require.True(t, l.acquireOrEnqueue("b:1"))
		require.Equal(t, []string{"c:1", "d:1"}, l.queue(), "TryLock does not enqueue")
		for _, step := range []struct{ leaves, next string }{{"b:1", "c:1"}, {"c:1", "d:1"}} {
			require.Equal(t, 1, l.release(step.leaves))
			require.True(t, l.acquireOrEnqueue(step.next))
		}
		require.Equal(t, 1, l.release("d:1"))
		l.requireNoKeys()
	})

	t.Run("a release wakes only the first in the queue", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.acquireOrEnqueue("a:1")
		l.acquireOrEnqueue("b:1")
		l.acquireOrEnqueue("c:1")
		first, second := l.listen("b:1"), l.listen("c:1")
		l.release("a:1")
		require.True(t, first())
		require.False(t, second())
	})

	t.Run("a waiter that gives up leaves no keys and wakes the next", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.acquireOrEnqueue("a:1")
		l.acquireOrEnqueue("b:1")
		l.acquireOrEnqueue("c:1")
		l.acquireOrEnqueue("d:1")
		second, third := l.listen("c:1"), l.listen("d:1")
		require.Equal(t, 0, l.release("c:1"))
		require.Equal(t, 0, l.release("c:1"))
		require.Equal(t, []string{"b:1", "d:1"}, l.queue())
		l.acquireOrEnqueue("d:1")
		require.InDelta(
			t, 30_000+2*fairWait, l.javaTimeouts()["d:1"], 1_000, "one position nearer, from its next attempt",
		)
		l.release("a:1")
		require.Equal(t, 0, l.release("b:1"), "it was woken and gives up")
		require.True(t, third())
		require.False(t, second())
		require.True(t, l.acquireOrEnqueue("d:1"))
		l.release("d:1")
		l.requireNoKeys()
	})

	t.Run("the next attempt skips a dead waiter and wakes the one behind it", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.acquireOrEnqueue("a:1")
		for _, id := range []string{"dead:1", "dead:2", "b:1", "c:1"} {
			require.False(t, l.acquireOrEnqueue(id))
		}
		l.expireWaiter("dead:1")
		l.expireWaiter("dead:2")
		require.NoError(t, l.rdb.Del(t.Context(), l.name).Err()) // expired
		next := l.listen("b:1")
		require.False(t, l.acquireOrEnqueue("c:1"))
		require.True(t, next())
		require.Equal(t, []string{"b:1", "c:1"}, l.queue())
		require.True(t, l.acquireOrEnqueue("b:1"))

		l.rdb.LPush(t.Context(), scripts.FairLockKeys(l.name)[1], "unknown:1") // without a time it counts as dead
		third := l.listen("c:1")
		l.release("b:1")
		require.True(t, third(), "a release skips the dead as well")
		require.True(t, l.acquireOrEnqueue("c:1"))
	})

	t.Run("a waiter that dies behind others is skipped in its turn", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.acquireOrEnqueue("a:1")
		l.acquireOrEnqueue("b:1")
		l.acquireOrEnqueue("dead:1")
		l.acquireOrEnqueue("c:1")
		l.expireWaiter("dead:1")
		l.release("a:1")
		require.True(t, l.acquireOrEnqueue("b:1"))
		l.release("b:1")
		require.True(t, l.acquireOrEnqueue("c:1"))
	})

	t.Run("the first in the queue acquires although it is late itself", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.acquireOrEnqueue("a:1")
		l.acquireOrEnqueue("late:1")
		l.acquireOrEnqueue("b:1")
		l.expireWaiter("late:1")
		l.rdb.Del(t.Context(), l.name)
		require.True(t, l.acquireOrEnqueue("late:1"), "no other waiter has tried before it")
	})

	t.Run("timeouts never exceed the lease plus one wait per position", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.acquireOrEnqueue("a:1")
		ids := []string{"b:1", "c:1", "d:1", "e:1"}
		check := func(ids ...string) {
			t.Helper()
			due := l.javaTimeouts()
			require.Len(t, due, len(ids))
			for i, id := range ids {
				require.LessOrEqual(t, due[id], float64(30_000+fairWait*(i+1)), id)
				require.Greater(t, due[id], float64(fairWait*(i+1)-1_000), id)
			}
		}
		for range 5 {
			for _, id := range ids {
				l.acquireOrEnqueue(id)
			}
			check(ids...)
		}
		requireEnqueued := func(ids ...string) {
			t.Helper()
			for _, id := range ids {
				require.False(t, l.acquireOrEnqueue(id))
			}
			check(ids...)
		}
		l.release("c:1")
		requireEnqueued("b:1", "d:1", "e:1")
		l.release("a:1")
		l.acquireOrEnqueue("b:1")
		requireEnqueued("d:1", "e:1")
		for range 5 {
			l.acquireOrEnqueue("e:1")
		}
		check("d:1", "e:1")
	})

	t.Run("with a token counter, tokens increase", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		fence := scripts.LockFence(l.name)
		acquire := func(id string) []int64 {
			t.Helper()
			got, err := scripts.FairLockAcquire.Run(t.Context(), l.rdb, append(scripts.FairLockKeys(l.name), fence),
				id, 30_000, 1, fairWait, fairAlive, "PUBLISH", "c", 60_000).Int64Slice()
			require.NoError(t, err)
			return got
		}
		requireTokens(t, l.rdb, fence, acquire, func(id string) { l.release(id) }, 0)
		require.NoError(t, l.rdb.Set(t.Context(), fence, "x", 0).Err())
		err := scripts.FairLockAcquire.Run(t.Context(), l.rdb, append(scripts.FairLockKeys(l.name), fence),
			"me:1", 30_000, 1, fairWait, fairAlive, "PUBLISH", "c", 60_000).Err()
		require.True(t, redis.HasErrorPrefix(err, "WRONGKIND"))
		require.Zero(t, l.rdb.Exists(t.Context(), l.name).Val())
	})

	t.Run("force frees any holder and wakes the first in the queue", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		force := func() (any, error) {
			return scripts.FairLockRelease.Run(
				t.Context(), l.rdb, scripts.FairLockKeys(l.name),
				"", fairWait, "PUBLISH", scripts.FairLockChannel(l.name), scripts.ClientChannel(""),
			).Result()
		}
		client := newClientID(t)
		notified := listen(t, l.rdb, scripts.ClientChannel(client))
		for _, want := range []int{1, 0} {
			l.acquireOrEnqueue(client + ":1")
			l.acquireOrEnqueue("b:1")
			woken := l.listen("b:1")
			if want == 0 {
				l.rdb.Del(t.Context(), l.name)
			}
			got, err := force()
			require.NoError(t, err)
			require.Equal(t, []any{int64(want)}, got)
			require.Equal(t, want == 1, woken())
			if want == 1 {
				require.Equal(t, client+":1 "+l.name, notified())
			}
			require.Equal(t, []string{"b:1"}, l.queue())
			l.release("b:1")
		}
		l.rdb.HSet(t.Context(), l.name, "mode", "write")
		_, err := force()
		require.True(t, redis.HasErrorPrefix(err, "WRONGKIND"))
	})

	t.Run("its keys expire if all clients die", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		l.acquireOrEnqueue("a:1")
		l.acquireOrEnqueue("b:1")
		for _, key := range scripts.FairLockKeys(l.name)[1:4] {
			left := l.rdb.PTTL(t.Context(), key).Val()
			require.Greater(t, left, (fairAlive-1_000)*time.Millisecond)
			require.LessOrEqual(t, left, fairAlive*time.Millisecond)
		}
	})

	t.Run("refuses other kinds and lifetimes that PEXPIRE would not set", func(t *testing.T) {
		t.Parallel()
		l := newFairLock(t)
		ctx, keys := t.Context(), scripts.FairLockKeys(l.name)
		for _, ttl := range []any{0, -1, "", "x", "nan", 1.5, int64(1) << 62} {
			require.Error(t, scripts.FairLockAcquire.Run(
				ctx, l.rdb, keys, "me:1", ttl, 1, fairWait, fairAlive, "PUBLISH", scripts.FairLockChannel(l.name),
			).Err())
		}
		l.requireNoKeys()
		run := func() error {
			return scripts.FairLockAcquire.Run(
				ctx, l.rdb, keys, "me:1", 1000, 1, fairWait, fairAlive, "PUBLISH", scripts.FairLockChannel(l.name),
			).Err()
		}
		require.NoError(t, l.rdb.HSet(ctx, l.name, "mode", "read", "me:1", 1).Err())
		require.True(t, redis.HasErrorPrefix(run(), "WRONGKIND"))
		require.NoError(t, l.rdb.Set(ctx, l.name, "x", 0).Err())
		require.True(t, redis.HasErrorPrefix(run(), "WRONGTYPE"))
		require.Equal(t, "x", l.rdb.Get(ctx, l.name).Val())
		require.Empty(t, l.queue())
	})
}

func TestFairLock_InACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t).Client(t)
	for _, name := range []string{"a", "b", "orders:{42}", "{a}{b}"} {
		l := fairLock{t, rdb, name}
		require.True(t, l.acquireOrEnqueue("a:1"))
		require.False(t, l.acquireOrEnqueue("b:1"))
		require.Equal(t, 1, l.release("a:1"))
		require.True(t, l.acquireOrEnqueue("b:1"))
		require.Equal(t, 1, l.release("b:1"))
		l.requireNoKeys()
	}
}
