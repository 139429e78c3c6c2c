package redislock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func isRenewed(t *testing.T, lut *lockUnderTest) {
	const lease = 1200 * time.Millisecond
	c, w := lut.newClient(t), newWheel(t)
	m := lut.mutex(c, redislock.WithLease(lease))
	ctx := redislock.WithOwner(t.Context(), &redislock.Owner{})
	outer, err := m.Lock(ctx)
	require.NoError(t, err)
	inner, err := m.Lock(ctx)
	require.NoError(t, err)
	mustUnlock(t, inner, outer) // whose end must not end the renewals of the next
	l := mustTryLock(t, m)
	holders, rival := lut.requireHeldOnce(t), lut.conflictingMutex(lut.newClient(t))
	for start := time.Now(); time.Since(start) < 5*lease/2; {
		_, err := rival.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		require.NoError(t, w.Sleep(t.Context(), 20*time.Millisecond))
	}
	require.NoError(t, l.Err())
	require.Equal(t, holders, lut.requireHeldOnce(t))
	mustUnlock(t, l)
	lut.requireNoKeys(t)
}

func mendsTheExpiry(t *testing.T, lut *lockUnderTest) {
	const lease, shorter = 3 * time.Second, 2500 * time.Millisecond
	l := lut.mustLock(t, redislock.WithLease(lease))
	lasts := func(more time.Duration) {
		t.Helper()
		poll(t, func() bool {
			return !slices.ContainsFunc(lut.parts, func(name string) bool { return lut.rdb.PTTL(t.Context(), name).Val() <= more })
		})
	}
	for _, name := range lut.parts {
		require.True(t, lut.rdb.PExpire(t.Context(), name, shorter).Val())
	}
	lasts(shorter)
	if lut.kind != "read" { // whom one without expiry may have joined
		for _, name := range lut.parts {
			require.True(t, lut.rdb.Persist(t.Context(), name).Val())
		}
		lasts(0)
	}
	require.NoError(t, l.Err())
	mustUnlock(t, l)
	lut.requireNoKeys(t)
}

// requireLost waits for a loss that a renewal finds, before the lease is over.
func requireLost(t *testing.T, l *redislock.Lock, since time.Time, lease time.Duration) {
	t.Helper()
	<-l.Done()
	require.Less(t, time.Since(since), lease, "told by the next renewal")
	require.False(t, l.Valid())
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
}

func tellsOfARemovedKey(t *testing.T, lut *lockUnderTest) {
	const lease = 2 * time.Second
	l := lut.mustLock(t, redislock.WithLease(lease))
	ctx := l.Context(t.Context())
	lut.deleteKeys(t)
	removed := time.Now()
	next := mustTryLock(t, lut.conflictingMutex(lut.newClient(t)))
	holders := lut.requireHeldOnce(t)
	requireLost(t, l, removed, lease)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), redislock.ErrLost)
	require.Equal(t, holders, lut.requireHeldOnce(t), "the next one's hold is left alone")
	mustUnlock(t, next)
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
}

func tellsOfAnOverwrittenKey(t *testing.T, lut *lockUnderTest) {
	const lease = 2 * time.Second
	l, name := lut.mustLock(t, redislock.WithLease(lease)), lut.parts[len(lut.parts)-1]
	require.NoError(t, lut.rdb.Set(t.Context(), name, "mine", 0).Err())
	requireLost(t, l, time.Now(), lease)
	poll(t, func() bool { return slices.Equal(lut.remainingKeys(t), []string{name}) })
	require.Equal(t, "mine", lut.rdb.Get(t.Context(), name).Val())
}

func tellsOfForce(t *testing.T, lut *lockUnderTest) {
	const lease = 2 * time.Second
	l, c := lut.mustLock(t, redislock.WithLease(lease)), lut.newClient(t)
	if lut.kind == "read" || lut.kind == "write" {
		other := map[string]string{"read": "write", "write": "read"}[lut.kind]
		freed, err := newMutex(c, other, lut.name).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.False(t, freed, "each side frees its own only")
	}
	forced := time.Now()
	for _, held := range []bool{true, false} {
		freed, err := lut.partMutex(c).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.Equal(t, held, freed)
	}
	requireLost(t, l, forced, lease)
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
}

