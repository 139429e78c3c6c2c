package semaphore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// newFaultyClient returns a client on a network that the dialer can break, and a Redis client on a sound
// one.
func newFaultyClient(
	t *testing.T, server *redistest.Server, retries int,
) (*semaphore.Client, *redistest.FaultDialer, *redis.Client) {
	t.Helper()
	d := &redistest.FaultDialer{Timeout: 300 * time.Millisecond}
	rdb := server.Client(t, func(o *redis.Options) {
		o.Dialer = d.Dial
		o.ReadTimeout, o.MaxRetries = time.Second, retries
	})
	// The server has loaded the scripts, so that each call is one write.
	sound := server.Client(t)
	for _, s := range scripts.All() {
		require.NoError(t, sound.ScriptLoad(t.Context(), s.Source()).Err())
	}
	return newClient(t, rdb), d, sound
}

var losses = map[string]redistest.Loss{
	"the connection breaks":       redistest.Cut,
	"the connection falls silent": redistest.Swallow,
}

// Guarantees: S10.
func TestCountingSemaphore_RepliesLost(t *testing.T) {
	t.Parallel()
	for how, loss := range losses {
		t.Run("acquisition, retried: taken once when "+how, func(t *testing.T) {
			t.Parallel()
			c, d, rdb := newFaultyClient(t, redistest.Shared(t), 3)
			name := redistest.Name(t)
			s := c.CountingSemaphore(name)
			mustSetPermits(t, s, 5)
			lost := d.LoseReply(scripts.SemAcquire.SHA(), 1, loss)
			require.NoError(t, s.Acquire(t.Context(), 2))
			<-lost
			require.Equal(t, "3", rdb.Get(t.Context(), name).Val())
		})

		t.Run("acquisition, not retried: given back when "+how, func(t *testing.T) {
			t.Parallel()
			c, d, rdb := newFaultyClient(t, redistest.Shared(t), -1)
			name := redistest.Name(t)
			s := c.CountingSemaphore(name)
			mustSetPermits(t, s, 5)
			lost := d.LoseReply(scripts.SemAcquire.SHA(), 1, loss)
			require.Error(t, s.Acquire(t.Context(), 2))
			<-lost
			poll(t, func() bool { return rdb.Get(t.Context(), name).Val() == "5" })
			require.NoError(t, s.Acquire(t.Context(), 5))
			require.Equal(t, "0", rdb.Get(t.Context(), name).Val())
		})

		t.Run("release, retried: added once when "+how, func(t *testing.T) {
			t.Parallel()
			c, d, rdb := newFaultyClient(t, redistest.Shared(t), 3)
			name := redistest.Name(t)
			s := c.CountingSemaphore(name, semaphore.WithMax(5))
			mustSetPermits(t, s, 3)
			lost := d.LoseReply(scripts.SemRelease.SHA(), 1, loss)
			require.NoError(t, s.Release(t.Context(), 2))
			<-lost
			require.Equal(t, "5", rdb.Get(t.Context(), name).Val())
			d.LoseReply(scripts.SemRelease.SHA(), 1, loss)
			require.ErrorIs(t, s.Release(t.Context(), 1), semaphore.ErrOverRelease, "the second execution repeats the answer")
			require.Equal(t, "5", rdb.Get(t.Context(), name).Val())
		})

		t.Run("release, not retried: unconfirmed and added once when "+how, func(t *testing.T) {
			t.Parallel()
			c, d, rdb := newFaultyClient(t, redistest.Shared(t), -1)
			name := redistest.Name(t)
			s := c.CountingSemaphore(name)
			mustSetPermits(t, s, 3)
			lost := d.LoseReply(scripts.SemRelease.SHA(), 1, loss)
			require.ErrorIs(t, s.Release(t.Context(), 2), semaphore.ErrUnconfirmed)
			<-lost
			require.NoError(t, s.Release(t.Context(), 1)) // carries the unconfirmed release, too
			require.Equal(t, "6", rdb.Get(t.Context(), name).Val())
		})
	}

	t.Run("edits take effect once", func(t *testing.T) {
		t.Parallel()
		c, d, rdb := newFaultyClient(t, redistest.Shared(t), 3)
		name := redistest.Name(t)
		s := c.CountingSemaphore(name)
		d.LoseReply(scripts.SemEdit.SHA(), 1, redistest.Cut)
		mustSetPermits(t, s, 3)
		d.LoseReply(scripts.SemEdit.SHA(), 1, redistest.Cut)
		require.NoError(t, s.AddPermits(t.Context(), 4))
		d.LoseReply(scripts.SemEdit.SHA(), 1, redistest.Cut)
		n, err := s.Drain(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 7, n)
		require.Equal(t, "0", rdb.Get(t.Context(), name).Val())
	})
}

