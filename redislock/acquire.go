package redislock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/sender"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
)

const (
	// maxSlowReplies is how often a lock is asked for whose replies take longer than its lease.
	maxSlowReplies = 3
)

// acquisition is one call for a lock. It is what waits in the queues.
//
// An attempt owns request, ambiguous, enqueuedInRedis, contended and lock while the acquisition is in flight;
// the caller gets lock with the answer of the queue. refusal may be read at any time, by a caller that gives
// up.
type acquisition struct {
	mutex           *Mutex
	ctx             context.Context // of the call
	began           time.Duration   // since client.origin
	request         *request
	ambiguous       bool         // a copy of an earlier call with the same id may still be in flight
	enqueuedInRedis bool         // the server remembers request as a waiter
	contended       bool         // the hook was called
	early           sender.Early // of request
	lock            *Lock
	refusal         atomic.Pointer[LockedError] // the last one
}

func (m *Mutex) newAcquisition(ctx context.Context, waits bool) *acquisition {
	return &acquisition{mutex: m, ctx: ctx, began: m.client.since(0), request: m.newRequest(waits)}
}

// took returns how long the call has lasted.
func (a *acquisition) took() time.Duration { return a.mutex.client.since(a.began) }

// newRequest returns a request with an id of its own.
func (m *Mutex) newRequest(waits bool) *request {
	return &request{mutex: m, id: m.client.ids.next() + m.config.metadata + m.kind.mark, waits: waits}
}

// attempt asks Redis for the lock on behalf of the head of a queue. The answer concerns all waiters of the
// queue.
func (c *Client) attempt(key queueKey, batch []*waitqueue.Waiter[*acquisition]) (again time.Duration, err error) {
	head := batch[0].Value
	var locked *LockedError
	if !head.early.Sent() {
		locked, again = c.heldHere(key)
	}
	if locked == nil {
		head.reserve(len(batch) - 1)
		var left <-chan struct{}
		if head.mutex.kind.leave != nil {
			left = batch[0].Left() // it waits alone in its queue
		}
		l, err := head.ask(left)
		if err == nil {
			head.lock = l
			batch[0].Grant()
			if !l.kind().exclusive {
				c.queues.Kick(key) // the next one may have it as well
			}
			return 0, nil
		}
		if !errors.As(err, &locked) {
			// Neither a failover nor the migration of a slot is a reason to leave the queue.
			if head.refusal.Load() != nil && redisconn.IsUnavailable(err) || redisconn.Migrating(err) {
				return c.poll / 5, nil
			}
			return 0, err
		}
		again = max(locked.TTL+time.Millisecond, 0)
	}
	for _, w := range batch {
		a := w.Value
		a.refusal.Store(locked)
		if !a.contended {
			a.contended = true
			c.monitor.contended(a.ctx, a.mutex.kind, locked, a.took())
		}
	}
	return again, nil
}

// beginAttempt is the Begin of the queues.
func (c *Client) beginAttempt(key queueKey, batch []*waitqueue.Waiter[*acquisition], ended <-chan struct{}) bool {
	if locked, _ := c.heldHere(key); locked != nil {
		return false
	}
	head := batch[0].Value
	head.reserve(len(batch) - 1)
	return head.begin(ended)
}

// heldHere returns a refusal without asking Redis, and for how long it is good, while this process holds the
// lock itself and Redis has confirmed that a moment ago.
func (c *Client) heldHere(key queueKey) (*LockedError, time.Duration) {
	c.mu.Lock()
	l := c.holders[heldName{key.kind, key.name}]
	c.mu.Unlock()
	if l == nil || l.mutex.config.handle != key.config || !l.lease.Valid() {
		return nil, 0
	}
	left := l.lease.Deadline().Sub(c.wheel.Now())
	again := min(c.poll/5-c.since(l.askedAt), left)
	if again <= 0 {
		return nil, 0
	}
	return &LockedError{Name: l.name(), TTL: left}, again
}

// reserve has tokens reserved for so many waiters behind this one.
func (a *acquisition) reserve(behind int) {
	if !a.early.Sent() {
		a.request.handoffsWanted = int32(min(behind, a.mutex.config.handoff.count)) // at most 10000
	}
}

// begin asks Redis for the lock, and waits for the answer until ended is closed. It reports whether ask, which
// must follow, will not block.
func (a *acquisition) begin(ended <-chan struct{}) bool {
	c, config := a.mutex.client, a.mutex.config
	if config.replicas.n > 0 || !c.channels.Decided() {
		return false
	}
	return a.early.Send(c.sender, a.request.kind().acquire(a.request), ended) &&
		c.wheel.Now().Sub(a.early.SentAt()) < config.lease/2 // or ask may ask again
}

