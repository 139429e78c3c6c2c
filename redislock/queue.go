package redislock

import (
	"context"
	"time"
	"unique"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/line"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
)

// This file has the waiting within the process: one queue per lock, whose head asks Redis, and the handoff of
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
	if r != nil && m.kind.queuesInRedis() {
		key.id = r.id
	}
	return key
}

func (c *Client) newLines() *line.Lines[queueKey] {
	return line.New(line.Config[queueKey]{
		Channels: c.redis.Channels, Channel: queueKey.channel,
		Lines:  func(key queueKey) bool { return key.kind.lines },
		Own:    scripts.ClientChannel(c.ids.client),
		Waiter: c.newWaiter, Part: c.hearsAs, Leave: c.leaveLine,
	})
}

// readers is the waiter that stands for all readers of a lock.
const readers = "r"

// newWaiter returns the waiter of a queue.
func (c *Client) newWaiter(key queueKey) string {
	if key.kind == reading {
		return readers
	}
	return c.ids.next()
}

// hearsAs returns the name under which the waiter of a queue hears of its turn.
func (c *Client) hearsAs(key queueKey) string {
	if key.kind == reading {
		return readers
	}
	return c.ids.client
}

// yieldFor is how long a Client leaves a lock that it has released to waiters which are not in the line.
const yieldFor = 3 * time.Millisecond

// yield keeps the callers of this Client from a lock for a moment.
func (c *Client) yield(name heldName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.yields[name] = c.clock.Now() + yieldFor
	_, err := wheelentry.AfterFunc(c.wheel, 2*yieldFor, func(error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.yields[name] <= c.clock.Now() {
			delete(c.yields, name)
		}
	})
	if err != nil {
		delete(c.yields, name)
	}
}

// leaveLine takes a waiter out of the line. If that fails, a release finds out that it is gone.
func (c *Client) leaveLine(key queueKey, waiter string) {
	if key.kind.leaveLine == nil {
		return
	}
	c.gate.EnterInside()
	c.redis.Sender.Go(context.Background(), calls.Request{
		Key: key.name, Late: func(redisconn.Reply) { c.gate.Leave() },
		Build: func() scripts.Call {
			return key.kind.leaveLine(key.name, waiter, c.redis.Channels.Verb(), key.channel())
		},
	})
}

func (c *Client) newQueues() *waitqueue.Group[queueKey, *acquisition] {
	return waitqueue.New(c.wheel, waitqueue.Config[queueKey, *acquisition]{
		Submit:   c.submit,
		Build:    c.build,
		MaxBatch: 1 << 20, // all: the head asks, and the reply is for all
		Poll:     c.poll,
		Workers:  c.gate.Workers,
		Listen:   c.lines.Listen,
		Listens:  c.lines.Listens,
		GiveBack: func(_ queueKey, granted []*acquisition) {
			for _, a := range granted {
				a.held.discard()
			}
		},
		Leave: func(_ queueKey, left []*acquisition) {
			for _, a := range left {
				if a.request.kind().queuesInRedis() {
					c.abandon(&a.request.claim, a.ambiguous)
				}
			}
		},
	})
}

// enqueue returns a new acquisition and the queue in which it must wait. The acquisition starts with the last
// refusal of the head of the queue. It goes on through an outage if its call has begun, whatever Redis finds.
func (m *Mutex) enqueue(ctx context.Context, begun bool) (*acquisition, queueKey) {
	a := m.newAcquisition(ctx, true)
	a.begun = begun
	key := m.queueKey(a.request)
	if head, ok := m.client().queues.First(key); ok {
		a.refusal.Store(head.refusal.Load())
	}
	return a, key
}

// handoff bounds how long a process keeps a lock among its callers while other processes may be waiting.
type handoff struct {
	count int
	time  time.Duration
}
