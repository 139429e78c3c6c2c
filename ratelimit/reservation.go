package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/outage"
)

// Reservation is the right to use n permits from a certain time on. All n count as used until Settle or Cancel says
// how many were; a process that dies leaves them so. A Reservation is safe for concurrent use. A nil or zero
// Reservation is for no permits: its methods do nothing and return no error, except for an invalid argument.
type Reservation struct {
	made    *keys.State // the state that made it; by now the key may have another
	at      time.Time
	charges []charge

	used atomic.Bool   // Settle was called: Cancel must not give back what was used
	turn chan struct{} // has room for one settlement, which guards the charges and over
	over bool          // it is settled
}

// newReservation returns the Reservation of permits that may be used from a time on.
func newReservation(made *keys.State, at time.Time, charges ...charge) *Reservation {
	for i := range charges {
		charges[i].kept = charges[i].n
	}
	return &Reservation{made: made, at: at, charges: charges, turn: make(chan struct{}, 1)}
}

type reservationKey struct{}

// ContextWithReservation returns a copy of ctx with a Reservation for ReservationFromContext, such as that of the
// request that a handler serves. Middleware calls it; see httplimit.WithReservation.
func ContextWithReservation(ctx context.Context, r *Reservation) context.Context {
	return context.WithValue(ctx, reservationKey{}, r)
}

// ReservationFromContext returns the Reservation of the last ContextWithReservation, or nil, which is for no permits. A
// context has one, whatever the limiter: that of inner middleware hides that of outer middleware.
func ReservationFromContext(ctx context.Context) *Reservation {
	r, _ := ctx.Value(reservationKey{}).(*Reservation)
	return r
}

// charge is what one limit has granted of a reservation.
type charge struct {
	algo.Span
	id        keys.ID
	algorithm algo.Algorithm
	part      Part  // of an All
	n         int64 // permits that were reserved
	debt      int64 // permits that a settlement may charge above a whole burst; for a log it is the rate

	kept    int64 // permits that are accounted for: what no return may have given back, and debts
	booked  int64 // permits of a debt that were charged
	missing int64 // permits of a debt that were not charged, because that was more than debt allows
	settled bool  // the limit has answered, or there was nothing to ask

	// Of a return that was sent and not answered, so that it may have been made:
	failed error // nil if there is none
	sent   *keys.Job
	before int64 // kept, if it was not made
}

// chargeOf returns a charge of n permits of the key's one limit.
func chargeOf(s *keys.State, made algo.Span, n, debt int64) charge {
	return charge{Span: made, id: s.ID, algorithm: s.Algorithm, n: n, debt: debt}
}

// Delay returns the time from now until the permits may be used, or 0 if they may be used now.
func (r *Reservation) Delay() time.Duration {
	if r == nil || r.made == nil {
		return 0
	}
	return max(0, r.at.Sub(r.made.Keys.Wheel.Now()))
}

// Wait blocks until the permits may be used. If ctx ends first, Wait returns its error and the reservation
// stays in force; Cancel gives it back. Wait takes no notice of Cancel. If the wheel is stopped, the error
// matches wheel.ErrStopped.
func (r *Reservation) Wait(ctx context.Context) error {
	switch {
	case ctx == nil:
		return argument.Nil("context")
	case r == nil || r.made == nil:
		return nil
	}
	return r.made.OperationError("wait", wheelentry.Sleep(ctx, r.made.Keys.Wheel, r.Delay()))
}

// Cancel is Settle of 0 permits. Call it only if nothing was used. It returns true if permits were given back to the
// count of a limit; beside a debt nobody may be able to use them yet. After a call of Settle, even one that failed, it
// does nothing and returns false, so it can be deferred. It blocks and fails as Settle does; after a failed Cancel both
// can be called again.
func (r *Reservation) Cancel(ctx context.Context) (bool, error) {
	if ctx == nil {
		return false, argument.Nil("context")
	}
	if r == nil || r.made == nil || r.used.Load() {
		return false, nil
	}
	return r.settle(ctx, opCancel, make([]int64, len(r.charges)))
}

