package redislock

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// held is a lock in Redis from its grant to its end. It implements part and hold.Held.
type held struct {
	identity
	hold.Hold
	lock         Lock          // for its caller
	askedAt      time.Duration // when the request that Redis granted was sent, by the clock of the Client
	handoffsLeft int16         // how many handoffs are left
	handedOver   bool          // from another hold of this process
	ambiguous    bool          // a copy of the request may still be in flight
}

// newHeld returns the hold of a request that Redis has granted. startLease must follow.
func (c *Client) newHeld(of claim, ambiguous bool) *held {
	h := &held{identity: identity{claim: of}, Hold: hold.Hold{Client: &c.holding}, ambiguous: ambiguous}
	h.lock.body = h
	return h
}

// handle implements body.
func (h *held) handle() *Lock { return &h.lock }

// known implements body.
func (i *identity) known() *identity { return i }

// Drop implements hold.Held.
func (h *held) Drop() { h.client().drop(h) }

// Report implements hold.Held.
func (h *held) Report(end error) { h.client().monitor.ended(&h.identity, end) }

// ReleaseLater implements hold.Held.
func (h *held) ReleaseLater(delay time.Duration) {
	lasts := max(h.ttl(), h.Longest()) // all requests for it were sent before
	h.client().cleanup.Add(pendingRelease{claim: &h.claim}, delay, lasts, h.ambiguous)
}

// extend implements body.
func (h *held) extend(ctx context.Context, d time.Duration) error {
	c := h.client()
	if !c.gate.Enter() {
		return ErrClosed
	}
	defer c.gate.Leave()
	c.longest.Raise(d)
	return h.Extend(d, func() (bool, time.Time, error) {
		r, answered := c.redis.Sender.Do(ctx, calls.Request{Key: h.name(), Build: func() scripts.Call {
			return h.kind().renew.Call(h.kind().keysToRenew(h.name(), h.id), h.id, redisconn.Millis(d))
		}})
		if !answered {
			return false, r.SentAt, operationError("extend", h.name(), conventions.Cause(ctx))
		}
		is, err := r.Flags(1)
		if err != nil {
			return false, r.SentAt, operationError("extend", h.name(), err)
		}
		return is[0], r.SentAt, nil
	})
}

// unlock implements body.
func (h *held) unlock(ctx context.Context) error {
	return h.Hold.Release(h, func() error {
		if h.handOver() {
			return nil
		}
		return h.free(ctx)
	})
}

// free frees the key of a lock that is no longer held.
func (h *held) free(ctx context.Context) error {
	began := h.client().wheel.Now()
	r, answered := h.sendRelease(ctx)
	if !answered {
		return unconfirmed(h.name(), conventions.Cause(ctx))
	}
	released, _, err := readRelease(&r)
	switch {
	case redisconn.WrongKind(err):
		return lostBefore("unlock", h.name(), err)
	case err != nil:
		h.ReleaseLater(0)
		if redisconn.Permanent(err) {
			return operationError("unlock", h.name(), err)
		}
		return unconfirmed(h.name(), err)
	}
	if h.ambiguous {
		h.ReleaseLater(cleanup.LateCopy)
	}
	if !released && h.LostBefore(began, r.Ambiguous) {
		return lostBefore("unlock", h.name(), errGone)
	}
	return nil
}

// readRelease reads the reply of a release. yields means that waiters which are not in the line have the next turn.
func readRelease(r *redisconn.Reply) (released, yields bool, err error) {
	n, err := r.Integer()
	if err == nil && n != 0 && n != 1 && n != 3 {
		err = r.Unexpected()
	}
	return err == nil && n > 0, err == nil && n == 3, err
}

// sendRelease sends the release and waits for the reply, until a second after the end of ctx. If there is none by then,
// the release goes on in the background. It does not queue behind other releases, as those of semaphore do, which share
// scripts: a lock has one holder.
func (h *held) sendRelease(ctx context.Context) (r redisconn.Reply, answered bool) {
	c := h.client()
	p := c.redis.Sender.Start(ctx, calls.Request{
		Key:   h.name(),
		Must:  true,
		Build: func() scripts.Call { return h.kind().release(&h.claim) },
		Late: func(r redisconn.Reply) {
			h.wakeNext(r)
			if r.Err() != nil || h.ambiguous {
				h.ReleaseLater(0)
			}
		},
	})
	if !hold.AwaitRelease(ctx, c.wheel, p.Wait) && !p.Leave() {
		return r, false
	}
	r = p.Reply()
	h.wakeNext(r)
	return r, true
}

