package redislock

import (
	"context"
	"errors"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
)

// Mutex is the lock of one name. It has no state of its own: any number of Mutex values of one name, in any
// process, are the same lock. It is safe for concurrent use.
//
// A hold belongs to the *Lock that Lock or TryLock returned, not to a goroutine. A second Lock waits, also on
// the goroutine that holds the first, unless both calls have the same Owner.
type Mutex struct {
	client *Client
	kind   *kind
	name   string
	config *sharedConfig
	err    error // of the name or an option
}

// Name returns the name.
func (m *Mutex) Name() string { return m.name }

// Err returns the *cogwheel.InvalidError of a bad name or option, which every method returns too, or nil.
func (m *Mutex) Err() error { return m.err }

// TryLock takes the lock if it is free. It does not wait its turn: it may overtake callers that wait in Lock.
// It blocks for one round trip, at most until ctx ends.
//
// If the lock is held, the error is a *LockedError with the remaining time, which matches ErrLocked. After
// any other error the caller holds nothing, and whether the lock is free is unknown; what Redis may have
// granted is released in the background.
func (m *Mutex) TryLock(ctx context.Context) (*Lock, error) {
	if l, err := m.beginOrReenter(ctx); l != nil || err != nil {
		return l, err
	}
	c := m.client
	defer c.gate.Leave()
	a := m.newAcquisition(ctx, false)
	err, answered := gate.Call[error]{
		Begin: a.begin,
		Do: func() (err error) {
			a.lock, err = a.ask(ctx.Done())
			return err
		},
		Late: func(err error) {
			if err == nil {
				a.lock.discard()
			}
		},
	}.Await(&c.gate, ctx.Done())
	if !answered {
		err = ctx.Err()
	} else if locked, ok := errors.AsType[*LockedError](err); ok {
		c.monitor.contended(ctx, m.kind, locked, a.took())
	}
	return m.finish(ctx, a, err)
}

// Lock takes the lock, waiting while another holds it. ctx bounds the wait only; the lock outlives it. When
// ctx ends first, the error matches ctx.Err() and, if another held the lock, ErrLocked. If Redis cannot be
// reached, Lock fails after the retries that the client's options allow. Once Redis has told it to wait, it
// waits through outages, failovers and a lack of replicas, and only a refusal, such as for a key of another
// type, ends the wait. After an error nothing is held, as with TryLock.
//
// Callers of one Client with equal lock options form a queue, in order of arrival; queues of different
// options compete. Only the first of a queue asks Redis: when an unlock is announced, after an interruption
// of the subscription, when the holder's lease runs out, and at its poll (see WithPoll). A lock that is
// unlocked while callers of its queue wait goes to the next of them directly, within the bounds of
// WithHandoff. While it waits, Lock costs a share of one wheel entry and one subscription.
func (m *Mutex) Lock(ctx context.Context) (*Lock, error) {
	if l, err := m.beginOrReenter(ctx); l != nil || err != nil {
		return l, err
	}
	defer m.client.gate.Leave()
	a, key := m.enqueue(ctx)
	_, err := m.client.queues.Wait(ctx, key, a)
	return m.finish(ctx, a, err)
}

// LockFunc is Lock without a goroutine while it waits. It returns at once, and f is called exactly once, on a
// goroutine of its own, with what Lock would have returned. cancel ends the wait: f is called with an error
// that matches context.Canceled. cancel does not wait for f. It does nothing once the lock is granted or the
// wait has failed, and need not be called then. LockFunc panics with a *cogwheel.InvalidError if f is nil.
func (m *Mutex) LockFunc(ctx context.Context, f func(*Lock, error)) (cancel func()) {
	mustCall(f == nil)
	if l, err := m.beginOrReenter(ctx); l != nil || err != nil {
		go f(l, err)
		return func() {}
	}
	a, key := m.enqueue(ctx)
	drop := m.client.queues.WaitFunc(ctx, key, a, func(_ *acquisition, err error) {
		l, err := m.finish(ctx, a, err)
		m.client.gate.Leave()
		f(l, err)
	})
	return func() {
		if drop() {
			err := operationError("lock", m.name, context.Canceled)
			m.client.monitor.failed(ctx, m.kind, m.name, a.took(), err)
			m.client.gate.Leave()
			go f(nil, err)
		}
	}
}

// Do calls f while it holds the lock. The context of f ends with ctx, or when the lock is lost: then its
// cause matches ErrLost, and f should return. The lock is released when f returns, panics or ends its
// goroutine, also if ctx has ended. A panic goes on to the caller.
//
// Do returns the error of Lock, a *cogwheel.InvalidError if f is nil, or the error of f, joined with ErrLost
// if the lock was lost, or with ErrClosed if the Client was closed, before f returned. A release that fails
// is logged and retried in the background; it is no error of Do.
func (m *Mutex) Do(ctx context.Context, f func(context.Context) error) error {
	return do(ctx, m.client.logger, m.Lock, f)
}

// begin checks the arguments and enters the gate.
func (m *Mutex) begin(ctx context.Context) error {
	return admit(ctx, &m.client.gate, m.name, m.err)
}

// beginOrReenter begins a call for the lock, which enters the gate, or returns another Lock on a hold of the
// context's owner.
func (m *Mutex) beginOrReenter(ctx context.Context) (*Lock, error) {
	c := m.client
	if err := m.begin(ctx); err != nil {
		c.monitor.refused(ctx, &c.gate, m.kind, m.name, err)
		return nil, err
	}
	l, err := m.reenter(ctx)
	if err != nil {
		c.monitor.failed(ctx, m.kind, m.name, 0, err)
	}
	if l != nil || err != nil {
		c.gate.Leave()
	}
	return l, err
}

// finish turns the outcome of an acquisition into what the caller gets.
func (m *Mutex) finish(ctx context.Context, a *acquisition, err error) (*Lock, error) {
	monitor, took := &m.client.monitor, a.took()
	if err == nil {
		l := a.lock
		if l.handedOver && !a.contended {
			monitor.contended(ctx, m.kind, &LockedError{Name: m.name}, took)
		}
		m.client.limit(l)
		monitor.acquired(ctx, l, took)
		return ownerOf(ctx).took(l), nil
	}
	if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrLocked) {
		if ctx.Err() != nil {
			if errors.Is(err, ctx.Err()) {
				err = contexts.Error(ctx)
			}
			err = waitEnded(err, a.refusal.Load())
		}
		err = operationError("lock", m.name, err)
	}
	monitor.failed(ctx, m.kind, m.name, took, err)
	return nil, err
}
