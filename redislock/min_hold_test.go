package redislock_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// least is a minimum hold whose end is awaited.
const least = 3 * time.Second

// requireKept requires that the name is locked by a hold that was unlocked, and returns for how long.
func requireKept(t testing.TB, rdb redis.UniversalClient, name string) time.Duration {
	t.Helper()
	fields, err := rdb.HKeys(t.Context(), name).Result()
	require.NoError(t, err)
	require.Len(t, fields, 1)
	require.Contains(t, fields[0], ":kept")
	left, err := rdb.PTTL(t.Context(), name).Result()
	require.NoError(t, err)
	require.Positive(t, left)
	return left
}

// A lock that is unlocked before its minimum goes to a waiter of another process when the minimum ends: not before,
// and not at the waiter's poll or the end of the lease.
// Guarantees: L53.
func minHoldKeepsTheName(t *testing.T, lut *lockUnderTest) {
	for what, end := range map[string]func(*redislock.Client, *redislock.Lock){
		"Unlock": func(_ *redislock.Client, l *redislock.Lock) { mustUnlock(t, l) },
		"Close": func(c *redislock.Client, _ *redislock.Lock) {
			require.NoError(t, c.Close(within(t, patience)))
		},
	} {
		c := lut.newClient(t)
		waiter := newClient(t, lut.clients, redislock.WithPoll(time.Hour))
		stalled, began := stalls(t), time.Now()
		l := mustTryLock(t, lut.mutex(c, redislock.WithMinHold(least)))
		waiting := callAsync(func() (*redislock.Lock, error) { return lut.mutex(waiter).Lock(within(t, patience)) })
		poll(t, func() bool { return waiter.Stats().Contended == 1 })
		values, err := lut.rdb.HVals(t.Context(), lut.name).Result()
		require.NoError(t, err)
		millis, err := strconv.ParseInt(values[0], 10, 64)
		require.NoError(t, err)
		until := time.UnixMilli(millis) // by the clock of this machine, as is began
		require.False(t, until.Before(began.Add(least)), what)
		end(c, l)
		require.LessOrEqual(t, requireKept(t, lut.rdb, lut.name), least+2*time.Millisecond, what)
		next := waiting.await(t)
		require.False(t, waiting.at.Before(until), what)
		require.Less(t, waiting.at.Sub(until)-stalled(), 500*time.Millisecond, what)
		mustUnlock(t, next)
		lut.requireNoKeys(t)
	}
}

// For its holder, the lock ends with Unlock.
func TestWithMinHold_UnlockEndsTheLockForItsHolder(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	m := c.Mutex(name, redislock.WithMinHold(time.Minute))
	l := mustTryLock(t, m)
	ctx := l.Context(t.Context())
	mustUnlock(t, l)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), redislock.ErrNotHeld)
	require.False(t, l.Valid())
	require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrNotHeld)
	require.ErrorIs(t, l.Extend(t.Context(), time.Hour), redislock.ErrNotHeld)
	require.Zero(t, c.Stats().Held)
	require.EqualValues(t, 1, c.Stats().Released)
	for range c.Holds() {
		require.Fail(t, "nothing is held")
	}

	var locked *redislock.LockedError
	_, err := m.TryLock(t.Context())
	require.ErrorAs(t, err, &locked)
	require.InDelta(t, time.Minute, locked.TTL, float64(10*time.Second))
	require.ErrorIs(t, m.Do(within(t, 50*time.Millisecond), nil), cogwheel.ErrInvalid)
	_, err = m.Lock(within(t, 2*time.Second))
	requireLocked(t, err)
	requireKept(t, rdb, name)
}

func TestWithMinHold_DoKeepsTheName(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	m := c.Mutex(name, redislock.WithMinHold(time.Minute))
	require.NoError(t, m.Do(t.Context(), func(context.Context) error { return nil }))
	requireKept(t, rdb, name)
}

