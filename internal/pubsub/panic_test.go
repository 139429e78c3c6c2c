package pubsub_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// fails is a hook of go-redis that fails a number of times.
type fails struct {
	left atomic.Int32
	fail func()
}

func (f *fails) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *fails) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.left.Add(-1) >= 0 {
			f.fail()
		}
		return next(ctx, cmd)
	}
}

func (f *fails) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A hook of the redis client sees how a connection is set up.
func TestHub_ConnectsAgainAfterAHookThatFails(t *testing.T) {
	t.Parallel()
	for how, fail := range map[string]func(){"panics": func() { panic("a hook panics") }, "exits": runtime.Goexit} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Shared(t).Client(t)
			hook := &fails{fail: fail}
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
		})
	}
}
