// Package jobs is code of a service that holds locks and permits and asks a limiter. Its tests run without Redis;
// docs/testing.md explains them.
package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

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