// All Locks of an Owner on one hold have to be unlocked, and the minimum counts from its acquisition.
func TestWithMinHold_OfAnOwner(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	m := c.Mutex(name, redislock.WithMinHold(time.Minute))
	ctx := redislock.ContextWithOwner(t.Context(), new(redislock.Owner))
	outer, err := m.TryLock(ctx)
	require.NoError(t, err)
	inner, err := m.TryLock(ctx)
	require.NoError(t, err)
	mustUnlock(t, inner)
	require.NoError(t, outer.Err())
	mustUnlock(t, outer)
	requireKept(t, rdb, name)
	_, err = m.TryLock(ctx)
	requireLocked(t, err)
}

func TestWithMinHold_ForceUnlockFreesAtOnce(t *testing.T) {
	t.Parallel()
	for when, unlocked := range map[string]bool{"while it is held": false, "after Unlock": true} {
		for what, force := range map[string]func(m *redislock.Mutex) (bool, error){
			"ForceUnlock": func(m *redislock.Mutex) (bool, error) { return m.ForceUnlock(t.Context()) },
			"ForceUnlockHolder": func(m *redislock.Mutex) (bool, error) {
				s, err := m.State(t.Context())
				require.NoError(t, err)
				require.Len(t, s.Holders, 1)
				require.Equal(t, "host 7", s.Holders[0].Metadata)
				return m.ForceUnlockHolder(t.Context(), s.Holders[0].ID)
			},
		} {
			t.Run(what+" "+when, func(t *testing.T) {
				t.Parallel()
				c, rdb, name := onSharedServer(t)
				opts := []redislock.LockOption{redislock.WithMinHold(time.Minute), redislock.WithMetadata("host 7")}
				l := mustTryLock(t, c.Mutex(name, opts...))
				if unlocked {
					mustUnlock(t, l)
				}
				freed, err := force(newClient(t, rdb).Mutex(name, opts...))
				require.NoError(t, err)
				require.True(t, freed)
				requireFree(t, rdb, name)
			})
		}
	}
}

// The lease of an acquisition is at least the minimum, so it outlasts a holder that dies. Renewals follow the lease:
// they keep a long hold, and Unlock after the minimum frees it at once.
// Guarantees: L53.
func TestWithMinHold_AboveTheLease(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	const short, minimum = safeLease, safeLease + time.Second
	began := time.Now()
	l := mustTryLock(t, c.Mutex(name, redislock.WithLease(short), redislock.WithMinHold(minimum)))
	acquired := time.Now()
	require.Greater(t, l.Deadline().Sub(began), minimum*9/10)
	left := rdb.PTTL(t.Context(), name).Val()
	require.Greater(t, left, minimum-time.Since(began)-2*time.Millisecond)
	poll(t, func() bool { return c.Stats().Renewal.Renewed > 0 })
	require.LessOrEqual(t, rdb.PTTL(t.Context(), name).Val(), left, "a renewal for a shorter time changes nothing")

	awaitRenewals(t, short/3, l) // it ends after the minimum
	require.NoError(t, newWheel(t).Sleep(t.Context(), time.Until(acquired.Add(minimum+minimum/50))))
	require.NoError(t, l.Err())
	mustUnlock(t, l)
	requireFree(t, rdb, name)
}

func TestWithMinHold_WithoutRenewal(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	l := mustTryLock(t, c.Mutex(name,
		redislock.WithLease(10*time.Millisecond), redislock.WithMinHold(time.Minute), redislock.WithoutRenewal()))
	require.NoError(t, newWheel(t).Sleep(t.Context(), 50*time.Millisecond))
	require.True(t, l.Valid())
	mustUnlock(t, l)
	requireKept(t, rdb, name)
}

