package redislock_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Guarantees: L2.
func TestLock_RedisStoppedForLongerThanTheLease(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	const lease = 5 * time.Second
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	name := redistest.Name(t)

	renewed, err := c.Mutex(name+":renewed", redislock.WithLease(lease)).Lock(t.Context())
	require.NoError(t, err)
	start := time.Now()
	fixed, err := c.Mutex(
		name+":fixed", redislock.WithLease(lease), redislock.WithoutRenewal(),
	).Lock(t.Context())
	require.NoError(t, err)
	unlocked, err := c.Mutex(name+":unlocked", redislock.WithLease(time.Minute)).Lock(t.Context())
	require.NoError(t, err)
	// Let the watchdog renew at least once, and stop Redis between two renewals.
	first := renewed.Deadline()
	poll(t, func() bool { return renewed.Deadline().After(first) })
	server.Pause()
	stalled, paused := stalls(t), time.Now()
	deadline := renewed.Deadline()

	// Calls return when their context ends, not when Redis answers again.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	_, err = c.Mutex(name + ":new").Lock(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, redislock.ErrLocked)
	require.Less(t, time.Since(paused)-stalled(), lease/2)
	err = unlocked.Unlock(ctx)
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(paused)-stalled(), lease/2)
	require.False(t, unlocked.Valid())

	// The server's lease starts when it executes the renewal, which is not before the renewal was sent.
	serverMayExpire := deadline.Add(lease/100 + 50*time.Millisecond)
	require.Less(t, fixed.Deadline(), start.Add(lease))
	// The promise holds while the process gets to run, which a timer of the runtime shows.
	late := make(chan time.Duration, 1)
	timer := time.AfterFunc(time.Until(deadline), func() { late <- time.Since(deadline) })
	defer timer.Stop()
	<-fixed.Done()
	<-renewed.Done()
	announcedAt := time.Now()
	require.False(t, announcedAt.Before(deadline), "announced before the deadline")
	behind := max(<-late, stalled())
	require.Less(t, announcedAt.Add(-behind), serverMayExpire, "the server may have granted it to another")
	t.Logf("announced %v after the deadline, %v before the server's expiry",
		announcedAt.Sub(deadline), serverMayExpire.Sub(announcedAt))
	require.ErrorIs(t, renewed.Err(), redislock.ErrLost)
	require.False(t, renewed.Valid())

	server.Resume()
	require.ErrorIs(t, renewed.Unlock(t.Context()), redislock.ErrLost)
	// Calls that hung are cleaned up: all names are free long before the one-minute lease ends.
	for _, part := range []string{":renewed", ":fixed", ":unlocked", ":new"} {
		l := mustLock(t, c.Mutex(name+part))
		require.NoError(t, l.Unlock(t.Context()))
	}
	require.Less(t, time.Since(paused), patience)
}

// Guarantees: L13.
func TestLock_SurvivesKilledConnections(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	c := newClient(t, server.Client(t))
	name := redistest.Name(t)
	l := mustLock(t, c.Mutex(name, redislock.WithLease(safeLease)))
	holder := requireHeldOnce(t, admin, name)
	// A new connection and one renewal have a tenth of the lease: on a slow machine they take 100 ms.
	for w, until := newWheel(t), l.Deadline().Add(safeLease/2); l.Deadline().Before(until); {
		require.NoError(t, l.Err())
		require.NoError(t, admin.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err())
		require.NoError(t, w.Sleep(t.Context(), safeLease/10))
	}
	require.Equal(t, holder, requireHeldOnce(t, admin, name))
	require.NoError(t, l.Unlock(t.Context()))
	requireFree(t, admin, name)
}

func TestMutex_RepliesSlowerThanTheLease(t *testing.T) {
	t.Parallel()
	c, dialer, rdb := newFaultyClient(t)
	name := redistest.Name(t)
	dialer.Delay(0, 300*time.Millisecond)
	_, err := c.Mutex(name, redislock.WithLease(200*time.Millisecond)).TryLock(within(t, patience)) // short: it ends before the reply comes
	require.ErrorContains(t, err, "longer than the lease")
	require.NotErrorIs(t, err, redislock.ErrLocked)
	dialer.Delay(0, 0)
	require.NoError(t, c.Close(t.Context()))
	requireFree(t, rdb, name)
}

