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

func sharedFair(t *testing.T) fairLock {
	t.Helper()
	return fairLock{t, redistest.Shared(t).Client(t), redistest.Name(t)}
}

func (l fairLock) ask(id string, waits int) []int64 {
	l.t.Helper()
	got, err := scripts.FairLockAcquire.Run(l.t.Context(), l.rdb, scripts.FairLockKeys(l.name),
		id, 30_000, waits, fairWait, fairAlive, "PUBLISH", scripts.FairLockChannel(l.name)).Int64Slice()
	require.NoError(l.t, err)
	return got
}

func (l fairLock) wait(id string) bool { l.t.Helper(); return l.ask(id, 1)[0] == 1 }

// die makes a waiter one that was not heard of for too long.
func (l fairLock) die(id string) {
	l.t.Helper()
	require.NoError(l.t, l.rdb.ZAdd(l.t.Context(), scripts.FairLockKeys(l.name)[3], redis.Z{Member: id}).Err())
}

func (l fairLock) release(id string) int {
	l.t.Helper()
	got, err := scripts.FairLockRelease.Run(l.t.Context(), l.rdb, scripts.FairLockKeys(l.name), id, fairWait, "PUBLISH", scripts.FairLockChannel(l.name)).Int()
	require.NoError(l.t, err)
	return got
}

func (l fairLock) queue() []string {
	return l.rdb.LRange(l.t.Context(), scripts.FairLockKeys(l.name)[1], 0, -1).Val()
}

// due returns by when each waiter counts as gone for Redisson, in milliseconds from now.
func (l fairLock) due() map[string]float64 {
	now := float64(l.rdb.Time(l.t.Context()).Val().UnixMilli())
	due := make(map[string]float64)
	for _, z := range l.rdb.ZRangeWithScores(l.t.Context(), scripts.FairLockKeys(l.name)[2], 0, -1).Val() {
		due[z.Member.(string)] = z.Score - now
	}
	return due
}

// javaWait does what Redisson documents for a thread that has to wait behind others.
func (l fairLock) javaWait(id string, wait time.Duration) {
	l.t.Helper()
	ctx, keys := l.t.Context(), scripts.FairLockKeys(l.name)
	base := float64(l.rdb.Time(ctx).Val().UnixMilli())
	if last := l.rdb.ZRangeWithScores(ctx, keys[2], -1, -1).Val(); len(last) > 0 {
		base = last[0].Score
	} else if held := l.rdb.PTTL(ctx, l.name).Val(); held > 0 {
		base += float64(held.Milliseconds())
	}
	require.NoError(l.t, l.rdb.ZAdd(ctx, keys[2], redis.Z{Score: base + float64(wait.Milliseconds()), Member: id}).Err())
	require.NoError(l.t, l.rdb.RPush(ctx, keys[1], id).Err())
}

