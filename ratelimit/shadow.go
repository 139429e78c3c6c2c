package ratelimit

import (
	"context"
	"errors"
	"slices"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
)

// WithShadow acts here, between the decisions and the callers. What decides does not know of it.

// passes reports whether WithShadow lets a request pass whose decision failed with err: not if the caller ended
// the call, or made it with invalid arguments or after Close.
func passes(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, ErrClosed), errors.Is(err, cogwheel.ErrInvalid):
		return false
	}
	return errors.Is(err, ErrUnavailable) || !conventions.Caused(ctx, err)
}

// passed returns the result of a call under WithShadow for the limit's decision on n permits.
func passed(ctx context.Context, n int64, r Result, err error) (Result, error) {
	if err != nil {
		if !passes(ctx, err) {
			return r, err
		}
		r = Result{Source: r.Source}
	}
	r.Shadow, r.WouldDeny = true, !r.Allowed || r.Granted < n
	r.Allowed, r.Granted = true, n
	return r, nil
}

// askOnce asks for the permits of a wait, at least one, without waiting for them.
func (c *Client) askOnce(ctx context.Context, s *keys.State, of subject) error {
	began := c.start()
	r, err := result(s.Decide(ctx, of.n))
	err = s.OperationError("wait", err)
	c.report(ctx, of, &r, err, began)
	if err != nil && !passes(ctx, err) {
		return err
	}
	return nil
}

// askOnceFunc is askOnce for WaitFunc. It releases the state.
func (c *Client) askOnceFunc(ctx context.Context, s *keys.State, of subject, f func(error)) (cancel func()) {
	if err := c.core.Enter(); err != nil {
		s.Release()
		return c.refuse(f, s.OperationError("wait", err))
	}
	ctx, cancel = context.WithCancel(ctx)
	go func() {
		var err error
		c.apart(func() { err = c.askOnce(ctx, s, of) })
		cancel()
		s.Release()
		c.core.Leave()
		c.callback(f, err)
	}()
	return cancel
}

// pass returns the result of a call for the decision on n requests.
func (a *All) pass(ctx context.Context, n int64, r Result, err error) (Result, error) {
	if !a.shadow {
		return r, err
	}
	undecided := err != nil || !r.Allowed && r.Parts == nil
	if r, err = passed(ctx, n, r, err); err != nil {
		return r, err
	}
	if r.Parts = slices.Clone(r.Parts); undecided { // a clone, because a hook may have kept the decision
		r.Parts = make([]Result, len(a.of))
		a.nameParts(&r)
	}
	for i := range r.Parts {
		p := &r.Parts[i]
		p.Shadow, p.Allowed, p.WouldDeny = true, true, !p.Allowed
	}
	return r, nil
}
