package delay_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// The error of Close is one line, and names each cause once.
func TestClose_OnADeadClusterSaysEachCauseOnce(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for name, die := range map[string]func(*redistest.Server){"hangs": (*redistest.Server).Pause, "is down": (*redistest.Server).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t)
			c, err := delay.New(cluster.Client(t), delay.WithWheel(redistest.Wheel(t)))
			require.NoError(t, err)
			q := c.Queue(redistest.Name(t))
			err = q.Schedule(t.Context(), "task", 0, nil)
			require.NoError(t, err)
			begun, dead := make(chan struct{}), make(chan struct{})
			served := make(chan struct{})
			go func() {
				defer close(served)
				_ = q.Serve(t.Context(), 1, func(context.Context, *delay.Task) error {
					close(begun)
					<-dead
					return nil
				})
			}()
			<-begun
			for _, s := range cluster.Nodes() {
				die(s)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			closed := make(chan error, 1)
			go func() { closed <- c.Close(ctx) }()
			close(dead)
			err = <-closed
			t.Log(err)
			<-served
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotContains(t, err.Error(), "\n")
			require.Equal(t, 1, strings.Count(err.Error(), context.DeadlineExceeded.Error()), err.Error())
		})
	}
}