// javaTake does what Redisson documents for the first in line of a free lock.
func (l fairLock) javaTake(id string) {
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

// requireNothing checks that no key of the lock is left.
func (l fairLock) requireNothing() {
	l.t.Helper()
	for _, key := range scripts.FairLockKeys(l.name) {
		require.Zero(l.t, l.rdb.Exists(l.t.Context(), key).Val(), key)
	}
}

// listen returns whether the waiter was told to look since the last time.
func (l fairLock) listen(id string) func() bool {
	channel := scripts.LockChannel(l.name) + ":" + id
	sub := l.rdb.Subscribe(l.t.Context(), channel)
	l.t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(l.t.Context())
	require.NoError(l.t, err)
	return func() (told bool) {
		l.t.Helper()
		require.NoError(l.t, l.rdb.Publish(l.t.Context(), channel, "|").Err())
		for {
			m, err := sub.ReceiveMessage(l.t.Context())
			require.NoError(l.t, err)
			if m.Payload == "|" {
				return told
			}
			told = true
		}
	}
}

func TestFairLock(t *testing.T) {
	t.Parallel()

	t.Run("takes a free lock in the plain lock's form and leaves no trace", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		for range 2 { // the second is a lost reply's
			require.Equal(t, []int64{1, 30_000}, l.ask("me:1", 1))
		}
		require.Equal(t, map[string]string{"me:1": "1"}, l.rdb.HGetAll(t.Context(), l.name).Val())
		require.Empty(t, l.queue())
		require.Equal(t, 1, l.release("me:1"))
		require.Equal(t, 0, l.release("me:1"))
		l.requireNothing()
	})

	t.Run("serves in order of arrival, and who looks twice keeps its place", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		require.True(t, l.wait("a:1"))
		for range 2 {
			for _, id := range []string{"b:1", "c:1", "d:1"} {
				got := l.ask(id, 1)
				require.Zero(t, got[0])
				require.InDelta(t, 30_000, got[1], 1_000)
			}
			require.Equal(t, []string{"b:1", "c:1", "d:1"}, l.queue())
		}
		require.Equal(t, 1, l.release("a:1"))
		require.Zero(t, l.ask("e:1", 0)[0], "TryLock does not overtake")
		require.False(t, l.wait("c:1"))
		require.InDelta(t, fairAlive, l.ask("e:1", 0)[1], 1_000, "until the first counts as gone")
		require.Equal(t, []int64{0, 300}, l.ask("d:1", 1), "when the first has taken it")
		require.True(t, l.wait("b:1"))
		require.Equal(t, []string{"c:1", "d:1"}, l.queue(), "TryLock is not in line")
		for _, step := range []struct{ leaves, next string }{{"b:1", "c:1"}, {"c:1", "d:1"}} {
			require.Equal(t, 1, l.release(step.leaves))
			require.True(t, l.wait(step.next))
		}
		require.Equal(t, 1, l.release("d:1"))
		l.requireNothing()
	})

	t.Run("a release tells the first in line alone", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.wait("a:1")
		l.wait("b:1")
		l.wait("c:1")
		first, second := l.listen("b:1"), l.listen("c:1")
		l.release("a:1")
		require.True(t, first())
		require.False(t, second())
	})

	t.Run("one that gives up leaves no trace and lets the next one go", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.wait("a:1")
		l.wait("b:1")
		l.wait("c:1")
		l.wait("d:1")
		second, third := l.listen("c:1"), l.listen("d:1")
		require.Equal(t, 0, l.release("c:1"))
		require.Equal(t, 0, l.release("c:1"))
		require.Equal(t, []string{"b:1", "d:1"}, l.queue())
		l.wait("d:1")
		require.InDelta(t, 30_000+2*fairWait, l.due()["d:1"], 1_000, "a place nearer, from its next look")
		l.release("a:1")
		require.Equal(t, 0, l.release("b:1"), "had been told, and gives up")
		require.True(t, third())
		require.False(t, second())
		require.True(t, l.wait("d:1"))
		l.release("d:1")
		l.requireNothing()
	})

	t.Run("a dead waiter is skipped by whoever looks next, who tells the one behind it", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.wait("a:1")
		for _, id := range []string{"dead:1", "dead:2", "b:1", "c:1"} {
			require.False(t, l.wait(id))
		}
		l.die("dead:1")
		l.die("dead:2")
		require.NoError(t, l.rdb.Del(t.Context(), l.name).Err()) // expired
		next := l.listen("b:1")
		require.False(t, l.wait("c:1"))
		require.True(t, next())
		require.Equal(t, []string{"b:1", "c:1"}, l.queue())
		require.True(t, l.wait("b:1"))

		l.rdb.LPush(t.Context(), scripts.FairLockKeys(l.name)[1], "unknown:1") // without a time: gone, too
		third := l.listen("c:1")
		l.release("b:1")
		require.True(t, third(), "a release skips the dead as well")
		require.True(t, l.wait("c:1"))
	})

	t.Run("a waiter that dies while it is not first is skipped in its turn", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.wait("a:1")
		l.wait("b:1")
		l.wait("dead:1")
		l.wait("c:1")
		l.die("dead:1")
		l.release("a:1")
		require.True(t, l.wait("b:1"))
		l.release("b:1")
		require.True(t, l.wait("c:1"))
	})

	t.Run("its own lateness costs the first in line nothing", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.wait("a:1")
		l.wait("late:1")
		l.wait("b:1")
		l.die("late:1")
		l.rdb.Del(t.Context(), l.name)
		require.True(t, l.wait("late:1"), "nobody looked before it did")
	})

	t.Run("times never exceed the lease and a wait for each place", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.wait("a:1")
		ids := []string{"b:1", "c:1", "d:1", "e:1"}
		check := func(ids ...string) {
			t.Helper()
			due := l.due()
			require.Len(t, due, len(ids))
			for i, id := range ids {
				require.LessOrEqual(t, due[id], float64(30_000+fairWait*(i+1)), id)
				require.Greater(t, due[id], float64(fairWait*(i+1)-1_000), id)
			}
		}
		for range 5 {
			for _, id := range ids {
				l.wait(id)
			}
			check(ids...)
		}
		look := func(ids ...string) {
			t.Helper()
			for _, id := range ids {
				require.False(t, l.wait(id))
			}
			check(ids...)
		}
		l.release("c:1")
		look("b:1", "d:1", "e:1")
		l.release("a:1")
		l.wait("b:1")
		look("d:1", "e:1")
		for range 5 {
			l.wait("e:1")
		}
		check("d:1", "e:1")
	})

	t.Run("with a fence gives tokens that rise", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		fence := scripts.LockFence(l.name)
		take := func(id string) []int64 {
			t.Helper()
			got, err := scripts.FairLockAcquire.Run(t.Context(), l.rdb, append(scripts.FairLockKeys(l.name), fence),
				id, 30_000, 1, fairWait, fairAlive, "PUBLISH", "c", 60_000).Int64Slice()
			require.NoError(t, err)
			return got
		}
		requireTokens(t, l.rdb, fence, take, func(id string) { l.release(id) }, 0)
		require.NoError(t, l.rdb.Set(t.Context(), fence, "x", 0).Err())
		err := scripts.FairLockAcquire.Run(t.Context(), l.rdb, append(scripts.FairLockKeys(l.name), fence),
			"me:1", 30_000, 1, fairWait, fairAlive, "PUBLISH", "c", 60_000).Err()
		require.True(t, scripts.WrongKind(err))
		require.Zero(t, l.rdb.Exists(t.Context(), l.name).Val())
	})

	t.Run("by force is freed from anybody, and the first in line is told", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		force := func() (int, error) {
			return scripts.FairLockRelease.Run(t.Context(), l.rdb, scripts.FairLockKeys(l.name), "", fairWait, "PUBLISH", scripts.FairLockChannel(l.name), "force").Int()
		}
		for _, want := range []int{1, 0} {
			l.wait("a:1")
			l.wait("b:1")
			told := l.listen("b:1")
			if want == 0 {
				l.rdb.Del(t.Context(), l.name)
			}
			got, err := force()
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, want == 1, told())
			require.Equal(t, []string{"b:1"}, l.queue())
			l.release("b:1")
		}
		l.rdb.HSet(t.Context(), l.name, "mode", "write")
		_, err := force()
		require.True(t, scripts.WrongKind(err))
	})

	t.Run("its keys end if everybody dies", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.wait("a:1")
		l.wait("b:1")
		for _, key := range scripts.FairLockKeys(l.name)[1:4] {
			left := l.rdb.PTTL(t.Context(), key).Val()
			require.Greater(t, left, (fairAlive-1_000)*time.Millisecond)
			require.LessOrEqual(t, left, fairAlive*time.Millisecond)
		}
	})

	t.Run("refuses other kinds and lifetimes that PEXPIRE would not set", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		ctx, keys := t.Context(), scripts.FairLockKeys(l.name)
		for _, ttl := range []any{0, -1, "", "x", "nan", 1.5, int64(1) << 62} {
			require.Error(t, scripts.FairLockAcquire.Run(ctx, l.rdb, keys, "me:1", ttl, 1, fairWait, fairAlive, "PUBLISH", scripts.FairLockChannel(l.name)).Err())
		}
		l.requireNothing()
		run := func() error {
			return scripts.FairLockAcquire.Run(ctx, l.rdb, keys, "me:1", 1000, 1, fairWait, fairAlive, "PUBLISH", scripts.FairLockChannel(l.name)).Err()
		}
		require.NoError(t, l.rdb.HSet(ctx, l.name, "mode", "read", "me:1", 1).Err())
		require.True(t, scripts.WrongKind(run()))
		require.NoError(t, l.rdb.Set(ctx, l.name, "x", 0).Err())
		require.True(t, redis.HasErrorPrefix(run(), "WRONGTYPE"))
		require.Equal(t, "x", l.rdb.Get(ctx, l.name).Val())
		require.Empty(t, l.queue())
	})
}

