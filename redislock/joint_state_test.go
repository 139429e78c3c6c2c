package redislock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestMultiMutex_State(t *testing.T) {
	t.Parallel()
	onEachDeploymentWithThreeNames(t, map[string]func(*testing.T, redis.UniversalClient, [3]string){
		"tells who holds each name": func(t *testing.T, rdb redis.UniversalClient, names [3]string) {
			m := newClient(t, rdb).MultiMutex(names[:])
			s, err := m.State(t.Context())
			require.NoError(t, err)
			free := map[string]redislock.State{names[0]: {}, names[1]: {}, names[2]: {}}
			require.Equal(t, redislock.MultiState{Names: free}, s)

			one := mustLock(t, newClient(t, rdb).Mutex(names[1], redislock.WithMetadata("one of them")))
			s, err = m.State(t.Context())
			require.NoError(t, err)
			require.True(t, s.Locked)
			require.Equal(t, []redislock.Holder{{requireHeldOnce(t, rdb, names[1]), "one of them"}}, s.Names[names[1]].Holders)
			require.Zero(t, s.Names[names[0]])
			mustUnlock(t, one)

			all, err := newClient(t, rdb).MultiMutex(names[:], redislock.WithMetadata("all of them")).TryLock(t.Context())
			require.NoError(t, err)
			s, err = m.State(t.Context())
			require.NoError(t, err)
			require.True(t, s.Locked)
			for _, name := range names {
				require.True(t, s.Names[name].Locked)
				require.Equal(t, "all of them", s.Names[name].Holders[0].Metadata)
				require.Positive(t, s.Names[name].TTL)
				require.LessOrEqual(t, s.Names[name].TTL, redislock.DefaultLease)
			}
			mustUnlock(t, all)
		},
		"tells of the other names if one holds something else": func(t *testing.T, rdb redis.UniversalClient, names [3]string) {
			require.NoError(t, rdb.Set(t.Context(), names[0], "text", 0).Err())
			held := mustLock(t, newClient(t, rdb).Mutex(names[2]))
			s, err := newClient(t, rdb).MultiMutex(names[:]).State(t.Context())
			require.ErrorIs(t, err, redislock.ErrWrongKind)
			require.ErrorContains(t, err, names[0])
			require.True(t, s.Locked)
			require.Len(t, s.Names, 2)
			require.NotContains(t, s.Names, names[0])
			require.True(t, s.Names[names[2]].Locked)
			mustUnlock(t, held)
		},
	})
}

func TestMultiMutex_ForceUnlock(t *testing.T) {
	t.Parallel()
	onEachDeploymentWithThreeNames(t, map[string]func(*testing.T, redis.UniversalClient, [3]string){
		"frees all names, wakes who waits for them, and the holder learns of it": func(t *testing.T, rdb redis.UniversalClient, names [3]string) {
			m := newClient(t, rdb).MultiMutex(names[:])
			held, err := newClient(t, rdb).MultiMutex(names[:], redislock.WithLease(3*time.Second)).TryLock(t.Context())
			require.NoError(t, err)
			calls, _ := startLockFunc(t.Context(), newClient(t, rdb).MultiMutex(names[:]))
			freed, err := m.ForceUnlock(t.Context())
			require.NoError(t, err)
			require.True(t, freed)
			next := (<-calls).mustHold(t)
			<-held.Done()
			require.ErrorIs(t, held.Unlock(t.Context()), redislock.ErrLost)
			for _, name := range names {
				requireHeldOnce(t, rdb, name)
			}
			mustUnlock(t, next)
			freed, err = m.ForceUnlock(t.Context())
			require.NoError(t, err)
			require.False(t, freed)
			requireAllFree(t, rdb, names[:]...)
		},
		"frees what others hold of them, one name or what they have while they wait": func(t *testing.T, rdb redis.UniversalClient, names [3]string) {
			one := mustLock(t, newClient(t, rdb).Mutex(names[1]))
			calls, _ := startLockFunc(t.Context(), newClient(t, rdb).MultiMutex(names[:], redislock.WithLease(time.Second)))
			awaitHeld(t, rdb, names[0])
			freed, err := newClient(t, rdb).MultiMutex(names[:]).ForceUnlock(t.Context())
			require.NoError(t, err)
			require.True(t, freed)
			require.ErrorIs(t, one.Unlock(t.Context()), redislock.ErrLost)
			r := <-calls
			require.NoError(t, r.err)
			<-r.lock.Done()
			require.ErrorIs(t, r.lock.Unlock(t.Context()), redislock.ErrLost)
			for _, name := range names {
				poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
			}
		},
		"leaves alone what is no plain lock, and frees the others": func(t *testing.T, rdb redis.UniversalClient, names [3]string) {
			require.NoError(t, rdb.HSet(t.Context(), names[1], "mode", "read", "java:1", 1).Err())
			held := mustLock(t, newClient(t, rdb).Mutex(names[2]))
			freed, err := newClient(t, rdb).MultiMutex(names[:]).ForceUnlock(t.Context())
			require.ErrorIs(t, err, redislock.ErrWrongKind)
			require.True(t, freed)
			requireAllFree(t, rdb, names[0], names[2])
			require.Equal(t, int64(2), rdb.HLen(t.Context(), names[1]).Val())
			require.ErrorIs(t, held.Unlock(t.Context()), redislock.ErrLost)
		},
	})
}