// ask asks Redis for the lock, once, and again if the reply took longer than the lease. It blocks as long as
// the timeouts of the redis client allow. When ended is closed it sends nothing more. What was granted and
// cannot be used is released in the background.
func (a *acquisition) ask(ended <-chan struct{}) (*Lock, error) {
	m := a.mutex
	for range maxSlowReplies {
		l, taken, err := a.askOnce(ended)
		if err == nil {
			return l, nil
		}
		if a.request.kind().leave != nil && a.request.waits &&
			(errors.Is(err, ErrLocked) || a.enqueuedInRedis && !taken && redisconn.IsUnavailable(err)) {
			// Keep the id: its place survives, and the next attempt finds a grant made by a delayed copy.
			a.enqueuedInRedis = true
			return nil, err
		}
		if taken || a.ambiguous || a.enqueuedInRedis {
			m.client.abandon(a.request, a.ambiguous)
		}
		wanted := a.request.handoffsWanted
		a.request, a.ambiguous, a.enqueuedInRedis = m.newRequest(a.request.waits), false, false
		a.request.handoffsWanted = wanted
		if !errors.Is(err, renewal.ErrExpired) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("replies took longer than the lease of %v, %d times", m.config.lease, maxSlowReplies)
}

// askOnce also reports whether Redis has granted the lock.
func (a *acquisition) askOnce(ended <-chan struct{}) (l *Lock, taken bool, err error) {
	m, c := a.mutex, a.mutex.client
	c.channels.Decide()
	var r redisconn.Reply
	var missing error // replicas
	if m.config.replicas.n > 0 {
		r, missing = c.runReplicated(a.request, m.config.replicas, ended)
	} else {
		r = a.early.Run(c.sender, func() scripts.Call { return a.request.kind().acquire(a.request) }, ended)
	}
	g, err := readGrant(&r, a.request.wantsToken())
	a.ambiguous = a.ambiguous || r.Ambiguous
	switch {
	case err != nil:
		return nil, false, err
	case !g.taken:
		return nil, false, &LockedError{Name: m.name, TTL: g.pttl}
	case missing != nil:
		return nil, true, missing
	}
	l = &Lock{request: *a.request, ambiguous: a.ambiguous, handoffsLeft: int16(m.config.handoff.count)}
	if l.fenced() {
		l.handoffsLeft = int16(g.reserved)
		l.token, l.lastReserved = g.token, g.token+g.reserved
	}
	return l, true, c.watch(l, r.SentAt)
}

// watch starts the lease of a lock that Redis has granted to a request sent at sentAt or later.
func (c *Client) watch(l *Lock, sentAt time.Time) (err error) {
	l.askedAt, l.madeAt = sentAt.Sub(c.origin), c.since(0)
	spec := renewal.Spec{Key: l.name(), ID: l.id, TTL: l.ttl(), SentAt: sentAt, Lost: ErrLost, OnLost: l.onLost}
	if l.mutex.config.renew {
		var d *renewal.Destination
		if d, err = c.destination(&l.request); err == nil {
			l.lease, err = d.Add(spec)
		}
	} else {
		l.lease, err = c.renewer.Watch(spec)
	}
	if err != nil {
		return err
	}
	c.keep(l)
	if c.gate.Closed() && l.lease.Close(ErrClosed) { // Close may have looked before the lock was entered
		c.drop(l)
		return ErrClosed
	}
	return nil
}

// grant is the reply of an acquire script.
type grant struct {
	taken    bool
	pttl     time.Duration
	token    int64
	reserved int64 // tokens after it that belong to the holder too
}

// readGrant reads the reply of an acquire script. With a fence, a lock that was taken has a token.
func readGrant(r *redisconn.Reply, fenced bool) (grant, error) {
	v, err := r.Integers(2, 4)
	if err != nil {
		return grant{}, err
	}
	g := grant{taken: v[0] == 1, pttl: redisconn.Duration(v[1])}
	if len(v) == 4 {
		g.token, g.reserved = v[2], v[3]
	}
	hasToken := g.token > 0 && g.reserved >= 0 && g.reserved <= maxHandoffs && g.token <= math.MaxInt64-g.reserved
	if v[0] != 0 && v[0] != 1 || (len(v) == 4) != (fenced && g.taken) || len(v) == 4 && !hasToken {
		return grant{}, r.Unexpected()
	}
	return g, nil
}
