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
	r.WouldDeny = !r.Allowed || r.Granted < n
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

// shadowParts tells which parts of an All have WithShadow.
type shadowParts struct {
	every bool   // all of them
	some  *All   // if not all: those that have it
	which []bool // if not all: whether the part in this place has it
}

// splitParts returns the parts that have WithShadow, and those that have not.
func splitParts(parts []Part) (shadow, enforced []Part, which []bool) {
	for _, p := range parts {
		which = append(which, p.limiter.shadow)
		if p.limiter.shadow {
			shadow = append(shadow, p)
		} else {
			enforced = append(enforced, p)
		}
	}
	return shadow, enforced, which
}

// pass returns the result of a call for the decision on n requests.
func (a *All) pass(ctx context.Context, n int64, r Result, err error) (Result, error) {
	if !a.shadow.every {
		return r, err
	}
	undecided := err != nil || !r.Allowed && r.Parts == nil
	if r, err = passed(ctx, n, r, err); err != nil {
		return r, err
	}
	if r.Parts = slices.Clone(r.Parts); undecided { // a clone, because a hook may have kept the decision
		r.Parts = make([]Result, len(a.parts.IDs))
	}
	for i := range r.Parts {
		r.Parts[i].Allowed, r.Parts[i].WouldDeny = true, !r.Parts[i].Allowed
	}
	return r, nil
}

// addShadow asks the parts with WithShadow if the others granted n requests, and adds their decisions to the
// result. It does not ask them about a request that is refused. failed is the error with which they would have refused
// the request; an error that the caller caused is ignored, because the permits of the others are taken.
func (a *All) addShadow(
	ctx context.Context, operation string, n int64, r Result, ask func(*All, *keys.State) (Result, error),
) (_ Result, failed error) {
	var shadow []Result
	if r.Allowed {
		of, err := a.shadow.some.decide(ctx, operation, n, ask)
		if of, caused := a.shadow.some.pass(ctx, n, of, err); caused == nil {
			r.WouldDeny, shadow, failed = of.WouldDeny, of.Parts, err
		}
		if of.Reservation != nil && r.Reservation != nil {
			r.Reservation.charges = append(r.Reservation.charges, of.Reservation.charges...)
			r.Reservation.shadow = of.Reservation.made
		}
	}
	enforced := r.Parts
	r.Parts = make([]Result, len(a.shadow.which))
	for i, inShadow := range a.shadow.which {
		from := &enforced
		if inShadow {
			from = &shadow
		}
		r.Parts[i] = Result{Allowed: true, Source: SourceLocal} // if it was not asked
		if len(*from) > 0 {
			r.Parts[i], *from = (*from)[0], (*from)[1:]
		}
	}
	return r, failed
}
