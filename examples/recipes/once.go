package recipes

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Once runs job unless a job of that id has succeeded within the last day, in any process. The id names for example a
// message that a broker may deliver twice. While one process runs the job, the others wait. A nil error means that the
// job has succeeded, now or before. After an error the next call runs it again.
//
// If the process crashes, the next call waits until its lease has ended, at most 30 s, and runs the job. It does so too
// if the job had succeeded, and its mark was not set yet, or if Redis has lost the mark. So the job must tolerate a
// second run, for example by a unique key in a database.
//
// At SIGTERM, end ctx: the context of the job ends. A job that succeeds all the same gets its mark, and one that fails
// runs again at the next call. Close the client of the locks when Once has returned.
func Once(
	ctx context.Context, locks *redislock.Client, rdb redis.UniversalClient, id string, job func(context.Context) error,
) error {
	return locks.Mutex("job:"+id).Do(ctx, func(ctx context.Context) error {
		done, err := rdb.Exists(ctx, "job-done:"+id).Result()
		if err != nil || done == 1 {
			return err
		}
		if err := job(ctx); err != nil {
			return err
		}
		marking, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // ctx may have ended
		defer cancel()
		return rdb.Set(marking, "job-done:"+id, 1, 24*time.Hour).Err()
	})
}
