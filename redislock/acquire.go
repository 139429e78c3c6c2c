package redislock

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
)

const (
	// slowTries is how often a lock is asked for whose replies take longer than its lease.
	slowTries = 3

	// mostMillis is the longest time.Duration. Redis knows longer ones.
	mostMillis = math.MaxInt64 / int64(time.Millisecond)
)

// wish is a call for a lock: what waits in the queues.
//
// Ground rules. An attempt owns req, doubt, contended and lock while it has the wish in hand; the caller gets lock
// with the queue's answer. locked may be read at any time, by a caller who gives up.
type wish struct {
	mutex     *Mutex
	began     time.Time
	req       *request
	doubt     bool // a copy of an earlier request under the same id may be under way
	inBooks   bool // the server remembers req
	contended bool // the hook has been told
	lock      *Lock
	locked    atomic.Pointer[LockedError]
}

func (m *Mutex) wish(waits bool) *wish {
	return &wish{mutex: m, began: time.Now(), req: m.request(waits)}
}

// request names a new acquisition.
func (m *Mutex) request(waits bool) *request {
	return &request{mutex: m, id: m.client.nextID() + m.config.metadata + m.kind.mark, waits: waits}
}

// attempt asks for the lock on behalf of the head of a queue. What it learns, or fails by, concerns all who wait.
func (c *Client) attempt(queue string, batch []*waitqueue.Waiter[*wish]) (again time.Duration, err error) {
	head := batch[0].Value
	locked, again := c.heldHere(queue)
	if locked == nil {
		head.req.spare = int32(min(len(batch)-1, head.mutex.config.handoff.count)) // at most 10000
		var left <-chan struct{}
		if head.mutex.kind.leave != nil {
			left = batch[0].Left() // nobody else waits for the answer
		}
		l, err := head.ask(left)
		if err == nil {
			head.lock = l
			batch[0].Grant()
			if !l.kind().exclusive {
				c.queues.Kick(queue) // the next one may have it as well
			}
			return 0, nil
		}
		if !errors.As(err, &locked) {
			// Neither a failover nor a slot that migrates is a reason to leave the line.
			if head.locked.Load() != nil && calls.Outage(err) || calls.Migrating(err) {
				return c.poll / 5, nil
			}
			return 0, err
		}
		again = max(locked.TTL+time.Millisecond, 0)
	}
	for _, w := range batch {
		w.Value.locked.Store(locked)
		if !w.Value.contended {
			w.Value.contended = true
			c.hooks.contended(locked)
		}
	}
	return again, nil
}

// heldHere spares Redis the question, for some time, while this process holds the lock itself and has heard so a moment ago.
func (c *Client) heldHere(queue string) (*LockedError, time.Duration) {
	c.mu.Lock()
	l := c.holders[queue]
	c.mu.Unlock()
	if l == nil || !l.lease.Valid() {
		return nil, 0
	}
	left := time.Until(l.lease.Deadline())
	again := min(c.poll/5-c.since(l.asked), left)
	if again <= 0 {
		return nil, 0
	}
	return &LockedError{Name: l.name(), TTL: left}, again
}

// ask requests the lock once, and again if the reply took so long that the lease was over. It blocks as long as the
// client's own timeouts allow; when ended is closed it sends nothing more. A lock which nobody gets is released.
func (w *wish) ask(ended <-chan struct{}) (*Lock, error) {
	m := w.mutex
	for range slowTries {
		l, taken, err := w.askOnce(ended)
		if err == nil {
			return l, nil
		}
		if w.req.kind().leave != nil && w.req.waits && (errors.Is(err, ErrLocked) || w.inBooks && !taken && calls.Outage(err)) {
			w.inBooks = true // its place outlasts an outage, and what a late copy takes the next attempt finds
			return nil, err
		}
		if taken || w.doubt || w.inBooks {
			m.client.abandon(w.req, w.doubt)
		}
		spare := w.req.spare
		w.req, w.doubt, w.inBooks = m.request(w.req.waits), false, false
		w.req.spare = spare
		if !errors.Is(err, renewal.ErrExpired) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("replies took longer than the lease of %v, %d times", m.config.lease, slowTries)
}

// askOnce also reports whether Redis has granted the lock.
func (w *wish) askOnce(ended <-chan struct{}) (l *Lock, taken bool, err error) {
	m, c := w.mutex, w.mutex.client
	c.channels.Decide()
	var r calls.Reply
	var replicas error
	if m.config.replicas.n > 0 {
		r, replicas = c.runReplicated(w.req, m.config.replicas, ended)
	} else {
		r = c.run(w.req.kind().acquire(w.req), ended)
	}
	w.doubt = w.doubt || r.Doubt
	g, err := readGrant(r)
	switch {
	case err != nil:
		return nil, false, err
	case !g.taken:
		return nil, false, &LockedError{Name: m.name, TTL: g.pttl}
	case replicas != nil:
		return nil, true, replicas
	}
	l = &Lock{request: *w.req, doubt: w.doubt, token: g.token, left: int32(m.config.handoff.count)}
	if l.fenced() {
		l.left = int32(g.reserved)
		l.reserved, l.used = g.token+g.reserved, g.token
	}
	return l, true, c.hold(l, r.SentAt)
}

// hold starts to look after a lock that Redis has granted to a request sent at sentAt or later.
func (c *Client) hold(l *Lock, sentAt time.Time) (err error) {
	l.asked, l.since = sentAt.Sub(c.origin), time.Since(c.origin)
	spec := renewal.Spec{Key: l.name(), ID: l.id, TTL: l.ttl(), SentAt: sentAt, Lost: ErrLost, OnLost: l.lost}
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
	reserved int64 // tokens after it that are the holder's too
}

func readGrant(r calls.Reply) (grant, error) {
	v, err := r.Int64Slice()
	if err != nil {
		return grant{}, err
	}
	if len(v) < 2 {
		return grant{}, fmt.Errorf("redislock: unexpected reply %v", v)
	}
	g := grant{taken: v[0] == 1, pttl: time.Duration(min(v[1], mostMillis)) * time.Millisecond}
	if len(v) > 2 {
		g.token = v[2]
	}
	if len(v) > 3 {
		g.reserved = v[3]
	}
	return g, nil
}
