// Package hold has what a Lock of redislock and a Grant of semaphore have in common: a lease in Redis, an end that is
// announced and reported once, and a release that is repeated until Redis has confirmed it or the lease has ended.
package hold

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Client is what the holds of a Client share.
type Client struct {
	Wheel   *wheel.Wheel
	Gate    *gate.Gate
	Lost    error // what the end of a hold that was lost matches
	NotHeld error // the reason for the end of a hold that was released
	Closed  error // the reason for the end of a hold by the Close of the Client
}

// Held is a hold as its package knows it. The Hold calls these methods at its end, and no mutex is locked meanwhile.
type Held interface {
	Drop()                            // removes the hold from those that the Client has
	Report(end error)                 // reports the end, once, to the counts and the hooks
	ReleaseLater(delay time.Duration) // releases it in the background
}

// Hold is a lease in Redis, and its end. It is safe for concurrent use.
type Hold struct {
	*renewal.Lease // has Done, Valid, Deadline, Context and Close, which ends it here and not in Redis
	Client         *Client
	longest        Longest // extension that was asked for
}

// Err returns nil while the hold lasts, and why it has ended afterwards.
func (h *Hold) Err() error {
	err := h.Lease.Err()
	if errors.Is(err, renewal.ErrClosed) {
		return h.Client.Closed
	}
	return err
}

// Longest is the longest time that was reported. The zero value is 0. It is safe for concurrent use.
type Longest struct{ ns atomic.Int64 }

// Raise reports a time.
func (l *Longest) Raise(d time.Duration) {
	for old := l.ns.Load(); int64(d) > old && !l.ns.CompareAndSwap(old, int64(d)); old = l.ns.Load() {
	}
}

// Load returns the longest time so far.
func (l *Longest) Load() time.Duration { return time.Duration(l.ns.Load()) }

// MayLast notes that the hold may last in Redis for d from now.
func (h *Hold) MayLast(d time.Duration) { h.longest.Raise(d) }

// Longest returns how long the hold may last in Redis from now, or 0 if that is its lease.
func (h *Hold) Longest() time.Duration { return h.longest.Load() }

// Extend makes the hold last for at least d from now. send asks Redis, and returns whether Redis still has the hold and
// when the request was sent.
func (h *Hold) Extend(d time.Duration, send func() (held bool, sentAt time.Time, err error)) error {
	h.MayLast(d) // before the check: a release ends the lease before it reads how long the hold may last
	if err := h.Err(); err != nil {
		return err
	}
	held, sentAt, err := send()
	switch {
	case err != nil:
		return err
	case held:
		h.Prolong(sentAt, d)
	default:
		h.MarkLost()
	}
	return h.Err()
}

// Release ends the hold because its holder gives it back. free frees it in Redis. Release returns the error of free, or
// why the hold had ended before.
func (h *Hold) Release(held Held, free func() error) error {
	c := h.Client
	if !c.Gate.Enter() { // Close releases it
		if err := h.Err(); err != nil {
			return err
		}
		return c.Closed
	}
	defer c.Gate.Leave()
	if !h.Close(c.NotHeld) {
		err := h.Err()
		if errors.Is(err, renewal.ErrUnwatched) { // nothing else frees it before Close
			_ = free()
		}
		return err
	}
	held.Drop()
	var err error
	defer func() { held.Report(err) }() // also if a hook of the redis client ends the goroutine
	err = free()
	return err
}

// LostBefore reports whether a release that has found nothing in Redis means that the hold was lost before: the release
// began at an instant when the hold should have lasted, and no copy of it has freed the hold.
func (h *Hold) LostBefore(began time.Time, ambiguous bool) bool {
	deadline := h.Deadline()
	return !began.Before(deadline) || !ambiguous && h.Client.Wheel.Now().Before(deadline)
}

// End ends the hold without its holder, and frees it in the background after a delay. It reports whether it did: if the
// hold has ended before, or the Client is being closed, which ends all holds, it does nothing.
func (h *Hold) End(held Held, reason error, delay time.Duration) bool {
	if !h.Client.Gate.Enter() {
		return false
	}
	defer h.Client.Gate.Leave()
	return h.EndInside(held, reason, delay)
}

// EndInside is End for a caller that has entered the gate, and for Close.
func (h *Hold) EndInside(held Held, reason error, delay time.Duration) bool {
	if !h.Close(reason) {
		return false
	}
	held.Drop()
	held.ReleaseLater(delay)
	held.Report(reason)
	return true
}

// Lost is the OnLost of the lease, whose TTL is ttl.
func (h *Hold) Lost(held Held, ttl time.Duration, err error) {
	if lost, is := errors.AsType[*renewal.LostError](err); is && !errors.Is(err, renewal.ErrGone) {
		// A renewal without a reply may have executed and keep the hold for another lease. Free it, but not before the
		// former holder has had the time to stop that its lease promised.
		held.ReleaseLater(lost.Due.Add(Grace(ttl)).Sub(h.Client.Wheel.Now()))
	}
	if h.Client.Gate.Enter() { // else Close reports the end
		defer h.Client.Gate.Leave()
		held.Drop()
		held.Report(err)
	}
}

// Grace returns how long after the end of a hold against the will of its holder the hold is freed: the holder needs
// time to stop.
func Grace(ttl time.Duration) time.Duration { return ttl / 8 }

// Reported is what the counts and the hooks know of a hold. The zero value is a hold that they do not know. It is safe
// for concurrent use.
type Reported struct {
	mu    sync.Mutex // locked while a renewal is reported
	phase phase
}

type phase uint8

const (
	pending   phase = iota // not yet returned to its caller, and may never be
	announced              // returned to its caller
	over                   // ended
)

// Announced marks the hold as returned to its caller. It returns false if the hold has ended; then the caller reports
// the end.
func (r *Reported) Announced() (lasts bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != pending {
		return false
	}
	r.phase = announced
	return true
}

// Renewed calls report, which reports a renewal, unless the hold has ended. Over waits for its return.
func (r *Reported) Renewed(report func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != over {
		report()
	}
}

// Over marks the hold as ended. It returns true if the caller must report the end: once, and only for an announced
// hold. The end of a hold that is announced later is reported after the announcement.
func (r *Reported) Over() (report bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	report = r.phase == announced
	r.phase = over
	return report
}

// releaseGrace is how long a release waits for its reply after its context has ended.
const releaseGrace = time.Second

// AwaitRelease calls wait, which blocks until a release is answered or a channel is closed, and reports whether it is
// answered. The channel is that of ctx, and then one that is closed a second after the end of ctx, or at once if w is
// stopped.
func AwaitRelease(ctx context.Context, w *wheel.Wheel, wait func(end <-chan struct{}) bool) (answered bool) {
	if wait(ctx.Done()) {
		return true
	}
	over := make(chan struct{})
	timer, err := wheelentry.AfterFunc(w, releaseGrace, func(error) { close(over) })
	if err != nil {
		close(over)
	}
	defer timer.Stop()
	return wait(over)
}

// Name is under what a context has the handle of a hold. Names of different sorts are those of different objects.
type Name struct{ Sort, Name string }

// handleOf is the key under which a context has the handle of the hold of that name.
type handleOf[T any] Name

// With returns a context that has the handle of a hold, such as a Lock, under the name of the hold.
func With[T any](ctx context.Context, name Name, handle *T) context.Context {
	return context.WithValue(ctx, handleOf[T](name), handle)
}

// From returns the innermost handle that With has put into ctx under the name, or nil.
func From[T any](ctx context.Context, name Name) *T {
	handle, _ := ctx.Value(handleOf[T](name)).(*T)
	return handle
}
