package redislock_test

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// independentServers are servers that do not know of each other.
type independentServers []*redistest.Server

func startServers(t testing.TB, n int) (f independentServers) {
	t.Helper()
	for range n {
		f = append(f, redistest.Start(t))
	}
	return f
}

// clients returns a client of each server. It dials a server that is dead once, not five times with pauses.
func (f independentServers) clients(t testing.TB) (rdbs []redis.UniversalClient) {
	t.Helper()
	for _, s := range f {
		rdbs = append(rdbs, s.Client(t, func(o *redis.Options) { o.DialerRetries = 1 }))
	}
	return rdbs
}

// newQuorum returns a Quorum with its own connections. It is closed with the test.
func (f independentServers) newQuorum(t testing.TB, opts ...redislock.Option) *redislock.Quorum {
	t.Helper()
	q, err := redislock.NewQuorum(f.clients(t), append(opts, redislock.WithWheel(newWheel(t)))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, q.Close(ctx))
	})
	return q
}

// newQuorumOfFailingServers is newQuorum for tests that stop servers. Close then reports the locks that it
// could not release, which is ignored.
func (f independentServers) newQuorumOfFailingServers(t testing.TB) *redislock.Quorum {
	t.Helper()
	q, err := redislock.NewQuorum(f.clients(t), redislock.WithWheel(newWheel(t)))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = q.Close(ctx)
	})
	return q
}

// awaitFree waits until no server holds the name, since some releases run in the background.
func (f independentServers) awaitFree(t testing.TB, name string) {
	t.Helper()
	for _, rdb := range f.clients(t) {
		poll(t, func() bool {
			n, err := rdb.Exists(t.Context(), name).Result()
			require.NoError(t, err)
			return n == 0
		})
	}
}

