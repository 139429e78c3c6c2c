package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// outages are the Down and Up events of a client.
type outages struct {
	mu     sync.Mutex
	events []string
}

func (o *outages) hooks() ratelimit.Option {
	note := func(what string) func(ratelimit.Event) {
		return func(e ratelimit.Event) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.events = append(o.events, what+" "+e.Node)
		}
	}
	return ratelimit.WithHooks(ratelimit.Hooks{Down: note("down"), Up: note("up")})
}

func (o *outages) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string{}, o.events...)
}

// A slot that migrates concerns its own keys: Redis goes on deciding for others of the same node.
// Guarantees: Q33.
func TestBreaker_AMigratingSlotTakesNoOtherKeysAlong(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, noFailover...)
	rdb := cluster.Client(t)
	var seen outages
	c := newClient(t, rdb, ratelimit.WithTimeout(2*time.Second), seen.hooks())
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerHour(1_000_000), ratelimit.WithHashTag("moves"))
	both := c.All(k.Part("a"), k.Part("b"))
	require.NoError(t, second(both.Allow(ctx)))
	m := cluster.Migrate(t, "{moves}")
	m.Move(k.RedisKey("a")) // one of them is absent from each node

	other := c.Limiter("other", ratelimit.PerHour(1_000_000))
	for range 4 {
		require.ErrorIs(t, second(both.Allow(ctx)), ratelimit.ErrUnavailable)
	}
	for i := range 300 {
		r, err := other.Allow(ctx, fmt.Sprint(i))
		require.NoError(t, err)
		require.Equal(t, ratelimit.SourceRedis, r.Source)
	}
	require.Zero(t, c.Stats().Failures)
	require.False(t, c.Stats().Down)
	require.Empty(t, seen.all())
	m.Finish()
	redistest.Poll(t, func() bool { return second(both.Allow(ctx)) == nil })
}

// noFailover are the arguments of a cluster whose nodes may hang for longer than a slow machine needs.
var noFailover = []string{"--cluster-node-timeout", "60000"}

// hangingNode requires that the keys of a node that hangs are decided by the policy, and others by Redis.
func hangingNode(t *testing.T, c *ratelimit.Client, seen *outages, hangs *redistest.Server, nodeOf func(key string) string) {
	t.Helper()
	ctx := t.Context()
	k := c.Limiter("k", ratelimit.PerHour(1_000_000))
	var theirs, others []string
	for i := 0; len(theirs) < 20 || len(others) < 40; i++ {
		name := fmt.Sprint(i)
		redistest.Poll(t, func() bool { return second(k.Allow(ctx, name)) == nil })
		if nodeOf(k.RedisKey(name)) == hangs.Addr() {
			theirs = append(theirs, name)
		} else {
			others = append(others, name)
		}
	}
	require.False(t, c.Stats().Down)
	hangs.Pause()
	defer hangs.Resume()
	redistest.Poll(t, func() bool {
		for _, name := range theirs {
			r, err := k.Allow(ctx, name)
			require.True(t, err != nil || r.Source == ratelimit.SourceDegraded)
		}
		return c.Stats().Down
	})
	b := c.Breaker()
	require.Equal(t, hangs.Addr(), b.Node)
	require.True(t, b.Down)
	require.GreaterOrEqual(t, b.Failures, 3)
	byPolicy := 0
	for range 10 {
		for _, name := range others {
			r, err := k.Allow(ctx, name)
			if err != nil || r.Source == ratelimit.SourceDegraded {
				byPolicy++
			}
		}
	}
	require.LessOrEqual(t, byPolicy, 10, "of 400, on a busy machine")
	require.Equal(t, []string{"down " + hangs.Addr()}, seen.all())
	hangs.Resume()
	redistest.Poll(t, func() bool { return !c.Stats().Down })
	require.Equal(t, []string{"down " + hangs.Addr(), "up " + hangs.Addr()}, seen.all())
	require.NoError(t, second(k.Allow(ctx, theirs[0])))
}

// Guarantees: Q33.
func TestBreaker_AHangingNodeOfAClusterTakesNoOtherKeysAlong(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	cluster := redistest.StartCluster(t, noFailover...)
	rdb := cluster.Client(t, func(o *redis.ClusterOptions) { o.MaxRedirects = 1 })
	var seen outages
	c := newClient(t, rdb, ratelimit.WithTimeout(400*time.Millisecond), ratelimit.WithPolicy(ratelimit.FailOpen()), seen.hooks())
	hangingNode(t, c, &seen, cluster.Owner(t, "k:{0}"), func(key string) string {
		master, err := rdb.MasterForKey(context.Background(), key)
		require.NoError(t, err)
		return master.Options().Addr
	})
}

// Guarantees: Q33.
func TestBreaker_AHangingShardOfARingTakesNoOtherKeysAlong(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	shards := map[string]string{}
	servers := make([]*redistest.Server, 3)
	for i := range servers {
		servers[i] = redistest.Start(t)
		shards[fmt.Sprint("shard", i)] = servers[i].Addr()
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: shards, HeartbeatFrequency: time.Hour})
	t.Cleanup(func() { require.NoError(t, ring.Close()) })
	var seen outages
	c := newClient(t, ring, ratelimit.WithTimeout(400*time.Millisecond), seen.hooks())
	hangingNode(t, c, &seen, servers[0], func(key string) string {
		shard, err := ring.GetShardClientForKey(key)
		require.NoError(t, err)
		return shard.Options().Addr
	})
}

// Nodes that fail in turns have breakers of their own, whatever the time on the clock of the wheel.
func TestBreaker_NodesThatFailInTurnsAreKeptApart(t *testing.T) {
	t.Parallel()
	for name, now := range map[string]time.Time{"real": time.Now(), "long ago": time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		w, err := wheel.New(wheel.WithClock(stillClock{now}))
		require.NoError(t, err)
		ring := redis.NewRing(&redis.RingOptions{
			Addrs:              map[string]string{"a": "127.0.0.1:1", "b": "127.0.0.1:2"},
			HeartbeatFrequency: time.Hour, MaxRetries: -1,
		})
		c, err := ratelimit.New(ring, ratelimit.WithWheel(w))
		require.NoError(t, err)
		k := c.Limiter("k", ratelimit.PerHour(1))
		keys := make(map[string]string) // one of each shard
		for i := 0; len(keys) < 2; i++ {
			shard, err := ring.GetShardClientForKey(k.RedisKey(fmt.Sprint(i)))
			require.NoError(t, err)
			keys[shard.Options().Addr] = fmt.Sprint(i)
		}
		for range 10 {
			for _, key := range keys {
				_, err = k.Allow(t.Context(), key)
				require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			}
		}
		require.True(t, c.Stats().Down, name)
		require.ErrorContains(t, err, "circuit open", name)
		require.NoError(t, c.Close(t.Context()))
		require.NoError(t, ring.Close())
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
	}
}