// faultyClient is a process whose connections pass a FaultDialer. The scripts are known, so that one call does the work.
func (lut *lockUnderTest) newFaultyClient(t *testing.T) (*redislock.Client, *redistest.FaultDialer) {
	t.Helper()
	d := &redistest.FaultDialer{}
	c := newClient(t, lut.connect(t, func(o *redis.UniversalOptions) { o.Dialer, o.ReadTimeout = d.Dial, 200*time.Millisecond }))
	mustUnlock(t, mustTryLock(t, lut.mutex(c)))
	lut.requireNoKeys(t)
	return c, d
}

// One Lock is one hold, and one Unlock frees it, whatever was executed twice.
func lostReplies(t *testing.T, lut *lockUnderTest) {
	for _, loss := range []redistest.Loss{redistest.Swallow, redistest.Cut} {
		c, d := lut.newFaultyClient(t)
		lost := d.LoseReply("EVALSHA", 1, loss)
		l := mustTryLock(t, lut.mutex(c))
		<-lost
		lut.requireHeldOnce(t)
		lost = d.LoseReply("EVALSHA", 1, loss)
		mustUnlock(t, l)
		<-lost
		lut.requireNoKeys(t)

		// What is released once more, in case a copy comes late, must not touch the next holder.
		next := lut.mustLock(t)
		holders := lut.requireHeldOnce(t)
		require.NoError(t, c.Close(within(t, patience))) // sends what is pending
		require.Equal(t, holders, lut.requireHeldOnce(t))
		mustUnlock(t, next)
		lut.requireNoKeys(t)
	}
}

func givenUpOnTheWire(t *testing.T, lut *lockUnderTest) {
	for _, lock := range []func(anyMutex, context.Context) (*redislock.Lock, error){anyMutex.TryLock, anyMutex.Lock} {
		c, d := lut.newFaultyClient(t)
		lost := d.LoseReply("EVALSHA", 1, redistest.Swallow)
		ctx, cancel := context.WithCancel(t.Context())
		gone := callAsync(func() (*redislock.Lock, error) { return lock(lut.mutex(c, redislock.WithLease(time.Minute)), ctx) })
		<-lost
		require.NotEmpty(t, lut.remainingKeys(t), "the server did it, and nobody knows")
		start := time.Now()
		cancel()
		<-gone.done
		require.ErrorIs(t, gone.err, context.Canceled)
		require.NotErrorIs(t, gone.err, redislock.ErrLocked)
		other := mustLock(t, lut.conflictingMutex(lut.newClient(t)))
		require.Less(t, time.Since(start), 20*time.Second, "long before the lease ends")
		mustUnlock(t, other)
		require.NoError(t, c.Close(within(t, patience)))
		lut.requireNoKeys(t)
	}
}

// What happens to a whole deployment, one mishap after the other.
func TestKinds_ThroughMishaps(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func() []*redistest.Server{
		"a single server": func() []*redistest.Server { return []*redistest.Server{redistest.Start(t)} },
		"a cluster": func() []*redistest.Server { // whose replicas do not take over from a master that restarts
			return redistest.StartCluster(t, "--cluster-node-timeout", "6000").Nodes()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := start()
			dep := newDeployment(t, 3, servers...)
			t.Run("killed subscriptions are restored, and those who wait look", func(t *testing.T) { subscriptionsKilled(t, dep) })
			t.Run("scripts are flushed all the time", func(t *testing.T) { scriptsFlushed(t, dep) })
			t.Run("FLUSHALL", func(t *testing.T) {
				dataLost(t, dep, func() {
					dep.forEachMaster(t, func(ctx context.Context, rdb *redis.Client) error { return rdb.FlushAll(ctx).Err() })
				})
			})
			t.Run("a restart without data", func(t *testing.T) {
				dataLost(t, dep, func() {
					for _, s := range servers[:(len(servers)+1)/2] {
						s.Restart(t)
					}
				})
			})
		})
	}
}

