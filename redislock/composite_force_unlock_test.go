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

// forceUnlockEach frees each name by its Mutex, and returns which of them were held.
func forceUnlockEach(t *testing.T, c *redislock.Client, names []string) (freed []bool) {
	t.Helper()
	for _, name := range names {
		held, err := c.Mutex(name).ForceUnlock(t.Context())
		require.NoError(t, err)
		freed = append(freed, held)
	}
	return freed
}

func TestMultiMutex_ForceUnlockOfEachName(t *testing.T) {
	t.Parallel()
	onEachDeploymentWithThreeNames(t, map[string]func(*testing.T, redis.UniversalClient, [3]string){
		"the state of each name shows its holder": func(t *testing.T, rdb redis.UniversalClient, names [3]string) {
			c := newClient(t, rdb)
			m := c.MultiMutex(names[:], redislock.WithMetadata("all of them"))
			all, err := m.TryLock(t.Context())
			require.NoError(t, err)
			for _, name := range m.Names() {
				s, err := newClient(t, rdb).Mutex(name).State(t.Context())
				require.NoError(t, err)
				require.True(t, s.Locked)
				require.Equal(t, []redislock.Holder{{requireHeldOnce(t, rdb, name), "all of them"}}, s.Holders)
			}
			mustUnlock(t, all)
			for _, name := range m.Names() {
				s, err := c.Mutex(name).State(t.Context())
				require.NoError(t, err)
				require.Zero(t, s)
			}
		},
		"it frees all names, wakes their waiters, and the holder learns of it": func(
			t *testing.T, rdb redis.UniversalClient, names [3]string,
		) {
			c := newClient(t, rdb)
			m := c.MultiMutex(names[:])
			held, err := newClient(t, rdb).MultiMutex(
				names[:], redislock.WithLease(safeLease),
			).TryLock(t.Context())
			require.NoError(t, err)
			calls, _ := startLockFunc(t.Context(), newClient(t, rdb).MultiMutex(names[:]))
			require.Equal(t, []bool{true, true, true}, forceUnlockEach(t, c, m.Names()))
			next := (<-calls).mustHold(t)
			<-held.Done()
			require.ErrorIs(t, held.Unlock(t.Context()), redislock.ErrLost)
			for _, name := range names {
				requireHeldOnce(t, rdb, name)
			}
			mustUnlock(t, next)
			require.Equal(t, []bool{false, false, false}, forceUnlockEach(t, c, m.Names()))
			requireAllFree(t, rdb, names[:]...)
		},
		"it frees names that others hold alone or while they wait": func(
			t *testing.T, rdb redis.UniversalClient, names [3]string,
		) {
			one := mustLock(t, newClient(t, rdb).Mutex(names[1]))
			calls, _ := startLockFunc(
				t.Context(), newClient(t, rdb).MultiMutex(names[:], redislock.WithLease(safeLease)),
			)
			awaitHeld(t, rdb, names[0])
			c := newClient(t, rdb)
			require.Equal(t, []bool{true, true}, forceUnlockEach(t, c, c.MultiMutex(names[:2]).Names()))
			require.ErrorIs(t, one.Unlock(t.Context()), redislock.ErrLost)
			r := <-calls
			require.NoError(t, r.err)
			poll(t, func() bool { // the Lock is lost, or has taken again what was freed
				return isClosed(r.lock.Done()) || rdb.Exists(t.Context(), names[0]).Val() == 1
			})
			if err := r.lock.Unlock(t.Context()); err != nil {
				require.ErrorIs(t, err, redislock.ErrLost)
			}
			for _, name := range names {
				poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
			}
		},
	})
}

func TestQuorum_ForceUnlockByAClientForEachServer(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("of %d servers", n), func(t *testing.T) {
			t.Parallel()
			servers := startServers(t, n)
			alive := servers
			frees := func(t *testing.T) {
				t.Helper()
				name := redistest.Name(t)
				held := mustLock(t, servers.newQuorumOfFailingServers(t).Mutex(
					name, redislock.WithLease(safeLease), redislock.WithMetadata("host 7"),
				))
				for _, s := range alive {
					awaitHeld(t, s.Client(t), name) // a minority may follow later
				}
				holder := ""
				for _, s := range alive {
					state, err := newClient(t, s.Client(t)).Mutex(name).State(t.Context())
					require.NoError(t, err)
					require.True(t, state.Locked)
					require.Equal(t, "host 7", state.Holders[0].Metadata)
					id, _, marked := strings.Cut(state.Holders[0].ID, ":s")
					require.True(t, marked)
					require.Contains(t, []string{"", id}, holder, "the ids of one hold are equal up to the mark")
					holder = id
				}
				calls, _ := startLockFunc(t.Context(), servers.newQuorumOfFailingServers(t).Mutex(name))
				// Until then it has a majority. Without one it frees the rest itself, and the next one may have a part there.
				for _, s := range alive[:len(alive)-n/2] {
					freed, err := newClient(t, s.Client(t)).Mutex(name).ForceUnlock(t.Context())
					require.NoError(t, err)
					require.True(t, freed)
				}
				next := (<-calls).mustHold(t)
				<-held.Done()
				require.ErrorIs(t, held.Unlock(t.Context()), redislock.ErrLost)
				require.NoError(t, next.Err(), "the first holder's Unlock does not free the next one's lock")
				mustUnlock(t, next)
				alive.awaitFree(t, name)
			}
			t.Run("wakes waiters, and the holder learns of it", frees)
			servers[1].Kill()
			alive = append(independentServers{servers[0]}, servers[2:]...)
			t.Run("frees it with one dead server", frees)

			t.Run("reports an error for a dead server", func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				_, err := newClient(t, servers[1].Client(t)).Mutex(redistest.Name(t)).ForceUnlock(ctx)
				require.Error(t, err)
			})
		})
	}
}
