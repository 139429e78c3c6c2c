package redislock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestQuorum_State(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("of %d servers", n), func(t *testing.T) {
			t.Parallel()
			servers := startServers(t, n)
			looker := servers.newQuorumOfFailingServers(t)
			stateOf := func(t *testing.T, name string) redislock.QuorumState {
				t.Helper()
				s, err := looker.Mutex(name, redislock.WithLease(9*time.Second)).State(t.Context())
				require.NoError(t, err)
				require.Len(t, s.Servers, n)
				return s
			}

			t.Run("reports a free lock", func(t *testing.T) {
				s := stateOf(t, redistest.Name(t))
				require.Equal(t, redislock.QuorumState{Servers: make([]redislock.ServerState, n)}, s)
			})

			t.Run("reports the holder and each server's state", func(t *testing.T) {
				name := redistest.Name(t)
				l := mustLock(t, servers.newQuorum(t).Mutex(name, redislock.WithMetadata("host 7")))
				for _, s := range servers {
					awaitHeld(t, s.Client(t), name) // a minority may follow later
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
					require.Equal(
						t, []redislock.Holder{{requireHeldOnce(t, servers[i].Client(t), name), "host 7"}}, server.Holders,
					)
					require.True(t, strings.HasPrefix(server.Holders[0].ID, s.Holder.ID+":"), server.Holders[0])
					ids[server.Holders[0].ID] = true
				}
				require.Len(t, ids, n, "each server has an id of its own")
				mustUnlock(t, l)
				servers.awaitFree(t, name)
				first := s.Holder
				l = mustLock(t, servers.newQuorum(t).Mutex(name))
				s = stateOf(t, name)
				require.NotEmpty(t, s.Holder)
				require.NotEqual(t, first, s.Holder)
				mustUnlock(t, l)
			})

			t.Run("reports no holder without a majority", func(t *testing.T) {
				name := redistest.Name(t)
				for i, s := range servers[:n/2+1] {
					key := []string{name}
					require.NoError(t, s.Client(t).Eval(t.Context(), `redis.call('hset', KEYS[1], ARGV[1], 1)
						return redis.call('pexpire', KEYS[1], ARGV[2])`, key, fmt.Sprintf("another%d:1", i), 60_000*(i+1)).Err())
				}
				s := stateOf(t, name)
				require.True(t, s.Locked)
				require.Empty(t, s.Holder)
				require.InDelta(t, time.Minute, s.TTL, float64(10*time.Second), "when a majority becomes free")
				require.NoError(t, servers[0].Client(t).Del(t.Context(), name).Err())
				s = stateOf(t, name)
				require.False(t, s.Locked, "a minority excludes no caller")
				require.Zero(t, s.TTL)
				require.True(t, s.Servers[1].Locked)
				for _, s := range servers {
					writeHold(t, s.Client(t), name, 0)
				}
				require.Negative(t, stateOf(t, name).TTL)
			})

			t.Run("answers with one server down, and fails without a majority", func(t *testing.T) {
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
				require.Less(t, time.Since(start), 10*time.Second, "a third of the lease, with room for a busy machine")
				require.Equal(t, before.Holder, s.Holder)
				require.True(t, s.Locked)
				require.ErrorContains(t, s.Servers[1].Err, "no answer in time")
				require.NotErrorIs(t, s.Servers[1].Err, context.DeadlineExceeded)
				for i := n - 1; i > n/2; i-- {
					servers[i].Kill()
				}
				s, err := looker.Mutex(name, redislock.WithLease(9*time.Second)).State(t.Context())
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
	skipIfShort(t)
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("on %d servers", n), func(t *testing.T) {
			t.Parallel()
			servers := startServers(t, n)
			alive := servers
			frees := func(t *testing.T) {
				t.Helper()
				name := redistest.Name(t)
				held := mustLock(t, servers.newQuorumOfFailingServers(t).Mutex(name, redislock.WithLease(safeLease)))
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
				require.NoError(t, next.Err(), "the first holder's Unlock does not free the next one's lock")
				mustUnlock(t, next)
				alive.awaitFree(t, name)
				freed, err = m.ForceUnlock(t.Context())
				require.NoError(t, err)
				require.False(t, freed)
			}
			t.Run("frees it on all servers, wakes waiters, and the holder learns of it", frees)
			servers[1].Kill()
			alive = append(independentServers{servers[0]}, servers[2:]...)
			t.Run("does so with one dead server", frees)

			t.Run("reports a dead majority and frees what it can", func(t *testing.T) {
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
