package semaphore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// faulty returns a client whose network a dialer can break, one that nothing happens to, and a name.
func faulty(t *testing.T, server *redistest.Server, retries int, opts ...semaphore.Option) (*semaphore.Client, *redistest.FaultDialer, *redis.Client) { //nolint:unparam // options as newClient takes them
	t.Helper()
	d := &redistest.FaultDialer{Timeout: 300 * time.Millisecond}
	rdb := server.Client(t, func(o *redis.Options) {
		o.Dialer = d.Dial
		o.ReadTimeout, o.MaxRetries = 300*time.Millisecond, retries
	})
	// The scripts are known to the server, so that the call is one write.
	for _, s := range scripts.All() {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
	}
	return newClient(t, rdb, opts...), d, server.Client(t)
}

var losses = map[string]redistest.Loss{"the connection breaks": redistest.Cut, "the connection falls silent": redistest.Swallow}

func TestSemaphore_RepliesLost(t *testing.T) {
	t.Parallel()
	for how, loss := range losses {
		t.Run("of an acquisition that is retried: taken once, when "+how, func(t *testing.T) {
			t.Parallel()
			c, d, rdb := faulty(t, redistest.Shared(t), 3)
			name := redistest.Name(t)
			s := c.Semaphore(name)
			set(t, s, 5)
			lost := d.LoseReply(scripts.SemAcquire.SHA(), 1, loss)
			require.NoError(t, s.Acquire(t.Context(), 2))
			<-lost
			require.Equal(t, "3", rdb.Get(t.Context(), name).Val())
		})

		t.Run("of an acquisition that is not: given back, when "+how, func(t *testing.T) {
			t.Parallel()
			c, d, rdb := faulty(t, redistest.Shared(t), -1)
			name := redistest.Name(t)
			s := c.Semaphore(name)
			set(t, s, 5)
			lost := d.LoseReply(scripts.SemAcquire.SHA(), 1, loss)
			require.Error(t, s.Acquire(t.Context(), 2))
			<-lost
			poll(t, func() bool { return rdb.Get(t.Context(), name).Val() == "5" })
			require.NoError(t, s.Acquire(t.Context(), 5))
			require.Equal(t, "0", rdb.Get(t.Context(), name).Val())
		})

		t.Run("of a release that is retried: added once, when "+how, func(t *testing.T) {
			t.Parallel()
			c, d, rdb := faulty(t, redistest.Shared(t), 3)
			name := redistest.Name(t)
			s := c.Semaphore(name, semaphore.WithMax(5))
			set(t, s, 3)
			lost := d.LoseReply(scripts.SemRelease.SHA(), 1, loss)
			require.NoError(t, s.Release(t.Context(), 2))
			<-lost
			require.Equal(t, "5", rdb.Get(t.Context(), name).Val())
			d.LoseReply(scripts.SemRelease.SHA(), 1, loss)
			require.ErrorIs(t, s.Release(t.Context(), 1), semaphore.ErrOverRelease, "the second execution repeats the answer")
			require.Equal(t, "5", rdb.Get(t.Context(), name).Val())
		})

		t.Run("of a release that is not: unconfirmed, and added once, when "+how, func(t *testing.T) {
			t.Parallel()
			c, d, rdb := faulty(t, redistest.Shared(t), -1)
			name := redistest.Name(t)
			s := c.Semaphore(name)
			set(t, s, 3)
			lost := d.LoseReply(scripts.SemRelease.SHA(), 1, loss)
			require.ErrorIs(t, s.Release(t.Context(), 2), semaphore.ErrUnconfirmed)
			<-lost
			require.NoError(t, s.Release(t.Context(), 1)) // carries the question
			require.Equal(t, "6", rdb.Get(t.Context(), name).Val())
		})
	}

	t.Run("edits take effect once", func(t *testing.T) {
		t.Parallel()
		c, d, rdb := faulty(t, redistest.Shared(t), 3)
		name := redistest.Name(t)
		s := c.Semaphore(name)
		d.LoseReply(scripts.SemEdit.SHA(), 1, redistest.Cut)
		set(t, s, 3)
		d.LoseReply(scripts.SemEdit.SHA(), 1, redistest.Cut)
		require.NoError(t, s.AddPermits(t.Context(), 4))
		d.LoseReply(scripts.SemEdit.SHA(), 1, redistest.Cut)
		n, err := s.Drain(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 7, n)
		require.Equal(t, "0", rdb.Get(t.Context(), name).Val())
	})
}

