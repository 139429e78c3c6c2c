package redislock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Faults of a whole deployment, one after another.
// Guarantees: L5, L34.
func TestKinds_SurviveServerFaults(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for name, start := range map[string]func() []*redistest.Server{
		"single server": func() []*redistest.Server { return []*redistest.Server{redistest.Start(t)} },
		"cluster": func() []*redistest.Server { // replicas do not take over from a master that restarts
			return redistest.StartCluster(t, "--cluster-node-timeout", "6000").Nodes()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := start()
			dep := newDeployment(t, 3, servers...)
			t.Run("killed subscriptions are restored and waiters try again", func(t *testing.T) {
				survivesKilledSubscriptions(t, dep)
			})
			t.Run("scripts are flushed all the time", func(t *testing.T) { survivesFlushedScripts(t, dep) })
			t.Run("FLUSHALL", func(t *testing.T) {
				holdersLearnOfLostData(t, dep, func() {
					dep.forEachMaster(t, func(ctx context.Context, rdb *redis.Client) error {
						return rdb.FlushAll(ctx).Err()
					})
				})
			})
			t.Run("a restart without data", func(t *testing.T) {
				holdersLearnOfLostData(t, dep, func() {
					for _, s := range servers[:(len(servers)+1)/2] {
						s.Restart(t)
					}
				})
			})
		})
	}
}

func survivesKilledSubscriptions(t *testing.T, dep *deployment) {
	var locks []*lockUnderTest
	var waiters []waiter
	for _, kind := range allKinds {
		lut := newLockUnderTest(t, dep, kind)
		locks, waiters = append(locks, lut), append(waiters, lut.newWaiter(t, lut.mutex))
	}
	requireWokenWithoutPoll(t, func() (took time.Duration) {
		var waiting []*asyncCall
		for i, lut := range locks {
			lut.writeHold(t, 0)
			waiting = append(waiting, waiters[i].startWaiting(t, within(t, patience)))
		}
		for _, lut := range locks {
			lut.deleteKeys(t) // without a message
		}
		killed := time.Now()
		for _, node := range dep.nodes {
			require.NoError(t, node.Do(t.Context(), "client", "kill", "type", "pubsub").Err())
		}
		for _, b := range waiting {
			mustUnlock(t, b.await(t))
			took = max(took, b.at.Sub(killed))
		}
		return took
	})
}

func survivesFlushedScripts(t *testing.T, dep *deployment) {
	stop, flushed, w := make(chan struct{}), make(chan int, 1), newWheel(t)
	var held []*redislock.Lock
	for _, kind := range allKinds {
		held = append(held, newLockUnderTest(t, dep, kind).mustLock(t, redislock.WithLease(safeLease)))
	}
	go func() {
		for n := 0; ; n++ {
			for _, node := range dep.nodes {
				_ = node.ScriptFlush(context.Background()).Err()
			}
			_ = w.Sleep(context.Background(), time.Millisecond) // leave the CPU to others
			if isClosed(stop) {
				flushed <- n
				return
			}
		}
	}()
	first, ctx := held[len(held)-1].Deadline(), within(t, patience)
	c := newClient(t, dep.rdb)
	for !held[len(held)-1].Deadline().After(first) {
		for _, kind := range allKinds {
			require.NoError(t, newLockUnderTest(t, dep, kind).mutex(c).Do(ctx, func(context.Context) error {
				return nil
			}))
		}
	}
	awaitRenewals(t, 0, held...)
	close(stop)
	require.Greater(t, <-flushed, 2)
	mustUnlock(t, held...)
}

// holdersLearnOfLostData checks that holders learn of the loss of all data and can then acquire again.
func holdersLearnOfLostData(t *testing.T, dep *deployment, lose func()) {
	const lease = safeLease
	type hold struct {
		*lockUnderTest
		m    anyMutex
		lock *redislock.Lock
	}
	var holds []*hold
	for _, kind := range allKinds {
		for range 3 { // spread over several masters
			h := &hold{lockUnderTest: newLockUnderTest(t, dep, kind)}
			opts := []redislock.LockOption{redislock.WithLease(lease)}
			if slices.Contains(fencedKinds, kind) {
				opts = append(opts, redislock.WithFencing())
			}
			h.m = h.mutex(h.newClient(t), opts...)
			h.lock = mustTryLock(t, h.m)
			holds = append(holds, h)
		}
	}
	lose()
	var again []*redislock.Lock
	for _, h := range holds {
		lost := h.lock
		<-lost.Done()
		require.ErrorIs(t, lost.Err(), redislock.ErrLost)
		poll(t, func() (taken bool) { // once the deployment serves again
			l, err := h.m.TryLock(t.Context())
			h.lock = l
			return err == nil
		})
		again = append(again, h.lock)
		require.ErrorIs(t, lost.Unlock(t.Context()), redislock.ErrLost)
		h.requireHeldOnce(t)
		if slices.Contains(fencedKinds, h.kind) {
			require.Greater(t, h.lock.Token(), lost.Token())
		}
	}
	awaitRenewals(t, lease/2, again...) // renewals work again
	for _, h := range holds {
		mustUnlock(t, h.lock)
		h.requireNoKeys(t)
	}
}
