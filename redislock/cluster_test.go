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

// exercise takes a lock through its life: taken, refused, waited for, handed over, renewed, extended, forced, and gone.
func requireLifecycle(t *testing.T, rdb, other redis.UniversalClient, name string) {
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
	require.Equal(t, []redislock.Holder{{ID: requireHeldOnce(t, rdb, name)}}, s.Holders)
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
				requireLifecycle(t, cluster.Client(t, resp), cluster.Client(t, resp), name)
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
	awaitRenewals(t, 3*lease, elsewhere...) // their own masters are well
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
	cluster := redistest.StartCluster(t)
	requireLocksOutliveFailover(t, newDeployment(t, 3, cluster.Nodes()...), 1, func() { cluster.Owner(t, "{orders}").Kill() })
}

func TestSentinel_LocksAndWaitersOutliveTheirPrimary(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	dep := &deployment{options: redis.UniversalOptions{MasterName: redistest.MasterName}}
	for _, s := range sentinel.Sentinels {
		dep.options.Addrs = append(dep.options.Addrs, s.Addr())
	}
	dep.rdb = dep.connect(t)
	requireLocksOutliveFailover(t, dep, 2, sentinel.Primary.Kill)
}

// outliveAFailover has locks of all kinds held and waited for while their primary, which has so many replicas, is killed.
func requireLocksOutliveFailover(t *testing.T, dep *deployment, replicas int, kill func()) {
	t.Helper()
	const lease = 20 * time.Second
	c := newClient(t, dep.rdb)
	conn := nodeForKey(t, dep.rdb, "{orders}").Conn()
	defer conn.Close()
	var held []*redislock.Lock
	var awaited []string
	var waiting []*asyncCall
	for _, kind := range singleNameKinds {
		m := newMutex(c, kind, "{orders}:held:"+kind, redislock.WithLease(lease), redislock.WithReplicas(replicas, 10*time.Second))
		held = append(held, mustTryLock(t, m))
		lut := &lockUnderTest{dep, kind, "{orders}:awaited:" + kind, []string{"{orders}:awaited:" + kind}}
		lut.writeHold(t, 0)
		awaited = append(awaited, lut.name)
		waiting = append(waiting, lut.newWaiter(t, lut.mutex).startWaiting(t, within(t, 2*patience)))
	}
	require.NoError(t, conn.Set(t.Context(), "{orders}", "the last of it", 0).Err())
	poll(t, func() bool { return conn.Wait(t.Context(), replicas, time.Second).Val() == int64(replicas) })

	kill()
	awaitRenewals(t, 0, held...) // renewed at the new primary before the leases were over
	for _, name := range awaited {
		poll(t, func() bool { // nobody publishes
			if cluster, ok := dep.rdb.(*redis.ClusterClient); ok {
				cluster.ReloadState(t.Context())
			}
			return dep.rdb.Del(t.Context(), name).Err() == nil
		})
	}
	free := time.Now()
	for _, b := range waiting {
		mustUnlock(t, b.await(t))
		require.Less(t, b.at.Sub(free), 5*time.Second+patience/2, "a poll, and room for a busy machine")
	}
	mustUnlock(t, held...)
}

// nodeOf is the client of the node that has the key.
func nodeForKey(t *testing.T, rdb redis.UniversalClient, key string) *redis.Client {
	t.Helper()
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		node, err := cluster.MasterForKey(t.Context(), key)
		require.NoError(t, err)
		return node
	}
	return rdb.(*redis.Client)
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
	awaitRenewals(t, 2*time.Second, held...)
	require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
	awaitRenewals(t, time.Second, held...)
	mustUnlock(t, held...)
}
