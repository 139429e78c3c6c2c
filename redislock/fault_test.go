package redislock_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// faulty returns a lock client whose connections pass a FaultDialer, and a plain client beside it. The scripts are known
// to the server, so that the first call to match is the one that does the work.
func newFaultyClient(t *testing.T, opts ...func(*redis.Options)) (c *redislock.Client, dialer *redistest.FaultDialer, rdb *redis.Client) {
	t.Helper()
	server := redistest.Shared(t)
	dialer = &redistest.FaultDialer{}
	opts = append(opts, func(o *redis.Options) { o.Dialer, o.ReadTimeout = dialer.Dial, time.Second })
	rdb = server.Client(t)
	for _, s := range scripts.All() {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
	}
	return newClient(t, server.Client(t, opts...)), dialer, rdb
}

func TestMutex_ReplyLostAfterAcquire(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]redistest.Loss{"cut": redistest.Cut, "swallowed": redistest.Swallow} {
		t.Run(name+": one hold, freed by one Unlock", func(t *testing.T) {
			t.Parallel()
			c, dialer, rdb := newFaultyClient(t)
			name := redistest.Name(t)
			lost := dialer.LoseReply(name, 1, loss)
			// Swallowed, the first attempt takes longer than the lease; the second counts from its own sending.
			l, err := c.Mutex(name, redislock.WithLease(900*time.Millisecond)).TryLock(within(t, patience))
			require.NoError(t, err)
			require.True(t, isClosed(lost), "the reply was lost")
			requireHeldOnce(t, rdb, name)
			require.NoError(t, l.Unlock(t.Context()))
			requireFree(t, rdb, name)

			// The release that follows in case the lost copy comes late must not touch the next holder.
			next := mustLock(t, newClient(t, rdb).Mutex(name))
			holder := requireHeldOnce(t, rdb, name)
			require.NoError(t, c.Close(t.Context())) // sends what is pending
			require.Equal(t, holder, requireHeldOnce(t, rdb, name))
			require.NoError(t, next.Unlock(t.Context()))
		})
	}

	t.Run("without retries: an error, and nothing is left behind", func(t *testing.T) {
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

func TestLock_RedisStoppedForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	name := redistest.Name(t)

	renewed, err := c.Mutex(name+":renewed", redislock.WithLease(lease)).Lock(t.Context())
	require.NoError(t, err)
	start := time.Now()
	fixed, err := c.Mutex(name+":fixed", redislock.WithLease(lease), redislock.WithoutRenewal()).Lock(t.Context())
	require.NoError(t, err)
	unlocked, err := c.Mutex(name+":unlocked", redislock.WithLease(time.Minute)).Lock(t.Context())
	require.NoError(t, err)
	// Let the watchdog renew at least once, and stop Redis between two renewals.
	first := renewed.Deadline()
	poll(t, func() bool { return renewed.Deadline().After(first) })
	server.Pause()
	paused := time.Now()
	deadline := renewed.Deadline()

	// Callers come back when their context ends, not when Redis does.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	_, err = c.Mutex(name + ":new").Lock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, redislock.ErrLocked)
	require.Less(t, time.Since(paused), 800*time.Millisecond)
	err = unlocked.Unlock(ctx)
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(paused), 2*time.Second)
	require.False(t, unlocked.Valid())

	<-fixed.Done()
	require.Less(t, time.Since(start), lease, "told before the server could give it away")
	<-renewed.Done()
	told := time.Now()
	require.False(t, told.Before(deadline), "not told before the deadline")
	// The server counts from when it executed the last renewal, which is not before its sending: deadline - lifetime.
	serverMayExpire := deadline.Add(lease/100 + 50*time.Millisecond)
	require.True(t, told.Before(serverMayExpire), "told %v after the server may have given it away", told.Sub(serverMayExpire))
	t.Logf("told %v after the deadline, %v before the server's expiry", told.Sub(deadline), serverMayExpire.Sub(told))
	require.ErrorIs(t, renewed.Err(), redislock.ErrLost)
	require.False(t, renewed.Valid())
	require.Greater(t, time.Since(paused), lease/2)

	server.Resume()
	require.ErrorIs(t, renewed.Unlock(t.Context()), redislock.ErrLost)
	// What hung is cleaned up: all names are free long before the minute that one of them was taken for.
	for _, part := range []string{":renewed", ":fixed", ":unlocked", ":new"} {
		l := mustLock(t, c.Mutex(name+part))
		require.NoError(t, l.Unlock(t.Context()))
	}
	require.Less(t, time.Since(paused), patience)
}

