package semaphore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// deleter deletes a semaphore of any kind.
type deleter interface {
	Delete(ctx context.Context) (bool, error)
}

// keysOf returns the keys of the semaphore except its records: of calls and of the last token.
func keysOf(t testing.TB, rdb *redis.Client, name string) (keys []string) {
	t.Helper()
	all, err := rdb.Keys(t.Context(), "*"+name+"*").Result()
	require.NoError(t, err)
	for _, key := range all {
		if !strings.Contains(key, ":call:") && !strings.Contains(key, ":acquiring:") &&
			!strings.Contains(key, ":releasing:") && !strings.HasSuffix(key, "fence") {
			keys = append(keys, key)
		}
	}
	return keys
}

// Guarantees: S18.
func TestDelete(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
			holder, deleting := newClient(t, rdb), newClient(t, rdb)
			waiting := newClient(t, rdb, semaphore.WithPoll(time.Hour)) // a message has to wake it
			s := k.newAny(deleting, name)
			existed, err := s.(deleter).Delete(t.Context())
			require.NoError(t, err)
			require.False(t, existed)
			s.setPermits(t, 1)

			var grant *semaphore.Grant
			switch k.name {
			case "counting":
				require.NoError(t, holder.CountingSemaphore(name).Acquire(t.Context(), 1))
			case "semaphore":
				grant = mustAcquire(t, holder.Semaphore(name, 0, semaphore.WithLease(6*time.Second)), 1)
			default:
				grant = mustAcquire(t, holder.FairSemaphore(name, 0, semaphore.WithLease(6*time.Second)), 1)
			}
			waiters := []*asyncCall{}
			for _, c := range []*semaphore.Client{waiting, deleting} {
				waiters = append(waiters, startCall(func() error {
					_, err := k.newAny(c, name).acquire(within(t, testTimeout), 1)
					return err
				}))
			}
			k.awaitWaiting(t, rdb, name, 2)

			existed, err = s.(deleter).Delete(t.Context())
			require.NoError(t, err)
			require.True(t, existed)
			require.Empty(t, keysOf(t, rdb, name))
			for _, w := range waiters {
				require.ErrorIs(t, w.wait(t), semaphore.ErrNotSet)
			}
			if grant != nil {
				select {
				case <-grant.Done():
				case <-within(t, testTimeout).Done():
					require.FailNow(t, "the holder has not learned that its semaphore was deleted")
				}
				require.ErrorIs(t, grant.Err(), semaphore.ErrLost)
				require.ErrorIs(t, grant.Release(t.Context()), semaphore.ErrLost)
			}
			require.Empty(t, keysOf(t, rdb, name), "neither a loss nor a release of leased permits makes keys anew")

			s.setPermits(t, 2)
			require.EqualValues(t, 2, available(t, s))
			release, err := s.acquire(t.Context(), 2)
			require.NoError(t, err)
			require.NoError(t, release(t.Context()))
		})
	}
}

// A Delete whose reply was lost is sent again. The copy deletes nothing that was set in between, and its caller
// learns what the first did.
// Guarantees: S18.
func TestDelete_ReplyLost(t *testing.T) {
	t.Parallel()
	for how, loss := range losses {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c, d, rdb := newFaultyClient(t, redistest.Shared(t), 3)
			name := redistest.Name(t)
			mustSetPermits(t, c.Semaphore(name, 0), 2)
			lost := d.LoseReply(scripts.SemDelete.SHA(), 1, loss)
			existed, err := c.Semaphore(name, 0).Delete(t.Context())
			require.NoError(t, err)
			<-lost
			require.True(t, existed)
			require.Empty(t, keysOf(t, rdb, name))
		})
	}
}

// lifetimes returns the time that each key of the semaphore has left, or a negative one if it does not expire.
func lifetimes(t testing.TB, rdb *redis.Client, name string) map[string]time.Duration {
	t.Helper()
	left := make(map[string]time.Duration)
	for _, key := range keysOf(t, rdb, name) {
		if strings.HasSuffix(key, ":waiting") || strings.HasSuffix(key, ":kept") {
			continue // they last while callers wait
		}
		ttl, err := rdb.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		left[key] = ttl
	}
	return left
}

