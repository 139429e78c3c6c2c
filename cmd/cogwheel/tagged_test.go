package main_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Keys of limits that share a hash tag have a form of their own.
func TestLimit_WithAHashTag(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	limits, err := ratelimit.New(server.Client(t), ratelimit.WithTimeout(redistest.Patience/3))
	require.NoError(t, err)
	defer limits.Close(context.Background())
	for _, opts := range [][]ratelimit.LimiterOption{nil, {ratelimit.WithAlgorithm(ratelimit.FixedWindow)}} {
		k := limits.Limiter("api", ratelimit.PerHour(5), append(opts, ratelimit.WithHashTag("mail"))...)
		_, err := k.AllowN(t.Context(), "ada", 2)
		require.NoError(t, err)
		url := "redis://" + server.Addr()
		require.Contains(t, must(t, url, "limit", k.RedisKey("ada")), "api:{mail}:")
		require.Contains(t, must(t, url, "limit", k.RedisKey("ada"), "--rate", "5/h"), "left   3")
	}
}
