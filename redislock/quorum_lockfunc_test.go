package redislock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestQuorum_LockFunc(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("over %d servers", n), func(t *testing.T) {
			t.Parallel()
			servers := newFleet(t, n)
			t.Run("with all of them", func(t *testing.T) { quorumCallsBack(t, servers) })
			servers[1].Kill()
			t.Run("with one dead", func(t *testing.T) { quorumCallsBack(t, append(fleet{servers[0]}, servers[2:]...), servers[1]) })
			t.Run("while a majority dies", func(t *testing.T) {
				name := redistest.Name(t)
				held := mustQuorum(t, servers.failing(t).Mutex(name, redislock.WithLease(3*time.Second)))
				m := servers.failing(t).Mutex(name)
				calls, _ := lockFunc(t.Context(), m)
				for _, s := range servers[2 : n/2+2] {
					s.Kill()
				}
				r := <-calls
				require.Nil(t, r.lock)
				require.ErrorIs(t, r.err, redislock.ErrNoQuorum)
				<-held.Done()
				calls, _ = lockFunc(t.Context(), m)
				require.ErrorIs(t, (<-calls).err, redislock.ErrNoQuorum)
				servers[:1].requireFreeSoon(t, name)
			})
		})
	}

	t.Run("tells what is wrong with its arguments", func(t *testing.T) {
		t.Parallel()
		q := newFleet(t, 3).quorum(t)
		require.Panics(t, func() { q.Mutex("a").LockFunc(t.Context(), nil) })
		calls, cancel := lockFunc(t.Context(), q.Mutex("a{b"))
		require.ErrorIs(t, (<-calls).err, redislock.ErrInvalid)
		cancel() // too late
		var none context.Context
		calls, _ = lockFunc(none, q.Mutex("a"))
		require.ErrorIs(t, (<-calls).err, redislock.ErrInvalid)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		calls, _ = lockFunc(ended, q.Mutex("a"))
		require.ErrorIs(t, (<-calls).err, context.Canceled)
	})
}

// quorumCallsBack checks it on those servers that live.
func quorumCallsBack(t *testing.T, alive fleet, dead ...*redistest.Server) {
	all := append(append(fleet{}, alive[:1]...), append(dead, alive[1:]...)...)

	t.Run("it calls back with the lock, at once or when it is free", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		m := all.failing(t).Mutex(name)
		calls, cancel := lockFunc(t.Context(), m)
		first := (<-calls).must(t)
		cancel() // too late
		require.True(t, first.Valid())
		_, err := all.failing(t).Mutex(name).TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		mine, _ := lockFunc(t.Context(), m)
		others, _ := lockFunc(t.Context(), all.failing(t).Mutex(name))
		mustUnlock(t, first)
		for range 2 { // in whatever order
			var r callback
			select {
			case r = <-mine:
			case r = <-others:
			}
			mustUnlock(t, r.must(t))
		}
		alive.requireFreeSoon(t, name)
	})

	t.Run("cancelled in time it calls back once, without the lock", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		held := mustQuorum(t, all.failing(t).Mutex(name))
		q := all.failing(t)
		calls, cancel := lockFunc(t.Context(), q.Mutex(name))
		byContext, end := context.WithCancel(t.Context())
		ended, _ := lockFunc(byContext, q.Mutex(name))
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
		alive.requireFreeSoon(t, name)
	})

	t.Run("cancelled at any instant it keeps nothing", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		cancelledAtAnyInstant(t, all.failing(t).Mutex(name), 60)
		alive.requireFreeSoon(t, name)
	})

	t.Run("cancelled at the instant of the grant it keeps nothing", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		rdbs, atGrant := all.clients(t), &afterReply{}
		rdbs[0].AddHook(atGrant)
		q, err := redislock.NewQuorum(rdbs, redislock.WithWheel(newWheel(t)))
		require.NoError(t, err)
		defer func() { require.NoError(t, q.Close(within(t, patience))) }()
		m := q.Mutex(name)
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			atGrant.next(1, cancel)
			calls, _ := lockFunc(ctx, m)
			if r := <-calls; r.err == nil { // the others were faster
				mustUnlock(t, r.must(t))
			} else {
				require.ErrorIs(t, r.err, context.Canceled)
			}
			alive.requireFreeSoon(t, name)
			require.Empty(t, calls)
		}
	})

	t.Run("Close ends it", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		q := all.failing(t)
		held := mustQuorum(t, q.Mutex(name))
		calls, cancel := lockFunc(t.Context(), q.Mutex(name))
		require.NoError(t, q.Close(within(t, patience)))
		cancel() // too late
		after, _ := lockFunc(t.Context(), q.Mutex(name))
		for _, calls := range []<-chan callback{calls, after} {
			r := <-calls
			require.Nil(t, r.lock)
			require.ErrorIs(t, r.err, redislock.ErrClosed)
			require.Empty(t, calls)
		}
		require.ErrorIs(t, held.Err(), redislock.ErrClosed)
		alive.requireFreeSoon(t, name)
	})
}
