package redislock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// peerValue is the value of a holder of another library.
const peerValue = "9f86d081884c7d659a2feaa0c55ad015"

// Eight processes wait for a holder of another library, which tells nobody when it releases the lock.
// Guarantees: L56.
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
// Guarantees: L56.
func TestWithStringKey_LeavesAPeerAlone(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	c := newClient(t, rdb)
	lost := mustTryLock(t, c.Mutex(name, redislock.WithStringKey(), redislock.WithLease(redistest.SafeLease)))
	value := rdb.Get(t.Context(), name).Val()
	require.Equal(t, 4, strings.Count(value, "-"), value)
	require.NoError(t, rdb.Set(t.Context(), name, peerValue, time.Minute).Err())
	<-lost.Done()
	require.ErrorIs(t, lost.Err(), redislock.ErrLost)
	require.ErrorIs(t, lost.Unlock(t.Context()), redislock.ErrLost)
	require.Equal(t, peerValue, rdb.Get(t.Context(), name).Val())
}

// awaitPlaces waits until the lock has n waiters in its line.
func awaitPlaces(t *testing.T, rdb *redis.Client, name string, n int64) {
	t.Helper()
	poll(t, func() bool { return rdb.ZCard(t.Context(), scripts.SuffixName(name, "waiting")).Val() == n })
}

// For up to 50 ms a free lock is kept for the waiter that was woken: peers find it taken, and to State it is free.
func TestWithStringKey_IsKeptForAWaiter(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	m := newClient(t, rdb).Mutex(name, redislock.WithStringKey())
	kept := "next 01234567-89ab-4def-8123-456789abcdef:7"
	require.NoError(t, rdb.Set(t.Context(), name, kept, time.Minute).Err())
	state, err := m.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, redislock.State{}, state)
	freed, err := m.ForceUnlock(t.Context())
	require.NoError(t, err)
	require.False(t, freed)
	require.Equal(t, kept, rdb.Get(t.Context(), name).Val())
	_, err = m.TryLock(t.Context())
	requireLocked(t, err)

	require.NoError(t, rdb.Set(t.Context(), name, "next of another", time.Minute).Err())
	state, err = m.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, []redislock.Holder{{ID: "next of another"}}, state.Holders)
}

// A peer that tries at each release does not get the lock before a waiter whose turn it is.
func TestWithStringKey_AReleaseKeepsItForTheFirst(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	held := mustTryLock(t, newClient(t, rdb).Mutex(name, redislock.WithStringKey()))
	m := newClient(t, rdb).Mutex(name, redislock.WithStringKey())
	waiting := callAsync(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) })
	awaitPlaces(t, rdb, name, 1)
	require.NoError(t, newWheel(t).Sleep(t.Context(), 20*time.Millisecond)) // it has waited for more than 4 ms
	value := rdb.Get(t.Context(), name).Val()
	release := scripts.StringRelease.Call([]string{name}, value, "PUBLISH", scripts.LockChannel(name))
	replies, err := rdb.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
		pipe.Eval(t.Context(), release.Script.Source(), release.Keys, release.Args...)
		pipe.SetNX(t.Context(), name, peerValue, time.Minute)
		return nil
	})
	require.NoError(t, err)
	require.False(t, replies[1].(*redis.BoolCmd).Val(), "a peer finds it taken")
	mustUnlock(t, waiting.await(t))
	require.ErrorIs(t, held.Unlock(t.Context()), redislock.ErrLost)
}

func TestWithStringKey_ForceUnlockOfAPeer(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	m := newClient(t, rdb).Mutex(name, redislock.WithStringKey())
	peer := "ADDED:2026-11-29 07:00:00.000+0000@host\x00" // of ShedLock, and no text
	for _, how := range []func(context.Context) (bool, error){
		m.ForceUnlock, func(ctx context.Context) (bool, error) { return m.ForceUnlockHolder(ctx, peer) },
	} {
		require.NoError(t, rdb.Set(t.Context(), name, peer, 0).Err())
		state, err := m.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, redislock.State{Locked: true, Holders: []redislock.Holder{{ID: peer}}, TTL: -1}, state)
		freed, err := m.ForceUnlockHolder(t.Context(), peer+"x")
		require.NoError(t, err)
		require.False(t, freed)
		freed, err = how(t.Context())
		require.NoError(t, err)
		require.True(t, freed)
		mustUnlock(t, mustTryLock(t, m))
	}
}

