package semaphore_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// requireExclusion fails unless users never hold more than total permits together. User i acquires want(i,
// k) permits in its k-th turn.
func requireExclusion(
	t *testing.T, users, times int, total int64,
	newAny func(i int) anySemaphore, want func(i, k int) int64,
) {
	t.Helper()
	ctx := within(t, testTimeout)
	var held, violations atomic.Int64
	var all sync.WaitGroup
	var first anySemaphore
	for i := range users {
		s := newAny(i)
		if i == 0 {
			first = s
			s.setPermits(t, total)
		}
		all.Go(func() {
			for k := range times {
				n := want(i, k)
				release, err := s.acquire(ctx, n)
				if err != nil {
					t.Error(err)
					return
				}
				if held.Add(n) > total {
					violations.Add(1)
				}
				held.Add(-n)
				if err := release(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, violations.Load())
	require.Equal(t, total, available(t, first))
}

var sharedBehaviours = map[string]func(t *testing.T, d deployment){
	"each side counts the permits of the other": func(t *testing.T, d deployment) {
		j := d.newJava(t)
		s := d.newClient(t).CountingSemaphore(j.name)
		j.trySet(5)
		ok, err := s.TrySetPermits(t.Context(), 9)
		require.NoError(t, err)
		require.False(t, ok, "Java has set them")
		require.True(t, j.tryAcquire(2))
		require.NoError(t, s.Acquire(t.Context(), 3))
		require.False(t, j.tryAcquire(1))
		require.ErrorIs(t, s.TryAcquire(t.Context(), 1), semaphore.ErrNoPermits)
		require.NoError(t, s.Release(t.Context(), 3))
		require.Equal(t, 3, j.available())
		require.True(t, j.tryAcquire(3))
		j.release(5)
		j.addPermits(-1)
		require.EqualValues(t, 4, available(t, s))
	},
	"each release wakes the other side": func(t *testing.T, d deployment) {
		j := d.newJava(t)
		s := d.newClient(t).CountingSemaphore(j.name)
		heard := j.listen()
		mustSetPermits(t, s, 1)
		require.Equal(t, "01", heard())
		require.True(t, j.tryAcquire(1))
		w := startCall(func() error { return s.Acquire(within(t, testTimeout), 2) })
		awaitListeners(t, j.rdb, scripts.SemChannel(j.name), 2) // Java and the waiter
		for _, n := range []int{-3, 3, 2} {                     // only the last makes enough permits free
			require.False(t, w.ended())
			j.addPermits(n)
		}
		require.NoError(t, w.wait(t))
		require.Zero(t, available(t, s))
		for range 3 {
			heard()
		}
		require.NoError(t, s.Release(t.Context(), 2))
		require.Equal(t, "02", heard())
		require.True(t, j.tryAcquire(2))
	},
	"leased permits: each side counts, prolongs and releases the permits of the other": func(t *testing.T, d deployment) {
		j := d.newJava(t)
		l := d.newClient(t).Semaphore(j.name, 0)
		heard := j.listen()
		mustSetPermits(t, l, 3)
		require.Equal(t, "03", heard())
		g := mustAcquire(t, l, 1)
		ids, answer := j.acquireExpirable(2, time.Minute)
		require.Equal(t, "OK", answer)
		_, answer = j.acquireExpirable(1, time.Minute)
		require.Regexp(t, `^:\d{13}$`, answer, "the end of the next lease, that of Go")
		_, err := l.TryAcquire(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrNoPermits)
		require.InDelta(t, time.Minute, leaseTime(t, l, ids[0]), float64(5*time.Second))
		require.NoError(t, l.UpdateLease(t.Context(), ids[0], time.Hour))
		require.NoError(t, l.ReleaseIDs(t.Context(), ids[0]))
		require.Equal(t, "01", heard())
		require.Equal(t, 1, j.releaseExpirable(ids[1]))
		require.Equal(t, "1", heard())
		require.EqualValues(t, 2, available(t, l))
		require.True(t, j.updateLease(g.IDs()[0], time.Hour))
		require.NoError(t, g.Release(t.Context()))
		require.Equal(t, "03", heard())
		require.False(t, j.updateLease(g.IDs()[0], time.Hour))
	},
	"leased permits: a permit that Java releases is lost to its Go holder, and wakes a waiter": func(t *testing.T, d deployment) {
		j := d.newJava(t)
		l := d.newClient(t).Semaphore(j.name, 0, semaphore.WithLease(safeLease))
		mustSetPermits(t, l, 1)
		g := mustAcquire(t, l, 1)
		other := d.newClient(t).Semaphore(j.name, 0)
		w := startCall(func() error {
			g, err := other.Acquire(within(t, testTimeout), 1)
			if err != nil {
				return err
			}
			return g.Release(t.Context())
		})
		awaitListeners(t, j.rdb, scripts.SemChannel(j.name), 1)
		require.Equal(t, 1, j.releaseExpirable(g.IDs()...))
		require.NoError(t, w.wait(t))
		<-g.Done()
		require.ErrorIs(t, g.Err(), semaphore.ErrLost)
	},
	"leased permits: a permit that Java abandoned becomes free at the end of its lease": func(t *testing.T, d deployment) {
		j := d.newJava(t)
		l := d.newClient(t).Semaphore(j.name, 0)
		mustSetPermits(t, l, 2)
		_, answer := j.acquireExpirable(1, 400*time.Millisecond)
		require.Equal(t, "OK", answer)
		forever, answer := j.acquireExpirable(1, 0)
		require.Equal(t, "OK", answer)
		began := time.Now()
		g := mustAcquire(t, l, 1)
		require.Less(t, time.Since(began), 400*time.Millisecond+wakeLimit)
		require.Equal(t, semaphore.Forever, leaseTime(t, l, forever[0]))
		require.NoError(t, g.Release(t.Context()))
		_, err := l.TryAcquire(t.Context(), 2)
		require.ErrorIs(t, err, semaphore.ErrNoPermits)
	},
}
