package semaphore_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// deployment is where a behaviour is tested: a server or a cluster.
type deployment struct {
	connect func(t testing.TB) redis.UniversalClient
	sharded bool // Java publishes on sharded channels
	opts    []semaphore.Option
}

// newJava returns a Java service with a semaphore of its own.
func (d deployment) newJava(t testing.TB) *java {
	t.Helper()
	return &java{t: t, rdb: d.connect(t), name: redistest.Name(t), sharded: d.sharded}
}

func (d deployment) newClient(t testing.TB) *semaphore.Client {
	t.Helper()
	return newClient(t, d.connect(t), d.opts...)
}

// behaviours are what Redisson's own tests require of its two classes, and how services in Java and Go see
// each other.
var behaviours = map[string]map[string]func(t *testing.T, d deployment){
	"RSemaphore":                countingBehaviours,
	"RPermitExpirableSemaphore": expirableBehaviours,
	"both sides at work":        sharedBehaviours,
}

// Guarantees: S17.
func TestRedisson_BehavesAlike(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, d deployment, classes ...string) {
		for class, list := range behaviours {
			if len(classes) > 0 && !slices.Contains(classes, class) {
				continue
			}
			t.Run(class, func(t *testing.T) {
				for what, f := range list {
					t.Run(what, func(t *testing.T) {
						t.Parallel()
						f(t, d)
					})
				}
			})
		}
	}
	t.Run("on one server", func(t *testing.T) {
		t.Parallel()
		run(t, deployment{connect: func(t testing.TB) redis.UniversalClient { return redistest.Shared(t).Client(t) }})
	})
	t.Run("in a cluster", func(t *testing.T) {
		redistest.SkipIfShort(t)
		t.Parallel()
		cluster := redistest.StartCluster(t)
		connect := func(t testing.TB) redis.UniversalClient { return cluster.Client(t) }
		run(t, deployment{connect: connect, sharded: redistest.HasShardedChannels(t)})
		t.Run("that publishes to every node", func(t *testing.T) {
			opts := []semaphore.Option{semaphore.WithShardedChannels(false)}
			run(t, deployment{connect: connect, opts: opts}, "both sides at work")
		})
	})
}

