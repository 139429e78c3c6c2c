package recipes

import (
	"context"

	"github.com/cogwheel-go/cogwheel/delay"
)

// RetryAll retries the failed tasks of a queue, for example when the receiver of its webhooks works again, and returns
// how many. They are due at once, with as many attempts as new tasks. A task that fails again meanwhile is not retried a
// second time: a loop over FailedTasks that retries would not end while tasks fail as fast as it goes.
//
// After a crash, or if ctx ends as at SIGTERM, the tasks that are left have failed as before: call RetryAll again. Those
// that were retried run in any process that serves the queue. In a shell, `cogwheel tasks retry --all NAME` does this.
func RetryAll(ctx context.Context, q *delay.Queue) (retried int, err error) {
	var ids []string // the queue keeps at most those of delay.WithMaxFailed
	for task, err := range q.FailedTasks(ctx) {
		if err != nil {
			return 0, err
		}
		ids = append(ids, task.ID)
	}
	for _, id := range ids {
		changed, err := q.RetryFailed(ctx, id)
		if err != nil {
			return retried, err
		}
		if changed { // and not deleted, scheduled or retried by another process
			retried++
		}
	}
	return retried, nil
}
