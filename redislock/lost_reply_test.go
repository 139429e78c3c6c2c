package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/clock/clocktest"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// release is a word of each release and of each acquisition of a fair lock. A renewal does not have it, nor does the
// check of a hold, which a Client sends in the background.
const release = "PUBLISH"

// One Lock is one hold, and one Unlock frees it, even if their commands execute twice.
// Guarantees: L5.
func lostRepliesActOnce(t *testing.T, lut *lockUnderTest) {
	for _, loss := range []redistest.Loss{redistest.Swallow, redistest.Cut} {
		c, d := lut.newFaultyClient(t)
		lost := d.LoseReply("EVALSHA", 1, loss)
		l := mustTryLock(t, lut.mutex(c))
		<-lost
		lut.requireHeldOnce(t)
		lost = d.LoseReply(release, 1, loss)
		mustUnlock(t, l)
		<-lost
		lut.requireNoKeys(t)

		// The repeated release, sent in case a copy comes late, must not free the next holder's lock.
		next := lut.mustLock(t)
		holders := lut.requireHeldOnce(t)
		require.NoError(t, c.Close(within(t, patience))) // sends what is pending
		require.Equal(t, holders, lut.requireHeldOnce(t))
		mustUnlock(t, next)
		lut.requireNoKeys(t)
	}
}

// Guarantees: L5.
func cancelledInFlightLeavesNoKeys(t *testing.T, lut *lockUnderTest) {
	for _, lock := range []func(anyMutex, context.Context) (*redislock.Lock, error){
		anyMutex.TryLock, anyMutex.Lock,
	} {
		c, d := lut.newFaultyClient(t)
		lost := d.LoseReply("EVALSHA", 1, redistest.Swallow)
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := callAsync(func() (*redislock.Lock, error) {
			return lock(lut.mutex(c, redislock.WithLease(time.Minute)), ctx)
		})
		<-lost
		require.NotEmpty(t, lut.remainingKeys(t), "the server has executed it, unknown to the client")
		start := time.Now()
		cancel()
		<-cancelled.done
		require.ErrorIs(t, cancelled.err, context.Canceled)
		require.NotErrorIs(t, cancelled.err, redislock.ErrLocked)
		waiter := lut.newClient(t)
		other := mustLock(t, lut.conflictingMutex(waiter))
		require.Less(t, time.Since(start), 20*time.Second, "long before the lease ends")
		mustUnlock(t, other)
		require.NoError(t, c.Close(within(t, patience)))
		require.NoError(t, waiter.Close(within(t, patience)))
		lut.requireNoKeys(t)
		poll(t, func() bool { return len(lut.channelsWith(t, lut.name)) == 0 }) // or the next client yields to who listens
	}
}

// Guarantees: L5.
func TestMutex_ReplyLostAfterAcquire(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]redistest.Loss{"cut": redistest.Cut, "swallowed": redistest.Swallow} {
		t.Run(name+": one hold, freed by one Unlock", func(t *testing.T) {
			t.Parallel()
			c, dialer, rdb := newFaultyClient(t, func(o *redis.Options) { o.ReadTimeout = safeLease + time.Second/2 })
			name := redistest.Name(t)
			lost := dialer.LoseReply(name, 1, loss)
			// When the reply is swallowed, the first attempt takes longer than the lease. The deadline counts
			// from the second.
			l, err := c.Mutex(name, redislock.WithLease(safeLease)).TryLock(within(t, patience))
			require.NoError(t, err)
			require.True(t, isClosed(lost), "the reply was lost")
			requireHeldOnce(t, rdb, name)
			require.NoError(t, l.Unlock(t.Context()))
			requireFree(t, rdb, name)

			// The repeated release, sent in case the lost copy comes late, must not free the next holder's
			// lock.
			next := mustLock(t, newClient(t, rdb).Mutex(name))
			holder := requireHeldOnce(t, rdb, name)
			require.NoError(t, c.Close(t.Context())) // sends what is pending
			require.Equal(t, holder, requireHeldOnce(t, rdb, name))
			require.NoError(t, next.Unlock(t.Context()))
		})
	}

	t.Run("without retries: returns an error and leaves no keys", func(t *testing.T) {
		t.Parallel()
		c, dialer, rdb := newFaultyClient(t, func(o *redis.Options) { o.MaxRetries = -1 })
		name := redistest.Name(t)
		lost := dialer.LoseReply(name, 1, redistest.Cut)
		_, err := c.Mutex(name, redislock.WithLease(time.Minute)).TryLock(t.Context())
		require.Error(t, err)
		require.True(t, isClosed(lost))
		require.NotErrorIs(t, err, redislock.ErrLocked)
		other := mustLock(t, newClient(t, rdb).Mutex(name))
		require.NoError(t, other.Unlock(t.Context()))
	})
}

