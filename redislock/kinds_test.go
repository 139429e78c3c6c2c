package redislock_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// behaviours are the same on every topology.
var behaviours = map[string]func(*testing.T, redis.UniversalClient){
	"readers and writers exclude each other": readersAndWritersExclude,
	"readers and writers are renewed":        readersAndWritersAreRenewed,
}

func TestKinds_OnOneServer(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for what, check := range behaviours {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			check(t, server.Client(t))
		})
	}
}

func TestKinds_InACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for what, check := range behaviours {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			check(t, cluster.Client(t))
		})
	}
}

// Every kind refuses the keys of the others, of other types, and leaves them alone.
func TestKinds_RefuseEachOther(t *testing.T) {
	t.Parallel()
	c, rdb, name := shared(t)
	kinds := map[string]*redislock.Mutex{
		"plain": c.Mutex(name), "fair": c.FairMutex(name), "read": c.RWMutex(name).Reader(), "write": c.RWMutex(name).Writer(),
	}
	for held, mine := range kinds {
		l := mustLock(t, mine)
		before := rdb.HGetAll(t.Context(), name).Val()
		for kind, m := range kinds {
			second, err := m.TryLock(t.Context())
			switch {
			case held == "read" && kind == "read":
				require.NoError(t, err)
				mustUnlock(t, second)
			case (held == "plain" || held == "fair") == (kind == "plain" || kind == "fair"):
				require.ErrorIs(t, err, redislock.ErrLocked, "%s at %s", kind, held)
			default:
				require.ErrorIs(t, err, redislock.ErrWrongKind, "%s at %s", kind, held)
				require.NotErrorIs(t, err, redislock.ErrLocked)
				_, err = m.Lock(within(t, patience))
				require.ErrorIs(t, err, redislock.ErrWrongKind, "%s waits at %s", kind, held)
			}
		}
		require.Equal(t, before, rdb.HGetAll(t.Context(), name).Val())
		mustUnlock(t, l)
	}
	require.NoError(t, rdb.Set(t.Context(), name, "text", 0).Err())
	for kind, m := range kinds {
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrWrongKind, kind)
		_, err = m.ForceUnlock(t.Context())
		require.ErrorIs(t, err, redislock.ErrWrongKind, kind)
	}
	require.Equal(t, "text", rdb.Get(t.Context(), name).Val())
	for kind, m := range map[string]*redislock.Mutex{"fair": c.FairMutex("a{b"), "read": c.RWMutex("").Reader(), "write": c.RWMutex("{}").Writer()} {
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrInvalid, kind)
	}
}
