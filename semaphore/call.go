package semaphore

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// verb stands, among the arguments of a script, for the command that wakes waiters.
type verb struct{}

var publish verb

// run executes a script that is idempotent, and retries what may succeed on a second try as often as the client's options
// say, unless ended is closed. It blocks until an answer or the last failure, each attempt within the client's own timeouts.
func (c *Client) run(ended <-chan struct{}, s *scripts.Script, keys []string, args ...any) calls.Reply {
	if at := slices.Index(args, any(publish)); at >= 0 {
		c.channels.Decide()
		args[at] = c.channels.Verb()
	}
	return calls.Retry(c.wheel, c.base, c.retries, ended, func() (*redis.Cmd, time.Time) {
		sentAt := time.Now()
		return s.RunOnce(context.Background(), c.rdb, keys, args...), sentAt
	})
}

// wait has the waiters of an attempt that a migrating slot has prevented look again soon, and fails those that do not wait.
func wait[T any](batch []*waitqueue.Waiter[T], err error) (again time.Duration) {
	for _, w := range batch {
		if !w.Waits() {
			w.Fail(err)
		}
	}
	return 100 * time.Millisecond
}

// call runs a script for one caller, who is let go when ctx ends.
func (c *Client) call(ctx context.Context, operation, name string, s *scripts.Script, keys []string, args ...any) (calls.Reply, error) {
	return c.await(ctx, operation, name, func() calls.Reply { return c.run(ctx.Done(), s, keys, args...) })
}

// await runs f, on a goroutine of its own if ctx can end before f does, which its own timeouts end. It checks what every call checks.
func (c *Client) await(ctx context.Context, operation, name string, f func() calls.Reply) (calls.Reply, error) {
	if err := c.begin(ctx, operation, name); err != nil {
		return calls.Reply{}, err
	}
	result := make(chan calls.Reply, 1)
	work := func() {
		defer c.gate.Leave()
		result <- f()
	}
	if ctx.Done() == nil {
		work()
	} else {
		go work()
	}
	select {
	case r := <-result:
		if err := r.Err(); err != nil {
			return r, operationError(operation, name, err)
		}
		return r, nil
	case <-ctx.Done():
		return calls.Reply{}, operationError(operation, name, calls.Ended(ctx))
	}
}

// begin checks the context and enters the gate.
func (c *Client) begin(ctx context.Context, operation, name string) error {
	switch {
	case ctx == nil:
		return argument.Nil("context")
	case ctx.Err() != nil:
		return operationError(operation, name, calls.Ended(ctx))
	case !c.gate.Enter():
		return ErrClosed
	}
	return nil
}
