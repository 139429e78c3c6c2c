package redislock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/line"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
)

const (
	// maxSlowReplies is the number of replies slower than the lease after which an acquisition fails.
	maxSlowReplies = 3
)

// acquisition is one call for a lock, and the element of the queues.
//
// An attempt owns the fields from request to held while the acquisition is in flight. The caller gets held with
// the answer of the queue. refusal may be read at any time, by a caller that gives up.
type acquisition struct {
	mutex           *Mutex
	ctx             context.Context // of the caller
	began           time.Duration   // by the clock of the Client
	request         *request
	part            string       // the beginning of the ids of a part of a Quorum's hold, else ""
	ambiguous       bool         // a copy of an earlier call with the same id may still be in flight
	begun           bool         // an outage does not end the call, even before Redis has found the lock held
	enqueuedInRedis bool         // Redis has request in its queue of waiters
	contended       bool         // the hook Contended was called
	refused         line.Refusal // the last one
	slow            int          // replies that took longer than the lease
	missing         error        // the replicas that the last attempt lacked
	trouble         redisconn.Endurance
	held            *held
	refusal         atomic.Pointer[LockedError] // the last refusal
}

func (m *Mutex) newAcquisition(ctx context.Context, waits bool) *acquisition {
	return &acquisition{mutex: m, ctx: ctx, began: m.client().clock.Now(), request: m.newRequest(waits)}
}

// newPartAcquisition returns the acquisition of the part of a Quorum's hold on a server.
func (m *Mutex) newPartAcquisition(ctx context.Context, hold string, server int) *acquisition {
	a := m.newAcquisition(ctx, false)
	a.part = hold + serverMark + strconv.Itoa(server)
	a.request.id = a.part + m.config.metadata
	return a
}

// took returns the time since the call began.
func (a *acquisition) took() time.Duration { return a.mutex.client().clock.Since(a.began) }

// newRequest returns a request with a new id.
func (m *Mutex) newRequest(waits bool) *request {
	m.client().longest.Raise(m.config.firstLease())
	return &request{claim: claim{mutex: m, id: m.client().ids.next() + m.config.metadata + m.kind.mark}, waits: waits}
}

// nextRequest returns the request of the next attempt.
func (a *acquisition) nextRequest() *request {
	r := a.mutex.newRequest(a.request.waits)
	r.regains = a.request.regains
	if a.part != "" {
		r.id = a.part + "." + strconv.FormatUint(a.mutex.client().ids.number(), 10) + a.mutex.config.metadata
	}
	return r
}

// submit submits the attempt of a queue.
func (c *Client) submit(user context.Context, j *calls.Job, caller calls.Caller, key queueKey) {
	if key.config.Value().replicas.n > 0 {
		c.redis.Sender.SubmitAlone(j, caller, key.name)
	} else {
		c.redis.Sender.Submit(user, j, caller, key.name)
	}
}

// build makes the call that asks for the lock on behalf of the head of a queue.
func (c *Client) build(key queueKey, batch []*waitqueue.Waiter[*acquisition]) (a waitqueue.Attempt) {
	if locked, again := c.heldHere(key); locked != nil {
		c.refuse(batch, locked)
		return waitqueue.Attempt{Again: again}
	}
	a.Read = func(r redisconn.Reply) (time.Duration, error) { return c.read(key, batch, r) }
	head := batch[0].Value
	head.request.handoffsWanted = int32(min(len(batch)-1, head.mutex.config.handoff.count)) // at most 10000
	head.request.waiter, head.request.waited = c.lines.Ask(key), head.took()
	if head.mutex.config.replicas.n > 0 {
		a.Call.Send = head.askReplicated
	} else {
		a.Call.Call = head.request.kind().acquire(head.request)
	}
	return a
}

