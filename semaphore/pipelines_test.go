package semaphore_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// pipelineHook counts pipelines of several scripts, and loses the replies of one.
type pipelineHook struct {
	shared, lost atomic.Int64
	loses        bool
}

func (h *pipelineHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *pipelineHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *pipelineHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if len(cmds) < 2 || cmds[0].Name() != "evalsha" { // a new connection has a pipeline of its own
			return err
		}
		if n := h.shared.Add(1); !h.loses || n != 6 {
			return err
		}
		h.lost.Add(1)
		for _, cmd := range cmds {
			cmd.SetErr(io.EOF)
		}
		return io.EOF
	}
}

// Concurrent calls on many semaphores share pipelines. If the replies of one are lost, each of its calls is
// repeated, and takes effect once.
func TestPipelines(t *testing.T) {
	t.Parallel()
	for what, loses := range map[string]bool{"are answered": false, "lose replies": true} {
		t.Run("that "+what, func(t *testing.T) {
			t.Parallel()
			const semaphores, least = 32, 12
			rdb := redistest.Start(t).Client(t)
			for _, s := range scripts.All() {
				require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
			}
			c, h := newClient(t, rdb), &pipelineHook{loses: loses}
			rdb.AddHook(h)
			ctx, done := within(t, testTimeout), make(chan error, 2*semaphores)
			var plain []*semaphore.Semaphore
			var counting []*semaphore.CountingSemaphore
			for i := range semaphores {
				plain = append(plain, c.Semaphore(fmt.Sprint("plain", i), 0))
				counting = append(counting, c.CountingSemaphore(fmt.Sprint("counting", i)))
				mustSetPermits(t, plain[i], 2)
				mustSetPermits(t, counting[i], 2)
			}
			// Each goes on until pipelines were shared, and lost if that is wanted.
			goesOn := func(n int) bool { return n < 2 || h.shared.Load() < least && ctx.Err() == nil }
			var running sync.WaitGroup
			for i := range semaphores {
				running.Go(func() {
					var err error
					for n := 0; err == nil && goesOn(n); n++ {
						var g *semaphore.Grant
						if g, err = plain[i].Acquire(ctx, 2); err == nil {
							err = g.Release(ctx)
						}
					}
					done <- err
				})
				running.Go(func() {
					var err error
					for n := 0; err == nil && goesOn(n); n++ {
						if err = counting[i].Acquire(ctx, 2); err == nil {
							err = counting[i].Release(ctx, 2)
						}
					}
					done <- err
				})
			}
			running.Wait()
			close(done)
			for err := range done {
				require.NoError(t, err)
			}
			require.GreaterOrEqual(t, h.shared.Load(), int64(least))
			require.Equal(t, loses, h.lost.Load() > 0)
			for i := range semaphores {
				require.EqualValues(t, 2, available(t, plain[i]), "%v", plain[i].Name())
				require.EqualValues(t, 2, available(t, counting[i]), "%v", counting[i].Name())
			}
		})
	}
}
