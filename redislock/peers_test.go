package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// What the tests of Redisson, bsm/redislock, redsync and rueidislock hold their locks to, as far as it is a matter of contention.
func TestMutex_BehavesAsPeersTest(t *testing.T) {
	t.Parallel()
	t.Run("on one server", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		peerBehaviours(t, func() redis.UniversalClient { return server.Client(t) })
	})
	t.Run("in a cluster", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.StartCluster(t)
		peerBehaviours(t, func() redis.UniversalClient { return cluster.Client(t) })
	})
}

func peerBehaviours(t *testing.T, client func() redis.UniversalClient) {
	t.Run("of 100 that try at once, one gets it", func(t *testing.T) {
		rdb := client()
		c := newClient(t, rdb)
		var got, refused atomic.Int64
		var running sync.WaitGroup
		for range 100 {
			running.Go(func() {
				switch _, err := c.Mutex("try").TryLock(t.Context()); {
				case err == nil:
					got.Add(1)
				case errors.Is(err, redislock.ErrLocked):
					refused.Add(1)
				}
			})
		}
		running.Wait()
		require.Equal(t, int64(1), got.Load())
		require.Equal(t, int64(99), refused.Load())
	})

	t.Run("100 that wait return when their context ends, and not much later", func(t *testing.T) {
		rdb := client()
		require.NoError(t, rdb.HSet(t.Context(), "cancelled", "java:1", 1).Err())
		c := newClient(t, rdb)
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error, 100)
		for range cap(results) {
			go func() {
				_, err := c.Mutex("cancelled").Lock(ctx)
				results <- err
			}()
		}
		_, err := c.Mutex("cancelled").TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked)
		cancel()
		for range cap(results) {
			require.ErrorIs(t, <-results, context.Canceled)
		}
		require.Equal(t, int64(1), rdb.HLen(t.Context(), "cancelled").Val())
	})

	t.Run("a wait of a second takes a second", func(t *testing.T) {
		rdb := client()
		require.NoError(t, rdb.HSet(t.Context(), "second", "java:1", 1).Err())
		c := newClient(t, rdb)
		start := time.Now()
		_, err := c.Mutex("second").Lock(within(t, time.Second))
		require.ErrorIs(t, err, redislock.ErrLocked)
		require.GreaterOrEqual(t, time.Since(start), time.Second)
		require.Less(t, time.Since(start), time.Second+patience/3)
	})

	t.Run("many instances and names lose no update, and no channel stays subscribed", func(t *testing.T) {
		const instances, callers, times, names = 10, 4, 5, 3
		var counts [names]int // each guarded by its lock
		var running sync.WaitGroup
		rdb := client()
		for range instances {
			c := newClient(t, client())
			for caller := range callers {
				m := c.Mutex(fmt.Sprintf("name:%d", caller%names))
				running.Go(func() {
					for range times {
						err := m.Do(t.Context(), func(context.Context) error {
							counts[caller%names]++
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		running.Wait()
		require.Equal(t, instances*callers*times, counts[0]+counts[1]+counts[2])
		for i := range names {
			requireFree(t, rdb, fmt.Sprintf("name:%d", i))
		}
		if _, cluster := rdb.(*redis.ClusterClient); cluster {
			return // each of whose nodes would have to be asked
		}
		poll(t, func() bool { return len(rdb.PubSubChannels(t.Context(), "*name:*").Val()) == 0 }) // they linger for a few seconds
	})

	t.Run("a lock that was lost to a restart of everything can be taken and is renewed again", func(t *testing.T) {
		rdb := client()
		c := newClient(t, rdb)
		m := c.Mutex("again", redislock.WithLease(time.Second))
		lost := mustLock(t, m)
		require.NoError(t, rdb.Del(t.Context(), "again").Err())
		<-lost.Done()
		require.ErrorIs(t, lost.Unlock(t.Context()), redislock.ErrLost)
		l := mustLock(t, m)
		require.NoError(t, newWheel(t).Sleep(t.Context(), 2*time.Second))
		require.NoError(t, l.Err())
		require.NoError(t, l.Unlock(t.Context()))
	})
}
