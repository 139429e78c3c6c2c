package redislock_test

import (
	"log/slog"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// The server closes idle connections before the next renewal, and the client cannot see that, as with TLS. The renewal
// is sent again over a new connection. Without that, every renewal fails first.
func TestLock_RenewalsOverConnectionsThatTheServerHasClosed(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Start(t, "--timeout", "1")
	rdb := server.Client(t, func(o *redis.Options) { o.Dialer = redistest.DialHidden })
	var out lockedBuffer
	c := newClient(t, rdb, redislock.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
	const lease = 2 * safeLease
	l := mustLock(t, c.Mutex(redistest.Name(t), redislock.WithLease(lease)))
	awaitRenewals(t, lease/2, l)
	awaitRenewals(t, lease/2, l)
	stats := c.Stats().Renewal
	require.GreaterOrEqual(t, stats.Renewed, int64(2))
	require.LessOrEqual(t, stats.Failures, int64(1), "one may fail on a busy machine: %s", out.String())
	mustUnlock(t, l)
}