// Every key of a Semaphore expires an idle expiry after the last use, and after the last lease.
// Guarantees: S19.
func TestIdleExpiry_OfEveryKey(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		const idle, lease, slack = time.Hour, 10 * time.Minute, time.Minute
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		c := newClient(t, rdb, semaphore.WithIdleExpiry(idle))
		l := k.newSemaphore(c, name, 0, semaphore.WithLease(lease))
		last := func(least, most time.Duration, when string) {
			t.Helper()
			left := lifetimes(t, rdb, name)
			require.NotEmpty(t, left, when)
			for key, ttl := range left {
				require.Greater(t, ttl, least-slack, "%s: %s", key, when)
				require.LessOrEqual(t, ttl, most, "%s: %s", key, when)
			}
		}
		mustSetPermits(t, l, 2)
		last(idle, idle, "set")
		g := mustAcquire(t, l, 2)
		last(lease+idle, lease+idle, "held")
		require.NoError(t, g.Extend(t.Context(), 5*lease))
		last(5*lease+idle, 5*lease+idle, "extended")

		waiting := startCall(func() error {
			g, err := l.Acquire(within(t, testTimeout), 1)
			if err == nil {
				err = g.Release(context.Background())
			}
			return err
		})
		poll(t, func() bool { return len(rdb.PubSubChannels(t.Context(), k.messages(name)).Val()) > 0 })
		last(5*lease+idle, 5*lease+idle, "waited for")
		require.NoError(t, g.Release(t.Context()))
		require.NoError(t, waiting.wait(t))
		last(idle, idle+lease, "released")
		poll(t, func() bool { // what a fair semaphore assigns in the background is a use
			_, err := l.TrySetPermits(t.Context(), 9)
			require.NoError(t, err)
			return lifetimes(t, rdb, name)[k.permitsKey(name)] <= idle
		})
	})
}

// A renewal defers the end of all keys, so that a semaphore that is held for long does not expire.
// Guarantees: S19.
func TestIdleExpiry_RenewalsAreUses(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		c := newClient(t, rdb, semaphore.WithIdleExpiry(time.Hour))
		l := k.newSemaphore(c, name, 0, semaphore.WithLease(safeLease))
		mustSetPermits(t, l, 1)
		g := mustAcquire(t, l, 1)
		require.NoError(t, rdb.PExpire(t.Context(), k.permitsKey(name), 10*time.Minute).Err())
		poll(t, func() bool {
			return rdb.PTTL(t.Context(), k.permitsKey(name)).Val() > 50*time.Minute || g.Err() != nil
		})
		require.NoError(t, g.Release(t.Context()))
	})
}

// A CountingSemaphore does not expire while a permit is held, and does so when all are free.
// Guarantees: S19.
func TestIdleExpiry_OfASemaphore(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	c := newClient(t, rdb, semaphore.WithIdleExpiry(time.Hour))
	s, ctx := c.CountingSemaphore(name), t.Context()
	expires := func(want bool, when string) {
		t.Helper()
		left := lifetimes(t, rdb, name)
		require.Len(t, left, 2, when)
		for key, ttl := range left {
			require.Equal(t, want, ttl > 50*time.Minute, "%s: %s: %v", key, when, ttl)
		}
	}
	mustSetPermits(t, s, 3)
	expires(true, "set")
	require.NoError(t, s.Acquire(ctx, 2))
	expires(false, "held")
	require.NoError(t, s.Release(ctx, 1))
	expires(false, "one is held")
	require.NoError(t, s.AddPermits(ctx, 5))
	expires(false, "permits were added")
	require.NoError(t, s.Release(ctx, 1))
	expires(true, "all are free")
	_, err := s.Drain(ctx)
	require.NoError(t, err)
	expires(false, "drained")
	require.NoError(t, s.Release(ctx, 8))
	expires(true, "all are free again")
	require.NoError(t, newClient(t, rdb).CountingSemaphore(name).AddPermits(ctx, 1))
	require.NoError(t, s.Acquire(ctx, 1))
	expires(false, "held, though as many are free as were set at first: another Client has added one")
	require.NoError(t, s.Release(ctx, 1))

	// A waiter is a use.
	for key := range lifetimes(t, rdb, name) {
		require.NoError(t, rdb.PExpire(ctx, key, 10*time.Minute).Err())
	}
	patient, cancel := context.WithCancel(ctx)
	waiting := startCall(func() error { return s.Acquire(patient, 100) })
	poll(t, func() bool { return rdb.PTTL(ctx, name).Val() > 50*time.Minute })
	cancel()
	require.ErrorIs(t, waiting.wait(t), context.Canceled)
	expires(true, "waited for")

	// A late release does not make a semaphore that stays.
	_, err = s.Delete(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Release(ctx, 1))
	expires(true, "made by a release")
}