func TestLock_RenewalsExecuteButTheirRepliesAreLost(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	c, dialer, rdb := newFaultyClient(t)
	name := redistest.Name(t)
	l := mustLock(t, c.Mutex(name, redislock.WithLease(lease)))
	var last <-chan struct{}
	for n := range 6 { // more than fit into a lease
		last = dialer.LoseReply(name, n+1, redistest.Swallow)
	}
	deadline := l.Deadline()
	<-l.Done()
	told := time.Now()
	require.False(t, told.Before(deadline))
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	left, err := rdb.PTTL(t.Context(), name).Result()
	require.NoError(t, err)
	require.Greater(t, left, lease/2, "the server has renewed it to the end, and nobody holds it")

	other := mustLock(t, newClient(t, rdb).Mutex(name))
	require.Greater(t, time.Since(deadline), lease/100+50*time.Millisecond, "not before the time that was promised")
	require.Less(t, time.Since(told), lease/2, "but long before it would have expired")
	require.NoError(t, other.Unlock(t.Context()))

	// Use up what is left of the faults, so that Close finds a sound connection.
	poll(t, func() bool {
		return c.Mutex(name).Do(t.Context(), func(context.Context) error { return nil }) == nil && isClosed(last)
	})
}

func TestLock_SurvivesConnectionsBeingKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	c := newClient(t, server.Client(t))
	name := redistest.Name(t)
	l := mustLock(t, c.Mutex(name, redislock.WithLease(2*time.Second)))
	holder := requireHeldOnce(t, admin, name)
	for w, until := newWheel(t), l.Deadline().Add(3*time.Second); l.Deadline().Before(until); {
		require.NoError(t, l.Err())
		require.NoError(t, admin.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err())
		require.NoError(t, w.Sleep(t.Context(), 50*time.Millisecond))
	}
	require.Equal(t, holder, requireHeldOnce(t, admin, name))
	require.NoError(t, l.Unlock(t.Context()))
	requireFree(t, admin, name)
}

func TestMutex_RepliesSlowerThanTheLease(t *testing.T) {
	t.Parallel()
	c, dialer, rdb := newFaultyClient(t)
	name := redistest.Name(t)
	dialer.Delay(0, 300*time.Millisecond)
	_, err := c.Mutex(name, redislock.WithLease(200*time.Millisecond)).TryLock(within(t, patience))
	require.ErrorContains(t, err, "longer than the lease")
	require.NotErrorIs(t, err, redislock.ErrLocked)
	dialer.Delay(0, 0)
	require.NoError(t, c.Close(t.Context()))
	requireFree(t, rdb, name)
}

func TestMutex_RedisOutOfReach(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close()) // nobody listens there now
	rdb := redis.NewClient(&redis.Options{Addr: listener.Addr().String()})
	t.Cleanup(func() { _ = rdb.Close() })
	c := newClient(t, rdb)
	start := time.Now()
	_, err = c.Mutex("unreachable").Lock(within(t, patience))
	var refused *net.OpError
	require.ErrorAs(t, err, &refused)
	require.NotErrorIs(t, err, redislock.ErrLocked)
	require.ErrorContains(t, err, `redislock: lock "unreachable"`)
	require.Less(t, time.Since(start), 10*time.Second)
}