func subscriptionsKilled(t *testing.T, dep *deployment) {
	var subjects []*lockUnderTest
	var contenders []waiter
	for _, kind := range allKinds {
		lut := newLockUnderTest(t, dep, kind)
		subjects, contenders = append(subjects, lut), append(contenders, lut.newWaiter(t, lut.mutex))
	}
	requireWokenWithoutPoll(t, func() (took time.Duration) {
		var waiting []*asyncCall
		for i, lut := range subjects {
			lut.writeHold(t, 0)
			waiting = append(waiting, contenders[i].startWaiting(t, within(t, patience)))
		}
		for _, lut := range subjects {
			lut.deleteKeys(t) // and nobody publishes
		}
		killed := time.Now()
		for _, node := range dep.nodes {
			require.NoError(t, node.Do(t.Context(), "client", "kill", "type", "pubsub").Err())
		}
		for _, b := range waiting {
			mustUnlock(t, b.await(t))
			took = max(took, b.at.Sub(killed))
		}
		return took
	})
}

func scriptsFlushed(t *testing.T, dep *deployment) {
	stop, flushed, w := make(chan struct{}), make(chan int, 1), newWheel(t)
	var held []*redislock.Lock
	for _, kind := range allKinds {
		held = append(held, newLockUnderTest(t, dep, kind).mustLock(t, redislock.WithLease(1800*time.Millisecond)))
	}
	go func() {
		for n := 0; ; n++ {
			for _, node := range dep.nodes {
				_ = node.ScriptFlush(context.Background()).Err()
			}
			_ = w.Sleep(context.Background(), time.Millisecond) // others want the processor too
			if isClosed(stop) {
				flushed <- n
				return
			}
		}
	}()
	c := newClient(t, dep.rdb)
	for start := time.Now(); time.Since(start) < 2500*time.Millisecond; {
		for _, kind := range allKinds {
			require.NoError(t, newLockUnderTest(t, dep, kind).mutex(c).Do(t.Context(), func(context.Context) error { return nil }))
		}
	}
	close(stop)
	require.Greater(t, <-flushed, 10)
	for _, l := range held {
		require.NoError(t, l.Err(), "renewals survive it too")
	}
	mustUnlock(t, held...)
}

// dataLost has holders learn that everything is gone, and then take their locks again.
func dataLost(t *testing.T, dep *deployment, lose func()) {
	const lease = 2 * time.Second
	type hold struct {
		*lockUnderTest
		m    anyMutex
		lock *redislock.Lock
	}
	var holds []*hold
	for _, kind := range allKinds {
		for range 3 { // on several masters
			h := &hold{lockUnderTest: newLockUnderTest(t, dep, kind)}
			opts := []redislock.LockOption{redislock.WithLease(lease)}
			if slices.Contains(fencedKinds, kind) {
				opts = append(opts, redislock.WithFencing())
			}
			h.m = h.mutex(h.newClient(t), opts...)
			h.lock = mustTryLock(t, h.m)
			holds = append(holds, h)
		}
	}
	lose()
	var again []*redislock.Lock
	for _, h := range holds {
		lost := h.lock
		<-lost.Done()
		require.ErrorIs(t, lost.Err(), redislock.ErrLost)
		poll(t, func() (taken bool) { // once it serves again
			l, err := h.m.TryLock(t.Context())
			h.lock = l
			return err == nil
		})
		again = append(again, h.lock)
		require.ErrorIs(t, lost.Unlock(t.Context()), redislock.ErrLost)
		h.requireHeldOnce(t)
		if slices.Contains(fencedKinds, h.kind) {
			require.Greater(t, h.lock.Token(), lost.Token())
		}
	}
	awaitRenewals(t, lease/2, again...) // they are renewed again
	for _, h := range holds {
		mustUnlock(t, h.lock)
		h.requireNoKeys(t)
	}
}
