package redislock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestLock_LifecycleOnClusterAndSentinel(t *testing.T) {
	t.Parallel()
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.SharedCluster(t)
		for _, protocol := range []int{2, 3} {
			resp := func(o *redis.ClusterOptions) { o.Protocol = protocol }
			for _, name := range []string{"{a}", "orders:{b}", "c", "d:}{e}"} {
				t.Run(fmt.Sprintf("%s, RESP%d", name, protocol), func(t *testing.T) {
					t.Parallel()
					requireLifecycle(t, cluster.Client(t, resp), cluster.Client(t, resp), fmt.Sprint(name, protocol))
				})
			}
		}
		rdb := cluster.Client(t)
		m := newClient(t, rdb).Mutex("replicated", redislock.WithReplicas(1, 10*time.Second))
		l := mustLock(t, m)
		require.NoError(t, l.Unlock(t.Context()))
	})

	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		sentinel := redistest.StartSentinel(t)
		rdb := sentinel.Client(t)
		requireLifecycle(t, rdb, sentinel.Client(t), "{a}")
	})
}

// requireLifecycle checks that a lock is acquired, refused to others, waited for, handed over, renewed,
// extended, forced and freed.
func requireLifecycle(t *testing.T, rdb, other redis.UniversalClient, name string) {
	t.Helper()
	c, o := newClient(t, rdb), newClient(t, other)
	m, n := c.Mutex(
		name, redislock.WithFencing(), redislock.WithLease(safeLease),
	), o.Mutex(name, redislock.WithFencing())
	l := mustLock(t, m)
	holder := requireHeldOnce(t, rdb, name)
	_, err := n.TryLock(t.Context())
	require.ErrorIs(t, err, redislock.ErrLocked)
	deadline := l.Deadline()
	poll(t, func() bool { return l.Deadline().After(deadline) })
	require.NoError(t, l.Extend(t.Context(), time.Minute))
	require.Equal(t, holder, requireHeldOnce(t, rdb, name))

	granted := make(chan *redislock.Lock, 1)
	n.LockFunc(t.Context(), func(l *redislock.Lock, err error) {
		if err != nil {
			t.Error(err)
		}
		granted <- l
	})
	require.NoError(t, l.Unlock(t.Context()))
	next := <-granted
	require.NotNil(t, next)
	require.Greater(t, next.Token(), l.Token())
	s, err := m.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, []redislock.Holder{{ID: requireHeldOnce(t, rdb, name)}}, s.Holders)
	freed, err := m.ForceUnlock(t.Context())
	require.NoError(t, err)
	require.True(t, freed)
	require.ErrorIs(t, next.Unlock(t.Context()), redislock.ErrLost)
	requireFree(t, rdb, name)
}

// A proxy presents a cluster as one server. Here one node owns all slots.
func TestLock_RenewalBehindAClusterProxy(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Start(t, "--cluster-enabled", "yes")
	rdb := server.Client(t)
	require.NoError(t, rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	poll(t, func() bool { return rdb.Set(t.Context(), "x", 1, 0).Err() == nil })
	err := rdb.MGet(t.Context(), "a", "b").Err()
	require.True(t, redis.HasErrorPrefix(err, "CROSSSLOT"), "control: the node enforces slots: %v", err)
	c := newClient(t, rdb)
	var held []*redislock.Lock
	for i := range 50 {
		held = append(held, mustLock(t, c.Mutex(fmt.Sprintf("name:%d", i), redislock.WithLease(safeLease))))
	}
	awaitRenewals(t, safeLease/2, held...)
	require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
	awaitRenewals(t, 0, held...)
	mustUnlock(t, held...)
}