func TestMutex_KeyOfAnotherKind(t *testing.T) {
	t.Parallel()

	t.Run("a hold without expiry is not waited for by its time", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		writeHold(t, rdb, name, 0)
		_, err := c.Mutex(name).TryLock(t.Context())
		var locked *redislock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Negative(t, locked.TTL)
		require.ErrorContains(t, err, "without expiry")
	})

	t.Run("that replaces a held lock ends it and is left alone", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		l := mustLock(t, c.Mutex(name, redislock.WithLease(2*time.Second)))
		beside := mustLock(t, c.Mutex(name+":beside", redislock.WithLease(2*time.Second)))
		require.NoError(t, rdb.Set(t.Context(), name, "mine", time.Minute).Err())
		start := time.Now()
		<-l.Done()
		require.Less(t, time.Since(start), 1500*time.Millisecond, "noticed by the next renewal")
		require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
		require.Equal(t, "mine", rdb.Get(t.Context(), name).Val())
		require.NoError(t, beside.Err(), "a batch does not fail for one of its keys")
		require.NoError(t, beside.Unlock(t.Context()))
	})
}

func TestMutex_RedisRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args  []string
		check func(error) bool
	}{
		"without a password":   {[]string{"--requirepass", "x"}, redis.IsAuthError},
		"for lack of replicas": {[]string{"--min-replicas-to-write", "1"}, redis.IsNoReplicasError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, redistest.Start(t, tt.args...).Client(t))
			_, err := c.Mutex("refused").Lock(within(t, patience))
			require.Error(t, err)
			require.True(t, tt.check(errors.Unwrap(err)), "%v", err)
			require.NotErrorIs(t, err, redislock.ErrLocked)
		})
	}
}

// A server that has reached its maxmemory goes on granting locks of every kind: each takes some hundred bytes, and expires.
func TestKinds_AreGrantedWhereMemoryIsShort(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, "--maxmemory", "1").Client(t)
	require.True(t, redis.IsOOMError(rdb.Set(t.Context(), "other", "x", 0).Err()))
	c := newClient(t, rdb)
	for name, m := range map[string]*redislock.Mutex{
		"plain": c.Mutex("plain"), "fenced": c.Mutex("fenced", redislock.WithFencing()), "write": c.RWMutex("rw").Writer(),
	} {
		l, err := m.Lock(within(t, patience))
		require.NoError(t, err, name)
		require.NoError(t, l.Unlock(t.Context()), name)
	}
}

// A renewal may be on the wire while the lock is unlocked. Once Unlock has returned, it must find nothing to prolong.
func TestLock_UnlockRacesWithRenewal(t *testing.T) {
	t.Parallel()
	c, dialer, rdb := newFaultyClient(t)
	other := newClient(t, rdb)
	name := redistest.Name(t)
	const lease, rounds = 1500 * time.Millisecond, 20 // long enough to outlast a stall of a busy machine
	w := newWheel(t)
	dialer.Delay(10*time.Millisecond, 0)
	renewed := 0
	for i := range rounds {
		l := mustLock(t, c.Mutex(name, redislock.WithLease(lease)))
		first := l.Deadline()
		// The first renewal falls between a sixth and a third of the lease.
		require.NoError(t, w.Sleep(t.Context(), lease/6+lease/6*time.Duration(i)/rounds))
		if l.Deadline().After(first) {
			renewed++
		}
		require.NoError(t, l.Unlock(t.Context()))
		require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
		next, err := other.Mutex(name, redislock.WithLease(time.Minute)).TryLock(t.Context())
		require.NoError(t, err)
		pttl, err := rdb.PTTL(t.Context(), name).Result()
		require.NoError(t, err)
		require.Greater(t, pttl, 50*time.Second, "nobody else's hold is shortened")
		require.NoError(t, next.Unlock(t.Context()))
	}
	require.Greater(t, renewed, 2, "the unlocks straddle the renewals")
	require.Less(t, renewed, rounds-2)
	dialer.Delay(0, 0)
}
