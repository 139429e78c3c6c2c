package redislock

import (
	"context"
	"time"
	"unique"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// This file has the waiting within the process: one queue per lock, whose head asks Redis, and the hand-over of
// a lock from one caller to the next without asking Redis.

// lockKey identifies a lock and the options of the callers that want it.
type lockKey struct {
	kind   *kind
	config unique.Handle[lockConfig]
	name   string
}

// heldName identifies a lock of an exclusive kind, whatever the options of its holder.
type heldName struct {
	kind *kind
	name string
}

// queueKey identifies the queue of an acquisition. The acquisitions of one queue want the same lock with the
// same options, so a lock can be handed over from any of them to any other.
type queueKey struct {
	lockKey
	id string // the id of the request for kinds with a queue in Redis: each request has a local queue
}

// channel returns the channel on which the waiters of a queue are woken.
func (k queueKey) channel() string { return k.kind.channel(k.name, k.id) }

// lockKey returns the lockKey of all acquisitions of the Mutex.
func (m *Mutex) lockKey() lockKey { return lockKey{m.kind, m.config.handle, m.name} }

func (m *Mutex) heldName() heldName { return heldName{m.kind, m.name} }

// queueKey returns the queue of a request, or, for nil, the queue of all requests of a kind without a queue in
// Redis.
func (m *Mutex) queueKey(r *request) queueKey {
	key := queueKey{lockKey: m.lockKey()}
	if r != nil && m.kind.leave != nil {
		key.id = r.id
	}
	return key
}

func (c *Client) newQueues() *waitqueue.Group[queueKey, *acquisition] {
	return waitqueue.New(c.wheel, waitqueue.Config[queueKey, *acquisition]{
		Send:     c.send,
		Build:    c.build,
		Apply:    c.apply,
		MaxBatch: 1 << 20, // all: the head asks, and the reply is for all
		Poll:     c.poll,
		Workers:  c.gate.Workers,
		Listen:   waitqueue.Listen(c.redis.Channels, queueKey.channel),
		GiveBack: func(_ queueKey, granted []*acquisition) {
			for _, a := range granted {
				a.lock.discard()
			}
		},
		Leave: func(_ queueKey, left []*acquisition) {
			for _, a := range left {
				if a.request.kind().leave != nil {
					c.abandon(a.request, a.ambiguous)
				}
			}
		},
	})
}

// enqueue returns a new acquisition and the queue in which it must wait. The acquisition starts with the last
// refusal of the head of the queue.
func (m *Mutex) enqueue(ctx context.Context) (*acquisition, queueKey) {
	a := m.newAcquisition(ctx, true)
	key := m.queueKey(a.request)
	if head, ok := m.client.queues.First(key); ok {
		a.refusal.Store(head.refusal.Load())
	}
	return a, key
}

// handoff bounds how long a process keeps a lock among its callers while other processes may be waiting.
type handoff struct {
	count int
	time  time.Duration
}

// handOver passes the lock to the first waiter of this process, and reports whether there was one. The key in
// Redis stays as it is. The lease of the caller's Lock is closed, so no call for it can reach the key any more.
//
// Only a lock that was acquired recently is handed over: then none of its renewals can be in flight, and
// waiters of other processes get their turn.
func (l *Lock) handOver() bool {
	c, m := l.client(), l.mutex
	if !l.kind().exclusive || !m.config.renew || l.ambiguous || l.handoffsLeft == 0 || l.longest.Load() > 0 ||
		c.since(l.askedAt) > min(m.config.handoff.time, l.ttl()/8) || c.queues.Waiting(m.queueKey(nil)) == 0 {
		return false
	}
	if l.fenced() && c.since(l.madeAt) < time.Microsecond {
		return false // tokens must not run ahead of the server's clock, in microseconds
	}
	next := &Lock{request: l.request, handoffsLeft: l.handoffsLeft - 1, handedOver: true}
	if l.fenced() {
		next.token++ // reserved with the acquisition
	}
	if c.watch(next, l.lease.(*renewal.Lease).SentAt()) != nil { // a composite has no exclusive kind
		return false
	}
	if c.queues.Handoff(m.queueKey(nil), func(a **acquisition) { (*a).lock = next }) {
		return true
	}
	if next.lease.Close(ErrNotHeld) {
		c.drop(next)
	}
	return false
}

// discard releases, in the background, a lock whose caller had left before it was granted.
func (l *Lock) discard() {
	c := l.client()
	if !l.lease.Close(ErrNotHeld) {
		return
	}
	c.drop(l)
	l.keepUntil = 0 // nobody has held it
	l.releaseLater(0, l.ambiguous)
}
