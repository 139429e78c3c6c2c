package pubsub_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// panics is a hook of go-redis that panics a number of times.
type panics struct{ left atomic.Int32 }

func (p *panics) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *panics) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if p.left.Add(-1) >= 0 {
			panic("a hook panics")
		}
		return next(ctx, cmd)
	}
}

func (p *panics) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A hook of the redis client sees how a connection is set up.
func TestHub_ConnectsAgainAfterAHookThatPanics(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t)
	hook := new(panics)
	hook.left.Store(2)
	rdb.AddHook(hook)
	h := pubsub.New(rdb, redistest.Wheel(t))
	redistest.CloseWith(t, h.Close)
	woken := make(chan struct{}, 16)
	sub := h.Subscribe(redistest.Name(t), func() { woken <- struct{}{} })
	defer sub.Close()
	select {
	case <-woken: // after the confirmation
	case <-redistest.Within(t, redistest.Patience).Done():
		t.Fatal("not subscribed")
	}
	require.Negative(t, hook.left.Load())
}
