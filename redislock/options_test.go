package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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

func TestNew_WithLockDefaults(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	c := newClient(t, rdb, redislock.WithLockDefaults(
		redislock.WithLease(time.Hour), redislock.WithMetadata("host-3"),
		redislock.WithFencing(), redislock.WithLease(time.Minute),
	))

	t.Run("apply to every kind", func(t *testing.T) {
		t.Parallel()
		for _, kind := range fencedKinds {
			name := redistest.Name(t)
			m := newMutex(c, kind, name)
			l := mustTryLock(t, m)
			require.WithinDuration(t, time.Now().Add(time.Minute), l.Deadline(), 10*time.Second)
			require.Positive(t, l.Token())
			state, err := m.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, "host-3", state.Holders[0].Metadata)
			mustUnlock(t, l)
		}
	})

	t.Run("options of a lock override them", func(t *testing.T) {
		t.Parallel()
		m := c.Mutex(redistest.Name(t), redislock.WithLease(10*time.Second))
		l := mustTryLock(t, m)
		require.WithinDuration(t, time.Now().Add(10*time.Second), l.Deadline(), 2*time.Second)
		require.Positive(t, l.Token())
		mustUnlock(t, l)
	})

	t.Run("the last option of fencing counts", func(t *testing.T) {
		t.Parallel()
		for _, shared := range []bool{true, false} {
			name, opts := redistest.Name(t), []redislock.LockOption{redislock.WithJavaFencing()}
			if !shared {
				opts = append(opts, redislock.WithFencing())
			}
			mustUnlock(t, mustTryLock(t, c.Mutex(name, opts...)))
			require.Equal(t, shared, rdb.PTTL(t.Context(), scripts.LockFence(name)).Val() < 0)
		}
	})

	t.Run("share a queue with a lock that has the same options", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		l := mustTryLock(t, c.Mutex(name))
		require.ErrorIs(
			t, errorOf(c.Mutex(name, redislock.WithLease(time.Minute)).TryLock(t.Context())), redislock.ErrLocked,
		)
		mustUnlock(t, l)
	})
}

func TestNew_WithLockDefaults_AllocatesNothingPerLock(t *testing.T) { // not parallel: it counts allocations
	rdb := redistest.Shared(t).Client(t)
	opts := func() []redislock.LockOption {
		return []redislock.LockOption{
			redislock.WithLease(time.Minute), redislock.WithMetadata("host-3"), redislock.WithFencing(),
		}
	}
	plain, c := newClient(t, rdb), newClient(t, rdb, redislock.WithLockDefaults(opts()...))
	none := testing.AllocsPerRun(100, func() { plain.Mutex("name") })
	defaults := testing.AllocsPerRun(100, func() { c.Mutex("name") })
	given := testing.AllocsPerRun(100, func() { plain.Mutex("name", opts()...) })
	require.InDelta(t, none, defaults, 0.5)
	require.Less(t, defaults+3, given)
}

// embeddingClient is a client that a service embeds in a struct of its own.
type embeddingClient struct {
	redis.UniversalClient
}

// hiddenClient has an unexported name, so New cannot see the client inside opaqueClient.
type hiddenClient redis.UniversalClient

type opaqueClient struct{ hiddenClient }

func TestNew_FindsTheNodesOfAWrappedClient(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		wrap func(redis.UniversalClient) redis.UniversalClient
		warn bool
	}{
		"as it is": {func(rdb redis.UniversalClient) redis.UniversalClient { return rdb }, false},
		"in a struct": {func(rdb redis.UniversalClient) redis.UniversalClient {
			return embeddingClient{rdb}
		}, false},
		"behind a pointer": {func(rdb redis.UniversalClient) redis.UniversalClient {
			return &embeddingClient{rdb}
		}, false},
		"twice": {func(rdb redis.UniversalClient) redis.UniversalClient {
			return &embeddingClient{embeddingClient{rdb}}
		}, false},
		"of another type": {func(rdb redis.UniversalClient) redis.UniversalClient {
			return opaqueClient{rdb}
		}, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			server := redistest.Shared(t)
			rdb := server.Client(t, func(o *redis.Options) { o.ClientName = redistest.Name(t) })
			c := newClient(t, tt.wrap(rdb), redislock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			require.Equal(t, tt.warn, strings.Contains(log.String(), "nodes are not known"), log.String())
			l := mustLock(t, c.Mutex(redistest.Name(t), redislock.WithLease(safeLease)))
			awaitRenewals(t, 0, l)
			mustUnlock(t, l)
		})
	}
}

