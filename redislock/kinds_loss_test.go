package redislock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/redislock"
)

func renewalKeepsTheLock(t *testing.T, lut *lockUnderTest) {
	const lease = safeLease
	c := lut.newClient(t)
	m := lut.mutex(c, redislock.WithLease(lease))
	ctx := redislock.ContextWithOwner(t.Context(), &redislock.Owner{})
	outer, err := m.Lock(ctx)
	require.NoError(t, err)
	inner, err := m.Lock(ctx)
	require.NoError(t, err)
	mustUnlock(t, inner, outer) // must not end the renewals of the next hold
	l := mustTryLock(t, m)
	holders, conflicting := lut.requireHeldOnce(t), lut.conflictingMutex(lut.newClient(t))
	until := l.Deadline().Add(lease / 2) // two renewals
	poll(t, func() bool {
		_, err := conflicting.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		return l.Deadline().After(until)
	})
	require.NoError(t, l.Err())
	require.Equal(t, holders, lut.requireHeldOnce(t))
	mustUnlock(t, l)
	lut.requireNoKeys(t)
}

func renewalRestoresExpiry(t *testing.T, lut *lockUnderTest) {
	const lease, shorter = safeLease, safeLease - 500*time.Millisecond
	l := lut.mustLock(t, redislock.WithLease(lease))
	// lasts waits until each part expires after an instant, whenever the test looks; they are not renewed at the same time.
	lasts := func(until time.Time) {
		t.Helper()
		for _, name := range lut.parts {
			poll(t, func() bool {
				now := time.Now()
				left := lut.rdb.PTTL(t.Context(), name).Val()
				return left > 0 && now.Add(left).After(until)
			})
		}
	}
	for _, name := range lut.parts {
		require.True(t, lut.rdb.PExpire(t.Context(), name, shorter).Val())
	}
	lasts(time.Now().Add(shorter + 100*time.Millisecond))
	if lut.kind != "read" { // a reader without expiry may have joined
		for _, name := range lut.parts {
			require.True(t, lut.rdb.Persist(t.Context(), name).Val())
		}
		lasts(time.Now())
	}
	require.NoError(t, l.Err())
	mustUnlock(t, l)
	lut.requireNoKeys(t)
}

// Guarantees: L2.
func holderLearnsOfRemovedKey(t *testing.T, lut *lockUnderTest) {
	const lease = safeLease
	l := lut.mustLock(t, redislock.WithLease(lease))
	ctx := l.Context(t.Context())
	lut.deleteKeys(t)
	removed := time.Now()
	next := mustTryLock(t, lut.conflictingMutex(lut.newClient(t)))
	holders := lut.requireHeldOnce(t)
	requireLost(t, l, removed, lease)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), redislock.ErrLost)
	require.Equal(t, holders, lut.requireHeldOnce(t), "the next hold is unchanged")
	mustUnlock(t, next)
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
}

// Guarantees: L2.
func holderLearnsOfOverwrittenKey(t *testing.T, lut *lockUnderTest) {
	const lease = safeLease
	l, name := lut.mustLock(t, redislock.WithLease(lease)), lut.parts[len(lut.parts)-1]
	require.NoError(t, lut.rdb.Set(t.Context(), name, "mine", 0).Err())
	requireLost(t, l, time.Now(), lease)
	poll(t, func() bool { return slices.Equal(lut.remainingKeys(t), []string{name}) })
	require.Equal(t, "mine", lut.rdb.Get(t.Context(), name).Val())
}