func TestWithStringKey_OtherKindsRefuseIt(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	opt := redislock.WithStringKey()
	defaults := newClient(t, rdb, redislock.WithLockDefaults(opt))
	require.NoError(t, defaults.Mutex(name).Err())
	require.NoError(t, defaults.MultiMutex([]string{name}).Err())
	q, err := redislock.NewQuorum([]redis.UniversalClient{rdb, redistest.Start(t).Client(t), redistest.Start(t).Client(t)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = q.Close(context.Background()) })
	for what, m := range map[string]interface{ Err() error }{
		"FairMutex": c.FairMutex(name, opt),
		"RWMutex":   c.RWMutex(name, opt),
		"Reader":    c.RWMutex(name, opt).Reader(),
		"Quorum":    q.Mutex(name, opt),
		"default":   defaults.FairMutex(name),
	} {
		require.ErrorIs(t, m.Err(), cogwheel.ErrInvalid, what)
		require.ErrorContains(t, m.Err(), "WithStringKey", what)
	}
	require.ErrorContains(t, c.Mutex(name, opt, redislock.WithMinHold(time.Second)).Err(), "WithMinHold")
	require.ErrorContains(t, c.MultiMutex([]string{name}, opt, redislock.WithMinHold(time.Second)).Err(), "WithMinHold")
}

// The parts of a MultiMutex are strings, and wait for a peer each.
func TestWithStringKey_OfAMultiMutex(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	m := newClient(t, rdb).MultiMutex([]string{name + ":a", name + ":b"}, redislock.WithStringKey())
	require.NoError(t, rdb.Set(t.Context(), name+":b", peerValue, 0).Err())
	waiting := callAsync(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) })
	awaitPlaces(t, rdb, name+":b", 1)
	require.Len(t, rdb.Get(t.Context(), name+":a").Val(), len("01234567-89ab-4def-8123-456789abcdef:1"))
	require.NoError(t, rdb.Del(t.Context(), name+":b").Err())
	mustUnlock(t, waiting.await(t))
	require.Zero(t, rdb.Exists(t.Context(), name+":a").Val())
}

// Nobody hears a first waiter that has died, and no release finds out: the second takes its place.
// Guarantees: L56.
func TestWithStringKey_TheSecondFindsOutThatTheFirstIsGone(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	require.NoError(t, rdb.Set(t.Context(), name, peerValue, 0).Err())
	line := scripts.SuffixName(name, "waiting")
	const dead = "01234567-89ab-4def-8123-456789abcdef:1"
	require.NoError(t, rdb.ZAdd(t.Context(), line, redis.Z{Score: 1, Member: dead}).Err())
	m := newClient(t, rdb).Mutex(name, redislock.WithStringKey())
	waiting := callAsync(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) })
	poll(t, func() bool {
		places := rdb.ZRange(t.Context(), line, 0, -1).Val()
		return len(places) == 1 && places[0] != dead
	})
	stalled, began := stalls(t), time.Now()
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	l := waiting.await(t)
	require.Less(t, waiting.at.Sub(began)-stalled(), 150*time.Millisecond, "it asks as the first does")
	mustUnlock(t, l)
}

// A waiter that Redis does not let into the line asks all the same, well before the poll of the Client.
func TestWithStringKey_WaitsForAPeerOutsideOfTheLine(t *testing.T) {
	t.Parallel()
	server, name := redistest.Start(t), redistest.Name(t)
	rdb := server.Client(t)
	server.User(t, "app", "~*", "resetchannels", "+@all")
	app := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "app", "secret" })
	require.NoError(t, rdb.Set(t.Context(), name, peerValue, 0).Err())
	m := newClient(t, app, redislock.WithPoll(time.Hour)).Mutex(name, redislock.WithStringKey())
	waiting := callAsync(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) })
	poll(t, func() bool { return serverCalls(t, rdb, "evalsha") >= 4 })
	stalled, began := stalls(t), time.Now()
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	l := waiting.await(t)
	require.Less(t, waiting.at.Sub(began)-stalled(), 500*time.Millisecond)
	mustUnlock(t, l)
}

// The release of a hold whose key a peer has taken, before the holder has noticed, compares too.
// Guarantees: L56.
func TestWithStringKey_UnlockComparesBeforeItDeletes(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	m := newClient(t, rdb).Mutex(name, redislock.WithStringKey(), redislock.WithLease(time.Hour))
	l := mustTryLock(t, m)
	require.NoError(t, rdb.Set(t.Context(), name, peerValue, time.Minute).Err())
	require.NoError(t, l.Err(), "not noticed yet")
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
	require.Equal(t, peerValue, rdb.Get(t.Context(), name).Val())
	_, err := m.TryLock(t.Context())
	requireLocked(t, err)
}
