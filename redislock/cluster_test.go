package redislock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// exercise takes a lock through its life: taken, refused, waited for, handed over, renewed, extended, forced, and gone.
func exercise(t *testing.T, rdb, other redis.UniversalClient, name string) {
	t.Helper()
	c, o := newClient(t, rdb), newClient(t, other)
	m, n := c.Mutex(name, redislock.WithFencing(), redislock.WithLease(time.Second)), o.Mutex(name, redislock.WithFencing())
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
	require.Equal(t, []string{requireHeldOnce(t, rdb, name)}, s.Holders)
	freed, err := m.ForceUnlock(t.Context())
	require.NoError(t, err)
	require.True(t, freed)
	require.ErrorIs(t, next.Unlock(t.Context()), redislock.ErrLost)
	requireFree(t, rdb, name)
}

func TestRedislock_OnEveryDeployment(t *testing.T) {
	t.Parallel()
	t.Run("a cluster", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.SharedCluster(t)
		for _, protocol := range []int{2, 3} {
			resp := func(o *redis.ClusterOptions) { o.Protocol = protocol }
			for _, name := range []string{"{a}", "orders:{b}", "c", "d:}{e}"} {
				exercise(t, cluster.Client(t, resp), cluster.Client(t, resp), name)
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
		exercise(t, rdb, sentinel.Client(t), "{a}")
	})
}

// Locks live on three masters, one of which stops.
func TestCluster_AMasterThatStopsDelaysNoOther(t *testing.T) {
	t.Parallel()
	const lease, locks = 2 * time.Second, 60
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client(t)
	c := newClient(t, rdb)
	stopped := cluster.Owner(t, "name:0")
	var there, elsewhere []*redislock.Lock
	for i := range locks {
		name := fmt.Sprintf("name:%d", i)
		l := mustLock(t, c.Mutex(name, redislock.WithLease(lease)))
		if cluster.Owner(t, name) == stopped {
			there = append(there, l)
		} else {
			elsewhere = append(elsewhere, l)
		}
	}
	require.NotEmpty(t, there)
	require.NotEmpty(t, elsewhere)
	stopped.Pause()
	defer stopped.Resume()
	keptFor(t, 3*lease, elsewhere...) // their own masters are well
	mustUnlock(t, elsewhere...)
	for _, l := range there {
		if l.Err() != nil { // or its replica was promoted in time
			require.ErrorIs(t, l.Err(), redislock.ErrLost)
		}
	}
}

// The master dies and its replica takes over, which go-redis would notice within a minute by itself.
func TestCluster_LocksOutliveTheirMaster(t *testing.T) {
	t.Parallel()
	const lease = 20 * time.Second
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client(t)
	c := newClient(t, rdb)
	const name, awaited = "{orders}:1", "{orders}:2"
	held := mustLock(t, c.Mutex(name, redislock.WithLease(lease), redislock.WithReplicas(1, 10*time.Second)))
	require.NoError(t, rdb.HSet(t.Context(), awaited, "java:1", 1).Err())
	node, err := rdb.MasterForKey(t.Context(), awaited)
	require.NoError(t, err)
	poll(t, func() bool { return node.Wait(t.Context(), 1, time.Second).Val() == 1 })

	granted := make(chan error, 1)
	waiter := newClient(t, cluster.Client(t)).Mutex(awaited)
	go func() {
		l, err := waiter.Lock(within(t, 2*patience))
		if err == nil {
			err = l.Unlock(t.Context())
		}
		granted <- err
	}()
	channel := scripts.LockChannel(awaited)
	poll(t, func() bool { return subscribers(t, cluster, channel) == 1 })

	cluster.Owner(t, name).Kill()
	before := held.Deadline()
	poll(t, func() bool { return held.Err() != nil || held.Deadline().After(before) })
	require.NoError(t, held.Err(), "renewed at the new master before the lease was over")

	poll(t, func() bool { // nobody publishes
		rdb.ReloadState(t.Context())
		return rdb.Del(t.Context(), awaited).Err() == nil
	})
	start := time.Now()
	require.NoError(t, <-granted)
	require.Less(t, time.Since(start), 5*time.Second+patience/2, "a poll, and room for a busy machine")
	require.NoError(t, held.Unlock(t.Context()))
}

func TestSentinel_LocksAndWaitersOutliveTheirPrimary(t *testing.T) {
	t.Parallel()
	const lease = 20 * time.Second
	sentinel := redistest.StartSentinel(t)
	rdb, base := sentinel.Client(t), redistest.Name(t)
	held := mustLock(t, newClient(t, rdb).Mutex(base+"a", redislock.WithLease(lease), redislock.WithReplicas(2, 10*time.Second)))
	awaited := base + "b"
	conn := rdb.Conn()
	defer conn.Close()
	require.NoError(t, conn.HSet(t.Context(), awaited, "java:1", 1).Err())
	poll(t, func() bool { return conn.Wait(t.Context(), 2, time.Second).Val() == 2 })

	granted := make(chan error, 1)
	waiter := newClient(t, sentinel.Client(t)).Mutex(awaited)
	go func() {
		l, err := waiter.Lock(within(t, 2*patience))
		if err == nil {
			err = l.Unlock(t.Context())
		}
		granted <- err
	}()
	awaitWaiters(t, rdb, awaited)

	sentinel.Primary.Kill()
	before := held.Deadline()
	poll(t, func() bool { return held.Err() != nil || held.Deadline().After(before) })
	require.NoError(t, held.Err(), "renewed at the new primary before the lease was over")
	poll(t, func() bool { return rdb.Del(t.Context(), awaited).Err() == nil }) // nobody publishes
	start := time.Now()
	require.NoError(t, <-granted)
	require.Less(t, time.Since(start), 5*time.Second+patience/2, "a poll, and room for a busy machine")
	require.NoError(t, held.Unlock(t.Context()))
}

// subscribers counts them over all nodes that answer.
func subscribers(t *testing.T, cluster *redistest.Cluster, channel string) (n int64) {
	t.Helper()
	for _, node := range cluster.Nodes() {
		n += node.Client(t).PubSubShardNumSub(t.Context(), channel).Val()[channel]
	}
	return n
}

// A proxy shows a cluster as one server; here it is one node that has all slots.
func TestLock_RenewalBehindAProxy(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--cluster-enabled", "yes")
	rdb := server.Client(t)
	require.NoError(t, rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	poll(t, func() bool { return rdb.Set(t.Context(), "x", 1, 0).Err() == nil })
	err := rdb.MGet(t.Context(), "a", "b").Err()
	require.True(t, redis.HasErrorPrefix(err, "CROSSSLOT"), "the control: %v", err)
	c := newClient(t, rdb)
	var held []*redislock.Lock
	for i := range 50 {
		held = append(held, mustLock(t, c.Mutex(fmt.Sprintf("name:%d", i), redislock.WithLease(time.Second))))
	}
	keptFor(t, 2*time.Second, held...)
	require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
	keptFor(t, time.Second, held...)
	mustUnlock(t, held...)
}
