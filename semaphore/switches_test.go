package semaphore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// tripHook records how calls travel: pipelines of several scripts, and scripts that many permits share.
type tripHook struct{ pipelines, shared atomic.Int64 }

func (h *tripHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *tripHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.see(cmd)
		return next(ctx, cmd)
	}
}

func (h *tripHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		calls := 0
		for _, cmd := range cmds {
			calls += h.see(cmd)
		}
		if calls > 1 {
			h.pipelines.Add(1)
		}
		return next(ctx, cmds)
	}
}

func (h *tripHook) see(cmd redis.Cmder) (calls int) {
	if !strings.HasPrefix(cmd.Name(), "eval") {
		return 0
	}
	switch cmd.Args()[1] {
	case scripts.PermitsAcquire.SHA(), scripts.PermitsAcquire.Source(),
		scripts.PermitsRelease.SHA(), scripts.PermitsRelease.Source():
		h.shared.Add(1)
	}
	return 1
}

// Each way in which calls of several callers travel together can be switched off, and the calls succeed without it.
func TestOptions_SwitchesOff(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		opts              []semaphore.Option
		pipelines, shared bool
	}{
		"by default, calls share pipelines and scripts": {nil, true, true},
		"WithSharedScripts(false): a script has one semaphore": {
			[]semaphore.Option{semaphore.WithSharedScripts(false)}, true, false,
		},
		"WithBatching(false): a round trip has one call": {
			[]semaphore.Option{semaphore.WithBatching(false)}, false, false,
		},
		"the last option counts": {[]semaphore.Option{
			semaphore.WithBatching(false), semaphore.WithSharedScripts(false),
			semaphore.WithBatching(true), semaphore.WithSharedScripts(true),
		}, true, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const callers = 200
			rdb, h := redistest.Start(t).Client(t), &tripHook{}
			c := newClient(t, rdb, tt.opts...)
			rdb.AddHook(h)
			seen := func() bool {
				return (h.pipelines.Load() > 0 || !tt.pipelines) && (h.shared.Load() > 0 || !tt.shared)
			}
			ctx := within(t, testTimeout)
			for round := 0; round < 10 || !seen(); round++ {
				var all sync.WaitGroup
				for i := range callers {
					all.Go(func() {
						s := c.Semaphore(fmt.Sprintf("%s:%d", redistest.Name(t), i), semaphore.WithPermits(1))
						g, err := s.Acquire(context.Background(), 1)
						if err == nil {
							err = g.Release(context.Background())
						}
						if err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				require.NoError(t, ctx.Err())
			}
			require.Equal(t, tt.pipelines, h.pipelines.Load() > 0)
			require.Equal(t, tt.shared, h.shared.Load() > 0)
		})
	}
}
