package redislock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Guarantees: L1, L56.
func excludesOthers(t *testing.T, lut *lockUnderTest) {
	c := lut.newClient(t)
	l := mustTryLock(t, lut.mutex(c, redislock.WithLease(20*time.Second)))
	require.True(t, l.Valid())
	holders, keysBefore := lut.requireHeldOnce(t), lut.remainingKeys(t)
	for _, other := range []*redislock.Client{c, lut.newClient(t)} {
		_, err := lut.conflictingMutex(other).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		var locked *redislock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Contains(t, lut.parts, locked.Name)
		require.Greater(t, locked.TTL, 5*time.Second)
		require.LessOrEqual(t, locked.TTL, 20*time.Second)
		require.Equal(t, holders, lut.requireHeldOnce(t))
		require.ElementsMatch(t, keysBefore, lut.remainingKeys(t), "TryLock leaves no keys")
	}
	mustUnlock(t, l)
	require.False(t, l.Valid())
	lut.requireNoKeys(t)
	mustUnlock(t, mustTryLock(t, lut.conflictingMutex(lut.newClient(t))))
	lut.requireNoKeys(t)
}

// tryAtOnce makes a hundred concurrent calls of TryLock from two clients.
func tryAtOnce(t *testing.T, lut *lockUnderTest) (got, refused int64) {
	t.Helper()
	var taken, locked atomic.Int64
	var running sync.WaitGroup
	for _, m := range []anyMutex{lut.mutex(lut.newClient(t)), lut.mutex(lut.newClient(t))} {
		for range 50 {
			running.Go(func() {
				switch _, err := m.TryLock(t.Context()); {
				case err == nil:
					taken.Add(1)
				case errors.Is(err, redislock.ErrLocked):
					locked.Add(1)
				default:
					t.Error(err)
				}
			})
		}
	}
	running.Wait()
	return taken.Load(), locked.Load()
}

func oneOfAHundredTriesSucceeds(t *testing.T, lut *lockUnderTest) {
	got, refused := tryAtOnce(t, lut)
	if lut.kind == "multi" { // a caller with the first part may be refused by another's brief try
		require.LessOrEqual(t, got, int64(1))
		require.Equal(t, int64(100), got+refused)
		return
	}
	require.Equal(t, int64(1), got)
	require.Equal(t, int64(99), refused)
	lut.requireHeldOnce(t)
}

func allOfAHundredReadersSucceed(t *testing.T, lut *lockUnderTest) {
	got, _ := tryAtOnce(t, lut)
	require.Equal(t, int64(100), got)
	require.Equal(t, int64(101), lut.rdb.HLen(t.Context(), lut.name).Val())
}

func secondUnlockIsNotHeld(t *testing.T, lut *lockUnderTest) {
	l := lut.mustLock(t)
	mustUnlock(t, l)
	other := lut.mustLock(t)
	holders := lut.requireHeldOnce(t)
	for range 2 {
		err := l.Unlock(t.Context())
		require.ErrorIs(t, err, redislock.ErrNotHeld)
		require.NotErrorIs(t, err, redislock.ErrLost)
	}
	require.ErrorIs(t, l.Extend(t.Context(), time.Minute), redislock.ErrNotHeld)
	require.Equal(t, holders, lut.requireHeldOnce(t))
	mustUnlock(t, other)
	lut.requireNoKeys(t)
}

// Guarantees: L10.
func unlockAfterExpiryIsLost(t *testing.T, lut *lockUnderTest) {
	l := lut.mustLock(t, redislock.WithLease(time.Second), redislock.WithoutRenewal())
	other := mustLock(t, lut.conflictingMutex(lut.newClient(t)))
	requireOver(t, l)
	holders := lut.requireHeldOnce(t)
	for range 2 {
		err := l.Unlock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLost)
		require.NotErrorIs(t, err, redislock.ErrNotHeld)
	}
	require.ErrorIs(t, l.Extend(t.Context(), time.Minute), redislock.ErrLost)
	require.Equal(t, holders, lut.requireHeldOnce(t))
	mustUnlock(t, other)
	lut.requireNoKeys(t)
}

