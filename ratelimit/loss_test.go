package ratelimit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

func TestLoss_WhateverIsLostOfALimiterGrantsAtMostOneBurstMore(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for lost := range 8 {
		_, rdb, name := storedLimiter(t, perSeconds(10, 60), ratelimit.Overall)
		ask := func(c *ratelimit.Client) func(context.Context) (ratelimit.Result, error) {
			return c.StoredLimiter(name).Allow
		}
		require.Equal(t, 10, grantsNow(t, rdb, ask))
		keys, want := ratelimit.LogKeys(name), 0
		if lost&1 != 0 {
			require.Equal(t, int64(1), rdb.Del(t.Context(), keys[0]).Val())
			_, err := newClient(t, rdb).StoredLimiter(name).Allow(t.Context())
			require.ErrorIs(t, err, ratelimit.ErrNotSet)
			set, err := newClient(t, rdb).StoredLimiter(name).TrySetRate(t.Context(), perSeconds(10, 60))
			require.NoError(t, err)
			require.True(t, set)
		}
		if lost&2 != 0 {
			require.Equal(t, int64(1), rdb.Del(t.Context(), keys[1]).Val())
		}
		if lost&4 != 0 {
			require.Equal(t, int64(1), rdb.Del(t.Context(), keys[2]).Val())
			want = 10
		}
		require.Equal(t, want, grantsNow(t, rdb, ask), "lost %03b", lost)
		require.Zero(t, grantsNow(t, rdb, ask), "lost %03b, and then it counts again", lost)
	}
}

// Guarantees: Q3.
func TestLoss_Eviction(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	rdb := server.Client(t)
	ctx := t.Context()
	c := newClient(t, rdb)
	limit := perSeconds(10, 3600)
	for what, test := range map[string]struct {
		key string
		ask func(c *ratelimit.Client) func(context.Context) (ratelimit.Result, error)
	}{
		"GCRA": {"k:{u}", func(c *ratelimit.Client) func(context.Context) (ratelimit.Result, error) {
			return func(ctx context.Context) (ratelimit.Result, error) { return c.Limiter("k", limit).Allow(ctx, "u") }
		}},
		"window": {"w:{u}:window", func(c *ratelimit.Client) func(context.Context) (ratelimit.Result, error) {
			return func(ctx context.Context) (ratelimit.Result, error) {
				return c.Limiter("w", limit, ratelimit.WithAlgorithm(ratelimit.FixedWindow)).Allow(ctx, "u")
			}
		}},
		"sliding": {"s:{u}:sliding", func(c *ratelimit.Client) func(context.Context) (ratelimit.Result, error) {
			return func(ctx context.Context) (ratelimit.Result, error) {
				return c.Limiter("s", limit, bySliding).Allow(ctx, "u")
			}
		}},
		"log": {"{log}:permits", func(c *ratelimit.Client) func(context.Context) (ratelimit.Result, error) {
			return func(ctx context.Context) (ratelimit.Result, error) {
				return c.StoredLimiter("log").Allow(ctx)
			}
		}},
	} {
		t.Run(what, func(t *testing.T) {
			require.NoError(t, c.StoredLimiter("log").SetRate(ctx, limit))
			require.Equal(t, 10, grantsNow(t, rdb, test.ask))
			evict(t, rdb, test.key)
			if what == "log" && rdb.Exists(ctx, "log").Val() == 0 {
				_, err := c.StoredLimiter("log").Peek(ctx)
				require.ErrorIs(t, err, ratelimit.ErrNotSet)
				require.NoError(t, c.StoredLimiter("log").SetRate(ctx, limit, ratelimit.WithState()))
			}
			require.Equal(t, 10, grantsNow(t, rdb, test.ask), "one burst more")
			require.Zero(t, grantsNow(t, rdb, test.ask))
		})
	}

	t.Run("and a server that may not evict says that it is full", func(t *testing.T) {
		require.NoError(t, c.StoredLimiter("log").SetRate(ctx, limit))
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		for _, err := range []error{
			second(c.Limiter("k", limit).Allow(ctx, "full")),
			second(c.StoredLimiter("log").AllowUpTo(ctx, 1)),
		} {
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
			require.NotContains(t, err.Error(), "script")
		}
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "0").Err())
		r, err := c.Limiter("k", limit).Allow(ctx, "full")
		require.NoError(t, err)
		require.Equal(t, int64(9), r.Remaining)
	})
}