// Guarantees: L32.
func TestQuorum(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)

	t.Run("FromContext returns its Lock, and not that of a Mutex of the name", func(t *testing.T) {
		t.Parallel()
		c, _, name := onSharedServer(t)
		outer, inner := servers.newQuorum(t).Mutex(name), c.Mutex(name, redislock.WithFencing())
		require.Nil(t, outer.FromContext(t.Context()))
		require.NoError(t, outer.Do(t.Context(), func(ctx context.Context) error {
			l := outer.FromContext(ctx)
			require.True(t, l.Valid())
			require.Nil(t, inner.FromContext(ctx))
			require.Nil(t, c.MultiMutex([]string{name}).FromContext(ctx))
			return inner.Do(ctx, func(ctx context.Context) error {
				require.Same(t, l, outer.FromContext(ctx))
				require.Positive(t, inner.FromContext(ctx).Token())
				return nil
			})
		}))
	})

	t.Run("locks on all servers, excludes others, and unlocks on all", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		m := servers.newQuorum(t).Mutex(name)
		before := time.Now()
		l := mustLock(t, m)
		require.Equal(t, name, m.Name())
		require.Equal(t, name, l.Name())
		require.True(t, l.Valid())
		require.NoError(t, l.Err())
		require.Zero(t, l.Token())
		require.Less(t, l.Deadline().Sub(before), redislock.DefaultLease)
		require.Greater(t, time.Until(l.Deadline()), redislock.DefaultLease*9/10)
		for _, rdb := range servers.clients(t) {
			poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 1 }) // the third may follow later
			requireHeldOnce(t, rdb, name)
		}
		other := servers.newQuorum(t).Mutex(name)
		_, err := other.TryLock(t.Context())
		var locked *redislock.LockedError
		require.ErrorAs(t, err, &locked)
		require.InDelta(t, redislock.DefaultLease, locked.TTL, float64(5*time.Second))
		require.NoError(t, l.Extend(t.Context(), time.Minute))
		require.Greater(t, time.Until(l.Deadline()), 50*time.Second)
		mustUnlock(t, l)
		require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrNotHeld)
		require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
		servers.awaitFree(t, name)
		mustUnlock(t, mustLock(t, other))
		servers.awaitFree(t, name)
	})

	// All sets of servers that another client may hold.
	for mask := range 1 << len(servers) {
		t.Run(fmt.Sprintf("with servers %03b taken by another", mask), func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			for i, s := range servers {
				if mask>>i&1 == 1 {
					writeHold(t, s.Client(t), name, time.Minute)
				}
			}
			l, err := servers.newQuorum(t).Mutex(name).TryLock(t.Context())
			if bits.OnesCount(uint(mask)) > 1 {
				require.ErrorIs(t, err, redislock.ErrLocked)
				require.NotErrorIs(t, err, redislock.ErrNoQuorum)
			} else {
				require.NoError(t, err)
				mustUnlock(t, l)
			}
			for i, s := range servers {
				rdb := s.Client(t)
				if mask>>i&1 == 1 {
					require.Equal(t, map[string]string{"another:1": "1"}, rdb.HGetAll(t.Context(), name).Val())
				} else {
					poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
				}
			}
		})
	}

	t.Run("excludes callers of several clients", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		ctx := within(t, 2*patience)
		inside := 0 // guarded by the lock; the race detector checks it
		var running sync.WaitGroup
		errs := make(chan error, 100)
		for range 3 {
			m := servers.newQuorum(t).Mutex(name)
			for range 2 {
				running.Go(func() {
					for range 5 {
						errs <- m.Do(ctx, func(context.Context) error {
							inside++
							return nil
						})
					}
				})
			}
		}
		running.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		require.Equal(t, 30, inside)
		servers.awaitFree(t, name)
	})

	t.Run("a waiter that gives up leaves no keys", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		held := mustLock(t, servers.newQuorum(t).Mutex(name))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // for all servers to answer
		defer cancel()
		_, err := servers.newQuorum(t).Mutex(name).Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, redislock.ErrLocked)
		mustUnlock(t, held)
		servers.awaitFree(t, name)
	})

	t.Run("Close ends it with ErrClosed and frees it", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		q, err := redislock.NewQuorum(servers.clients(t), redislock.WithWheel(newWheel(t)))
		require.NoError(t, err)
		l := mustLock(t, q.Mutex(name))
		waiting := callAsync(func() (*redislock.Lock, error) { return q.Mutex(name).Lock(within(t, patience)) })
		require.NoError(t, q.Close(within(t, patience)))
		require.NoError(t, q.Close(within(t, patience)))
		<-l.Done()
		require.ErrorIs(t, l.Err(), redislock.ErrClosed)
		<-waiting.done
		require.ErrorIs(t, waiting.err, redislock.ErrClosed)
		_, err = q.Mutex(name).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrClosed)
		servers.awaitFree(t, name)
	})

	t.Run("calls hooks once, not once per server", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		var mu sync.Mutex
		events := map[string]int{}
		note := func(what string) func(redislock.Event) {
			return func(e redislock.Event) {
				mu.Lock()
				defer mu.Unlock()
				events[what+" "+e.Name]++
			}
		}
		hooks := redislock.Hooks{
			Acquired: note("acquired"), Contended: note("contended"), Lost: note("lost"), Released: note("released"),
		}
		m := servers.newQuorum(t, redislock.WithHooks(hooks)).Mutex(name)
		l := mustLock(t, m)
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		mustUnlock(t, l)
		want := map[string]int{"acquired " + name: 1, "contended " + name: 1, "released " + name: 1}
		poll(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(events) == len(want)
		})
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, want, events)
	})

	t.Run("refuses invalid clients, names and options", func(t *testing.T) {
		t.Parallel()
		rdbs := servers.clients(t)
		for what, rdbs := range map[string][]redis.UniversalClient{
			"none": nil, "two": rdbs[:2], "a nil": {rdbs[0], rdbs[1], nil}, "one twice": {rdbs[0], rdbs[1], rdbs[0]},
		} {
			_, err := redislock.NewQuorum(rdbs)
			require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
		}
		_, err := redislock.NewQuorum(rdbs, nil)
		require.ErrorIs(t, err, cogwheel.ErrInvalid)
		q := servers.newQuorum(t)
		for what, m := range map[string]*redislock.QuorumMutex{
			"name": q.Mutex("a{b"), "lease": q.Mutex("a", redislock.WithLease(0)), "fenced": q.Mutex(
				"a", redislock.WithFencing(),
			),
			"replicas": q.Mutex("a", redislock.WithReplicas(1, time.Second)),
			"min hold": q.Mutex("a", redislock.WithMinHold(time.Second)),
		} {
			_, err := m.TryLock(t.Context())
			require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
			_, err = m.Lock(t.Context())
			require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
		}
		require.ErrorIs(t, q.Mutex("a").Do(t.Context(), nil), cogwheel.ErrInvalid)
	})
}