func TestLock_RenewalsExecuteButTheirRepliesAreLost(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	const lease = safeLease
	c, dialer, rdb := newFaultyClient(t)
	name := redistest.Name(t)
	l := mustLock(t, c.Mutex(name, redislock.WithLease(lease)))
	var last <-chan struct{}
	for n := range 16 { // more renewals than fit into a lease, each of which is sent twice
		last = dialer.LoseReply(name, n+1, redistest.Swallow)
	}
	deadline := l.Deadline()
	<-l.Done()
	announced := time.Now()
	require.False(t, announced.Before(deadline))
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	left, err := rdb.PTTL(t.Context(), name).Result()
	require.NoError(t, err)
	require.Greater(t, time.Now().Add(left), deadline.Add(lease/4), "the server has executed the renewals")

	stalled := stalls(t)
	other := mustLock(t, newClient(t, rdb).Mutex(name))
	require.Greater(t, time.Since(deadline), lease/100+50*time.Millisecond, "not before the announced deadline")
	require.Less(t, time.Since(announced)-stalled(), lease/2, "long before its expiry")
	require.NoError(t, other.Unlock(t.Context()))

	// Use up the remaining faults, so that Close finds a working connection.
	poll(t, func() bool {
		return c.Mutex(name).Do(t.Context(), func(context.Context) error { return nil }) == nil && isClosed(last)
	})
}

// A copy of an acquisition reaches Redis after its lock was released twice. It is found and released soon,
// not when its lease ends.
// Guarantees: L7.
func TestKinds_LateCopyOfAnAcquisitionIsReleased(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	for _, s := range scripts.All() {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
	}
	for _, kind := range singleNameKinds {
		for _, lease := range []time.Duration{safeLease, time.Minute} {
			t.Run(kind+", lease "+lease.String(), func(t *testing.T) {
				t.Parallel()
				dialer := &redistest.FaultDialer{}
				c := newClient(t, server.Client(t, func(o *redis.Options) {
					o.Dialer, o.ReadTimeout = dialer.Dial, 100*time.Millisecond
				}))
				name := redistest.Name(t)
				lost := dialer.LoseCall(name, 1)
				l := mustTryLock(t, newMutex(c, kind, name, redislock.WithLease(lease)))
				late := <-lost
				mustUnlock(t, l)
				requireFree(t, rdb, name)
				// time for one more release, not for two
				require.NoError(t, newWheel(t).Sleep(t.Context(), 1300*time.Millisecond))
				stalled, held := stalls(t), time.Now()
				require.True(t, server.DeliverAnd(t, late, name), "the copy takes the lock without an owner")
				poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
				require.Less(t, time.Since(held)-stalled(), safeLease-time.Second/2)
			})
		}
	}
}

// A lock that ends without its holder is released as one that is unlocked: also after a late copy has taken it again.
func TestWithMaxHold_ALateCopyOfTheAcquisitionIsReleased(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	rdb, dialer := server.Client(t), &redistest.FaultDialer{}
	require.NoError(t, rdb.ScriptLoad(t.Context(), scripts.LockAcquire.Source()).Err())
	c := newClient(t, server.Client(t, func(o *redis.Options) {
		o.Dialer, o.ReadTimeout = dialer.Dial, 100*time.Millisecond
	}))
	const lease = 16 * time.Second // the key is freed two seconds after the end
	name := redistest.Name(t)
	lost := dialer.LoseCall(name, 1)
	l := mustTryLock(t, c.Mutex(name, redislock.WithLease(lease), redislock.WithMaxHold(time.Second/2)))
	late := <-lost
	<-l.Done()
	require.ErrorIs(t, l.Err(), redislock.ErrMaxHold)
	poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
	stalled, held := stalls(t), time.Now()
	require.True(t, server.DeliverAnd(t, late, name), "the copy takes the lock without an owner")
	poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
	require.Less(t, time.Since(held)-stalled(), lease/2)
}