var countingBehaviours = map[string]func(t *testing.T, d deployment){
	"a waiter is not satisfied by fewer permits, and is by added ones": func(t *testing.T, d deployment) {
		c := d.newClient(t)
		s := c.CountingSemaphore(redistest.Name(t))
		mustSetPermits(t, s, 1)
		w := startCall(func() error { return s.Acquire(within(t, testTimeout), 3) })
		awaitListeners(t, d.connect(t), scripts.SemChannel(s.Name()), 1)
		require.NoError(t, s.Release(t.Context(), 1))
		require.ErrorIs(t, s.TryAcquire(t.Context(), 1), semaphore.ErrNoPermits)
		require.False(t, w.ended())
		require.NoError(t, s.AddPermits(t.Context(), 1))
		require.NoError(t, w.wait(t))
		require.Zero(t, available(t, s))
	},
	"a waiter for two wakes after the second of two releases": func(t *testing.T, d deployment) {
		name := redistest.Name(t)
		s, other := d.newClient(t).CountingSemaphore(name), d.newClient(t).CountingSemaphore(name)
		mustSetPermits(t, s, 1)
		require.NoError(t, other.Acquire(t.Context(), 1))
		w := startCall(func() error { return s.Acquire(within(t, testTimeout), 2) })
		require.NoError(t, other.Release(t.Context(), 1))
		require.False(t, w.ended())
		require.NoError(t, other.Release(t.Context(), 1))
		require.NoError(t, w.wait(t))
	},
	"a timed try for four succeeds when the fourth is released, and fails in time when it is not": func(t *testing.T, d deployment) {
		s := d.newClient(t).CountingSemaphore(redistest.Name(t))
		mustSetPermits(t, s, 5)
		require.NoError(t, s.Acquire(t.Context(), 5))
		began := time.Now()
		require.ErrorIs(t, s.Acquire(within(t, 200*time.Millisecond), 4), context.DeadlineExceeded)
		require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
		w := startCall(func() error { return s.Acquire(within(t, testTimeout), 4) })
		for range 4 {
			require.False(t, w.ended())
			require.NoError(t, s.Release(t.Context(), 1))
		}
		require.NoError(t, w.wait(t))
	},
	"a semaphore comes into being by a release": func(t *testing.T, d deployment) {
		s := d.newClient(t).CountingSemaphore(redistest.Name(t))
		require.NoError(t, s.Release(t.Context(), 1))
		require.EqualValues(t, 1, available(t, s))
		require.NoError(t, s.Release(t.Context(), 1))
		require.NoError(t, s.Acquire(t.Context(), 2))
	},
	"permits are set once, drained, reduced below zero, and repaid by releases": func(t *testing.T, d deployment) {
		s := d.newClient(t).CountingSemaphore(redistest.Name(t))
		n, err := s.Drain(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		mustSetPermits(t, s, 7)
		ok, err := s.TrySetPermits(t.Context(), 9)
		require.NoError(t, err)
		require.False(t, ok)
		n, err = s.Drain(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 7, n)
		ok, err = s.TrySetPermits(t.Context(), 9)
		require.NoError(t, err)
		require.False(t, ok, "0 is set, too")
		require.NoError(t, s.AddPermits(t.Context(), -2))
		require.EqualValues(t, -2, available(t, s))
		require.NoError(t, s.Release(t.Context(), 3))
		require.EqualValues(t, 1, available(t, s))
	},
	"permits with a time to live disappear, and adding or draining does not keep them": func(t *testing.T, d deployment) {
		rdb, name := d.connect(t), redistest.Name(t)
		s := newClient(t, rdb).CountingSemaphore(name)
		ok, err := s.TrySetPermits(t.Context(), 3)
		require.NoError(t, err)
		require.True(t, ok)
		require.True(t, rdb.PExpire(t.Context(), name, 3*time.Second).Val())
		require.NoError(t, s.AddPermits(t.Context(), 1))
		_, err = s.Drain(t.Context())
		require.NoError(t, err)
		require.Positive(t, rdb.PTTL(t.Context(), name).Val())
		poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
		require.ErrorIs(t, s.Acquire(t.Context(), 1), semaphore.ErrNotSet)
	},
	"a release if it exists does nothing where it does not": func(t *testing.T, d deployment) {
		rdb, name := d.connect(t), redistest.Name(t)
		s := newClient(t, rdb).CountingSemaphore(name)
		ok, err := s.ReleaseIfExists(t.Context(), 1)
		require.NoError(t, err)
		require.False(t, ok)
		require.Zero(t, rdb.Exists(t.Context(), name).Val())
	},
	"fifteen callers of one process exclude each other": func(t *testing.T, d deployment) {
		c, name := d.newClient(t), redistest.Name(t)
		newAny := func(int) anySemaphore { return countingPermits{c.CountingSemaphore(name)} }
		requireExclusion(t, 15, 4, 1, newAny, func(int, int) int64 { return 1 })
	},
	"clients that want all permits are not starved by those that want one": func(t *testing.T, d deployment) {
		name := redistest.Name(t)
		newAny := func(int) anySemaphore { return countingPermits{d.newClient(t).CountingSemaphore(name)} }
		requireExclusion(t, 4, 20, 3, newAny, func(i, k int) int64 { return 1 + 2*int64((i+k)%2) })
	},
	"sixteen clients exclude each other": func(t *testing.T, d deployment) {
		name := redistest.Name(t)
		newAny := func(int) anySemaphore { return countingPermits{d.newClient(t).CountingSemaphore(name)} }
		requireExclusion(t, 16, 8, 1, newAny, func(int, int) int64 { return 1 })
	},
}

var expirableBehaviours = map[string]func(t *testing.T, d deployment){
	"where nothing was set, nothing is available": func(t *testing.T, d deployment) {
		l := d.newClient(t).Semaphore(redistest.Name(t), 0)
		require.Zero(t, available(t, l))
		_, err := l.Acquire(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrNotSet)
	},
	"the counts are right after an expiry that no acquisition has noticed": func(t *testing.T, d deployment) {
		var all []*semaphore.Semaphore
		for range 3 {
			l := d.newClient(t).Semaphore(redistest.Name(t), 0, semaphore.WithLease(time.Second), semaphore.WithoutRenewal())
			mustSetPermits(t, l, 8)
			mustAcquire(t, l, 3)
			all = append(all, l)
		}
		// More than a lease: asking Redis would reclaim.
		require.NoError(t, newWheel(t).Sleep(t.Context(), 1100*time.Millisecond))
		for i, l := range all {
			switch i { // each in turn is the first to read
			case 0:
				require.EqualValues(t, 8, available(t, l))
			case 1:
				require.Zero(t, stateOf(t, l).Held)
			case 2:
				require.EqualValues(t, 8, stateOf(t, l).Free)
			}
		}
	},
	"a blocked acquisition gets the permit when the lease ends, and the expired one cannot be released": func(t *testing.T, d deployment) {
		const lease = 3 * time.Second // short: its end is awaited
		name := redistest.Name(t)
		l := d.newClient(t).Semaphore(name, 0, semaphore.WithLease(lease), semaphore.WithoutRenewal())
		mustSetPermits(t, l, 1)
		began := time.Now()
		first := mustAcquire(t, l, 1)
		other := d.newClient(t).Semaphore(name, 0)
		_, err := other.TryAcquire(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrNoPermits)
		next := mustAcquire(t, other, 1)
		require.GreaterOrEqual(t, time.Since(began), lease)
		require.Less(t, time.Since(began), lease+wakeLimit)
		require.ErrorIs(t, first.Release(t.Context()), semaphore.ErrLost)
		require.ErrorIs(t, other.ReleaseIDs(t.Context(), first.IDs()...), semaphore.ErrNotHeld)
		require.NoError(t, next.Release(t.Context()))
		require.EqualValues(t, 1, available(t, other))
	},
	"a lease is told, prolonged, and unknown once it has expired": func(t *testing.T, d deployment) {
		l := d.newClient(t).Semaphore(redistest.Name(t), 0, semaphore.WithLease(3*time.Second), semaphore.WithoutRenewal())
		mustSetPermits(t, l, 2)
		g, other := mustAcquire(t, l, 1), mustAcquire(t, l, 1).IDs()[0]
		require.NoError(t, g.Extend(t.Context(), time.Hour))
		id := g.IDs()[0]
		require.Len(t, id, 32)
		require.NoError(t, l.UpdateLease(t.Context(), id, time.Minute))
		require.InDelta(t, time.Minute, leaseTime(t, l, id), float64(5*time.Second))
		poll(t, func() bool { return available(t, l) == 1 })
		require.Zero(t, leaseTime(t, l, other))
		require.ErrorIs(t, l.UpdateLease(t.Context(), other, time.Minute), semaphore.ErrNotHeld)
		require.NoError(t, l.ReleaseIDs(t.Context(), id))
	},
	"both keys expire together": func(t *testing.T, d deployment) {
		rdb, name := d.connect(t), redistest.Name(t)
		l := newClient(t, rdb).Semaphore(name, 0)
		mustSetPermits(t, l, 2)
		require.NoError(t, rdb.PExpire(t.Context(), name, 3*time.Second).Err())
		g := mustAcquire(t, l, 1)
		require.Positive(t, rdb.PTTL(t.Context(), leasesKey(name)).Val())
		poll(t, func() bool {
			return rdb.Exists(t.Context(), name).Val()+rdb.Exists(t.Context(), leasesKey(name)).Val() == 0
		})
		require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrLost)
		require.Zero(t, rdb.Exists(t.Context(), name).Val(), "releasing an expired permit creates no semaphore")
	},
	"permits are set, grown, shrunk below what is held, and reduced": func(t *testing.T, d deployment) {
		l := d.newClient(t).Semaphore(redistest.Name(t), 0)
		mustSetPermits(t, l, 5)
		g := mustAcquire(t, l, 3)
		for _, want := range []struct{ total, free int64 }{{10, 7}, {2, -1}, {5, 2}} {
			require.NoError(t, l.SetPermits(t.Context(), want.total))
			require.Equal(t, want.free, available(t, l))
			require.EqualValues(t, 3, stateOf(t, l).Held)
		}
		require.NoError(t, l.AddPermits(t.Context(), -4))
		require.EqualValues(t, -2, available(t, l))
		require.NoError(t, g.Release(t.Context()))
		require.EqualValues(t, 1, available(t, l))
	},
	"releases of several ids are all or nothing, and a failed one reclaims expired permits": func(t *testing.T, d deployment) {
		name := redistest.Name(t)
		c := d.newClient(t)
		l := c.Semaphore(name, 0, semaphore.WithoutRenewal())
		short := c.Semaphore(name, 0, semaphore.WithoutRenewal(), semaphore.WithLease(time.Second))
		mustSetPermits(t, l, 10)
		ids, expired := mustAcquire(t, l, 4).IDs(), mustAcquire(t, short, 3).IDs()
		w := newWheel(t)
		require.NoError(t, w.Sleep(t.Context(), 1100*time.Millisecond)) // the short leases end
		require.ErrorIs(t, l.ReleaseIDs(t.Context(), append(expired, ids...)...), semaphore.ErrNotHeld)
		require.EqualValues(t, 6, available(t, l), "the three expired permits are free, the four held ones are not")
		require.NoError(t, l.ReleaseIDs(t.Context(), ids[:2]...))
		require.ErrorIs(t, l.ReleaseIDs(t.Context(), ids...), semaphore.ErrNotHeld)
		require.NoError(t, l.ReleaseIDs(t.Context(), ids[2:]...))
		require.ErrorIs(t, l.ReleaseIDs(t.Context(), "0123456789abcdef0123456789abcdef"), semaphore.ErrNotHeld)
		require.EqualValues(t, 10, available(t, l))
	},
	"two waiters for several permits are both granted when those are released": func(t *testing.T, d deployment) {
		for _, wants := range [][2]int64{{2, 2}, {1, 2}} {
			name := redistest.Name(t)
			l := d.newClient(t).Semaphore(name, 0)
			mustSetPermits(t, l, 2)
			g := mustAcquire(t, l, 2)
			var calls []*asyncCall
			for _, n := range wants {
				other := d.newClient(t).Semaphore(name, 0)
				calls = append(calls, startCall(func() error {
					g, err := other.Acquire(within(t, testTimeout), n)
					if err != nil {
						return err
					}
					return g.Release(t.Context())
				}))
			}
			require.NoError(t, g.Release(t.Context()))
			for _, w := range calls {
				require.NoError(t, w.wait(t))
			}
			require.EqualValues(t, 2, available(t, l))
		}
	},
	"many acquisitions and releases at a time": func(t *testing.T, d deployment) {
		l := d.newClient(t).Semaphore(redistest.Name(t), 0)
		mustSetPermits(t, l, 10)
		got := make(chan *semaphore.Grant, 20)
		ctx := within(t, testTimeout)
		for range 20 {
			l.AcquireFunc(ctx, 1, func(g *semaphore.Grant, err error) {
				if err != nil {
					t.Error(err)
				}
				got <- g
			})
		}
		for range 20 {
			g := <-got
			require.NotNil(t, g)
			require.NoError(t, g.Release(t.Context()))
		}
		require.EqualValues(t, 10, available(t, l))
	},
	"sixteen clients exclude each other": func(t *testing.T, d deployment) {
		name := redistest.Name(t)
		newAny := func(int) anySemaphore { return leasedPermits{d.newClient(t).Semaphore(name, 0)} }
		requireExclusion(t, 16, 6, 2, newAny, func(i, k int) int64 { return 1 + int64((i+k)%2) })
	},
}
