package redislock

import (
	"iter"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/signals"
)

// Hold is a lock that this process holds, as it was when it was looked at.
type Hold struct {
	Kind     Kind
	Name     string
	ID       string    // of this hold, as Holder.ID; of a Quorum, what the ids on its servers begin with
	Metadata string    // the text of WithMetadata, "" without
	Token    int64     // the fencing token, 0 without one
	Since    time.Time // when it was taken or handed over, by the time of the wheel
	Deadline time.Time // as Lock.Deadline
}

// Wait is a lock that calls of this process wait for, whether the process holds it or not.
type Wait struct {
	Kind  Kind
	Name  string
	Calls int // of Lock and LockFunc
}

// Holds yields the locks that the Client holds, in no order, for a status page. It talks to no server and
// holds no lock of the Client for long, whatever the number of locks: one that is taken or ends meanwhile may
// be yielded or not, any other is yielded once. A MultiMutex is yielded as its parts.
func (c *Client) Holds() iter.Seq[Hold] {
	byID := func(_ string, l *Lock) *Lock { return l }
	byName := func(_ heldName, l *Lock) *Lock { return l }
	return func(yield func(Hold) bool) {
		if c.monitor.holds(signals.InPieces(&c.mu, c.holders, byName), yield) {
			c.monitor.holds(signals.InPieces(&c.mu, c.held, byID), yield)
		}
	}
}

// Waits yields the locks that calls wait for, and how many do; of a MultiMutex, the part that its call waits
// for. As with Holds, there is no order, no server is asked, and locks whose waits begin or end meanwhile may
// be yielded or not.
func (c *Client) Waits() iter.Seq[Wait] { return c.monitor.waits(c.queues.Sizes()) }

// Holds yields the locks that the Quorum holds, as Client.Holds does.
func (q *Quorum) Holds() iter.Seq[Hold] {
	self := func(l *Lock, _ struct{}) *Lock { return l }
	return func(yield func(Hold) bool) { q.monitor.holds(signals.InPieces(&q.mu, q.held, self), yield) }
}

// Waits yields the locks that calls wait for, as Client.Waits does.
func (q *Quorum) Waits() iter.Seq[Wait] { return q.monitor.waits(q.queues.Sizes()) }

// holds yields those locks that are held, and reports whether the caller wants more.
func (m *monitor) holds(locks iter.Seq[*Lock], yield func(Hold) bool) bool {
	for l := range locks {
		if l.lease.Err() != nil {
			continue
		}
		h := Hold{
			Kind: m.kind(l.kind()), Name: l.name(), ID: l.id, Token: l.token,
			Metadata: metadataOf(l.mutex.config.metadata), Since: l.client().origin.Add(l.madeAt),
			Deadline: l.lease.Deadline(),
		}
		if !yield(h) {
			return false
		}
	}
	return true
}

// waits sums up queues of one kind and name: those with different options, and those of a fair lock, which has
// one for each call.
func (m *monitor) waits(queues iter.Seq2[queueKey, int]) iter.Seq[Wait] {
	return func(yield func(Wait) bool) {
		type lock struct {
			kind Kind
			name string
		}
		calls := make(map[lock]int)
		for key, n := range queues {
			calls[lock{m.kind(key.kind), key.name}] += n
		}
		for l, n := range calls {
			if !yield(Wait{l.kind, l.name, n}) {
				return
			}
		}
	}
}
