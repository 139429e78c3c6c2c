package redislock

import (
	"context"
	"time"
	"unique"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// This file is waiting within the process: one queue per lock, whose head asks Redis, and the lock handed
// over from one caller to the next without asking Redis.

// lockKey names a lock and the options of those that want it.
type lockKey struct {
	kind   *kind
	config unique.Handle[lockConfig]
	name   string
}

// heldName names a lock of an exclusive kind, whatever the options of its holder.
type heldName struct {
	kind *kind
	name string
}

// queueKey names the queue of an acquisition. Acquisitions of one queue want the same lock with the same
// options, so that any of them may be given what another one holds.
type queueKey struct {
	lockKey
	id string // of the request, for kinds whose server remembers waiters: each has a queue of its own
}

// channel is where the waiters of a queue listen.
func (k queueKey) channel() string { return k.kind.channel(k.name, k.id) }

// lockKey is that of all acquisitions of the Mutex.
func (m *Mutex) lockKey() lockKey { return lockKey{m.kind, m.config.handle, m.name} }

func (m *Mutex) heldName() heldName { return heldName{m.kind, m.name} }

// queueKey names the queue of a request, nil for that of all requests of a kind whose server does not remember
// waiters.
func (m *Mutex) queueKey(r *request) queueKey {
	key := queueKey{lockKey: m.lockKey()}
	if r != nil && m.kind.leave != nil {
		key.id = r.id
	}
	return key
}

func (c *Client) newQueues() *waitqueue.Group[queueKey, *acquisition] {
	return waitqueue.New(c.wheel, waitqueue.Config[queueKey, *acquisition]{
		Attempt:  c.attempt,
		Begin:    c.beginAttempt,
		MaxBatch: 1 << 20, // all of them: the head asks, the rest learn from it
		Poll:     c.poll,
		Workers:  c.gate.Workers,
		Listen:   waitqueue.Listen(c.channels, queueKey.channel),
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

// enqueue returns an acquisition and the queue in which it is about to wait. The acquisition starts with the
// refusal that the head of the queue heard last.
func (m *Mutex) enqueue(ctx context.Context) (*acquisition, queueKey) {
	a := m.newAcquisition(ctx, true)
	key := m.queueKey(a.request)
	if head, ok := m.client.queues.First(key); ok {
		a.refusal.Store(head.refusal.Load())
	}
	return a, key
}

// handoff bounds how long a process keeps a lock among its own callers while others may be waiting elsewhere.
type handoff struct {
	count int
	time  time.Duration
}

// handOver passes the lock to the first waiter of this process, and reports whether there was one. The key in
// Redis stays as it is. The lease of the caller's Lock was closed, so no call about it can reach the key any
// more.
//
// Only a lock that was taken a moment ago is handed over: then none of its renewals can be in flight, and
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
		next.token++ // reserved when the lock was taken
	}
	if c.watch(next, l.lease.(*renewal.Lease).SentAt()) != nil { // a composite is of no exclusive kind
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

// discard releases a lock whose caller had gone when it was granted. It blocks for a round trip.
func (l *Lock) discard() {
	c := l.client()
	if !l.lease.Close(ErrNotHeld) {
		return
	}
	c.drop(l)
	if r := c.sender.Run(l.kind().release(&l.request), nil); r.Err() != nil || l.ambiguous {
		l.releaseLater(0, l.ambiguous)
	}
}