func second[T any](_ T, err error) error { return err }

// evict writes until the key has had to make room, and then lets it be again.
func evict(t *testing.T, rdb *redis.Client, key string) {
	t.Helper()
	ctx := t.Context()
	require.Equal(t, int64(1), rdb.Exists(ctx, key).Val())
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "3mb").Err())
	junk := strings.Repeat("x", 2000)
	for i := range 2000 {
		if rdb.Exists(ctx, key).Val() == 0 {
			require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "0").Err())
			return
		}
		_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for k := range 100 {
				p.Set(ctx, fmt.Sprintf("junk:%s:%d", key, i*100+k), junk, 0)
			}
			return nil
		})
		require.NoError(t, err)
	}
	t.Fatal("it was never evicted")
}

func TestLoss_WaitersSurviveAFlush(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	c, ctx := newClient(t, rdb), within(t, patience)
	k, l := c.Limiter("k", perSeconds(1, 0.5)), c.StoredLimiter("log")
	require.NoError(t, l.SetRate(ctx, perSeconds(1, 0.5)))
	require.NoError(t, k.Wait(ctx, "u"))
	require.NoError(t, l.Wait(ctx))
	served, lost := make(chan error, 3), make(chan error, 1)
	for range 3 {
		k.WaitFunc(ctx, "u", 1, func(err error) { served <- err })
	}
	l.WaitFunc(ctx, 1, func(err error) { lost <- err })
	require.NoError(t, rdb.FlushAll(ctx).Err())
	require.ErrorIs(t, <-lost, ratelimit.ErrNotSet, "its limit is lost")
	for range 3 {
		require.NoError(t, <-served)
	}
	require.NoError(t, l.SetRate(ctx, perSeconds(1, 0.5)))
	require.NoError(t, l.Wait(ctx))
}

// The primary has granted everything when it dies; its replicas were cut off before, and know of one permit
// only.
// Guarantees: Q3.
func TestLoss_AFailoverToAStaleReplicaGrantsAtMostOneBurstMore(t *testing.T) {
	t.Parallel()
	g := redistest.StartSentinel(t)
	ctx := t.Context()
	rdb := g.Client(t, func(o *redis.FailoverOptions) {
		o.PoolSize, o.MaxRetries = 1, -1 // the one connection is open before the password is set
	})
	c := newClient(t, rdb, ratelimit.WithBreaker(3, 50*time.Millisecond))
	limit := perSeconds(10, 3600)
	k, l := c.Limiter("k", limit), c.StoredLimiter("log")
	require.NoError(t, l.SetRate(ctx, limit))
	take(t, l, 1, true)
	r, err := k.Allow(ctx, "u")
	require.NoError(t, err)
	require.True(t, r.Allowed)
	acknowledged, err := rdb.Wait(ctx, len(g.Replicas), patience).Result()
	require.NoError(t, err)
	require.Equal(t, int64(len(g.Replicas)), acknowledged)

	primary := g.Primary.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
	require.NoError(t, primary.ConfigSet(ctx, "requirepass", "unknown").Err())
	require.NoError(t, primary.Do(ctx, "client", "kill", "type", "replica").Err())
	r, err = k.AllowN(ctx, "u", 9)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	take(t, l, 9, true)
	g.Primary.Kill()

	w := newWheel(t)
	granted := map[string]int{}
	for what, allow := range map[string]func(context.Context) (ratelimit.Result, error){
		"GCRA": func(ctx context.Context) (ratelimit.Result, error) { return k.Allow(ctx, "u") },
		"log":  l.Allow,
	} {
		denied := 0
		for end := time.Now().Add(patience); denied == 0; {
			require.True(t, time.Now().Before(end), "no failover")
			r, err := allow(ctx)
			switch {
			case r.Allowed:
				granted[what]++
			case err != nil, r.Source != ratelimit.SourceRedis: // what this process remembers of the primary, for a second
				_ = w.Sleep(ctx, 50*time.Millisecond)
			default:
				denied++
			}
		}
	}
	require.Equal(t, map[string]int{"GCRA": 9, "log": 9}, granted, "what the replica had not heard of, and no more")
}
