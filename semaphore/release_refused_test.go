package semaphore_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// scriptHook intercepts the calls of one script.
type scriptHook struct {
	sha     string
	calls   atomic.Int64
	refused atomic.Int64 // NOREPLICAS replies
	nth     func(n int64, next func() error) error
}

func (x *scriptHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (x *scriptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (x *scriptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !slices.Contains(cmd.Args(), any(x.sha)) {
			return next(ctx, cmd)
		}
		err := x.nth(x.calls.Add(1), func() error { return next(ctx, cmd) })
		cmd.SetErr(err)
		if err != nil && strings.Contains(err.Error(), "NOREPLICAS") { // Redis 6.2 says more before it
			x.refused.Add(1)
		}
		return err
	}
}

// While a server refuses writes, as in a failover, a release still takes effect exactly once.
// Guarantees: S10, S11.
func TestCountingSemaphore_ReleasesAreRefusedForAWhile(t *testing.T) {
	t.Parallel()
	setUp := func(
		t *testing.T, retries int, hooks ...*scriptHook,
	) (s *semaphore.CountingSemaphore, refuse func(bool), value func() string) {
		server := redistest.Start(t)
		admin, name := server.Client(t), redistest.Name(t)
		rdb := server.Client(t, func(o *redis.Options) { o.MaxRetries = retries })
		for _, s := range scripts.All() {
			require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
		}
		for _, x := range hooks {
			rdb.AddHook(x)
		}
		s = newClient(t, rdb).CountingSemaphore(name)
		mustSetPermits(t, s, 3)
		refuse = func(on bool) {
			replicas := "0"
			if on {
				replicas = "1"
			}
			require.NoError(t, admin.ConfigSet(context.Background(), "min-replicas-to-write", replicas).Err())
		}
		return s, refuse, func() string { return admin.Get(t.Context(), name).Val() }
	}

	t.Run("the second copy is refused after the first was executed: unconfirmed, added once", func(t *testing.T) {
		t.Parallel()
		x := &scriptHook{sha: scripts.SemRelease.SHA()}
		s, _, value := setUp(t, 3, x)
		denied := redistest.Shared(t).Client(t).Eval(t.Context(), "return redis.error_reply('NOPERM for now')", nil).Err()
		require.ErrorContains(t, denied, "NOPERM")
		x.nth = func(n int64, next func() error) error {
			switch n {
			case 1:
				_ = next()
				return io.ErrUnexpectedEOF // the reply is lost
			case 2:
				return denied
			}
			return next()
		}
		require.ErrorIs(t, s.Release(t.Context(), 2), semaphore.ErrUnconfirmed)
		require.NoError(t, s.Release(t.Context(), 1))
		require.Equal(t, "6", value())
	})

	t.Run("an unconfirmed release is refused: added when writes are accepted again", func(t *testing.T) {
		t.Parallel()
		x := &scriptHook{sha: scripts.SemRelease.SHA()}
		s, refuse, value := setUp(t, -1, x)
		x.nth = func(n int64, next func() error) error {
			if n == 1 {
				refuse(true)
				return io.ErrUnexpectedEOF // the call is lost
			}
			return next()
		}
		require.ErrorIs(t, s.Release(t.Context(), 2), semaphore.ErrUnconfirmed)
		poll(t, func() bool { return x.refused.Load() > 0 })
		refuse(false)
		poll(t, func() bool { return value() == "5" })
	})

	t.Run("permits of a cancelled waiter are released when writes are accepted again", func(t *testing.T) {
		t.Parallel()
		x := &scriptHook{sha: scripts.SemAcquire.SHA()}
		releases := &scriptHook{sha: scripts.SemRelease.SHA(), nth: func(_ int64, next func() error) error { return next() }}
		s, refuse, value := setUp(t, -1, x, releases)
		ctx, cancel := context.WithCancel(t.Context())
		x.nth = func(n int64, next func() error) error {
			err := next()
			if n == 1 {
				cancel()
				refuse(true)
			}
			return err
		}
		require.ErrorIs(t, s.Acquire(ctx, 2), context.Canceled)
		poll(t, func() bool { return releases.refused.Load() > 0 })
		refuse(false)
		poll(t, func() bool { return value() == "3" })
	})
}
