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

// The locks are spread over three masters, one of which stops.
// Guarantees: L39.
func TestCluster_StoppedMasterDelaysNoOther(t *testing.T) {
	t.Parallel()
	const locks = 60
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client(t)
	c := newClient(t, rdb)
	stopped := cluster.Owner(t, "name:0")
	var there, elsewhere []*redislock.Lock
	for i := range locks {
		name := fmt.Sprintf("name:%d", i)
		l := mustLock(t, c.Mutex(name, redislock.WithLease(safeLease)))
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
	awaitRenewals(t, safeLease, elsewhere...) // their masters run
	mustUnlock(t, elsewhere...)
	for _, l := range there {
		if l.Err() != nil { // unless its replica was promoted in time
			require.ErrorIs(t, l.Err(), redislock.ErrLost)
		}
	}
}

// The master dies and its replica takes over. go-redis alone would notice within a minute.
// Guarantees: L38.
func TestCluster_LocksSurviveFailover(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	requireLocksOutliveFailover(t, newDeployment(t, 3, cluster.Nodes()...), 1, func() {
		cluster.Owner(t, "{orders}").Kill()
	})
}

// Guarantees: L38.
func TestSentinel_LocksSurviveFailover(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	dep := &deployment{options: redis.UniversalOptions{MasterName: redistest.MasterName}}
	for _, s := range sentinel.Sentinels {
		dep.options.Addrs = append(dep.options.Addrs, s.Addr())
	}
	dep.rdb = dep.connect(t)
	requireLocksOutliveFailover(t, dep, 2, sentinel.Primary.Kill)
}

// requireLocksOutliveFailover holds locks of each kind, and waits for others, while their primary is killed.
// The primary has the given number of replicas.
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
		m := newMutex(c, kind, "{orders}:held:"+kind, redislock.WithLease(lease), redislock.WithReplicas(
			replicas, 10*time.Second,
		))
		held = append(held, mustTryLock(t, m))
		lut := &lockUnderTest{dep, kind, "{orders}:awaited:" + kind, []string{"{orders}:awaited:" + kind}}
		lut.writeHold(t, 0)
		awaited = append(awaited, lut.name)
		waiting = append(waiting, lut.newWaiter(t, lut.mutex).startWaiting(t, within(t, 2*patience)))
	}
	require.NoError(t, conn.Set(t.Context(), "{orders}", "the last write", 0).Err())
	poll(t, func() bool { return conn.Wait(t.Context(), replicas, time.Second).Val() == int64(replicas) })

	kill()
	awaitRenewals(t, 0, held...) // renewed at the new primary before the leases end
	for _, name := range awaited {
		poll(t, func() bool { // without a message
			if cluster, ok := dep.rdb.(*redis.ClusterClient); ok {
				cluster.ReloadState(t.Context())
			}
			return dep.rdb.Del(t.Context(), name).Err() == nil
		})
	}
	free := time.Now()
	for _, b := range waiting {
		mustUnlock(t, b.await(t))
		require.Less(t, b.at.Sub(free), 5*time.Second+patience/2, "one poll, with room for a busy machine")
	}
	mustUnlock(t, held...)
}

// nodeForKey returns the client of the node that owns the key.
func nodeForKey(t *testing.T, rdb redis.UniversalClient, key string) *redis.Client {
	t.Helper()
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		node, err := cluster.MasterForKey(t.Context(), key)
		require.NoError(t, err)
		return node
	}
	return rdb.(*redis.Client)
}

// The primary loses its connections to the Sentinels and replicas, but still answers its connected clients.
// Renewals go to the new primary, as acquisitions do. If the new primary does not know the lock, the holder
// learns so within a third of its lease.
// Guarantees: L40.
func TestSentinel_RenewalsLeaveADeposedPrimary(t *testing.T) {
	t.Parallel()
	for name, client := range redistest.SentinelClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			renewalsLeaveADeposedPrimary(t, client)
		})
	}
}

func renewalsLeaveADeposedPrimary(t *testing.T, client func(testing.TB, *redistest.Sentinel) redis.UniversalClient) {
	const lease = safeLease
	sentinel := redistest.StartSentinel(t)
	c := newClient(t, client(t, sentinel))
	held, all := map[string]*redislock.Lock{}, []*redislock.Lock{}
	for _, kind := range singleNameKinds {
		held[kind] = mustTryLock(t, newMutex(c, kind, "orders:"+kind, redislock.WithLease(lease)))
		all = append(all, held[kind])
	}
	awaitRenewals(t, 0, all...) // their connections are open
	old := sentinel.Isolate(t)
	sentinel.AwaitFailover(t)

	other := newClient(t, sentinel.Client(t))
	next, losses := map[string]*asyncCall{}, map[string]*asyncCall{}
	for _, kind := range singleNameKinds {
		conflicting := newMutex(other, kind, "orders:"+kind)
		if kind == "read" {
			conflicting = other.RWMutex("orders:read").Writer()
		}
		losses[kind] = callAsync(func() (*redislock.Lock, error) {
			<-held[kind].Done()
			return nil, held[kind].Err()
		})
		next[kind] = callAsync(func() (*redislock.Lock, error) { return conflicting.Lock(within(t, lease+2*time.Second)) })
	}
	for kind, b := range next {
		<-b.done
		if b.err == nil { // the new primary did not know the lock
			<-losses[kind].done
			require.ErrorIs(t, losses[kind].err, redislock.ErrLost)
			require.Less(t, losses[kind].at.Sub(b.at), lease, kind)
			_ = b.lock.Unlock(t.Context()) // which a further failover may have lost
		} else {
			require.ErrorIs(t, b.err, redislock.ErrLocked)
			require.True(t, held[kind].Valid(), "%s: renewed at the new primary", kind)
		}
	}
	// Locks that are still renewed are renewed at the new primary only.
	poll(t, func() bool {
		return old.Exists(t.Context(), "orders:plain", "orders:fair", "orders:read", "orders:write").Val() == 0
	})
}
