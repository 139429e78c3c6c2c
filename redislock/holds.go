package redislock

import (
	"iter"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/signals"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// Hold describes a lock that this process holds, at the time of the call of Holds.
type Hold struct {
	Kind     Kind
	Name     string
	ID       string    // as Holder.ID; for a Quorum, the common prefix of the ids on its servers
	Metadata string    // the text of WithMetadata, "" without
	Token    int64     // as Lock.Token
	Since    time.Time // when the lock was acquired or handed over, by the time of the wheel
	Deadline time.Time // as Lock.Deadline
}

// Wait describes a lock for which calls of this process wait, whether or not the process holds it.
type Wait struct {
	Kind  Kind
	Name  string
	Calls int       // the number of calls of Lock and LockFunc
	Since time.Time // when the oldest of these calls began, by the time of the wheel
}

// Holds yields the locks that the Client holds, in no particular order, for a status page. It does not talk to
// Redis, and does not hold up other calls, however many locks there are. A lock that is acquired or
// ends meanwhile may be yielded or not; any other is yielded once. For a MultiMutex, its parts are yielded.
func (c *Client) Holds() iter.Seq[Hold] {
	self := func(_ string, h *held) body { return h }
	return func(yield func(Hold) bool) {
		if c.monitor.holds(signals.InPieces(&c.mu, c.holders, self), yield) {
			c.monitor.holds(signals.InPieces(&c.mu, c.held, self), yield)
		}
	}
}

// Waits yields the locks for which calls wait, in no particular order, with the number of these calls. For a call for a
// MultiMutex, that is the part for which it waits now. Waits does not talk to Redis, and does not hold up other calls.
// Locks whose waits begin or end meanwhile may be yielded or not.
func (c *Client) Waits() iter.Seq[Wait] {
	return waits(&c.monitor, c.queues.Lines(), func(a *acquisition) time.Time { return c.clock.Time(a.began) })
}

// Holds yields the locks that the Quorum holds, as Client.Holds does.
func (q *Quorum) Holds() iter.Seq[Hold] {
	self := func(c *composite, _ struct{}) body { return c }
	return func(yield func(Hold) bool) { q.monitor.holds(signals.InPieces(&q.mu, q.held, self), yield) }
}

// Waits yields the locks that calls wait for, as Client.Waits does.
func (q *Quorum) Waits() iter.Seq[Wait] {
	return waits(&q.monitor, q.queues.Lines(), func(a *quorumAcquisition) time.Time { return a.began })
}

// holds yields the locks that are held, and reports whether the caller wants more.
func (m *monitor) holds(all iter.Seq[body], yield func(Hold) bool) bool {
	for b := range all {
		if b.Err() != nil {
			continue
		}
		i := b.known()
		h := Hold{
			Kind: m.kind(i.kind()), Name: i.name(), ID: i.id, Token: i.token,
			Metadata: metadataOf(i.mutex.config.metadata), Since: i.client().clock.Time(i.madeAt),
			Deadline: b.Deadline(),
		}
		if !yield(h) {
			return false
		}
	}
	return true
}

// waits sums up the queues of one kind and name: a lock has one for each set of options, and a fair lock one
// for each call.
func waits[T any](
	m *monitor, lines iter.Seq2[queueKey, waitqueue.Line[T]], began func(T) time.Time,
) iter.Seq[Wait] {
	return func(yield func(Wait) bool) {
		type lock struct {
			kind Kind
			name string
		}
		waits := make(map[lock]Wait)
		for key, line := range lines {
			l := lock{m.kind(key.kind), key.name}
			w := Wait{l.kind, l.name, line.Size, began(*line.First)}
			if other, ok := waits[l]; ok {
				w.Calls += other.Calls
				if other.Since.Before(w.Since) {
					w.Since = other.Since
				}
			}
			waits[l] = w
		}
		for _, w := range waits {
			if !yield(w) {
				return
			}
		}
	}
}
