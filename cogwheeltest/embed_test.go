package cogwheeltest_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestEmbed(t *testing.T) {
	t.Parallel()
	addr, stop, err := cogwheeltest.Embed()
	require.NoError(t, err)
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	locks, err := redislock.New(rdb, redislock.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	m := locks.Mutex("n", redislock.WithLease(100*time.Millisecond), redislock.WithoutRenewal())
	for range 3 { // each waits for the lease of the one before: time passes on its own
		_, err := m.Lock(t.Context())
		require.NoError(t, err)
	}
	require.NoError(t, locks.Close(t.Context()))
	stop()
	stop() // again, without effect
	require.Error(t, rdb.Ping(t.Context()).Err(), "after stop")
}
