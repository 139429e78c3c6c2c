package redislock_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestMultiMutex_State(t *testing.T) {
	t.Parallel()
	onEachDeploymentWithThreeNames(t, map[string]func(*testing.T, redis.UniversalClient, [3]string){
		"State reports the holder of each name": func(t *testing.T, rdb redis.UniversalClient, names [3]string) {
			m := newClient(t, rdb).MultiMutex(names[:])
			s, err := m.State(t.Context())
			require.NoError(t, err)
			free := map[string]redislock.State{names[0]: {}, names[1]: {}, names[2]: {}}
			require.Equal(t, redislock.MultiState{Names: free}, s)

			one := mustLock(t, newClient(t, rdb).Mutex(names[1], redislock.WithMetadata("one of them")))
			s, err = m.State(t.Context())
			require.NoError(t, err)
			require.True(t, s.Locked)
			require.Equal(
				t, []redislock.Holder{{requireHeldOnce(t, rdb, names[1]), "one of them"}}, s.Names[names[1]].Holders,
			)
			require.Zero(t, s.Names[names[0]])
			mustUnlock(t, one)

			all, err := newClient(t, rdb).MultiMutex(
				names[:], redislock.WithMetadata("all of them"),
			).TryLock(t.Context())
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
		"State reports the other names if one is no lock": func(
			t *testing.T, rdb redis.UniversalClient, names [3]string,
		) {
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
		"frees all names, wakes their waiters, and the holder learns of it": func(
			t *testing.T, rdb redis.UniversalClient, names [3]string,
		) {
			m := newClient(t, rdb).MultiMutex(names[:])
			held, err := newClient(t, rdb).MultiMutex(
				names[:], redislock.WithLease(safeLease),
			).TryLock(t.Context())
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
		"frees names that others hold alone or while they wait": func(
			t *testing.T, rdb redis.UniversalClient, names [3]string,
		) {
			one := mustLock(t, newClient(t, rdb).Mutex(names[1]))
			calls, _ := startLockFunc(
				t.Context(), newClient(t, rdb).MultiMutex(names[:], redislock.WithLease(safeLease)),
			)
			awaitHeld(t, rdb, names[0])
			freed, err := newClient(t, rdb).MultiMutex(names[:]).ForceUnlock(t.Context())
			require.NoError(t, err)
			require.True(t, freed)
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
		"frees plain locks and leaves other keys unchanged": func(
			t *testing.T, rdb redis.UniversalClient, names [3]string,
		) {
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

// An error of the call itself is reported once, not once for each part.
func TestComposite_StateRefusesBadInput(t *testing.T) {
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
		"multi": {c.MultiMutex([]string{name}), c.MultiMutex(
			[]string{name, name},
		), func(ctx context.Context, m asked) error {
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
		refused(t.Context(), locks.bad, cogwheel.ErrInvalid)
		refused(none, locks.good, cogwheel.ErrInvalid)
		refused(ended, locks.good, context.Canceled)
		require.NoError(t, locks.close(within(t, patience)))
		refused(t.Context(), locks.good, redislock.ErrClosed)
	}
}