// Settle ends the reservation when the work is done and its cost is known: used is the number of permits that were
// used, 0 or more. For an All it is a number for each part, in their order, each in permits of that part:
//
//	r, err := limits.All(tokens.Part(user).Cost(2000), requests.Part(user)).TryReserve(ctx, 1)
//	...
//	err = r.Reservation.Settle(ctx, 700, 1) // 1300 tokens are given back, and no request
//
// If less was used than was reserved, the rest is given back, except permits that have become available meanwhile: by
// themselves, within Burst/Rate periods of the Limit (with SlidingWindow, two) from when they could be used, or by a
// reset of the limit. So longer calls get nothing back; docs/ratelimit-settle.md says how to reserve for them. If more
// was used, Redis charges the difference as a debt, for which later requests wait, as far as WithDebt allows; beyond
// that the error is a *DebtError.
//
// Settle blocks for one round trip, after those of concurrent calls, at most until ctx ends or the time of WithTimeout
// has passed. The context of an HTTP or gRPC request may have ended by then: use context.WithoutCancel.
//
// After a call that returned nil or a *DebtError, further calls of Settle and Cancel do nothing and return nil, also
// after Client.Close. After another error Settle can be called again, with the same number or another one. A debt may
// be charged twice, but nothing is given back twice: a return that may have been made is sent again only for a
// StoredLimiter, where the second one does nothing; otherwise Settle returns that error again, and the permits may stay
// charged. docs/ratelimit-settle.md has the cases.
//
// No policy decides. The errors are a *cogwheel.InvalidError for a nil ctx, a negative number, or more or fewer numbers
// than there are limits, which settles nothing, so that the estimate stays charged; a *DebtError; and errors that match
// ErrUnavailable, ErrMisconfigured, ErrWrongKind, ErrClosed, the error of ctx, or, for the debt of a StoredLimiter
// without a limit, ErrNotSet. On a nil or zero Reservation any number of values is valid, and Settle returns nil.
func (r *Reservation) Settle(ctx context.Context, used ...int64) error {
	if r != nil {
		r.used.Store(true) // a deferred Cancel must not give back what a refused call was to settle
	}
	if ctx == nil {
		return argument.Nil("context")
	}
	for _, n := range used {
		if n < 0 {
			return argument.Error("used", n, "must not be negative")
		}
	}
	if r == nil || r.made == nil {
		return nil
	}
	if n := len(r.charges); len(used) != n {
		return argument.Error("used", used, fmt.Sprintf("must have %d values: one for each limit", n))
	}
	_, err := r.settle(ctx, "settle", used)
	return err
}

const opCancel = "cancel" // the operation in errors of Cancel

// debtRepeat is the time after which a debt is sent again that Redis did not answer.
const debtRepeat = 10 * time.Millisecond

// settle reports whether permits were given back.
func (r *Reservation) settle(ctx context.Context, operation string, used []int64) (given bool, err error) {
	c := r.made.Keys
	began := c.Now()
	if err := r.lock(ctx); err != nil {
		return false, r.made.OperationError(operation, err)
	}
	defer r.unlock()
	if operation == opCancel && r.used.Load() {
		return false, nil // a Settle came first
	}
	for {
		returned, again, err := r.settleOnce(ctx, began, used)
		given = given || returned
		if again = again && beforeRepeat(ctx, c, began); !again {
			return given, r.made.OperationError(operation, err)
		}
	}
}

// beforeRepeat waits until a debt is to be sent again, and reports whether there is time for that.
func beforeRepeat(ctx context.Context, c *keys.Keys, began time.Duration) bool {
	pause, cancel := c.Wheel.WithTimeout(ctx, debtRepeat) // also if the wheel is stopped
	defer cancel()
	<-pause.Done()
	return ctx.Err() == nil && c.Now()-began < c.Timeout-debtRepeat
}

// lock waits until no other call settles r, at most for the timeout. If err is nil, the caller must unlock.
func (r *Reservation) lock(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		return nil
	default:
	}
	c := r.made.Keys
	limit, cancel := c.Wheel.WithTimeout(ctx, c.Timeout)
	defer cancel()
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-limit.Done():
	}
	if ctx.Err() != nil {
		return conventions.Cause(ctx)
	}
	return keys.Unavailable(outage.ErrTimeout)
}

func (r *Reservation) unlock() { <-r.turn }

// settleOnce sends a script for each charge that is not settled, and waits for the replies. A debt that was not
// charged in full by each limit is a DebtError. again means that a debt was not answered.
func (r *Reservation) settleOnce(
	ctx context.Context, began time.Duration, used []int64,
) (given, again bool, err error) {
	if r.over {
		return false, false, nil
	}
	type settlement struct {
		*charge
		used int64
		job  *keys.Job
	}
	var sent []settlement
	for i := range r.charges {
		c := &r.charges[i]
		a, failed := c.settlement(used[i])
		if failed != nil {
			err = failed
		}
		if !a.Settles() {
			continue
		}
		if failed := r.overdue(ctx, began); failed != nil {
			err = failed
			continue
		}
		s := r.made.Keys.Use(c.id, c.algorithm)
		defer s.Release()
		j, failed := s.NewCallerJob(ctx, began, algo.Request{}, a, false)
		if failed != nil {
			err = failed
			continue
		}
		s.Send(j)
		sent = append(sent, settlement{c, used[i], j})
	}
	for _, s := range sent {
		failed := s.job.Wait(ctx)
		if failed = s.answered(s.job, s.used, failed); failed != nil {
			err = failed
			again = again || s.job.Debt > 0 && errors.Is(failed, ErrUnavailable)
			continue
		}
		given = s.job.Given() || given
	}
	if given {
		r.made.FreedAll()
	}
	if err != nil {
		return given, again, err
	}
	r.over = true
	return given, false, r.debtError()
}

