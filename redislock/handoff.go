package redislock

import (
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// This file is waiting within the process: one queue per lock, of which the head asks Redis, and the lock passed from
// one caller to the next without asking it at all.

// handoff bounds how long a process keeps a lock among its own callers while others may be waiting elsewhere.
type handoff struct {
	count int
	time  time.Duration
}

func (c *Client) newQueues() *waitqueue.Group[*wish] {
	return waitqueue.New(c.wheel, waitqueue.Config[*wish]{
		Attempt:  c.attempt,
		MaxBatch: 1 << 20, // all of them: the head asks, the rest learn from it
		Poll:     c.poll,
		Listen:   c.channels.Listen(channelOf),
		GiveBack: func(_ string, granted []*wish) {
			for _, w := range granted {
				w.lock.discard()
			}
		},
		Leave: func(_ string, left []*wish) {
			for _, w := range left {
				if w.req.kind().leave != nil {
					c.abandon(w.req, w.doubt)
				}
			}
		},
	})
}

// describe tells configurations apart.
func (c *lockConfig) describe() string {
	b := []byte{' '}
	for _, n := range []int64{int64(c.lease), int64(c.maxHold), int64(c.replicas.n), int64(c.replicas.timeout), int64(c.handoff.count), int64(c.handoff.time)} {
		b = append(strconv.AppendInt(b, n, 36), ' ')
	}
	b = strconv.AppendBool(b, c.renew)
	b = strconv.AppendBool(b, c.fenced)
	return string(append(b, c.metadata...))
}

// terms are what locks must have in common to be handed over. A name follows them in that of a queue.
func (c *lockConfig) terms(k *kind) string { return k.label + c.label + "\x00" } // neither holds a zero

// queueOf names the queue in which a request waits: with all that want the same lock on the same terms, so that any
// of them may be given what another has.
func (m *Mutex) queueOf(req *request) string {
	if m.kind.leave != nil { // a channel, and so a queue, of its own
		return m.queue + "\x00" + req.id
	}
	return m.queue
}

// channelOf is where those who wait in a queue listen.
func channelOf(queue string) string {
	terms, name, _ := strings.Cut(queue, "\x00")
	label, _, _ := strings.Cut(terms, " ")
	k, id := kinds[label], ""
	if k.leave != nil {
		end := strings.LastIndexByte(name, 0) // an id holds no zero, a name may
		name, id = name[:end], name[end+1:]
	}
	return k.channel(name, id)
}

// enqueue returns a wish and the queue in which it is about to wait. It knows what the first who waits there was told last.
func (m *Mutex) enqueue() (*wish, string) {
	w := m.wish(true)
	queue := m.queueOf(w.req)
	if first, waits := m.client.queues.First(queue); waits {
		w.locked.Store(first.locked.Load())
	}
	return w, queue
}

// handOver passes the lock on to the first who waits for it in this process, and reports whether there was one. The key in Redis
// stays as it is; the lease of the caller's Lock has been closed, so nothing that is done with it can reach the
// key any more.
//
// Only a lock that was taken a moment ago is passed on: none of its renewals can be under way, and processes that
// wait elsewhere get their turn.
func (l *Lock) handOver() bool {
	c, m := l.client(), l.mutex
	if !l.kind().exclusive || !m.config.renew || l.doubt || l.left == 0 || l.longest.Load() > 0 ||
		c.since(l.asked) > min(m.config.handoff.time, l.ttl()/8) || c.queues.Waiting(m.queue) == 0 {
		return false
	}
	if l.fenced() && c.since(l.since) < time.Microsecond {
		return false // tokens must not run ahead of the server's clock, in microseconds
	}
	next := &Lock{
		request: l.request, left: l.left - 1, passed: true,
	}
	if l.fenced() {
		next.token = l.token + 1 // reserved when the lock was taken
		next.used = next.token
	}
	if c.hold(next, l.lease.(*renewal.Lease).SentAt()) != nil { // a joint is none of an exclusive kind
		return false
	}
	if c.queues.Handoff(m.queue, func(w **wish) { (*w).lock = next }) {
		return true
	}
	if next.lease.Close(ErrNotHeld) {
		c.drop(next)
	}
	return false
}

// discard gives back a lock that was granted to a caller who had gone. It blocks for a round trip.
func (l *Lock) discard() {
	c := l.client()
	if !l.lease.Close(ErrNotHeld) {
		return
	}
	c.drop(l)
	if r := c.run(l.kind().release(&l.request), nil); r.Err() != nil || l.doubt {
		l.releaseLater(0, l.doubt)
	}
}