// Java's threads stand in the same line.
func TestFairLock_WithJava(t *testing.T) {
	t.Parallel()

	t.Run("waits behind a Java thread, which takes its turn", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.wait("go:1")
		l.javaWait("java:1", 5*time.Minute)
		require.False(t, l.wait("go:2"))
		l.javaWait("java:2", 5*time.Minute)
		require.Equal(t, []string{"java:1", "go:2", "java:2"}, l.queue())
		told := l.listen("java:1")
		require.Equal(t, 1, l.release("go:1"))
		require.True(t, told())
		require.False(t, l.wait("go:2"))
		l.javaTake("java:1")
		require.False(t, l.wait("go:2"))
		due := l.due()
		require.Greater(t, due["go:2"], float64(fairWait), "Java's shift leaves it alive for Java")
		require.Greater(t, due["java:2"], due["go:2"])
		require.NoError(t, l.rdb.Del(t.Context(), l.name).Err()) // Java unlocks
		require.True(t, l.wait("go:2"))
		require.Equal(t, []string{"java:2"}, l.queue())
		told = l.listen("java:2")
		l.release("go:2")
		require.True(t, told())
		l.javaTake("java:2")
		require.Empty(t, l.queue())
	})

	t.Run("stays behind a Java thread that waits for longer", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.wait("a:1")
		l.javaWait("java:1", time.Hour)
		for range 2 {
			l.wait("go:1")
			require.Greater(t, l.due()["go:1"], l.due()["java:1"])
		}
	})

	t.Run("a Java thread that died is skipped after its time", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.javaWait("java:1", 0)
		require.True(t, l.wait("go:1"))
		l.javaWait("java:2", time.Minute)
		l.release("go:1")
		require.False(t, l.wait("go:2"), "this one still has its time")
		require.Equal(t, []string{"java:2", "go:2"}, l.queue())
	})

	t.Run("a Java thread of a fleet with shorter times leaves a live waiter its place", func(t *testing.T) {
		t.Parallel()
		l := sharedFair(t)
		l.wait("a:1")
		l.wait("go:1")
		l.rdb.ZIncrBy(t.Context(), scripts.FairLockKeys(l.name)[2], -2*fairWait, "go:1")
		require.False(t, l.wait("go:1"))
		require.Greater(t, l.due()["go:1"], float64(fairWait), "a look puts it right")
	})
}

func TestFairLock_InACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t).Client(t)
	for _, name := range []string{"a", "b", "orders:{42}", "{a}{b}"} {
		l := fairLock{t, rdb, name}
		require.True(t, l.wait("a:1"))
		require.False(t, l.wait("b:1"))
		require.Equal(t, 1, l.release("a:1"))
		require.True(t, l.wait("b:1"))
		require.Equal(t, 1, l.release("b:1"))
		l.requireNothing()
	}
}
