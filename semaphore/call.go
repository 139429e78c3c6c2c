package semaphore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// admit checks the context of a call and enters the gate. After a nil error the caller must leave the gate.
func (c *Client) admit(ctx context.Context, operation, name string) error {
	switch {
	case ctx == nil:
		return argument.Nil("context")
	case ctx.Err() != nil:
		return operationError(operation, name, conventions.Cause(ctx))
	case !c.gate.Enter():
		return operationError(operation, name, ErrClosed)
	}
	return nil
}

// call sends a script for one caller. It returns when ctx ends; a script that was not sent by then is never sent.
func (c *Client) call(
	ctx context.Context, operation, name string, build func() scripts.Call,
) (redisconn.Reply, error) {
	return c.do(ctx, operation, calls.Request{Key: name, Build: build})
}

// do is call for any request. Its Key is the name.
func (c *Client) do(ctx context.Context, operation string, request calls.Request) (redisconn.Reply, error) {
	name := request.Key
	if err := c.admit(ctx, operation, name); err != nil {
		return redisconn.Reply{}, err
	}
	defer c.gate.Leave()
	r, answered := c.redis.Sender.Do(ctx, request)
	if !answered {
		return r, operationError(operation, name, conventions.Cause(ctx))
	}
	if err := r.Err(); err != nil {
		return r, operationError(operation, name, err)
	}
	return r, nil
}

// deleteKeys deletes a semaphore and reports whether its permits were set.
func (c *Client) deleteKeys(ctx context.Context, name, permits, channel string, others ...string) (bool, error) {
	keys := append([]string{permits, c.recordKey(name)}, others...)
	r, err := c.call(ctx, "delete", name, func() scripts.Call {
		return scripts.SemDelete.Call(keys, c.redis.Channels.Verb(), channel, recordMillis)
	})
	if err != nil {
		return false, err
	}
	existed, err := r.Flag()
	if err != nil {
		return false, operationError("delete", name, err)
	}
	return existed, nil
}

// acquireFunc queues a request and returns. It calls f once, with the result that settle makes of the outcome.
// If cancel ends the wait, the outcome is an error that matches context.Canceled, and report is called before
// f. The caller has entered the gate; acquireFunc leaves it before it calls f.
func acquireFunc[T, R any](
	ctx context.Context, c *Client, q *waitqueue.Group[string, T], name string, request T,
	settle func(error) (R, error), report func(R, error), f func(R, error),
) (cancel func()) {
	end := func(err error) {
		result, err := settle(err)
		report(result, err)
		c.gate.Leave()
		c.monitor.callback(func() { f(result, err) })
	}
	stop := q.WaitFunc(ctx, name, request, func(_ T, err error) { end(acquireError(ctx, name, err)) })
	return func() {
		if stop() {
			go end(operationError("acquire", name, context.Canceled))
		}
	}
}

// acquireError adds the operation and the cause to an error of ctx that a queue returned, and the name to an
// error of a request that does not wait. Other errors have both already.
func acquireError(ctx context.Context, name string, err error) error {
	if err != nil && err == ctx.Err() { //nolint:errorlint // only the bare error of the queue
		return operationError("acquire", name, conventions.Cause(ctx))
	}
	if err == ErrClosed { //nolint:errorlint // only the bare error of the queue
		return operationError("acquire", name, err)
	}
	if errors.Is(err, waitqueue.ErrNotServed) {
		return fmt.Errorf("%w: %s", ErrNoPermits, scripts.Quote(name))
	}
	return err
}

// migrationPause is the pause after an attempt that a migrating slot has refused.
const migrationPause = 100 * time.Millisecond

// goOn decides what follows an attempt that has failed. Calls that wait go on through the migration of a slot, and
// through an outage once Redis has found too few permits for one of them. A refused login is endured by those for which
// it has, and by those that came after one of them, but before the login was refused: for as long as a lease lasts by
// default. goOn fails the other calls with err and returns them. again is the pause before the next attempt.
func goOn[T any](
	c *Client, batch []*waitqueue.Waiter[T], of func(*T) *acquisition, r redisconn.Reply, err error,
) (failed []*waitqueue.Waiter[T], again time.Duration) {
	migrating, login := redisconn.Migrating(r.Err()), redisconn.IsLoginRefused(r.Err())
	now := c.wheel.Now()
	begun, until := false, now // those that came until then wait behind one that has begun
	for _, w := range batch {
		a := of(&w.Value)
		if since := a.trouble.Refused(); !since.IsZero() && since.Before(until) {
			until = since
		}
		begun = begun || w.Waits() && (a.contended || !a.trouble.Refused().IsZero())
	}
	for _, w := range batch {
		a := of(&w.Value)
		goesOn := begun && (!login || a.contended || !c.monitor.clock.Time(a.began).After(until))
		switch {
		case migrating && w.Waits():
			again = migrationPause
		case w.Waits() && goesOn && a.trouble.Endures(r.Err(), now, DefaultLease):
			again = max(again, a.trouble.Pause(c.poll/5, c.poll))
		default:
			w.Fail(err)
			failed = append(failed, w)
		}
	}
	if again > 0 && !migrating {
		c.monitor.repeated(r.Err())
	}
	return failed, again
}
