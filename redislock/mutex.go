package redislock

import (
	"context"
	"errors"
	"log/slog"
)

// Mutex is the lock of one name. It holds no state of its own: any number of Mutex values of one name, in any
// process, are the same lock. It is safe for concurrent use.
//
// A hold belongs to the *Lock that Lock or TryLock returned, not to a goroutine: a second Lock waits, also in the
// goroutine that holds the first.
type Mutex struct {
	client *Client
	kind   *kind
	name   string
	config lockConfig
	err    error // of the name or an option
}

// Name returns the name.
func (m *Mutex) Name() string { return m.name }

// TryLock takes the lock if it is free. It blocks for one round trip, at most until ctx ends. If another holds the lock, the error is
// a *LockedError with the remaining time, which matches ErrLocked; any other error means that nothing is known about
// the lock. After an error nothing is held: if a request was under way whose reply was never seen, the lock that it may
// have taken is released in the background.
func (m *Mutex) TryLock(ctx context.Context) (*Lock, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.client.gate.leave()
	return m.try(ctx, m.request(false))
}

// Lock takes the lock, waiting while another holds it. ctx bounds the wait only; the lock outlives it. When ctx ends
// first, the error matches ctx.Err() and, if another held the lock, ErrLocked. A failing Redis ends the wait with its error, after
// the retries that the client's options allow: whether to go on waiting is the caller's decision. After an error nothing is
// held, as with TryLock.
//
// While it waits, Lock costs one wheel entry and a share of one subscription. It looks again when the holder's unlock is
// announced, when the subscription had been interrupted, when the holder's lease runs out, and every few seconds in any case.
func (m *Mutex) Lock(ctx context.Context) (*Lock, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.client.gate.leave()
	req := m.request(true)
	l, err := m.try(ctx, req)
	var locked *LockedError
	if !errors.As(err, &locked) {
		return l, err
	}
	return m.wait(ctx, req, locked)
}

// Do runs f while holding the lock. The context that f gets ends with ctx, and with the cause ErrLost if the lock is lost; f
// should then stop. The lock is released when f returns, panics or ends its goroutine, also if ctx has ended.
//
// Do returns what Lock returned, or else what f returned, joined with ErrLost if the lock was lost before f was
// done. A release that fails is logged and retried in the background; it does not make f's work fail.
func (m *Mutex) Do(ctx context.Context, f func(context.Context) error) (err error) {
	if f == nil {
		return &InvalidError{Field: "function", Value: "nil", Reason: "must not be nil"}
	}
	l, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		switch unlocked := l.Unlock(ctx); {
		case unlocked == nil:
		case errors.Is(unlocked, ErrLost), errors.Is(unlocked, ErrClosed):
			err = errors.Join(err, unlocked)
		default:
			m.client.logger.LogAttrs(context.WithoutCancel(ctx), slog.LevelWarn, "release failed, retrying in the background",
				slog.String("name", m.name), slog.Any("error", unlocked))
		}
	}()
	return f(l.Context(ctx))
}

// begin checks the arguments and enters the gate.
func (m *Mutex) begin(ctx context.Context) error {
	switch {
	case m.err != nil:
		return m.err
	case ctx == nil:
		return &InvalidError{Field: "context", Value: "nil", Reason: "must not be nil"}
	case ctx.Err() != nil:
		return operationError("lock", m.name, ended(ctx))
	case !m.client.gate.enter():
		return ErrClosed
	}
	return nil
}