// A holder that Extend has promised more gives the name back when the minimum ends.
func TestWithMinHold_UnlockShortensAnExtendedLease(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	l := mustTryLock(t, c.Mutex(name, redislock.WithMinHold(time.Minute)))
	require.NoError(t, l.Extend(t.Context(), time.Hour))
	mustUnlock(t, l)
	require.LessOrEqual(t, requireKept(t, rdb, name), time.Minute+2*time.Millisecond)
}

// The reply to a release is lost, so it is sent again. It takes effect once, and touches no later hold.
// Guarantees: L53.
func TestWithMinHold_RetryOfTheRelease(t *testing.T) {
	t.Parallel()
	for what, loss := range map[string]redistest.Loss{"cut": redistest.Cut, "swallowed": redistest.Swallow} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, dialer, rdb := newFaultyClient(t, func(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond })
			name := redistest.Name(t)
			began := time.Now()
			l := mustTryLock(t, c.Mutex(name, redislock.WithMinHold(3*least)))
			lost := dialer.LoseReply(release, 1, loss)
			mustUnlock(t, l)
			require.True(t, isClosed(lost))
			requireKept(t, rdb, name)
			next := mustLock(t, newClient(t, rdb).Mutex(name))
			require.GreaterOrEqual(t, time.Since(began), 3*least)
			holder := requireHeldOnce(t, rdb, name)
			require.NoError(t, c.Close(within(t, patience))) // sends what is pending
			require.Equal(t, holder, requireHeldOnce(t, rdb, name))
			mustUnlock(t, next)
		})
	}
}

// Redis has not executed the release, which is sent again in the background: the minimum holds for that too.
func TestWithMinHold_ReleaseInTheBackground(t *testing.T) {
	t.Parallel()
	c, dialer, rdb := newFaultyClient(t, func(o *redis.Options) {
		o.ReadTimeout, o.MaxRetries = 100*time.Millisecond, -1
	})
	name := redistest.Name(t)
	l := mustTryLock(t, c.Mutex(name, redislock.WithMinHold(time.Minute), redislock.WithLease(time.Hour)))
	missed := dialer.LoseCall(release, 1)
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrUnconfirmed)
	<-missed
	poll(t, func() bool { return rdb.PTTL(t.Context(), name).Val() <= time.Minute })
	requireKept(t, rdb, name)
}

// Copies of the acquisition and of a renewal reach Redis after Unlock. Neither prolongs the key. A copy that comes
// after the end of the minimum takes the lock without an owner, and is released soon.
// Guarantees: L53.
func TestWithMinHold_LateCopies(t *testing.T) {
	t.Parallel()
	server, dialer := redistest.Start(t), &redistest.FaultDialer{}
	rdb := server.Client(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) {
		o.Dialer, o.ReadTimeout = dialer.Dial, 100*time.Millisecond
	}))
	const minimum, lease = 6 * time.Second, 900 * time.Millisecond
	for range 2 { // the server and the client know the scripts
		mustUnlock(t, mustTryLock(t, c.Mutex(redistest.Name(t), redislock.WithMinHold(time.Millisecond))))
	}
	name := redistest.Name(t)
	acquisition, renewal := dialer.LoseCall(name, 1), dialer.LoseCall(name, 3)
	l := mustTryLock(t, c.Mutex(name, redislock.WithMinHold(minimum), redislock.WithLease(lease)))
	lateAcquisition, lateRenewal := <-acquisition, <-renewal
	mustUnlock(t, l)
	left := requireKept(t, rdb, name)
	for _, late := range [][]byte{lateAcquisition, lateRenewal} {
		server.Deliver(t, late)
		require.LessOrEqual(t, requireKept(t, rdb, name), left)
	}
	poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
	server.Deliver(t, lateAcquisition)
	stalled, held := stalls(t), time.Now()
	require.EqualValues(t, 1, rdb.Exists(t.Context(), name).Val())
	poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
	require.Less(t, time.Since(held)-stalled(), minimum-time.Second)
}