func ownerEntersAgain(t *testing.T, lut *lockUnderTest) {
	c := lut.newClient(t)
	m := lut.mutex(c, redislock.WithLease(10*time.Second), redislock.WithoutRenewal())
	ctx := redislock.ContextWithOwner(within(t, patience), &redislock.Owner{})
	first, err := m.Lock(ctx)
	require.NoError(t, err)
	holders := lut.requireHeldOnce(t)
	again, err := m.Lock(ctx)
	require.NoError(t, err)
	tried, err := m.TryLock(ctx)
	require.NoError(t, err)
	require.Equal(t, holders, lut.requireHeldOnce(t))
	for _, other := range []context.Context{t.Context(), redislock.ContextWithOwner(t.Context(), &redislock.Owner{})} {
		_, err = lut.conflictingMutex(c).TryLock(other)
		require.ErrorIs(t, err, redislock.ErrLocked)
	}
	mustUnlock(t, tried, again)
	require.True(t, first.Valid())
	require.Equal(t, holders, lut.requireHeldOnce(t))
	require.LessOrEqual(
		t, lut.rdb.PTTL(t.Context(), lut.parts[0]).Val(), 10*time.Second, "the lease is unchanged",
	)
	mustUnlock(t, first)
	lut.requireNoKeys(t)
	require.ErrorIs(t, first.Unlock(ctx), redislock.ErrNotHeld)

	lost, err := lut.mutex(c, redislock.WithLease(safeLease)).Lock(ctx)
	require.NoError(t, err)
	lut.deleteKeys(t)
	<-lost.Done()
	_, err = m.Lock(ctx)
	require.ErrorIs(t, err, redislock.ErrLost)
	require.ErrorIs(t, lost.Unlock(ctx), redislock.ErrLost)
	next, err := m.Lock(ctx)
	require.NoError(t, err)
	mustUnlock(t, next)
}

// Guarantees: L15.
func extendLengthensTheLease(t *testing.T, lut *lockUnderTest) {
	l := lut.mustLock(t, redislock.WithLease(20*time.Second), redislock.WithoutRenewal())
	before := l.Deadline()
	require.NoError(t, l.Extend(t.Context(), time.Minute))
	require.Greater(t, l.Deadline().Sub(before), 30*time.Second)
	long := l.Deadline()
	require.NoError(t, l.Extend(t.Context(), time.Millisecond))
	require.Equal(t, long, l.Deadline())
	for _, name := range lut.parts {
		require.Greater(t, lut.rdb.PTTL(t.Context(), name).Val(), 40*time.Second)
		require.LessOrEqual(t, lut.rdb.PTTL(t.Context(), name).Val(), time.Minute)
	}
	mustUnlock(t, l)
	lut.requireNoKeys(t)
}

func extendOfRemovedLockIsLost(t *testing.T, lut *lockUnderTest) {
	l := lut.mustLock(t)
	lut.deleteKeys(t)
	other := mustTryLock(t, lut.conflictingMutex(lut.newClient(t)))
	holders := lut.requireHeldOnce(t)
	// On a slow machine, the check that follows the subscription has found the loss.
	require.ErrorIs(t, l.Extend(t.Context(), time.Hour), redislock.ErrLost)
	require.False(t, l.Valid())
	<-l.Done()
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
	require.Equal(t, holders, lut.requireHeldOnce(t))
	require.LessOrEqual(t, lut.rdb.PTTL(
		t.Context(), lut.parts[0],
	).Val(), redislock.DefaultLease, "the next holder's lease is unchanged")
	mustUnlock(t, other)
}

// Guarantees: L8.
func unlockAfterContextEnd(t *testing.T, lut *lockUnderTest) {
	ctx, cancel := context.WithCancel(t.Context())
	l, err := lut.mutex(lut.newClient(t)).Lock(ctx)
	require.NoError(t, err)
	cancel()
	require.True(t, l.Valid(), "the context ends only the wait")
	lut.requireHeldOnce(t)
	require.NoError(t, l.Unlock(ctx))
	lut.requireNoKeys(t)
}

func endsAfterMaxHold(t *testing.T, lut *lockUnderTest) {
	const most = 500 * time.Millisecond
	start := time.Now()
	l := lut.mustLock(t, redislock.WithMaxHold(most), redislock.WithLease(safeLease))
	other := mustLock(t, lut.conflictingMutex(lut.newClient(t)))
	require.GreaterOrEqual(t, time.Since(start), most)
	require.True(t, isClosed(l.Done()), "announced before another can acquire")
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrMaxHold)
	lut.requireHeldOnce(t)
	mustUnlock(t, other)
	lut.requireNoKeys(t)
}

// Guarantees: L21.
func closeEndsLockAndWaiters(t *testing.T, lut *lockUnderTest) {
	c := lut.newClient(t)
	l := mustTryLock(t, lut.mutex(c))
	ctx := l.Context(t.Context())
	waiting := callAsync(func() (*redislock.Lock, error) {
		return lut.conflictingMutex(c).Lock(within(t, patience))
	})
	require.NoError(t, c.Close(within(t, patience)))
	<-waiting.done
	require.ErrorIs(t, waiting.err, redislock.ErrClosed)
	lut.requireNoKeys(t)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), redislock.ErrClosed)
	other := lut.mustLock(t)
	holders := lut.requireHeldOnce(t)
	require.ErrorIs(t, l.Err(), redislock.ErrClosed)
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrClosed)
	require.ErrorIs(t, l.Extend(t.Context(), time.Minute), redislock.ErrClosed)
	for _, lock := range []func(context.Context) (*redislock.Lock, error){
		lut.mutex(c).Lock, lut.mutex(c).TryLock,
	} {
		_, err := lock(t.Context())
		require.ErrorIs(t, err, redislock.ErrClosed)
	}
	_, err := lut.partMutex(c).State(t.Context())
	require.ErrorIs(t, err, redislock.ErrClosed)
	_, err = lut.partMutex(c).ForceUnlock(t.Context())
	require.ErrorIs(t, err, redislock.ErrClosed)
	require.Equal(t, holders, lut.requireHeldOnce(t))
	mustUnlock(t, other)
}

