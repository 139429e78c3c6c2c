package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// awaitTrue polls for a state of the servers that no event announces.
func awaitTrue(t *testing.T, what string, cond func() bool) {
	t.Helper()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	deadline := time.After(60 * time.Second)
	for !cond() {
		select {
		case <-poll.C:
		case <-deadline:
			require.Fail(t, what+" did not happen")
		}
	}
}

func TestStartCluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := redistest.StartCluster(t)
	rdb := c.Client(t, func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 100 * time.Millisecond })

	owners := map[string]bool{}
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		require.NoError(t, rdb.Set(ctx, key, key, 0).Err())
		owners[c.Owner(t, key).Addr()] = true
	}
	require.Len(t, owners, 3, "the keys live on all three masters")

	// A replica takes over when its master dies.
	owner := c.Owner(t, "a")
	owner.Kill()
	awaitTrue(t, "the failover", func() bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return rdb.Set(ctx, "a", "again", 0).Err() == nil
	})
	require.NotEqual(t, owner.Addr(), c.Owner(t, "a").Addr())
}

func TestStartSentinel(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := redistest.StartSentinel(t)
	rdb := g.Client(t)
	require.NoError(t, rdb.Set(ctx, "a", "1", 0).Err())
	n, err := rdb.Wait(ctx, 2, 10*time.Second).Result()
	require.NoError(t, err)
	require.Equal(t, int64(2), n)

	// A restarted Sentinel remembers the primary.
	g.Sentinels[0].Restart(t)

	g.Primary.Kill()
	awaitTrue(t, "the failover", func() bool { return rdb.Set(ctx, "a", "2", 0).Err() == nil })
	s := redis.NewSentinelClient(&redis.Options{Addr: g.Sentinels[0].Addr()})
	defer s.Close()
	awaitTrue(t, "the restarted Sentinel knows the new primary", func() bool {
		addr, err := s.GetMasterAddrByName(ctx, redistest.MasterName).Result()
		return err == nil && addr[0]+":"+addr[1] != g.Primary.Addr()
	})
}
