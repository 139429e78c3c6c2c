package redislock

import (
	"context"
	"errors"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/hold"
)

// Mutex is the lock of one name. It has no state of its own: all Mutex values of one name, in any process, are
// the same lock. It is safe for concurrent use.
//
// A hold belongs to the *Lock that Lock or TryLock returned, not to a goroutine. A second Lock waits, also on
// the goroutine that holds the first, unless both calls have the same Owner.
type Mutex struct {
	kind   *kind
	name   string
	config *sharedConfig
}

func (m *Mutex) client() *Client { return m.config.client }

// Name returns the name of the lock.
func (m *Mutex) Name() string { return m.name }

// Err returns the *cogwheel.InvalidError of an invalid name or option, or nil. All other methods return it too.
func (m *Mutex) Err() error { return m.config.err }

// TryLock takes the lock if it is free. It does not queue, so it may overtake callers that wait in Lock, unless the
// lock is kept for one of them, which it is for up to 50 ms. It blocks for one round trip, at most until ctx ends.
//
// If the lock is held, the error is a *LockedError with the remaining time; it matches ErrLocked. After any
// other error the caller holds nothing and does not know whether the lock is free; the Client releases in the
// background whatever Redis may have granted.
func (m *Mutex) TryLock(ctx context.Context) (*Lock, error) { return handleOf(m.tryLock(ctx)) }

// tryLock is TryLock.
func (m *Mutex) tryLock(ctx context.Context) (part, error) {
	if reentered, err := m.enterOrReenter(ctx); reentered != nil || err != nil {
		return reentered, err
	}
	c := m.client()
	defer c.gate.Leave()
	a := m.newAcquisition(ctx, false)
	h, answered, err := a.ask(ctx)
	if a.held = h; !answered {
		err = ctx.Err()
	} else if locked, ok := errors.AsType[*LockedError](err); ok {
		c.monitor.contended(ctx, m.kind, locked, a.took())
	}
	return m.finish(ctx, a, err)
}

// Lock takes the lock, and waits while another caller holds it. ctx bounds only the wait: the lock outlives
// ctx. If ctx ends first, the error matches ctx.Err() and, if the lock was held, ErrLocked. If Redis cannot be
// reached, Lock fails after the retries that the options of rdb allow. Once Redis has answered that the lock is
// held, Lock waits through outages, failovers and a lack of replicas, and for a lease through a refused login, as
// while a password is rotated. Then only a refusal, such as ErrWrongKind, or replies that take longer than the
// lease (see WithLease) end the wait early. After an error nothing is held, as with TryLock.
//
// Callers of one Client with equal lock options form a queue, in order of arrival. The queues of all processes
// stand in a line in Redis, in the order in which the first caller of each came, and an unlock wakes the first of
// them. Callers that come later do not overtake it once it has waited for 4 ms. Only the first caller in a queue
// asks Redis: when it is woken, after an interruption of the subscription, when the holder's lease ends if its
// queue is one of the first two, and at its poll (see WithPoll). A lock that is unlocked while callers in its queue
// wait goes directly to the next of them, within the bounds of WithHandoff. All waiters of a lock share one wheel
// entry and one subscription.
func (m *Mutex) Lock(ctx context.Context) (*Lock, error) { return handleOf(m.lock(ctx, false)) }

// lock is Lock. It returns a *held, or an *entry for a context with an Owner.
func (m *Mutex) lock(ctx context.Context, begun bool) (part, error) {
	if reentered, err := m.enterOrReenter(ctx); reentered != nil || err != nil {
		return reentered, err
	}
	defer m.client().gate.Leave()
	a, key := m.enqueue(ctx, begun)
	_, err := m.client().queues.Wait(ctx, key, a)
	return m.finish(ctx, a, err)
}

// LockFunc is Lock without blocking. It calls f exactly once, on a new goroutine, with the results that Lock
// would return. No goroutine runs while the call waits.
//
// cancel ends the wait: f is then called with an error that matches context.Canceled. cancel does not wait for
// f. Once the lock is granted or the wait has failed, cancel does nothing and need not be called. A panic of f
// is logged. LockFunc panics with a *cogwheel.InvalidError if f is nil.
func (m *Mutex) LockFunc(ctx context.Context, f func(*Lock, error)) (cancel func()) {
	argument.MustCall(f == nil)
	return m.lockFunc(ctx, false, func(p part, err error) { f(handleOf(p, err)) })
}

