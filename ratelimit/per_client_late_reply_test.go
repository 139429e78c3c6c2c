package ratelimit_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// holder keeps back the reply of one script.
type holder struct {
	armed         atomic.Bool
	held, release chan struct{}
}

func (h *holder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *holder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *holder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if h.armed.CompareAndSwap(true, false) {
			close(h.held)
			<-h.release
		}
		return err
	}
}

// What was asked before this client changed the limit says nothing any more, however late the reply.
func TestPerClient_ALateReplyIsOfTheLimitBefore(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T, scope ratelimit.Scope) (*ratelimit.StoredLimiter, *holder) {
		rdb := redistest.Shared(t).Client(t)
		h := &holder{held: make(chan struct{}), release: make(chan struct{})}
		rdb.AddHook(h)
		c := newClient(t, rdb)
		for _, warm := range scopes { // tells the server the scripts
			_, err := newStoredLimiter(t, c, perSeconds(9, 3600), warm).Reserve(t.Context(), 1)
			require.NoError(t, err)
			take(t, newStoredLimiter(t, c, perSeconds(9, 3600), warm), 1, true)
		}
		return newStoredLimiter(t, c, perSeconds(1, 3600), scope), h
	}
	setNow := func(t *testing.T, l *ratelimit.StoredLimiter) {
		require.NoError(t, l.SetRate(t.Context(), perSeconds(5, 3600), ratelimit.WithScope(ratelimit.PerClient)))
		r, err := l.Reserve(t.Context(), 1)
		require.NoError(t, err)
		require.Zero(t, r.Delay())
	}

	inScopes(t, "to a caller that asks for permits", func(t *testing.T, scope ratelimit.Scope) {
		l, h := setup(t, scope)
		h.armed.Store(true)
		done := make(chan error, 1)
		go func() {
			_, err := l.Allow(t.Context())
			done <- err
		}()
		<-h.held
		setNow(t, l)
		close(h.release)
		require.NoError(t, <-done)
		r, err := l.Peek(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(5), r.Limit)
		require.LessOrEqual(t, r.Remaining, int64(4), "what was granted since is not forgotten")
	})
}