// wakeNext wakes the waiters of this process that found the lock taken during its release. Those of other processes
// have their turn by the line; those that are in none, for a moment before: see include/wake_first.lua of package
// scripts.
func (h *held) wakeNext(r redisconn.Reply) {
	if !h.kind().exclusive {
		return
	}
	if _, yields, _ := readRelease(&r); yields {
		h.client().yield(h.mutex.heldName())
	}
	h.kick()
}

// kick makes the waiters of this process ask for the lock. Waiters for a writer's lock may be readers.
func (h *held) kick() {
	key := h.mutex.queueKey(nil)
	h.client().queues.Kick(key)
	if key.kind == writing {
		key.kind = reading
		h.client().queues.Kick(key)
	}
}

// onLost is called once, when the lease ends without Unlock.
func (h *held) onLost(err error) {
	h.Lost(h, h.ttl(), err)
	if h.kind().exclusive {
		h.kick()
	}
}

// maxHoldReached ends a lock whose WithMaxHold has passed.
func (h *held) maxHoldReached() {
	err := fmt.Errorf("%w: %s: %w: %v", ErrLost, scripts.Quote(h.name()), ErrMaxHold, h.mutex.config.maxHold)
	if h.End(h, err, hold.Grace(h.ttl())) {
		h.client().logger.LogAttrs(context.Background(), slog.LevelWarn,
			"redislock: lock held for too long, released", slog.String("name", h.name()))
	}
}

// abandon implements part.
func (h *held) abandon() { h.End(h, ErrNotHeld, 0) }

// endPart implements part.
func (h *held) endPart(reason error) { h.End(h, reason, hold.Grace(h.ttl())) }

// discard releases, in the background, a lock whose caller had left before it was granted.
func (h *held) discard() {
	h.keepUntil = 0 // nobody has held it
	h.EndInside(h, ErrNotHeld, 0)
}

// handOver passes the lock to the first waiter of this process, and reports whether there was one. The key in
// Redis stays as it is. The lease of the caller's Lock is closed, so no call for it can reach the key any more.
//
// Only a lock that was acquired recently is handed over: then none of its renewals can be in flight, and
// waiters of other processes get their turn.
func (h *held) handOver() bool {
	c, m := h.client(), h.mutex
	if !h.kind().exclusive || !m.config.renew || h.ambiguous || h.handoffsLeft == 0 || h.Longest() > 0 ||
		c.queues.Waiting(m.queueKey(nil)) == 0 || c.clock.Since(h.askedAt) > min(m.config.handoff.time, h.ttl()/8) {
		return false
	}
	if h.fenced() && c.clock.Since(h.madeAt) < time.Microsecond {
		return false // tokens must not run ahead of the server's clock, in microseconds
	}
	next := c.newHeld(h.claim, false)
	next.handoffsLeft, next.handedOver = h.handoffsLeft-1, true
	if h.fenced() {
		next.token++ // reserved with the acquisition
	}
	if c.startLease(next, h.SentAt()) != nil {
		return false
	}
	if c.queues.Handoff(m.queueKey(nil), func(a **acquisition) { (*a).held = next }) {
		return true
	}
	if next.Close(ErrNotHeld) {
		c.drop(next)
	}
	return false
}

// startLease starts the lease of a lock that Redis has granted, and registers the lock. Its request was sent at sentAt
// or later.
func (c *Client) startLease(h *held, sentAt time.Time) (err error) {
	h.askedAt, h.madeAt = c.clock.At(sentAt), c.clock.Now()
	least := h.mutex.config.minHold
	if least > 0 {
		h.MayLast(least)
		h.keepUntil = h.madeAt + least + least/100 + 2*time.Millisecond // clocks differ in rate, and Redis counts in ms
	}
	spec := renewal.Spec{Key: h.name(), ID: h.id, TTL: h.ttl(), SentAt: sentAt, Lost: ErrLost, OnLost: h.onLost}
	if h.mutex.config.renew {
		var d *renewal.Destination
		if d, err = c.destination(&h.claim); err == nil {
			h.Lease, err = d.Add(spec)
		}
	} else {
		spec.TTL = h.mutex.config.firstLease()
		h.Lease, err = c.redis.Renewer.Watch(spec)
	}
	if err != nil {
		return err
	}
	if least > h.ttl() {
		h.Prolong(sentAt, least) // renewals ask for less, and do not shorten it
	}
	c.keep(h)
	if c.gate.Closed() && h.Close(ErrClosed) { // Close may have run before the lock was registered
		c.drop(h)
		return operationError("lock", h.name(), ErrClosed)
	}
	return nil
}
