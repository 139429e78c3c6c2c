package ratelimit_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// answered calls f with a client, in a bubble, whose every call has the given reply.
func answered(t *testing.T, reply string, f func(c *ratelimit.Client), opts ...ratelimit.Option) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &redistest.Replying{RoundTrip: time.Millisecond}
		server.Set(redistest.ParseReply(reply))
		rdb := server.Client(t)
		w, err := wheel.New()
		require.NoError(t, err)
		c, err := ratelimit.New(rdb, append(opts, ratelimit.WithWheel(w), ratelimit.WithLogger(slog.New(slog.DiscardHandler)))...)
		require.NoError(t, err)
		f(c)
		require.NoError(t, c.Close(context.Background()))
		require.NoError(t, rdb.Close())
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
		time.Sleep(time.Minute)
	})
}

func TestReply_OneThatNoScriptReturnsIsNoOutage(t *testing.T) {
	answered(t, "( not integers )", func(c *ratelimit.Client) {
		r, err := c.Limiter("p", ratelimit.PerSecond(1)).Allow(context.Background(), "key")
		require.ErrorIs(t, err, ratelimit.ErrMisconfigured)
		require.ErrorContains(t, err, "unexpected reply")
		require.False(t, r.Allowed, "FailOpen grants in an outage")
	}, ratelimit.WithPolicy(ratelimit.FailOpen()))
}

func TestReply_ALimiterOfRateZeroIsRefused(t *testing.T) {
	answered(t, "( 0 1000 0 0 0 -5 )", func(c *ratelimit.Client) {
		require.ErrorIs(t, c.StoredLimiter("l").Wait(context.Background()), ratelimit.ErrMisconfigured)
	})
}