// What Redis grants to a call whose caller has left is free at once.
func TestWithMinHold_AbandonedAcquisitionIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	for what, lock := range map[string]func(anyMutex, context.Context) (*redislock.Lock, error){
		"TryLock": anyMutex.TryLock, "Lock": anyMutex.Lock,
	} {
		for how, loss := range map[string]redistest.Loss{"no reply": redistest.Swallow, "an error": redistest.Cut} {
			t.Run(what+", "+how, func(t *testing.T) {
				t.Parallel()
				c, dialer, rdb := newFaultyClient(t, func(o *redis.Options) { o.MaxRetries = -1 })
				name := redistest.Name(t)
				lost := dialer.LoseReply(name, 1, loss)
				ctx, cancel := context.WithCancel(t.Context())
				call := callAsync(func() (*redislock.Lock, error) {
					return lock(c.Mutex(name, redislock.WithMinHold(time.Hour)), ctx)
				})
				<-lost
				cancel()
				<-call.done
				require.Error(t, call.err)
				poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
			})
		}
	}
	t.Run("the reply comes later", func(t *testing.T) {
		t.Parallel()
		c, dialer, rdb := newFaultyClient(t)
		name := redistest.Name(t)
		mustUnlock(t, mustTryLock(t, c.Mutex(redistest.Name(t)))) // connects
		dialer.Delay(0, 900*time.Millisecond)
		_, err := c.Mutex(name, redislock.WithMinHold(time.Hour)).TryLock(within(t, 500*time.Millisecond))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 1 })
		poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
	})
	t.Run("too few replicas", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		m := c.Mutex(name, redislock.WithMinHold(time.Hour), redislock.WithReplicas(1, 10*time.Millisecond))
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrReplicas)
		poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
	})
}

// Callers of one process wait for the end of the minimum, too.
func TestWithMinHold_IsNotHandedOver(t *testing.T) {
	t.Parallel()
	for what, opts := range map[string][]redislock.LockOption{"": nil, "fenced": {redislock.WithFencing()}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, _, name := onSharedServer(t)
			m := c.Mutex(name, append(opts, redislock.WithMinHold(least))...)
			began := time.Now()
			l := mustTryLock(t, m)
			waiting := callAsync(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) })
			poll(t, func() bool { return c.Stats().Contended == 1 })
			mustUnlock(t, l)
			next := waiting.await(t)
			require.GreaterOrEqual(t, waiting.at.Sub(began), least)
			require.True(t, what == "" || next.Token() > l.Token())
			mustUnlock(t, next)
		})
	}
}

// WithMaxHold ends the Lock, and the name stays locked for the minimum.
func TestWithMinHold_AboveMaxHold(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	l := mustTryLock(t, c.Mutex(name, redislock.WithLease(safeLease),
		redislock.WithMaxHold(50*time.Millisecond), redislock.WithMinHold(time.Minute)))
	<-l.Done()
	require.ErrorIs(t, l.Err(), redislock.ErrMaxHold)
	poll(t, func() bool { return strings.HasSuffix(strings.Join(rdb.HKeys(t.Context(), name).Val(), ","), ":kept") })
	requireKept(t, rdb, name)
}

func TestWithMinHold_OtherKindsRefuseIt(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	opt := redislock.WithMinHold(time.Second)
	defaults := newClient(t, rdb, redislock.WithLockDefaults(opt))
	require.NoError(t, defaults.Mutex(name).Err())
	for what, m := range map[string]interface{ Err() error }{
		"FairMutex":  c.FairMutex(name, opt),
		"RWMutex":    c.RWMutex(name, opt),
		"Reader":     c.RWMutex(name, opt).Reader(),
		"MultiMutex": c.MultiMutex([]string{name}, opt),
		"default":    defaults.FairMutex(name),
	} {
		require.ErrorIs(t, m.Err(), cogwheel.ErrInvalid, what)
		require.ErrorContains(t, m.Err(), "WithMinHold", what)
	}
}