// read reads the reply on behalf of all waiters of the queue.
func (c *Client) read(
	key queueKey, batch []*waitqueue.Waiter[*acquisition], r redisconn.Reply,
) (again time.Duration, err error) {
	head := batch[0].Value
	h, err := head.result(&r)
	if r.Err() == nil {
		head.trouble.Answered()
	}
	locked, refused := errors.AsType[*LockedError](err)
	switch {
	case err == nil:
		head.held = h
		batch[0].Grant()
		c.lines.Granted(key)
		if !h.kind().exclusive {
			c.queues.Kick(key) // the next waiter may have it as well
		}
		return 0, nil
	case errors.Is(err, errTooSlow):
		return waitqueue.AtOnce, nil
	case refused:
		c.refuse(batch, locked)
		return c.lines.Refused(key, head.refused), nil
	// An outage or the migration of a slot does not end the wait. A reply that this process cannot use does:
	// otherwise it would acquire the lock again and again.
	case redisconn.Migrating(err), head.refusal.Load() != nil && errors.Is(err, ErrReplicas):
		return c.poll / 5, nil
	case head.hasBegun() && head.endures(&r):
		c.monitor.repeated(err)
		if redisconn.IsLoginRefused(err) { // for calls that begin it is an error
			for _, w := range batch {
				if !w.Value.hasBegun() {
					w.Fail(err)
				}
			}
		}
		return head.trouble.Pause(c.poll/5, c.poll), nil
	}
	if head.enqueuedInRedis { // the login has been refused for too long
		c.abandon(&head.request.claim, head.ambiguous)
	}
	return 0, err
}

// hasBegun reports whether the call goes on through an outage: Redis, or this process, has found the lock held for
// the acquisition, or an earlier part of the call was taken.
func (a *acquisition) hasBegun() bool { return a.begun || a.refusal.Load() != nil }

// endures reports whether an acquisition that waits goes on after a failed call.
func (a *acquisition) endures(r *redisconn.Reply) bool {
	return r.Err() != nil && a.trouble.Endures(r.Err(), a.mutex.client().wheel.Now(), a.mutex.config.firstLease())
}

// refuse records for the waiters of a queue that the lock is held.
func (c *Client) refuse(batch []*waitqueue.Waiter[*acquisition], locked *LockedError) {
	for _, w := range batch {
		a := w.Value
		a.refusal.Store(locked)
		if !a.contended {
			a.contended = true
			c.monitor.contended(a.ctx, a.mutex.kind, locked, a.took())
		}
	}
}

// heldHere returns a refusal without a request, and how long it is valid, if this process holds the lock and
// Redis has confirmed that recently, or if the process yields it.
func (c *Client) heldHere(key queueKey) (*LockedError, time.Duration) {
	c.mu.Lock()
	h := c.holderLocked(key.kind, key.name)
	yields := c.yields[heldName{key.kind, key.name}]
	c.mu.Unlock()
	if yields > 0 {
		if left := yields - c.clock.Now(); left > 0 {
			return &LockedError{Name: key.name, TTL: left}, left
		}
	}
	if h == nil || h.mutex.config.handle != key.config || !h.Valid() {
		return nil, 0
	}
	left := h.Deadline().Sub(c.wheel.Now())
	again := min(c.poll/5-c.clock.Since(h.askedAt), left)
	if again <= 0 {
		return nil, 0
	}
	return &LockedError{Name: h.name(), TTL: left, here: true}, again
}

// holds reports whether this Client holds an exclusive lock.
func (c *Client) holds(m *Mutex) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.holderLocked(m.kind, m.name)
	return h != nil && h.Valid()
}

// errTooSlow means that a reply took longer than the lease, so the request must be repeated.
var errTooSlow = errors.New("the reply took longer than the lease")