// Guarantees: S10.
func TestSemaphore_RepliesLost(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		acquire, release := scripts.PermitAcquire, scripts.PermitRelease
		fresh := func(t *testing.T, retries int) (*semaphore.Semaphore, *redistest.FaultDialer) {
			c, d, rdb := newFaultyClient(t, redistest.Shared(t), retries)
			name := redistest.Name(t)
			mustSetPermits(t, k.newSemaphore(newClient(t, rdb), name, 0), 5)
			return k.newSemaphore(c, name, 0), d
		}
		for how, loss := range losses {
			t.Run("retried: acquired and released once when "+how, func(t *testing.T) {
				t.Parallel()
				l, d := fresh(t, 3)
				lost := d.LoseReply(acquire.SHA(), 1, loss)
				g := mustAcquire(t, l, 2)
				<-lost
				require.EqualValues(t, 3, available(t, l))
				lost = d.LoseReply(release.SHA(), 1, loss)
				require.NoError(t, g.Release(t.Context()))
				<-lost
				require.EqualValues(t, 5, available(t, l))
			})

			t.Run("not retried: nothing stays held when "+how, func(t *testing.T) {
				t.Parallel()
				l, d := fresh(t, -1)
				lost := d.LoseReply(acquire.SHA(), 1, loss)
				_, err := l.Acquire(t.Context(), 2)
				require.Error(t, err)
				<-lost
				poll(t, func() bool { return available(t, l) == 5 })
				g := mustAcquire(t, l, 2)
				lost = d.LoseReply(release.SHA(), 1, loss)
				require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrUnconfirmed)
				<-lost
				poll(t, func() bool { return available(t, l) == 5 })
			})
		}
	})
}

// The permits could expire in Redis before the caller knows that it has them.
func TestSemaphore_AcquireFailsIfTheReplyTakesLongerThanTheLease(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		const lease = time.Second // the reply takes longer
		d := &redistest.FaultDialer{}
		rdb := redistest.Start(t).Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = d.Dial, testTimeout })
		s := k.newSemaphore(newClient(t, rdb), "slots", 0, semaphore.WithLease(lease))
		mustSetPermits(t, s, 1)
		d.Delay(0, lease+100*time.Millisecond)
		g, err := s.Acquire(within(t, testTimeout), 1)
		require.ErrorIs(t, err, semaphore.ErrLost)
		require.Nil(t, g)
		d.Delay(0, 0)
		poll(t, func() bool { return available(t, s) == 1 })
	})
}

// Guarantees: S4.
func TestGrant_RedisHangsForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second // short: its end is awaited
	server := redistest.Start(t)
	c, d, _ := newFaultyClient(t, server, 3)
	l := c.Semaphore("slots", 0, semaphore.WithLease(lease))
	mustSetPermits(t, l, 1)
	g := mustAcquire(t, l, 1)
	work := g.Context(t.Context())
	server.Pause()
	stalled, began := redistest.Stalls(t), time.Now()
	<-work.Done()
	require.Less(t, time.Since(began)-stalled(), lease, "before Redis can grant it again")
	require.ErrorIs(t, context.Cause(work), semaphore.ErrLost)
	short := within(t, 100*time.Millisecond)
	require.Less(t, redistest.Running(t, func() {
		_, err := l.Acquire(short, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}), time.Second, "the call ends with its context")
	server.Resume()
	d.Reset()
	poll(t, func() bool {
		n, err := l.Available(t.Context())
		return err == nil && n == 1
	})
	g = mustAcquire(t, l, 1)
	require.NoError(t, g.Release(t.Context()))
}

func TestSemaphores_RedisLosesItsData(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c, _, _ := newFaultyClient(t, server, -1)
	s, l := c.CountingSemaphore("counting"), c.Semaphore("plain", 0)
	mustSetPermits(t, s, 2)
	mustSetPermits(t, l, 1)
	g := mustAcquire(t, l, 1)
	server.Kill()
	require.Error(t, s.Acquire(t.Context(), 1), "an outage fails the call")
	require.ErrorIs(t, s.Release(t.Context(), 3), semaphore.ErrUnconfirmed)
	require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrUnconfirmed)
	server.Restart(t) // without data
	rdb := server.Client(t)
	poll(t, func() bool { return rdb.Get(t.Context(), "counting").Val() == "3" })
	_, err := l.TryAcquire(t.Context(), 1)
	require.ErrorIs(t, err, semaphore.ErrNotSet)
	mustSetPermits(t, l, 1)
	next := mustAcquire(t, l, 1)
	require.Greater(t, next.Token(), g.Token(), "tokens rise across a loss of the data")
	require.NoError(t, next.Release(t.Context()))
	require.EqualValues(t, 1, available(t, l))
}
