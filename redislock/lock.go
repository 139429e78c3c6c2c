package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/renewal"
)

// unlockGrace is how long Unlock waits for Redis after its context has ended.
const unlockGrace = time.Second

// Lock is one hold of a lock. Lock and TryLock return it; it is safe for concurrent use, and its methods are harmless on a
// nil or zero Lock, which is not held.
type Lock struct {
	*request
	client *Client
	doubt  bool // a copy of the request may still be under way
	lease  *renewal.Lease
}

// Name returns the lock's name.
func (l *Lock) Name() string {
	if l == nil || l.request == nil {
		return ""
	}
	return l.name
}

// Done is closed when the lock is no longer held: lost, unlocked, or released by the Client's Close. A loss is announced
// before Redis can give the lock to another, also while Redis hangs, as long as this process gets to run and its clock
// differs from the server's by at most one percent in rate.
func (l *Lock) Done() <-chan struct{} {
	if !l.valid() {
		done := make(chan struct{})
		close(done)
		return done
	}
	return l.lease.Done()
}

// Err is nil while the lock is held. Then it is, for good, an error matching ErrLost, ErrNotHeld after Unlock, or ErrClosed.
func (l *Lock) Err() error {
	if !l.valid() {
		return ErrNotHeld
	}
	err := l.lease.Err()
	if errors.Is(err, renewal.ErrClosed) {
		return ErrClosed
	}
	return err
}

// Valid reports whether the lock is held at this instant as far as this process can know. It does not talk to Redis. Ask
// right before an effect that must not overlap with another holder's; only a check where the effect takes place closes the gap.
func (l *Lock) Valid() bool { return l.valid() && l.lease.Valid() }

// Deadline is the instant at which the lock is lost unless it is renewed before, counted from before the last
// request was sent and with the safety margin taken off.
func (l *Lock) Deadline() time.Time {
	if !l.valid() {
		return time.Time{}
	}
	return l.lease.Deadline()
}

// Context returns a context that ends with parent or with the lock; in the second case its context.Cause is the lock's Err.
// It needs no goroutine and no cancel function: it is released with the lock or its parent.
func (l *Lock) Context(parent context.Context) context.Context {
	if !l.valid() {
		ctx, cancel := context.WithCancelCause(parent)
		cancel(ErrNotHeld)
		return ctx
	}
	return l.lease.Context(parent)
}

// Unlock gives the lock back and wakes those who wait for it. Whatever it returns, the lock is no longer held: Done is
// closed and no renewal is sent any more. It blocks for one round trip.
//
// The release does not depend on ctx: it is sent even if ctx has ended, and Unlock then waits up to a second for
// the answer. If there is none, or Redis fails, the error says so and the release is retried in the background until it
// succeeds or the lease is over.
//
// The error matches ErrLost if the lock was lost before, ErrNotHeld if it was unlocked before, ErrClosed if the Client was
// closed. In none of these cases is the hold of another touched.
func (l *Lock) Unlock(ctx context.Context) error {
	if !l.valid() {
		return ErrNotHeld
	}
	if ctx == nil {
		return &InvalidError{Field: "context", Value: "nil", Reason: "must not be nil"}
	}
	c, deadline := l.client, l.lease.Deadline()
	if !l.lease.Close(ErrNotHeld) {
		return l.Err()
	}
	c.drop(l)
	if !c.gate.enter() {
		c.late.add(l.claim(), 0)
		return ErrClosed
	}
	defer c.gate.leave()

	patience, stop := c.patience(ctx)
	defer stop()
	r, answered := c.await(patience,
		func() reply {
			return c.run(l.kind.release(l.request))
		},
		func(r reply) {
			if r.Err() != nil || l.doubt {
				c.giveBack(l.claim(), l.doubt)
			}
		})
	if !answered {
		return fmt.Errorf("redislock: unlock %q: no answer yet, retrying in the background: %w", l.name, ended(ctx))
	}
	if err := r.Err(); err != nil {
		c.giveBack(l.claim(), l.doubt)
		return operationError("unlock", l.name, err)
	}
	if l.doubt {
		c.late.add(l.claim(), lateCopy)
	}
	released, err := r.Int64()
	switch {
	case err != nil:
		return operationError("unlock", l.name, err)
	case released == 1, r.doubt && time.Now().Before(deadline): // an unanswered first copy has released it
		return nil
	default:
		return fmt.Errorf("%w: %q was gone from Redis when it was unlocked", ErrLost, l.name)
	}
}

// patience is closed a while after ctx has ended.
func (c *Client) patience(ctx context.Context) (<-chan struct{}, func()) {
	if ctx.Done() == nil {
		return nil, func() {}
	}
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		if _, err := c.wheel.AfterFunc(unlockGrace, func() { close(over) }); err != nil {
			close(over)
		}
	})
	return over, func() { stop() }
}

// lost is called once if the lease ends without Unlock.
func (l *Lock) lost(err error) {
	c := l.client
	c.drop(l)
	var lost *renewal.LostError
	if !errors.As(err, &lost) || errors.Is(err, renewal.ErrGone) {
		return
	}
	// A renewal that was given up may still have been executed and keep the key for another lease that nobody uses.
	// Release it, but not before the time for which it was last promised to the holder: he may need it to stop.
	c.late.add(l.claim(), time.Until(lost.Due.Add(l.ttl/8)))
}

func (l *Lock) valid() bool { return l != nil && l.lease != nil }