// What is wrong with the call itself is told once, not once for each part.
func TestJointState_RefusesBadInput(t *testing.T) {
	t.Parallel()
	c, _, name := onSharedServer(t)
	q := startServers(t, 3).newQuorum(t)
	var none context.Context
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	type asked interface {
		ForceUnlock(ctx context.Context) (bool, error)
	}
	for what, locks := range map[string]struct {
		good, bad asked
		state     func(context.Context, asked) error
		close     func(context.Context) error
	}{
		"multi": {c.MultiMutex([]string{name}), c.MultiMutex([]string{name, name}), func(ctx context.Context, m asked) error {
			s, err := m.(*redislock.MultiMutex).State(ctx)
			require.Zero(t, s)
			return err
		}, c.Close},
		"quorum": {q.Mutex(name), q.Mutex(name, redislock.WithFencing()), func(ctx context.Context, m asked) error {
			s, err := m.(*redislock.QuorumMutex).State(ctx)
			require.Empty(t, s.Servers)
			return err
		}, q.Close},
	} {
		refused := func(ctx context.Context, m asked, want error) {
			t.Helper()
			require.ErrorIs(t, locks.state(ctx, m), want, what)
			_, err := m.ForceUnlock(ctx)
			require.ErrorIs(t, err, want, what)
			require.NotContains(t, err.Error(), "\n")
		}
		refused(t.Context(), locks.bad, redislock.ErrInvalid)
		refused(none, locks.good, redislock.ErrInvalid)
		refused(ended, locks.good, context.Canceled)
		require.NoError(t, locks.close(within(t, patience)))
		refused(t.Context(), locks.good, redislock.ErrClosed)
	}
}

