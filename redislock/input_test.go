package redislock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestMutex_NestedWithoutAnOwnerWaitsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	m := c.Mutex(name)
	err := m.Do(t.Context(), func(context.Context) error {
		inner := m.Do(within(t, 50*time.Millisecond), func(context.Context) error { return nil })
		require.ErrorIs(t, inner, context.DeadlineExceeded)
		require.ErrorIs(t, inner, redislock.ErrLocked)
		return nil
	})
	require.NoError(t, err)
	requireFree(t, rdb, name)
}

func TestKinds_AcceptOddNames(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		c, base := newClient(t, dep.rdb), redistest.Name(t)
		for _, name := range []string{
			" ", ":", "*?[", "\x00\r\n", "\xff", "{a}{b}", "a{b}c", "d:}{e}", "{f}:g:h", "redisson_lock__channel:{x}", strings.Repeat("x", 64<<10-len(base)),
		} {
			for _, kind := range singleNameKinds {
				m := newMutex(c, kind, base+name)
				l := mustTryLock(t, m)
				require.Equal(t, int64(1), dep.rdb.Exists(t.Context(), base+name).Val())
				next := callAsync(func() (*redislock.Lock, error) { return newMutex(c, kind, base+name).Lock(within(t, patience)) })
				mustUnlock(t, l)
				mustUnlock(t, next.await(t))
				requireFree(t, dep.rdb, base+name)
			}
		}
	})
}

// What each kind says at the key of another.
func TestKinds_RefuseEachOther(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		c, name := newClient(t, dep.rdb), redistest.Name(t)
		for _, held := range singleNameKinds {
			l := mustTryLock(t, newMutex(c, held, name))
			before := dep.rdb.HGetAll(t.Context(), name).Val()
			for _, kind := range singleNameKinds {
				m := newMutex(c, kind, name)
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
			require.Equal(t, before, dep.rdb.HGetAll(t.Context(), name).Val())
			mustUnlock(t, l)
		}
		for kind, name := range map[string]string{"plain": "a}b", "fair": "a{b", "read": "", "write": "{}"} {
			_, err := newMutex(c, kind, name).TryLock(t.Context())
			require.ErrorIs(t, err, redislock.ErrInvalid, kind)
		}
	})
}