// When its time has come a semaphore is gone as if it had never been set.
// Guarantees: S19.
func TestIdleExpiry_TheSemaphoreIsGone(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
			c := newClient(t, rdb, semaphore.WithPoll(50*time.Millisecond), semaphore.WithIdleExpiry(3*time.Second))
			s := k.newAny(c, name)
			s.setPermits(t, 1)
			release, err := s.acquire(t.Context(), 1)
			require.NoError(t, err)
			require.NoError(t, newWheel(t).Sleep(t.Context(), 3300*time.Millisecond))
			require.NoError(t, release(t.Context()))
			require.EqualValues(t, 1, available(t, s), "a permit was held for longer than the idle expiry")
			poll(t, func() bool { return len(keysOf(t, rdb, name)) == 0 })
			_, err = s.acquire(t.Context(), 1)
			require.ErrorIs(t, err, semaphore.ErrNotSet)
			s.setPermits(t, 4)
			require.EqualValues(t, 4, available(t, s))
		})
	}
}

func TestIdleExpiry_Range(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	for _, d := range []time.Duration{-1, 0, 15 * time.Second, 366 * 24 * time.Hour} {
		_, err := semaphore.New(rdb, semaphore.WithIdleExpiry(d))
		require.ErrorIs(t, err, cogwheel.ErrInvalid, d)
		require.ErrorContains(t, err, "three polls and a second")
	}
	for _, opts := range [][]semaphore.Option{
		{semaphore.WithIdleExpiry(16 * time.Second)},
		{semaphore.WithIdleExpiry(4 * time.Second), semaphore.WithPoll(time.Second)},
	} {
		_, err := semaphore.New(rdb, opts...)
		require.NoError(t, err)
	}
}

// A TrySetPermits that finds the permits set is a use, of each kind.
// Guarantees: S19.
func TestIdleExpiry_TrySetPermitsIsAUse(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newAny(newClient(t, rdb, semaphore.WithIdleExpiry(time.Hour)), name)
		s.setPermits(t, 3)
		expiring := 0
		for key := range lifetimes(t, rdb, name) {
			require.NoError(t, rdb.PExpire(t.Context(), key, 10*time.Minute).Err())
			expiring++
		}
		require.NotZero(t, expiring)
		done, err := s.TrySetPermits(t.Context(), 9)
		require.NoError(t, err)
		require.False(t, done)
		require.EqualValues(t, 3, available(t, s))
		for key, left := range lifetimes(t, rdb, name) {
			require.Greater(t, left, 50*time.Minute, key)
		}
	})
}

// A waiter looks when its semaphore expires, whatever the reason of the expiry.
// Guarantees: S19.
func TestWaiters_LearnAtOnceThatTheirSemaphoreHasExpired(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newAny(newClient(t, rdb, semaphore.WithPoll(time.Minute)), name)
		s.setPermits(t, 1)
		require.True(t, rdb.PExpire(t.Context(), k.permitsKey(name), 2*time.Second).Val())
		_, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		began := time.Now()
		_, err = s.acquire(within(t, testTimeout), 1)
		require.ErrorIs(t, err, semaphore.ErrNotSet)
		require.Less(t, time.Since(began), 10*time.Second, "the lease lasts for 30 s, and the poll for longer")
	})
}
