package semaphore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// begin checks the context of a call and enters the gate. After a nil error the caller must leave the gate.
func (c *Client) begin(ctx context.Context, operation, name string) error {
	switch {
	case ctx == nil:
		return argument.Nil("context")
	case ctx.Err() != nil:
		return operationError(operation, name, contexts.Error(ctx))
	case !c.gate.Enter():
		return ErrClosed
	}
	return nil
}

// call runs a script for one caller. It returns when ctx ends.
func (c *Client) call(
	ctx context.Context, operation, name string, s *scripts.Script, keys []string, args ...any,
) (redisconn.Reply, error) {
	return c.await(ctx, operation, name, func() redisconn.Reply { return c.run(ctx.Done(), s, keys, args...) })
}

// await returns the reply of f, or an error when ctx ends. f runs on the caller's goroutine if ctx cannot
// end. It must end by timeouts of its own.
func (c *Client) await(
	ctx context.Context, operation, name string, f func() redisconn.Reply,
) (redisconn.Reply, error) {
	if err := c.begin(ctx, operation, name); err != nil {
		return redisconn.Reply{}, err
	}
	result := make(chan redisconn.Reply, 1)
	work := func() {
		defer c.gate.Leave()
		result <- f()
	}
	if ctx.Done() == nil {
		work()
	} else {
		c.gate.Workers.Go(work)
	}
	select {
	case r := <-result:
		if err := r.Err(); err != nil {
			return r, operationError(operation, name, err)
		}
		return r, nil
	case <-ctx.Done():
		return redisconn.Reply{}, operationError(operation, name, contexts.Error(ctx))
	}
}

// deleteKeys deletes a semaphore and reports whether its permits were set. The processes that wait for a fair one
// have channels of their own.
func (c *Client) deleteKeys(
	ctx context.Context, name, permits, channel string, fair bool, others ...string,
) (bool, error) {
	ownChannels := 0
	if fair {
		ownChannels = 1
	}
	keys := append([]string{permits, c.recordKey(name)}, others...)
	r, err := c.call(ctx, "delete", name, scripts.SemDelete, keys, publishVerb, channel, recordMillis, ownChannels)
	if err != nil {
		return false, err
	}
	existed, err := r.Flag()
	if err != nil {
		return false, operationError("delete", name, err)
	}
	return existed, nil
}

// publishVerb stands, among the arguments of a script, for PUBLISH or SPUBLISH.
var publishVerb verb

type verb struct{}

// run executes an idempotent script. It retries as often as the options of the client say, until ended is
// closed. It blocks until an answer or the last failure; the timeouts of the client bound each try.
func (c *Client) run(ended <-chan struct{}, s *scripts.Script, keys []string, args ...any) redisconn.Reply {
	if at := slices.Index(args, any(publishVerb)); at >= 0 {
		c.channels.Decide()
		args[at] = c.channels.Verb()
	}
	return c.sender.Run(s.Call(keys, args...), ended)
}

// acquireFunc queues a request and returns. It calls f once, with what finish returns for the outcome,
// which is an error that matches context.Canceled if cancel ends the wait. The caller has entered the gate;
// acquireFunc leaves it when finish has returned.
func acquireFunc[T, R any](
	ctx context.Context, c *Client, q *waitqueue.Group[string, T], name string, request T,
	finish func(error) (R, error), f func(R, error),
) (cancel func()) {
	stop := q.WaitFunc(ctx, name, request, func(_ T, err error) {
		result, err := finish(acquireError(ctx, name, err))
		c.gate.Leave()
		f(result, err)
	})
	return func() {
		if stop() {
			result, err := finish(operationError("acquire", name, context.Canceled))
			c.gate.Leave()
			go f(result, err)
		}
	}
}

// acquireError adds the operation and the cause to an error of ctx that a queue returned, and the name to that
// of a request that does not wait. Other errors have both.
func acquireError(ctx context.Context, name string, err error) error {
	if err != nil && err == ctx.Err() { //nolint:errorlint // only the bare error of the queue
		return operationError("acquire", name, contexts.Error(ctx))
	}
	if errors.Is(err, waitqueue.ErrNotServed) {
		return fmt.Errorf("%w: %s", ErrNoPermits, scripts.Quote(name))
	}
	return err
}

// awaitMigration ends an attempt that a migrating slot has refused. It fails the requests that do not wait
// and returns the pause after which the others try again.
func awaitMigration[T any](batch []*waitqueue.Waiter[T], err error) (again time.Duration) {
	for _, w := range batch {
		if !w.Waits() {
			w.Fail(err)
		}
	}
	return 100 * time.Millisecond
}
