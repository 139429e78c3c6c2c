// Package jobs is code of a service that holds locks and permits, asks a limiter and schedules tasks. Its tests run
// without Redis; docs/testing.md explains them.
package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Restock does work on the stock of an item while no other process does. The context of work ends if the lock is
// lost; then the error matches redislock.ErrLost.
func Restock(ctx context.Context, locks *redislock.Client, item string, work func(context.Context) error) error {
	return locks.Mutex("stock:"+item).Do(ctx, work)
}

// ErrTooMany is the error of a user that asks too often.
var ErrTooMany = errors.New("jobs: too many requests")

// Greet greets a user, as often as the limit allows.
func Greet(ctx context.Context, users *ratelimit.Limiter, user string) (string, error) {
	r, err := users.Allow(ctx, user)
	if err != nil {
		return "", err
	}
	if !r.Allowed {
		return "", fmt.Errorf("%w: try again in %v", ErrTooMany, r.RetryAfter.Round(time.Second))
	}
	return "hello " + user, nil
}

// Export writes a file while it holds one of the permits for exports. The context of write ends if the permit is
// lost; then the error matches semaphore.ErrLost.
func Export(ctx context.Context, exports *semaphore.Semaphore, write func(context.Context) error) error {
	return exports.Do(ctx, 1, write)
}

// Remind lets a user get a reminder in half an hour.
func Remind(ctx context.Context, reminders *delay.Queue, user string) error {
	return reminders.Schedule(ctx, user, 30*time.Minute, nil)
}

// SendReminders sends the reminders that are due until ctx ends. One that could not be sent is sent again.
func SendReminders(ctx context.Context, reminders *delay.Queue, send func(user string) error) error {
	return reminders.Serve(ctx, 4, func(_ context.Context, t *delay.Task) error { return send(t.ID) })
}