func holderLearnsOfForceUnlock(t *testing.T, lut *lockUnderTest) {
	const lease = safeLease
	l, c := lut.mustLock(t, redislock.WithLease(lease)), lut.newClient(t)
	if lut.kind == "read" || lut.kind == "write" {
		other := map[string]string{"read": "write", "write": "read"}[lut.kind]
		freed, err := newMutex(c, other, lut.name).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.False(t, freed, "each side frees only its own holders")
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

// farLease is so long that no renewal falls due within a test.
const farLease = 10 * time.Minute

// Holders of locks with and without renewal, and a neighbour of the same client, whose hold goes on.
// Guarantees: L49.
func forceUnlockEndsTheContextAtOnce(t *testing.T, lut *lockUnderTest) {
	c, other := lut.newClient(t), lut.newClient(t)
	neighbour := mustTryLock(t, c.Mutex(lut.name+":neighbour", redislock.WithLease(farLease)))
	for what, opts := range map[string][]redislock.LockOption{
		"renewed":         {redislock.WithMetadata("host 3, job 7")},
		"without renewal": {redislock.WithoutRenewal()},
	} {
		for _, how := range []string{"ForceUnlock", "ForceUnlockHolder"} {
			ctx := redislock.ContextWithOwner(t.Context(), &redislock.Owner{})
			l, err := lut.mutex(c, append(opts, redislock.WithLease(farLease))...).Lock(ctx)
			require.NoError(t, err)
			lut.awaitListening(t, c)
			work := l.Context(t.Context())
			m := lut.partMutex(other)
			var freed bool
			if how == "ForceUnlock" {
				freed, err = m.ForceUnlock(t.Context())
			} else {
				var state redislock.State
				state, err = m.State(t.Context())
				require.NoError(t, err)
				freed, err = m.ForceUnlockHolder(t.Context(), state.Holders[0].ID)
			}
			require.NoError(t, err)
			require.True(t, freed)
			requireEnds(t, work, what+": "+how)
			require.ErrorIs(t, context.Cause(work), redislock.ErrLost)
			require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
			lut.deleteKeys(t) // of a MultiMutex, the parts that go an eighth of the lease later
		}
	}
	require.NoError(t, neighbour.Err())
	mustUnlock(t, neighbour)
}

// requireEnds requires that a context ends long before a renewal of farLease falls due.
func requireEnds(t *testing.T, ctx context.Context, what string) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-within(t, patience).Done():
		require.Fail(t, "not notified", what)
	}
}

// A lock whose key was overwritten by another type is lost, whichever call finds out.
// Guarantees: L8, L10.
func TestKinds_OverwrittenKeyIsALoss(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		for _, kind := range allKinds {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				events := make(chan string, 10)
				c := newClient(t, dep.rdb, redislock.WithHooks(redislock.Hooks{
					Lost:     func(e redislock.Event) { events <- "lost" },
					Released: func(redislock.Event) { events <- "released" },
				}))
				lut := newLockUnderTest(t, dep, kind)
				overwrite := func() {
					require.NoError(t, dep.rdb.Del(t.Context(), lut.parts[0]).Err())
					require.NoError(t, dep.rdb.RPush(t.Context(), lut.parts[0], "mine").Err())
				}
				isLoss := func(err error) {
					t.Helper()
					require.ErrorIs(t, err, redislock.ErrLost)
					require.ErrorIs(t, err, redislock.ErrWrongKind)
					require.Equal(t, []string{"mine"}, dep.rdb.LRange(t.Context(), lut.parts[0], 0, -1).Val())
					require.NoError(t, dep.rdb.Del(t.Context(), lut.parts[0]).Err())
				}
				l := mustTryLock(t, lut.mutex(c))
				overwrite()
				isLoss(l.Unlock(t.Context()))
				require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
				isLoss(lut.mutex(c).Do(t.Context(), func(context.Context) error { overwrite(); return nil }))
				if kind == "write" {
					rw := c.RWMutex(lut.name)
					l, err := rw.Lock(t.Context())
					require.NoError(t, err)
					overwrite()
					_, err = rw.Downgrade(t.Context(), l)
					isLoss(err)
				}
				close(events)
				released := 0
				for e := range events {
					if e == "released" {
						released++
					}
				}
				require.Equal(t, 2*(len(lut.parts)-1), released, "of a MultiMutex, the parts that were not overwritten")
			})
		}
	})
}

func TestMutex_KeyOfAnotherKind(t *testing.T) {
	t.Parallel()

	t.Run("a hold without expiry is reported as such", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		writeHold(t, rdb, name, 0)
		_, err := c.Mutex(name).TryLock(t.Context())
		var locked *redislock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Negative(t, locked.TTL)
		require.ErrorContains(t, err, "without expiry")
	})

	t.Run("a key that replaces a held lock is unchanged and ends it", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		l := mustLock(t, c.Mutex(name, redislock.WithLease(safeLease)))
		neighbour := mustLock(t, c.Mutex(name+":beside", redislock.WithLease(safeLease)))
		require.NoError(t, rdb.Set(t.Context(), name, "mine", time.Minute).Err())
		start := time.Now()
		<-l.Done()
		require.Less(t, time.Since(start), safeLease, "found by the next renewal")
		require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
		require.Equal(t, "mine", rdb.Get(t.Context(), name).Val())
		require.NoError(t, neighbour.Err(), "one bad key does not fail its batch")
		require.NoError(t, neighbour.Unlock(t.Context()))
	})
}