// One server of three is down, without effect on holders and callers.
// Guarantees: L32.
func TestQuorum_OutlivesAMinority(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	const lease = safeLease
	for what, away := range map[string]func(*testing.T, *redistest.Server){
		"that hangs":   func(t *testing.T, s *redistest.Server) { s.Pause(); t.Cleanup(s.Resume) },
		"that is dead": func(_ *testing.T, s *redistest.Server) { s.Kill() },
		"that was emptied": func(t *testing.T, s *redistest.Server) {
			require.NoError(t, s.Client(t).FlushAll(t.Context()).Err())
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			servers, name, w := startServers(t, 3), redistest.Name(t), newWheel(t)
			// Short timeouts, so that no call outlives the test.
			var rdbs []redis.UniversalClient
			for _, s := range servers {
				rdbs = append(rdbs, s.Client(t, func(o *redis.Options) {
					o.ReadTimeout, o.DialTimeout, o.DialerRetries = 2*time.Second, time.Second, 1
				}))
			}
			q, err := redislock.NewQuorum(rdbs, redislock.WithWheel(w))
			require.NoError(t, err)
			defer func() { _ = q.Close(within(t, 2*time.Second)) }()
			m := q.Mutex(name, redislock.WithLease(lease))
			held := mustLock(t, m)
			for _, rdb := range rdbs { // Lock returns when a majority has granted it
				poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 1 })
			}
			away(t, servers[1])
			awaitRenewals(t, lease, held) // by a majority
			require.True(t, held.Valid())
			_, err = m.TryLock(t.Context())
			require.ErrorIs(t, err, redislock.ErrLocked)
			took := redistest.Running(t, func() {
				mustUnlock(t, held)
				l := mustLock(t, q.Mutex(name)) // would take 5 s if it waited for all servers
				require.True(t, l.Valid())
				mustUnlock(t, l)
			})
			require.Less(t, took, 3*time.Second, "it delays no caller")
			t.Logf("unlock, lock and unlock took %v", took)
			independentServers{servers[0], servers[2]}.awaitFree(t, name)
		})
	}
}

// Guarantees: L32.
func TestQuorum_WithoutAMajority(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	servers, name := startServers(t, 3), redistest.Name(t)
	q, err := redislock.NewQuorum(servers.clients(t), redislock.WithWheel(newWheel(t)))
	require.NoError(t, err)
	defer func() { _ = q.Close(within(t, 5*time.Second)) }()
	const lease = 2 * time.Second // short: its end is awaited
	l := mustLock(t, q.Mutex(name, redislock.WithLease(lease)))
	servers[0].Kill()
	servers[2].Kill()
	require.Less(t, time.Until(l.Deadline()), lease, "before another majority can grant it")
	<-l.Done()
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	require.False(t, l.Valid())
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
	independentServers{servers[1]}.awaitFree(t, name)

	for range 2 {
		_, err = q.Mutex(name).TryLock(within(t, patience))
		require.ErrorIs(t, err, redislock.ErrNoQuorum)
		require.NotErrorIs(t, err, redislock.ErrLocked)
		_, err = q.Mutex(name).Lock(within(t, patience))
		require.ErrorIs(t, err, redislock.ErrNoQuorum)
	}
	independentServers{servers[1]}.awaitFree(t, name)
	servers[2].Restart(t)
	poll(t, func() bool {
		l, err = q.Mutex(name).TryLock(within(t, patience))
		return err == nil
	})
	mustUnlock(t, l)
}
