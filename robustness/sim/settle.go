package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// reserve reserves permits, waits for them, works, and settles. It cancels if it would wait for too long.
func (w *world) reserve(
	ctx context.Context, p *process, l limiter, o Op, a *activity, r *request, result *ratelimit.Result,
) {
	ctx = context.WithoutCancel(ctx) // so the judge of a bucket knows how far ahead it reserves
	var reservation *ratelimit.Reservation
	err := safely(func() (err error) { reservation, err = l.reserve(ctx); return err })
	leaves := err == nil && o.Patience > 0 && reservation.Delay() > o.Patience
	waited := err
	if err == nil && !leaves {
		waited = reservation.Wait(ctx)
	}
	if !p.awake() {
		return
	}
	w.mu.Lock()
	result.Allowed = err == nil
	w.returnedLocked(ctx, p, r, o, err, result)
	if waited == nil && !leaves {
		r.used = min(o.Used, o.N)
	}
	w.mu.Unlock()
	if waited != nil {
		return // a reservation stays charged
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if leaves {
		_ = safely(func() error { _, err := reservation.Cancel(ctx); return err })
		return
	}
	w.mu.Lock()
	delete(w.active, a)
	w.mu.Unlock()
	time.Sleep(o.Hold)
	w.mu.Lock()
	a.began, a.since = time.Now(), w.since()
	w.active[a] = struct{}{}
	w.mu.Unlock()
	w.settle(p, r, reservation, o.Used)
}

// settle settles a reservation. A debt of unknown outcome is sent again.
func (w *world) settle(p *process, r *request, reservation *ratelimit.Reservation, used int64) {
	for range 2 {
		if !p.awake() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		a := r.Ask
		a.N = max(0, used-r.N)
		w.mu.Lock()
		a.Called, a.Return, a.Granted, a.Unsure, a.Behind = w.stampLocked(), forever, false, a.N > 0, true
		r.debts = append(r.debts, &a)
		w.traceLocked(a.Called, fmt.Sprintf("process %d: settle #%d used %d of %d", p.number, r.ID, used, r.N))
		w.mu.Unlock()
		err := safely(func() error { return reservation.Settle(ctx, used) })
		if err == nil {
			err = safely(func() error { return reservation.Settle(ctx, 0) }) // which does nothing
		}
		cancel()
		if !p.awake() {
			return
		}
		w.mu.Lock()
		a.Return = w.stampLocked()
		var bounded *ratelimit.DebtError
		if errors.As(err, &bounded) {
			a.N = bounded.Booked
		}
		a.Granted = err == nil || bounded != nil
		a.Unsure = !a.Granted && a.N > 0
		w.traceLocked(a.Return, fmt.Sprintf("process %d: settled #%d: error %v", p.number, r.ID, err))
		w.mu.Unlock()
		if !a.Unsure {
			return
		}
	}
}

// safely calls f, and returns the panic of a hook as an error.
func safely(f func() error) (err error) {
	defer recovered(&err)
	return f()
}

// besideAReturn reports whether permits were given back shortly before the request was called, or since: a process may
// not have known of it, for as long as it denies by what it knows.
func (r *request) besideAReturn(about []execution) bool {
	since := r.Called - int64(time.Second) - windowRounding - r.Slack
	return slices.ContainsFunc(about, func(e execution) bool {
		return since <= e.at && e.at <= r.Return && len(e.givenBack()) > 0
	})
}

// settlements returns the debts of a reservation that were booked, and all of them as requests for one permit. It notes
// what was given back to a window.
func (r *request) settlements(kind string, about []execution) (booked, all []*check.Ask) {
	for _, debt := range r.debts {
		for _, e := range about {
			during := e.link == r.link && debt.Called <= e.at && e.at <= debt.Return
			if back := e.givenBack(); kind == windowKind && during && len(back) > 0 && back[0].n == r.N-r.used {
				r.Back = append(r.Back, check.Back{At: debt.Return, N: back[0].n})
			}
		}
		if debt.Granted {
			booked = append(booked, debt)
		}
		for range debt.N {
			one := *debt
			one.N, one.Least = 1, r.Limit
			all = append(all, &one)
		}
	}
	return booked, all
}