func TestQuorum_State(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("of %d servers", n), func(t *testing.T) {
			t.Parallel()
			servers := startServers(t, n)
			looker := servers.newQuorumOfFailingServers(t)
			stateOf := func(t *testing.T, name string) redislock.QuorumState {
				t.Helper()
				s, err := looker.Mutex(name, redislock.WithLease(3*time.Second)).State(t.Context())
				require.NoError(t, err)
				require.Len(t, s.Servers, n)
				return s
			}

			t.Run("of nobody is free", func(t *testing.T) {
				s := stateOf(t, redistest.Name(t))
				require.Equal(t, redislock.QuorumState{Servers: make([]redislock.ServerState, n)}, s)
			})

			t.Run("names the holder and what each server has", func(t *testing.T) {
				name := redistest.Name(t)
				l := mustLock(t, servers.newQuorum(t).Mutex(name, redislock.WithMetadata("host 7")))
				for _, s := range servers {
					awaitHeld(t, s.Client(t), name) // the last ones may come later
				}
				s := stateOf(t, name)
				require.True(t, s.Locked)
				require.NotEmpty(t, s.Holder)
				require.Equal(t, "host 7", s.Holder.Metadata)
				require.InDelta(t, redislock.DefaultLease, s.TTL, float64(10*time.Second))
				ids := map[string]bool{}
				for i, server := range s.Servers {
					require.NoError(t, server.Err)
					require.True(t, server.Locked)
					require.Equal(t, []redislock.Holder{{requireHeldOnce(t, servers[i].Client(t), name), "host 7"}}, server.Holders)
					require.True(t, strings.HasPrefix(server.Holders[0].ID, s.Holder.ID+":"), server.Holders[0])
					ids[server.Holders[0].ID] = true
				}
				require.Len(t, ids, n, "no two servers know it by the same id")
				mustUnlock(t, l)
				servers.awaitFree(t, name)
				first := s.Holder
				l = mustLock(t, servers.newQuorum(t).Mutex(name))
				s = stateOf(t, name)
				require.NotEmpty(t, s.Holder)
				require.NotEqual(t, first, s.Holder)
				mustUnlock(t, l)
			})

			t.Run("that several have in part names none of them", func(t *testing.T) {
				name := redistest.Name(t)
				for i, s := range servers[:n/2+1] {
					key := []string{name}
					require.NoError(t, s.Client(t).Eval(t.Context(), `redis.call('hset', KEYS[1], ARGV[1], 1)
						return redis.call('pexpire', KEYS[1], ARGV[2])`, key, fmt.Sprintf("another%d:1", i), 60_000*(i+1)).Err())
				}
				s := stateOf(t, name)
				require.True(t, s.Locked)
				require.Empty(t, s.Holder)
				require.InDelta(t, time.Minute, s.TTL, float64(10*time.Second), "then as many are free as it takes")
				require.NoError(t, servers[0].Client(t).Del(t.Context(), name).Err())
				s = stateOf(t, name)
				require.False(t, s.Locked, "a minority keeps nobody out")
				require.Zero(t, s.TTL)
				require.True(t, s.Servers[1].Locked)
				for _, s := range servers {
					writeHold(t, s.Client(t), name, 0)
				}
				require.Negative(t, stateOf(t, name).TTL)
			})

			t.Run("knows what a majority does while one is away, and says when it does not", func(t *testing.T) {
				name := redistest.Name(t)
				l := mustLock(t, servers.newQuorumOfFailingServers(t).Mutex(name))
				for _, s := range servers {
					awaitHeld(t, s.Client(t), name)
				}
				before := stateOf(t, name)
				servers[1].Pause()
				t.Cleanup(servers[1].Resume)
				start := time.Now()
				s := stateOf(t, name)
				require.Less(t, time.Since(start), 10*time.Second, "a third of the lease, and more on a loaded machine")
				require.Equal(t, before.Holder, s.Holder)
				require.True(t, s.Locked)
				require.ErrorContains(t, s.Servers[1].Err, "no answer in time")
				require.NotErrorIs(t, s.Servers[1].Err, context.DeadlineExceeded)
				for i := n - 1; i > n/2; i-- {
					servers[i].Kill()
				}
				s, err := looker.Mutex(name, redislock.WithLease(3*time.Second)).State(t.Context())
				require.ErrorIs(t, err, redislock.ErrNoQuorum)
				require.True(t, s.Servers[0].Locked)
				require.Error(t, s.Servers[n-1].Err)
				s.Servers = nil
				require.Zero(t, s)
				_, err = looker.Mutex(name).State(within(t, 100*time.Millisecond))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				servers[1].Resume()
				_ = l.Unlock(t.Context())
			})
		})
	}
}

func TestQuorum_ForceUnlock(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("on %d servers", n), func(t *testing.T) {
			t.Parallel()
			servers := startServers(t, n)
			alive := servers
			frees := func(t *testing.T) {
				t.Helper()
				name := redistest.Name(t)
				held := mustLock(t, servers.newQuorumOfFailingServers(t).Mutex(name, redislock.WithLease(3*time.Second)))
				for _, s := range alive {
					awaitHeld(t, s.Client(t), name)
				}
				calls, _ := startLockFunc(t.Context(), servers.newQuorumOfFailingServers(t).Mutex(name))
				m := servers.newQuorumOfFailingServers(t).Mutex(name)
				freed, err := m.ForceUnlock(t.Context())
				require.NoError(t, err)
				require.True(t, freed)
				next := (<-calls).mustHold(t)
				<-held.Done()
				require.ErrorIs(t, held.Unlock(t.Context()), redislock.ErrLost)
				require.NoError(t, next.Err(), "what the first holder gives back is not its own any more")
				mustUnlock(t, next)
				alive.awaitFree(t, name)
				freed, err = m.ForceUnlock(t.Context())
				require.NoError(t, err)
				require.False(t, freed)
			}
			t.Run("frees it everywhere, wakes who waits, and the holder learns of it", frees)
			servers[1].Kill()
			alive = append(independentServers{servers[0]}, servers[2:]...)
			t.Run("does so while one of them is dead", frees)

			t.Run("says so if a majority is dead, and frees what it can", func(t *testing.T) {
				name := redistest.Name(t)
				m := servers.newQuorumOfFailingServers(t).Mutex(name)
				for _, s := range servers[2 : n/2+2] {
					s.Kill()
				}
				writeHold(t, servers[0].Client(t), name, time.Minute)
				freed, err := m.ForceUnlock(t.Context())
				require.ErrorIs(t, err, redislock.ErrNoQuorum)
				require.True(t, freed)
				requireFree(t, servers[0].Client(t), name)
			})
		})
	}
}