// The first copy of a release was executed, and its reply lost. The second arrives after the lease has ended.
// Guarantees: L10.
func TestLock_UnlockConfirmedAfterTheLeaseSucceeds(t *testing.T) {
	t.Parallel()
	for _, kind := range singleNameKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const lease = 3 * time.Second // short: its end is awaited
			c, dialer, _ := newFaultyClient(t, func(o *redis.Options) { o.ReadTimeout = lease + time.Second/2 })
			name := redistest.Name(t)
			l := mustTryLock(t, newMutex(c, kind, name, redislock.WithLease(lease), redislock.WithoutRenewal()))
			replyLost := dialer.LoseReply(release, 1, redistest.Swallow)
			require.True(t, l.Valid())
			began := time.Now()
			require.NoError(t, l.Unlock(t.Context()))
			require.Greater(t, time.Since(began), lease)
			require.True(t, isClosed(replyLost))
		})
	}
}

// A copy of the writer's acquisition may be in flight during Downgrade. The lock that it takes is released.
// Guarantees: L7, L29.
func TestRWMutex_DowngradeAfterALostReply(t *testing.T) {
	t.Parallel()
	server, dialer, name := redistest.Start(t), &redistest.FaultDialer{}, redistest.Name(t)
	rdb := server.Client(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) {
		o.Dialer, o.ReadTimeout = dialer.Dial, 200*time.Millisecond
	}))
	rw := c.RWMutex(name, redislock.WithLease(time.Hour))
	writer, err := rw.Lock(t.Context())
	require.NoError(t, err)
	mustUnlock(t, writer) // loads the script
	lost := dialer.LoseReply("EVALSHA", 1, redistest.Swallow)
	writer, err = rw.Lock(t.Context())
	require.NoError(t, err)
	<-lost
	reader, err := rw.Downgrade(t.Context(), writer)
	require.NoError(t, err)
	before := serverCalls(t, rdb, "evalsha")
	poll(t, func() bool { return serverCalls(t, rdb, "evalsha") > before })
	require.NoError(t, reader.Err())
	mustUnlock(t, reader)
}

// A process stands still until its lease is over, and then unlocks. The lock was lost before, whether the answer comes
// at once or the call is repeated.
func TestMutex_UnlockAfterTheLeaseIsALoss(t *testing.T) {
	t.Parallel()
	for name, loses := range map[string]bool{"answered at once": false, "answered to a second copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, err := wheel.New(wheel.WithClock(clocktest.Late(4 * time.Second)))
			require.NoError(t, err)
			t.Cleanup(func() {
				_, err := w.Stop(context.Background())
				require.NoError(t, err)
			})
			d := &redistest.FaultDialer{}
			server := redistest.Shared(t)
			rdb := server.Client(t, func(o *redis.Options) { o.Dialer, o.MaxRetries = d.Dial, 3 })
			c := newClient(t, rdb, redislock.WithWheel(w))
			name, other := redistest.Name(t), server.Client(t)
			mustUnlock(t, mustTryLock(t, c.Mutex(name))) // the server knows the scripts
			l := mustTryLock(t, c.Mutex(name, redislock.WithLease(time.Second), redislock.WithoutRenewal()))
			next := mustLock(t, newClient(t, other).Mutex(name))
			if loses {
				d.LoseReply(release, 1, redistest.Cut)
			}
			require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
			mustUnlock(t, next)
		})
	}
}

// Unlocking one of several Locks of an Owner asks nobody, and tells of the loss nevertheless.
func TestOwner_UnlockAfterTheLeaseIsALoss(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second // its end is awaited, and both Locks must be taken within it
	w, err := wheel.New(wheel.WithClock(clocktest.Late(4 * lease)))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	})
	rdb := redistest.Shared(t).Client(t)
	c := newClient(t, rdb, redislock.WithWheel(w))
	m := c.Mutex(redistest.Name(t), redislock.WithLease(lease), redislock.WithoutRenewal())
	ctx := redislock.ContextWithOwner(t.Context(), new(redislock.Owner))
	outer, err := m.TryLock(ctx)
	require.NoError(t, err)
	inner, err := m.TryLock(ctx)
	require.NoError(t, err)
	next := mustLock(t, newClient(t, rdb).Mutex(m.Name()))
	require.ErrorIs(t, inner.Unlock(t.Context()), redislock.ErrLost)
	require.ErrorIs(t, inner.Unlock(t.Context()), redislock.ErrLost, "for good")
	require.ErrorIs(t, outer.Unlock(t.Context()), redislock.ErrLost)
	mustUnlock(t, next)
}
