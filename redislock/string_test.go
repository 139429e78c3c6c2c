package redislock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// peerValue is the value of a holder of another library.
const peerValue = "9f86d081884c7d659a2feaa0c55ad015"

// Eight processes wait for a holder of another library, which tells nobody when it releases the lock.
func TestWithStringKey_WaitsForAPeerAtTheCostOfOneProcess(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	rdb, name := server.Client(t), redistest.Name(t)
	require.NoError(t, rdb.Set(t.Context(), name, peerValue, time.Minute).Err())
	const processes = 8
	granted := make(chan *redislock.Lock, processes)
	for range processes {
		m := newClient(t, server.Client(t)).Mutex(name, redislock.WithStringKey())
		m.LockFunc(within(t, patience), func(l *redislock.Lock, err error) {
			if err == nil {
				granted <- l
			}
		})
	}
	require.NoError(t, newWheel(t).Sleep(t.Context(), 2*time.Second))
	asked := serverCalls(t, rdb, "eval") + serverCalls(t, rdb, "evalsha")
	require.LessOrEqual(t, asked, 150)
	require.Greater(t, asked, 20, "the first one polls")

	stalled, began := stalls(t), time.Now()
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	for range processes {
		l := <-granted
		require.Less(t, time.Since(began)-stalled(), 150*time.Millisecond)
		mustUnlock(t, l)
		began = time.Now()
	}
}

// A hold that ended and was taken by a peer is lost, and neither a renewal nor the release touches the key of the peer.
func TestWithStringKey_LeavesAPeerAlone(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	c := newClient(t, rdb)
	lost := mustTryLock(t, c.Mutex(name, redislock.WithStringKey(), redislock.WithLease(redistest.SafeLease)))
	value := rdb.Get(t.Context(), name).Val()
	require.True(t, strings.Count(value, "-") == 4, value)
	require.NoError(t, rdb.Set(t.Context(), name, peerValue, time.Minute).Err())
	<-lost.Done()
	require.ErrorIs(t, lost.Err(), redislock.ErrLost)
	require.ErrorIs(t, lost.Unlock(t.Context()), redislock.ErrLost)
	require.Equal(t, peerValue, rdb.Get(t.Context(), name).Val())
}
