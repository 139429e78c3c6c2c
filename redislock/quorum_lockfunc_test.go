package redislock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Guarantees: L32.
func TestQuorum_LockFunc(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("over %d servers", n), func(t *testing.T) {
			t.Parallel()
			servers := startServers(t, n)
			t.Run("with all servers", func(t *testing.T) { checkQuorumLockFunc(t, servers) })
			servers[1].Kill()
			t.Run("with one dead server", func(t *testing.T) {
				checkQuorumLockFunc(t, append(independentServers{servers[0]}, servers[2:]...), servers[1])
			})
			t.Run("while a majority dies", func(t *testing.T) {
				const lease = 3 * time.Second // its end is awaited
				name := redistest.Name(t)
				held := mustLock(t, servers.newQuorumOfFailingServers(t).Mutex(name, redislock.WithLease(lease)))
				m := servers.newQuorumOfFailingServers(t).Mutex(name)
				calls, _ := startLockFunc(t.Context(), m)
				for _, s := range servers[2 : n/2+2] {
					s.Kill()
				}
				r := <-calls
				require.Nil(t, r.lock)
				require.ErrorIs(t, r.err, redislock.ErrNoQuorum)
				<-held.Done()
				calls, _ = startLockFunc(t.Context(), m)
				require.ErrorIs(t, (<-calls).err, redislock.ErrNoQuorum)
				servers[:1].awaitFree(t, name)
			})
		})
	}

	t.Run("reports invalid arguments", func(t *testing.T) {
		t.Parallel()
		q := startServers(t, 3).newQuorum(t)
		require.Panics(t, func() { q.Mutex("a").LockFunc(t.Context(), nil) })
		calls, cancel := startLockFunc(t.Context(), q.Mutex("a{b"))
		require.ErrorIs(t, (<-calls).err, cogwheel.ErrInvalid)
		cancel() // too late
		var none context.Context
		calls, _ = startLockFunc(none, q.Mutex("a"))
		require.ErrorIs(t, (<-calls).err, cogwheel.ErrInvalid)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		calls, _ = startLockFunc(ended, q.Mutex("a"))
		require.ErrorIs(t, (<-calls).err, context.Canceled)
	})
}

// checkQuorumLockFunc checks LockFunc with the given live and dead servers. Its subtests run in turn: parallel ones
// would wait among those of other tests, and the server that dies next would wait for them.
func checkQuorumLockFunc(t *testing.T, alive independentServers, dead ...*redistest.Server) {
	all := append(append(independentServers{}, alive[:1]...), append(dead, alive[1:]...)...)

	t.Run("calls back with the lock, at once or when it is free", func(t *testing.T) {
		name := redistest.Name(t)
		m := all.newQuorumOfFailingServers(t).Mutex(name)
		calls, cancel := startLockFunc(t.Context(), m)
		first := (<-calls).mustHold(t)
		cancel() // too late
		require.True(t, first.Valid())
		_, err := all.newQuorumOfFailingServers(t).Mutex(name).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		mine, _ := startLockFunc(t.Context(), m)
		others, _ := startLockFunc(t.Context(), all.newQuorumOfFailingServers(t).Mutex(name))
		mustUnlock(t, first)
		for range 2 { // in either order
			var r callback
			select {
			case r = <-mine:
			case r = <-others:
			}
			mustUnlock(t, r.mustHold(t))
		}
		alive.awaitFree(t, name)
	})

	t.Run("cancelled before the grant, calls back once without the lock", func(t *testing.T) {
		name := redistest.Name(t)
		held := mustLock(t, all.newQuorumOfFailingServers(t).Mutex(name))
		q := all.newQuorumOfFailingServers(t)
		calls, cancel := startLockFunc(t.Context(), q.Mutex(name))
		byContext, end := context.WithCancel(t.Context())
		ended, _ := startLockFunc(byContext, q.Mutex(name))
		cancel()
		cancel()
		end()
		for _, calls := range []<-chan callback{calls, ended} {
			r := <-calls
			require.Nil(t, r.lock)
			require.ErrorIs(t, r.err, context.Canceled)
		}
		mustUnlock(t, held)
		require.NoError(t, q.Close(within(t, patience)))
		require.Empty(t, calls)
		require.Empty(t, ended)
		alive.awaitFree(t, name)
	})

	t.Run("cancelled at any moment, leaves no keys", func(t *testing.T) {
		name := redistest.Name(t)
		requireCancelledCleanly(t, all.newQuorumOfFailingServers(t).Mutex(name), 60)
		alive.awaitFree(t, name)
	})

	t.Run("cancelled at the grant, leaves no keys", func(t *testing.T) {
		name := redistest.Name(t)
		rdbs, atGrant := all.clients(t), &replyHook{}
		rdbs[0].AddHook(atGrant)
		q, err := redislock.NewQuorum(rdbs, redislock.WithWheel(newWheel(t)))
		require.NoError(t, err)
		defer func() { require.NoError(t, q.Close(within(t, patience))) }()
		m := q.Mutex(name)
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			atGrant.runAfterReply(1, cancel)
			calls, _ := startLockFunc(ctx, m)
			if r := <-calls; r.err == nil { // the other servers were faster
				mustUnlock(t, r.mustHold(t))
			} else {
				require.ErrorIs(t, r.err, context.Canceled)
			}
			alive.awaitFree(t, name)
			require.Empty(t, calls)
		}
	})

	t.Run("Close ends it", func(t *testing.T) {
		name := redistest.Name(t)
		q := all.newQuorumOfFailingServers(t)
		held := mustLock(t, q.Mutex(name))
		calls, cancel := startLockFunc(t.Context(), q.Mutex(name))
		require.NoError(t, q.Close(within(t, patience)))
		cancel() // too late
		after, _ := startLockFunc(t.Context(), q.Mutex(name))
		for _, calls := range []<-chan callback{calls, after} {
			r := <-calls
			require.Nil(t, r.lock)
			require.ErrorIs(t, r.err, redislock.ErrClosed)
			require.Empty(t, calls)
		}
		require.ErrorIs(t, held.Err(), redislock.ErrClosed)
		alive.awaitFree(t, name)
	})
}