func refusesKeysOfOtherTypes(t *testing.T, lut *lockUnderTest) {
	c, name := lut.newClient(t), lut.parts[len(lut.parts)-1]
	stranger := []any{"mode", "write", "java:1:write", 1}
	if lut.kind == "read" || lut.kind == "write" {
		stranger = []any{"java:1", 1}
	}
	spoils := map[string]func() error{
		"a string":             func() error { return lut.rdb.Set(t.Context(), name, "x", 0).Err() },
		"a list":               func() error { return lut.rdb.LPush(t.Context(), name, "x").Err() },
		"another kind of lock": func() error { return lut.rdb.HSet(t.Context(), name, stranger...).Err() },
	}
	if lut.kind == "string" {
		delete(spoils, "a string") // is the lock of a holder of another library
	}
	for what, spoil := range spoils {
		require.NoError(t, spoil(), what)
		before := lut.rdb.Dump(t.Context(), name).Val()
		for _, lock := range []func(context.Context) (*redislock.Lock, error){
			lut.mutex(c).TryLock, lut.mutex(c).Lock,
		} {
			_, err := lock(within(t, patience))
			require.ErrorIs(t, err, redislock.ErrWrongKind, what)
			require.NotErrorIs(t, err, redislock.ErrLocked, what)
		}
		_, err := lut.partMutex(c).ForceUnlock(t.Context())
		require.ErrorIs(t, err, redislock.ErrWrongKind, what)
		require.Equal(t, before, lut.rdb.Dump(t.Context(), name).Val(), what)
		require.NoError(t, lut.rdb.Del(t.Context(), name).Err())
		lut.requireNoKeys(t)
	}
}

func reportsState(t *testing.T, lut *lockUnderTest) {
	state := func() redislock.State {
		st, err := lut.partMutex(lut.newClient(t)).State(t.Context())
		require.NoError(t, err)
		return st
	}
	require.Equal(t, redislock.State{}, state())
	l := lut.mustLock(t, redislock.WithFencing(), redislock.WithMetadata("a host: job {7}"))
	st := state()
	require.True(t, st.Locked)
	require.Equal(
		t, []redislock.Holder{{ID: lut.requireHeldOnce(t)[0], Metadata: "a host: job {7}"}}, st.Holders,
	)
	require.Equal(t, l.Token(), st.Token)
	require.Greater(t, st.TTL, redislock.DefaultLease-patience/2)
	require.LessOrEqual(t, st.TTL, redislock.DefaultLease)
	if lut.kind == "read" {
		second := lut.mustLock(t)
		require.Len(t, state().Holders, 2)
		mustUnlock(t, second)
	}
	mustUnlock(t, l)
	require.Equal(t, redislock.State{Token: l.Token()}, state())
	lut.writeHold(t, 0)
	st = state()
	require.Len(t, st.Holders, 1)
	require.Empty(t, st.Holders[0].Metadata)
	require.Negative(t, st.TTL, "without expiry")
}

func nestedOnOneConnection(t *testing.T, lut *lockUnderTest) {
	rdb := lut.connect(t, onlyOneConnection)
	c := newClient(t, rdb)
	inner := &lockUnderTest{
		lut.deployment, lut.kind, "{" + lut.name + "}inner", []string{"{" + lut.name + "}1", "{" + lut.name + "}2"},
	}
	err := lut.mutex(c).Do(within(t, patience), func(ctx context.Context) error {
		return inner.mutex(c).Do(ctx, func(ctx context.Context) error { return rdb.Get(ctx, lut.name+":x").Err() })
	})
	require.True(t, isNil(err), "%v", err)
	lut.requireNoKeys(t)
}

// As with a deferred Close after the end of the context of signal.NotifyContext. It has a second, in which a machine
// that stands still may not release anything.
// Guarantees: L21.
func closeReleasesAfterContextEnd(t *testing.T, lut *lockUnderTest) {
	c := lut.newClient(t)
	l := mustTryLock(t, lut.mutex(c))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stalled := stalls(t)
	err := c.Close(ctx)
	require.ErrorIs(t, l.Err(), redislock.ErrClosed)
	if err != nil && stalled() > time.Second/2 {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return
	}
	require.NoError(t, err)
	lut.requireNoKeys(t)
}