// debtError returns a *DebtError if some limit did not charge all of a debt, or nil.
func (r *Reservation) debtError() error {
	var e DebtError
	for _, c := range r.charges {
		if c.part.limiter != nil {
			e.Parts = append(e.Parts, PartDebt{c.part.Name(), c.part.key, c.booked, c.missing})
		}
		if e.Dropped == 0 {
			e.Booked, e.Dropped = c.booked, c.missing
		}
	}
	if e.Dropped == 0 {
		return nil
	}
	return &e
}

// overdue returns an error if a call that began at some time has no time left to ask Redis.
func (r *Reservation) overdue(ctx context.Context, began time.Duration) error {
	c := r.made.Keys
	switch {
	case ctx.Err() != nil:
		return conventions.Cause(ctx)
	case c.Now()-began >= c.Timeout:
		return keys.Unavailable(outage.ErrTimeout)
	}
	return nil
}

// settlement asks for what a settlement charges or gives back if so many permits were used. It settles nothing if there
// is nothing to ask. The error is that of an earlier return which may not be sent again.
func (c *charge) settlement(used int64) (algo.Settlement, error) {
	if c.failed != nil && c.sent.Undone() { // this may be known by now
		c.kept, c.failed = c.before, nil
	}
	entries := c.algorithm.Traits().Entries
	switch extra := used - c.kept; {
	case extra > 0:
		limit := int64(2 * MaxRate) // no state takes more
		if entries {
			limit = MaxRate
		}
		return algo.Settlement{Debt: min(extra, limit), Most: c.debt}, nil
	case c.settled:
		return algo.Settlement{}, nil
	case c.failed != nil && !entries:
		// A part of an entry can be given back again, which does nothing. Others would be given back twice.
		return algo.Settlement{}, fmt.Errorf("a return was not answered: %w", c.failed)
	case c.N > 0 && used < c.n:
		part := c.Span
		c.algorithm.Skip(&part, part.N-(c.n-used))
		return algo.Settlement{Back: []algo.Span{part}}, nil
	}
	c.settled = true
	return algo.Settlement{}, nil
}

// answered notes the outcome of a settlement that failed with err or has an answer, and returns its error.
func (c *charge) answered(j *keys.Job, used int64, err error) error {
	isReturn := j.Debt == 0
	if isReturn && errors.Is(err, ErrNotSet) {
		err = nil // there is nothing to give back to
	}
	if isReturn && (err == nil || !j.Undone()) {
		c.failed, c.sent, c.before = err, j, c.kept
		c.kept = min(c.kept, used)
	}
	if err != nil {
		return err
	}
	if !isReturn {
		booked := j.Got.Booked
		c.booked, c.missing = c.booked+booked, c.missing+max(0, used-c.kept-booked)
		c.kept, c.failed = used, nil
	}
	c.settled = true
	return nil
}

// tryReserve is decide for permits that can be settled. charges are those of the limits, with the spans of n permits.
func tryReserve(ctx context.Context, s *keys.State, n int64, charges ...charge) (Result, error) {
	d, charged, err := s.DecideToSettle(ctx, n)
	r := resultOf(&d)
	if n == 0 && err == nil {
		r.Allowed, r.RetryAfter = true, 0
	}
	for i, found := range charged {
		charges[i].Span = found
	}
	if err == nil && r.Allowed && r.Source != SourceDegraded {
		r.Reservation = reservationOf(s, charges...)
	}
	return r, s.OperationError(opReserve, err)
}

// reservationOf returns a Reservation of permits that may be used now.
func reservationOf(s *keys.State, charges ...charge) *Reservation {
	return newReservation(s, s.Keys.Wheel.Now(), charges...)
}

// reserve makes a reservation at most as far ahead as ctx allows. debt is as in charge.
func (c *Client) reserve(ctx context.Context, s *keys.State, of subject, debt int64) (*Reservation, error) {
	began := c.start()
	made, err := reserveWithin(ctx, s, of.n, debt)
	err = s.OperationError(opReserve, err)
	r := Result{Allowed: err == nil}
	if made != nil {
		r.Granted = of.n
	}
	c.report(ctx, of, &r, err, began)
	return made, err
}

func reserveWithin(ctx context.Context, s *keys.State, n, debt int64) (*Reservation, error) {
	if ctx.Err() != nil {
		return nil, conventions.Cause(ctx)
	}
	if err := s.Keys.Enter(); err != nil {
		return nil, err
	}
	defer s.Keys.Leave()
	if n == 0 {
		return reservationOf(s, chargeOf(s, algo.Span{}, 0, debt)), nil
	}
	ahead := keys.MaxReserve
	if deadline, ok := ctx.Deadline(); ok {
		ahead = max(0, min(ahead, deadline.Sub(conventions.Now())))
	}
	found, err := s.ReserveInRedis(ctx, n, ahead)
	if err != nil {
		return nil, err
	}
	at := s.Keys.Clock.Time(found.From)
	return newReservation(s, at, chargeOf(s, *found, n, debt)), nil
}