func TestLeased_RepliesLost(t *testing.T) {
	suite(t, func(t *testing.T, leased leasedKind) {
		fair := leased.kind.name == "fair"
		acquire, release := scripts.PermitAcquire, scripts.PermitRelease
		if fair {
			acquire, release = scripts.FairStep, scripts.FairStep
		}
		// Another client sets the permits: in the background it has those of a fair semaphore assigned, by the script that is to be lost.
		fresh := func(t *testing.T, retries int) (*semaphore.Leased, *redistest.FaultDialer) {
			c, d, rdb := faulty(t, redistest.Shared(t), retries)
			name := redistest.Name(t)
			setLeased(t, leased.of(newClient(t, rdb), name), 5)
			return leased.of(c, name), d
		}
		for how, loss := range losses {
			t.Run("retried: acquired and released once, when "+how, func(t *testing.T) {
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

			t.Run("not retried: nothing stays held, when "+how, func(t *testing.T) {
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

func TestGrant_RedisStoppedForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	const lease = 900 * time.Millisecond
	server := redistest.Start(t)
	c, d, _ := faulty(t, server, 3)
	l := c.Leased("slots", semaphore.WithLease(lease))
	setLeased(t, l, 1)
	g := mustAcquire(t, l, 1)
	work := g.Context(t.Context())
	server.Pause()
	began := time.Now()
	<-work.Done()
	require.Less(t, time.Since(began), lease, "before Redis could give it away")
	require.ErrorIs(t, context.Cause(work), semaphore.ErrLost)
	short := within(t, 100*time.Millisecond)
	began = time.Now()
	_, err := l.Acquire(short, 1)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), time.Second, "the call ends with its context")
	server.Resume()
	d.Reset()
	poll(t, func() bool {
		n, err := l.Available(t.Context())
		return err == nil && n == 1
	})
	g = mustAcquire(t, l, 1)
	require.NoError(t, g.Release(t.Context()))
}

func TestSemaphore_RedisIsGone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c, _, _ := faulty(t, server, -1)
	s, l := c.Semaphore("plain"), c.Leased("leased")
	set(t, s, 2)
	setLeased(t, l, 1)
	g := mustAcquire(t, l, 1)
	server.Kill()
	require.Error(t, s.Acquire(t.Context(), 1), "the error of Redis, at once")
	require.ErrorIs(t, s.Release(t.Context(), 3), semaphore.ErrUnconfirmed)
	require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrUnconfirmed)
	server.Restart(t) // without data
	rdb := server.Client(t)
	poll(t, func() bool { return rdb.Get(t.Context(), "plain").Val() == "3" })
	_, err := l.TryAcquire(t.Context(), 1)
	require.ErrorIs(t, err, semaphore.ErrNotSet)
	setLeased(t, l, 1)
	next := mustAcquire(t, l, 1)
	require.Greater(t, next.Token(), g.Token(), "tokens rise across a loss of the data")
	require.NoError(t, next.Release(t.Context()))
	require.EqualValues(t, 1, available(t, l))
}

func TestClient_Close(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	name := redistest.Name(t)
	watcher := newClient(t, redistest.Shared(t).Client(t))
	c, err := semaphore.New(rdb, semaphore.WithWheel(newWheel(t)))
	require.NoError(t, err)
	s := c.Semaphore(name + ":plain")
	set(t, s, 0)
	var grants []*semaphore.Grant
	var calls []*call
	calls = append(calls, start(func() error { return s.Acquire(t.Context(), 1) }))
	for _, l := range []*semaphore.Leased{c.Leased(name), c.FairLeased(name + ":fair")} {
		setLeased(t, l, 3)
		grants = append(grants, mustAcquire(t, l, 2))
		calls = append(calls, start(func() error { _, err := l.Acquire(t.Context(), 2); return err }))
	}
	awaitListeners(t, rdb, name, 1)
	awaitListeners(t, rdb, name+":plain", 1)
	require.NoError(t, c.Close(within(t, patience)))
	for _, w := range calls {
		require.ErrorIs(t, w.wait(t), semaphore.ErrClosed)
	}
	for _, g := range grants {
		require.ErrorIs(t, g.Err(), semaphore.ErrClosed)
		require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrClosed)
	}
	require.EqualValues(t, 3, available(t, watcher.Leased(name)))
	require.EqualValues(t, 3, available(t, watcher.FairLeased(name+":fair")))
	require.NoError(t, c.Close(t.Context()))

	l := c.Leased(name)
	_, tried := l.TryAcquire(t.Context(), 1)
	_, waited := l.Acquire(t.Context(), 1)
	_, state := l.Available(t.Context())
	_, plain := s.TryAcquire(t.Context(), 1)
	_, n := s.Available(t.Context())
	for _, err := range []error{
		tried, waited, state, plain, n, s.Acquire(t.Context(), 0), s.Acquire(t.Context(), 1), s.Release(t.Context(), 1),
		s.AddPermits(t.Context(), 1), l.SetPermits(t.Context(), 1),
	} {
		require.ErrorIs(t, err, semaphore.ErrClosed)
	}
	got := make(chan error, 1)
	s.AcquireFunc(t.Context(), 1, func(err error) { got <- err })
	require.ErrorIs(t, <-got, semaphore.ErrClosed)
	require.NoError(t, errors.Join(rdb.Ping(t.Context()).Err()))
}