func TestMutex_WithMetadata(t *testing.T) {
	t.Parallel()
	with := redislock.WithMetadata("host:8080/job 7, ünï {x} :write m=")
	rdb := redistest.Shared(t).Client(t)
	c := newClient(t, rdb)
	t.Run("without it, State reports none", func(t *testing.T) {
		name := redistest.Name(t)
		require.NoError(t, rdb.HSet(t.Context(), name, "5e0c:17:write", 1).Err())
		s, err := c.Mutex(name).State(t.Context())
		require.NoError(t, err)
		require.Equal(t, []redislock.Holder{{ID: "5e0c:17:write"}}, s.Holders)
	})

	t.Run("a lock is not handed over to a caller with other metadata", func(t *testing.T) {
		name := redistest.Name(t)
		first := mustLock(t, c.Mutex(name, with))
		got := make(chan *redislock.Lock, 1)
		other := c.Mutex(name, redislock.WithMetadata("other"))
		other.LockFunc(t.Context(), func(l *redislock.Lock, err error) {
			if err != nil {
				t.Error(err)
			}
			got <- l
		})
		require.NoError(t, first.Unlock(t.Context()))
		second := <-got
		s, err := other.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, "other", s.Holders[0].Metadata)
		require.NoError(t, second.Unlock(t.Context()))
	})
}

func TestMutex_WithReplicas(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	primary, replica := redistest.Start(t), redistest.Start(t)
	host, port, _ := strings.Cut(primary.Addr(), ":")
	require.NoError(t, replica.Client(t).ReplicaOf(t.Context(), host, port).Err())
	rdb := primary.Client(t)
	poll(t, func() bool { return rdb.Wait(t.Context(), 1, time.Second).Val() == 1 })
	c := newClient(t, rdb)

	t.Run("acquires when enough replicas confirm", func(t *testing.T) {
		name := redistest.Name(t)
		l, err := c.Mutex(name, redislock.WithReplicas(1, 10*time.Second)).Lock(t.Context())
		require.NoError(t, err)
		requireHeldOnce(t, replica.Client(t), name)
		require.NoError(t, l.Unlock(t.Context()))
	})

	t.Run("fails and frees the lock otherwise", func(t *testing.T) {
		name := redistest.Name(t)
		m := c.Mutex(name, redislock.WithReplicas(2, 50*time.Millisecond))
		for _, lock := range []func(context.Context) (*redislock.Lock, error){m.Lock, m.TryLock} {
			_, err := lock(t.Context())
			require.ErrorIs(t, err, redislock.ErrReplicas)
			require.NotErrorIs(t, err, redislock.ErrLocked)
			poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
		}
	})

	for _, opt := range []redislock.LockOption{
		redislock.WithReplicas(0, time.Second), redislock.WithReplicas(101, time.Second),
		redislock.WithReplicas(1, 0), redislock.WithReplicas(1, time.Hour),
		redislock.WithMaxHold(0), redislock.WithMaxHold(-1), redislock.WithMaxHold(400 * 24 * time.Hour),
		redislock.WithMinHold(0), redislock.WithMinHold(-1), redislock.WithMinHold(400 * 24 * time.Hour),
		redislock.WithMetadata(""), redislock.WithMetadata("\xff"), redislock.WithMetadata(
			strings.Repeat("x", 257),
		),
		redislock.WithHandoff(-1, 0), redislock.WithHandoff(10001, 0),
		redislock.WithHandoff(1, -1), redislock.WithHandoff(1, time.Hour),
	} {
		t.Run("refuses invalid options", func(t *testing.T) {
			_, err := c.Mutex("x", opt).TryLock(t.Context())
			require.ErrorIs(t, err, cogwheel.ErrInvalid)
			_, isInvalid := errors.AsType[*cogwheel.InvalidError](err)
			require.True(t, isInvalid)
		})
	}
}
