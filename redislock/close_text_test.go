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

// The error of Close is one line, and names each cause once.
func TestClose_OnADeadClusterSaysEachCauseOnce(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for name, die := range map[string]func(*redistest.Server){"hangs": (*redistest.Server).Pause, "is down": (*redistest.Server).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t)
			c, err := redislock.New(cluster.Client(t), redislock.WithWheel(newWheel(t)))
			require.NoError(t, err)
			for range 8 {
				mustTryLock(t, c.Mutex(redistest.Name(t)))
			}
			for _, s := range cluster.Nodes() {
				die(s)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err = c.Close(ctx)
			t.Log(err)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotContains(t, err.Error(), "\n")
			require.Equal(t, 1, strings.Count(err.Error(), context.DeadlineExceeded.Error()), err.Error())
		})
	}
}
