package redislock_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// A service that closes the redis client too early must not keep its locks for the rest of their lease.
func TestLock_IsReleasedAlthoughRdbIsClosed(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for name, release := range map[string]bool{"by Close": false, "by Unlock": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, key := server.Client(t), redistest.Name(t)
			c := newClient(t, rdb)
			l, err := c.Mutex(key).Lock(t.Context())
			require.NoError(t, err)
			require.NoError(t, rdb.Close())
			if release {
				require.ErrorIs(t, l.Unlock(t.Context()), redis.ErrClosed)
			} else {
				require.NoError(t, c.Close(t.Context()))
			}
			other := server.Client(t)
			poll(t, func() bool { return other.Exists(t.Context(), key).Val() == 0 })
		})
	}
}