// lockFunc is LockFunc.
func (m *Mutex) lockFunc(ctx context.Context, begun bool, f func(part, error)) (cancel func()) {
	if reentered, err := m.enterOrReenter(ctx); reentered != nil || err != nil {
		go m.client().monitor.callback(func() { f(reentered, err) })
		return func() {}
	}
	a, key := m.enqueue(ctx, begun)
	drop := m.client().queues.WaitFunc(ctx, key, a, func(_ *acquisition, err error) {
		p, err := m.finish(ctx, a, err)
		m.client().gate.Leave()
		m.client().monitor.callback(func() { f(p, err) })
	})
	return func() {
		if drop() {
			err := operationError("lock", m.name, context.Canceled)
			m.client().monitor.failed(ctx, m.kind, m.name, a.took(), err)
			m.client().gate.Leave()
			go m.client().monitor.callback(func() { f(nil, err) })
		}
	}
}

// Do calls f while it holds the lock. The context of f ends with ctx, or when the lock is lost: then its cause
// matches ErrLost, and f should return. FromContext returns the Lock, for Valid and Token. The lock is released
// when f returns, panics or ends its goroutine, also if ctx has ended. A panic goes on to the caller.
//
// Do blocks as Lock does, and then until f has returned. It returns the error of Lock, a *cogwheel.InvalidError if f is
// nil, or the error of f. If the lock was lost, or the Client was closed, before f returned, the error also matches
// ErrLost or ErrClosed, even if f returned nil. ErrLost does not say whether the work of f took effect: f may have
// ended before it learned of the loss. Lock may return these two as well: to know whether f was called, let f set a
// variable. A release that fails is logged and retried in the background; it is no error of Do.
func (m *Mutex) Do(ctx context.Context, f func(context.Context) error) error {
	return do(ctx, m.client(), m.Lock, f)
}

// FromContext returns the Lock of this Mutex whose Do, Lead or Context made ctx or an ancestor of ctx; the innermost if
// there are several. So a function deep in the call stack can get the fencing token of the hold. The name decides: a
// Lock of another Mutex value of this name counts, of whatever options, kind or Client, even of another Redis. For the
// readers' side of an RWMutex it may be the Lock of the writer, who may read too, but not the other way round.
//
// FromContext returns nil if ctx has no such Lock: outside of Do, or for a Mutex of another name, a MultiMutex or a
// QuorumMutex. A nil Lock is not held, and its Token is 0, which is none. The Lock may be lost or unlocked by now;
// see Lock.Valid. FromContext does not block, and does not talk to Redis.
func (m *Mutex) FromContext(ctx context.Context) *Lock {
	l := hold.From[Lock](ctx, hold.Name{Sort: single, Name: m.name})
	if l != nil && m.kind == writing && l.body.known().kind() == reading {
		return nil
	}
	return l
}

// enter checks the arguments and enters the gate.
func (m *Mutex) enter(ctx context.Context) error {
	return admit(ctx, &m.client().gate, m.name, m.config.err)
}

// enterOrReenter enters the gate for a call, or returns another entry of a hold of the context's Owner.
func (m *Mutex) enterOrReenter(ctx context.Context) (part, error) {
	c := m.client()
	if err := m.enter(ctx); err != nil {
		c.monitor.refused(ctx, &c.gate, m.kind, m.name, err)
		return nil, err
	}
	reentered, err := m.reenter(ctx)
	if err != nil {
		c.monitor.failed(ctx, m.kind, m.name, 0, err)
	}
	if reentered != nil || err != nil {
		c.gate.Leave()
	}
	return reentered, err
}

// finish turns the outcome of an acquisition into the results for its caller.
func (m *Mutex) finish(ctx context.Context, a *acquisition, err error) (part, error) {
	monitor, took := &m.client().monitor, a.took()
	if err == nil {
		h := a.held
		if h.handedOver && !a.contended {
			monitor.contended(ctx, m.kind, &LockedError{Name: m.name}, took)
		}
		m.client().limit(h, h.mutex.config.maxHold)
		monitor.acquired(ctx, h, took)
		return ownerOf(ctx).register(h), nil
	}
	switch {
	case errors.Is(err, ErrClosed):
		err = named("lock", m.name, err)
	case !errors.Is(err, ErrLocked):
		if ctx.Err() != nil {
			if errors.Is(err, ctx.Err()) {
				err = conventions.Cause(ctx)
			}
			err = waitEnded(err, a.refusal.Load())
		}
		err = operationError("lock", m.name, err)
	}
	monitor.failed(ctx, m.kind, m.name, took, err)
	return nil, err
}
