package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// A client that does not know its cluster yet has to ask for it, which takes a hanging server's timeout.
// Guarantees: Q14.
func TestLimiter_AClusterThatHangsFromTheStart(t *testing.T) {
	t.Parallel()
	const readTimeout = 5 * time.Second
	server := redistest.Start(t)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}, ReadTimeout: readTimeout})
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	k := newClient(t, rdb).Limiter("hang", perSeconds(10, 1))
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := k.Allow(ctx, redistest.Name(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), readTimeout-time.Second, "let go when its deadline passes")
}
