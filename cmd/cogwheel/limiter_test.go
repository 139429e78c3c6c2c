package main_test

import (
	"context"
	"testing"
	"time"

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
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.GCRA, ratelimit.FixedWindow, ratelimit.SlidingWindow} {
		k := limits.Limiter("api", ratelimit.PerHour(5), ratelimit.WithAlgorithm(algorithm), ratelimit.WithHashTag("mail"))
		_, err := k.AllowN(t.Context(), "ada", 2)
		require.NoError(t, err)
		url := "redis://" + server.Addr()
		require.Contains(t, must(t, url, "limit", k.RedisKey("ada")), "api:{mail}:")
		require.Contains(t, must(t, url, "limit", k.RedisKey("ada"), "--rate", "5/h"), "left   3")
	}
}

// The tool estimates the used permits of a sliding window as the script does.
func TestLimit_OfASlidingWindow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb, key := server.Client(t), "mail:{ada}:sliding"
	for _, c := range []struct {
		says string
		left time.Duration // until the next window ends
		used string
	}{
		{"all of the previous window counts before the current one begins", 3000 * time.Second, "14"},
		{"half of the previous window counts in the middle of the current one", 1500 * time.Second, "9"},
		{"the current window has become the previous one", 1000 * time.Second, "4"},
		{"half of what was the current window counts in the middle of the next one", 500 * time.Second, "2"},
		{"one permit is left at the end of the next one", 200 * time.Second, "1"},
	} {
		t.Run(c.says, func(t *testing.T) {
			require.NoError(t, rdb.Set(t.Context(), key, "1:10:4:1000000", c.left).Err())
			require.Contains(t, must(t, "redis://"+server.Addr(), "limit", key), "used   "+c.used+" in the present window")
		})
	}
}