func TestMutex_RedisUnreachable(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nothing listens there
	t.Cleanup(func() { _ = rdb.Close() })
	c := newClient(t, rdb)
	start := time.Now()
	_, err := c.Mutex("unreachable").Lock(within(t, patience))
	var refused *net.OpError
	require.ErrorAs(t, err, &refused)
	require.NotErrorIs(t, err, redislock.ErrLocked)
	require.ErrorContains(t, err, `redislock: lock "unreachable"`)
	require.Less(t, time.Since(start), 10*time.Second)
}

func TestMutex_RedisRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args  []string
		check func(error) bool
	}{
		"without a password":   {[]string{"--requirepass", "x"}, redis.IsAuthError},
		"for lack of replicas": {[]string{"--min-replicas-to-write", "1"}, redis.IsNoReplicasError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, redistest.Start(t, tt.args...).Client(t))
			_, err := c.Mutex("refused").Lock(within(t, patience))
			require.Error(t, err)
			require.True(t, tt.check(errors.Unwrap(err)), "%v", err)
			require.NotErrorIs(t, err, redislock.ErrLocked)
		})
	}
}

// Transient refusals of the server are retried: a release until it succeeds, a wait until it ends.
// Guarantees: L11.
func TestMutex_RetriesTransientServerErrors(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for reason, states := range map[string]struct {
		begin, end func(t *testing.T, server *redistest.Server)
	}{
		"for lack of replicas": {
			func(t *testing.T, server *redistest.Server) {
				require.NoError(t, server.Client(t).ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
			},
			func(t *testing.T, server *redistest.Server) {
				require.NoError(t, server.Client(t).ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
			},
		},
		"because of a slow script": {
			func(t *testing.T, server *redistest.Server) {
				rdb := server.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
				require.NoError(t, rdb.ConfigSet(t.Context(), "lua-time-limit", "1").Err())
				go rdb.Eval(context.Background(), "while true do end", nil)
				poll(t, func() bool { return redis.HasErrorPrefix(rdb.Ping(t.Context()).Err(), "BUSY") })
			},
			func(t *testing.T, server *redistest.Server) {
				require.NoError(t, server.Client(t).ScriptKill(t.Context()).Err())
			},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			server, name := redistest.Start(t), redistest.Name(t)
			rdb := server.Client(t)
			calls, waits := &scriptOutcomes{}, server.Client(t)
			waits.AddHook(calls)
			c, other := newClient(t, rdb), newClient(t, waits, redislock.WithPoll(time.Second))
			held := mustLock(t, c.Mutex(name, redislock.WithLease(time.Hour)))
			ends := mustLock(t, c.Mutex(name+":2", redislock.WithLease(3*time.Second), redislock.WithoutRenewal()))
			next := callAsync(func() (*redislock.Lock, error) {
				return other.Mutex(name + ":2").Lock(within(t, patience))
			})
			awaitLine(t, rdb, name+":2", 1)
			states.begin(t, server)
			require.Error(t, held.Unlock(t.Context()))
			<-ends.Done() // its waiter tries now, in vain
			failed := calls.failed.Load()
			poll(t, func() bool { return calls.failed.Load() > failed+4 }) // more often than a call is repeated
			states.end(t, server)
			poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
			mustUnlock(t, next.await(t))
		})
	}
}

// A server at maxmemory still grants mutexes and writers, and tells their states. Each takes some hundred bytes and
// expires.
// Guarantees: L43.
func TestKinds_AreGrantedAtMaxmemory(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, "--maxmemory", "1").Client(t)
	require.True(t, redis.IsOOMError(rdb.Set(t.Context(), "other", "x", 0).Err()))
	c := newClient(t, rdb)
	for name, m := range map[string]*redislock.Mutex{
		"plain": c.Mutex("plain"), "fenced": c.Mutex(
			"fenced", redislock.WithFencing(),
		), "write": c.RWMutex("rw").Writer(),
	} {
		l, err := m.Lock(within(t, patience))
		require.NoError(t, err, name)
		s, err := m.State(within(t, patience))
		require.NoError(t, err, name)
		require.Len(t, s.Holders, 1, name)
		require.Positive(t, s.TTL, name)
		require.Equal(t, l.Token(), s.Token, name)
		require.NoError(t, l.Unlock(t.Context()), name)
	}
}