// result returns the hold that the reply to the request of an acquisition has granted. After an error, a grant that
// cannot be used is released in the background, and the next request has a new id, unless Redis has this request in its
// queue of waiters.
func (a *acquisition) result(r *redisconn.Reply) (*held, error) {
	m := a.mutex
	h, taken, err := a.takeGrant(r)
	if err == nil {
		return h, nil
	}
	if a.request.kind().queuesInRedis() && a.request.waits &&
		(errors.Is(err, ErrLocked) || a.enqueuedInRedis && !taken && redisconn.Passing(err)) {
		// Keep the id: its place in the queue survives, and the next attempt finds a grant made by a late copy.
		a.enqueuedInRedis = true
		return nil, err
	}
	if taken || a.ambiguous || a.enqueuedInRedis {
		m.client().abandon(&a.request.claim, a.ambiguous)
	}
	a.request, a.ambiguous, a.enqueuedInRedis = a.nextRequest(), false, false
	if !errors.Is(err, renewal.ErrExpired) {
		return nil, err
	}
	if a.slow++; a.slow < maxSlowReplies {
		return nil, errTooSlow
	}
	return nil, fmt.Errorf("replies took longer than the lease of %v, %d times", m.config.lease, maxSlowReplies)
}

// takeGrant reads the reply. If Redis has granted the lock, which it also reports, it makes the hold and starts its
// lease.
func (a *acquisition) takeGrant(r *redisconn.Reply) (h *held, taken bool, err error) {
	m, c := a.mutex, a.mutex.client()
	if a.request.regains && forcedAway(r) {
		return nil, false, errForced
	}
	g, err := readGrant(r, a.request.wantsToken())
	a.refused = line.Refusal{Place: g.place, Unheard: g.unheard, Silent: g.silent, Until: g.pttl}
	a.ambiguous = a.ambiguous || r.Ambiguous
	switch {
	case err != nil:
		return nil, false, err
	case !g.taken:
		return nil, false, &LockedError{Name: m.name, TTL: g.pttl, here: c.holds(m)}
	case a.missing != nil:
		return nil, true, a.missing
	}
	h = c.newHeld(a.request.claim, a.ambiguous)
	h.handoffsLeft = int16(m.config.handoff.count)
	if h.fenced() {
		h.handoffsLeft = int16(g.reserved)
		h.token, h.lastReserved = g.token, g.token+g.reserved
	}
	return h, true, c.startLease(h, r.SentAt)
}

// grant is the reply of an acquire script.
type grant struct {
	taken    bool
	pttl     time.Duration
	token    int64
	reserved int64 // tokens after token that belong to the holder too
	place    int   // in the line, of a refusal; see line.Refusal
	unheard  bool  // the holder's release will not wake the line
	silent   bool  // nor will anything else tell of it
}

// forcedAway reports whether the reply of scripts.LockRegain is that the part was freed by force.
func forcedAway(r *redisconn.Reply) bool {
	v, err := r.Integers(2, 2)
	return err == nil && v[0] == 2
}

// readGrant reads the reply of an acquire script. A fenced lock that was taken has a token.
func readGrant(r *redisconn.Reply, fenced bool) (grant, error) {
	v, err := r.Integers(2, 3, 4)
	if err != nil {
		return grant{}, err
	}
	g := grant{taken: v[0] == 1, pttl: redisconn.Duration(v[1]), place: -1}
	switch len(v) {
	case 3:
		return grant{}, r.Unexpected()
	case 4:
		if g.token, g.reserved = v[2], v[3]; !g.taken {
			g = grant{pttl: g.pttl, place: int(v[2]), unheard: v[3] == 1, silent: v[3] == 2}
			if v[0] != 0 || v[2] < -1 || v[2] < 0 && !g.silent || v[2] > 3 || v[3] < 0 || v[3] > 2 {
				return grant{}, r.Unexpected()
			}
			return g, nil
		}
	}
	hasToken := g.token > 0 && g.reserved >= 0 && g.reserved <= maxHandoffs && g.token <= math.MaxInt64-g.reserved
	if v[0] != 0 && v[0] != 1 || (len(v) == 4) != (fenced && g.taken) || len(v) == 4 && !hasToken {
		return grant{}, r.Unexpected()
	}
	return g, nil
}
