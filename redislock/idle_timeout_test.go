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
// is sent again over a new connection: no attempt has failed.
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
	require.Empty(t, out.String())
	require.Zero(t, c.Stats().Renewal.Failures)
	mustUnlock(t, l)
}
