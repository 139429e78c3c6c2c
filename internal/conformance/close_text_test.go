package conformance_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// closers hold what Close has to give back on the nodes of a cluster, and return how to close.
var closers = map[string]func(t *testing.T, rdb redis.UniversalClient) (closing func(context.Context) error){
	"redislock": func(t *testing.T, rdb redis.UniversalClient) func(context.Context) error {
		c, err := redislock.New(rdb, redislock.WithWheel(redistest.Wheel(t)))
		require.NoError(t, err)
		for i := range 8 {
			require.NoError(t, second(c.Mutex(fmt.Sprint(redistest.Name(t), i)).TryLock(t.Context())))
		}
		return c.Close
	},
	"semaphore": func(t *testing.T, rdb redis.UniversalClient) func(context.Context) error {
		c, err := semaphore.New(rdb, semaphore.WithWheel(redistest.Wheel(t)))
		require.NoError(t, err)
		for i := range 8 {
			s := c.Semaphore(fmt.Sprint(redistest.Name(t), i), 1)
			require.NoError(t, second(s.TryAcquire(t.Context(), 1)))
		}
		return c.Close
	},
	"delay": func(t *testing.T, rdb redis.UniversalClient) func(context.Context) error {
		c, err := delay.New(rdb, delay.WithWheel(redistest.Wheel(t)))
		require.NoError(t, err)
		q := c.Queue(redistest.Name(t))
		require.NoError(t, q.Schedule(t.Context(), "task", 0, nil))
		begun, ends, served := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(served)
			_ = q.Serve(t.Context(), 1, func(context.Context, *delay.Task) error {
				close(begun)
				<-ends
				return nil
			})
		}()
		<-begun
		return func(ctx context.Context) error {
			close(ends)
			err := c.Close(ctx)
			<-served
			return err
		}
	},
}

// The error of Close is one line, and names each cause once.
func TestClose_OnADeadClusterSaysEachCauseOnce(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for name, die := range map[string]func(*redistest.Server){"hangs": (*redistest.Server).Pause, "is down": (*redistest.Server).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t)
			closing := map[string]func(context.Context) error{}
			for pkg, hold := range closers {
				closing[pkg] = hold(t, cluster.Client(t))
			}
			for _, s := range cluster.Nodes() {
				die(s)
			}
			for pkg, closing := range closing {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				err := closing(ctx)
				cancel()
				t.Log(pkg, err)
				require.ErrorIs(t, err, context.DeadlineExceeded, pkg)
				require.NotContains(t, err.Error(), "\n")
				require.Equal(t, 1, strings.Count(err.Error(), context.DeadlineExceeded.Error()), err.Error())
			}
		})
	}
}
