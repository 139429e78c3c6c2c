package recipes_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/examples/recipes"
)

// All tasks fail again at once, and are more than one page of FailedTasks.
func TestRetryAll_RetriesEachTaskOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const tasks = 120
		server := cogwheeltest.Start(t)
		q, attempts := process(t, server).Queue("webhooks"), make(chan string, 10*tasks)
		for i := range tasks {
			require.NoError(t, q.Schedule(t.Context(), fmt.Sprint(i), 0, nil))
		}
		serving(t, func(ctx context.Context) error {
			return q.Serve(ctx, 4, func(_ context.Context, task *delay.Task) error {
				attempts <- task.ID
				return delay.Fail(errors.New("the receiver is down"))
			})
		})
		time.Sleep(time.Minute)
		require.Len(t, attempts, tasks)
		retried, err := recipes.RetryAll(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, tasks, retried)
		time.Sleep(time.Minute)
		require.Len(t, attempts, 2*tasks)
	})
}

func TestRetryAll_LeavesTheRestAtSIGTERM(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		q := process(t, server).Queue("webhooks")
		require.NoError(t, q.Schedule(t.Context(), "7", 0, nil))
		ctx, sigterm := context.WithCancel(t.Context())
		err := q.Serve(ctx, 1, func(context.Context, *delay.Task) error { sigterm(); return delay.Fail(errors.New("failed")) })
		require.NoError(t, err)
		retried, err := recipes.RetryAll(ctx, q)
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, retried)
		retried, err = recipes.RetryAll(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, 1, retried)
	})
}
