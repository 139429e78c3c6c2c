package redislock

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// serverMark precedes the number of the server in the ids of one hold: <client>:<n>:s<server>[.<k>][:m=<metadata>],
// where k makes the id of a further attempt unique. Up to the mark, the ids of one hold are equal on all servers,
// which identifies the holder in their states.
// The rest differs: otherwise two clients of one server, given by mistake, would count as two servers.
const serverMark = ":s"

// quorumRound is one round of asking all servers of a Quorum for a lock. It is decided once: won, err and split
// do not change after that. A lock that a server grants later is added to the lock that was won, or released.
type quorumRound struct {
	quorum  *Quorum
	mutex   *QuorumMutex
	ctx     context.Context // of the caller
	id      string
	decided func(*quorumRound) // called once, without mu; it must not block

	mu      sync.Mutex // guards what follows
	over    bool
	limit   wheel.Timer // ends the round
	voted   []bool
	granted []*held
	refused []time.Duration // remaining leases of the holders where the lock was refused
	errs    []error

	won   *composite
	wonAt time.Time
	err   error
	split bool // some servers granted the lock, but too few
}

func newQuorumRound(ctx context.Context, m *QuorumMutex, decided func(*quorumRound)) *quorumRound {
	q := m.quorum
	return &quorumRound{
		quorum: q, mutex: m, ctx: ctx, id: q.servers[0].ids.next(),
		decided: decided, voted: make([]bool, len(q.servers)),
	}
}

// start asks every server. It does not block. The round is decided within timeout. A call that is not answered
// ends by the timeouts of its client.
func (r *quorumRound) start(timeout time.Duration) {
	limit, err := wheelentry.AfterFunc(r.quorum.wheel, timeout, func(stopped error) { r.end(cmp.Or(stopped, errSlow)) })
	if err != nil {
		r.refuse(err)
		return
	}
	r.mu.Lock()
	r.limit = limit
	r.mu.Unlock()
	for i, part := range r.mutex.parts {
		c := part.client()
		switch {
		case r.quorum.stuck[i].Load() >= maxStuck:
			r.record(i, nil, errStuck)
		case !c.gate.Enter():
			r.record(i, nil, ErrClosed)
		default:
			a := part.newPartAcquisition(r.ctx, r.id, i)
			// It runs also after the decision: more servers than needed may hold the lock.
			a.askFor(func(h *held, err error) {
				defer c.gate.Leave()
				if err == nil {
					c.limit(h, part.config.maxHold)
					c.monitor.tracePart(r.ctx, h)
				}
				r.record(i, h, err)
			})
		}
	}
}

// record counts the answer of a server.
func (r *quorumRound) record(i int, h *held, err error) {
	if r.count(i, h, err) {
		r.decided(r)
	}
}

// count is record without the call of decided. It reports whether the answer has decided the round.
func (r *quorumRound) count(i int, h *held, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.voted[i] = true
	if r.over {
		r.quorum.stuck[i].Add(-1)
		switch {
		case h == nil && r.won != nil:
			r.regain(i)
		case h != nil && (r.won == nil || !r.won.add(h)):
			h.abandon()
		}
		return false
	}
	if err == nil {
		r.granted = append(r.granted, h)
	} else if locked, ok := errors.AsType[*LockedError](err); ok {
		r.refused = append(r.refused, locked.TTL)
	} else {
		r.errs = append(r.errs, err)
	}
	need, servers := r.quorum.majority(), len(r.voted)
	answers := len(r.granted) + len(r.refused)
	switch {
	case len(r.granted) >= need: // won
	case len(r.errs) > servers-need: // a majority can no longer answer
	case answers >= need && len(r.refused)+len(r.errs) > servers-need: // a majority has answered, and none can grant it
	default:
		return false
	}
	r.decideLocked()
	return true
}

// end decides the round by the answers so far. reason is the error for servers without an answer.
func (r *quorumRound) end(reason error) {
	r.mu.Lock()
	decides := !r.over
	if decides {
		r.errs = append(r.errs, reason)
		r.decideLocked()
	}
	r.mu.Unlock()
	if decides {
		r.decided(r)
	}
}

// refuse decides a round that asks no server.
func (r *quorumRound) refuse(err error) {
	r.mu.Lock()
	r.over, r.err = true, err
	r.mu.Unlock()
	r.decided(r)
}

// decideLocked decides the round. It is called once.
func (r *quorumRound) decideLocked() {
	r.over = true
	r.limit.Stop()
	for i, voted := range r.voted {
		if !voted {
			r.quorum.stuck[i].Add(1)
		}
	}
	need := r.quorum.majority()
	if len(r.granted) >= need {
		if c := r.compose(need); c.Valid() {
			r.won, r.wonAt = c, r.quorum.wheel.Now()
			c.onLost = r.partLost
			c.start()
			r.regainMissing()
			return
		}
		r.errs = append(r.errs, errSlow) // the first leases ended before the last answer
	}
	for _, h := range r.granted {
		h.abandon()
	}
	if len(r.refused) == 0 || len(r.granted)+len(r.refused) < need {
		r.err = noQuorum(r.errs)
		return
	}
	r.err = &LockedError{Name: r.mutex.name, TTL: untilFree(r.refused, max(need-len(r.granted), 1))}
	r.split = len(r.granted) > 0
}

// compose returns the lock with the parts that were granted.
func (r *quorumRound) compose(need int) *composite {
	parts := make([]part, len(r.granted))
	for i, h := range r.granted {
		parts[i] = h
	}
	c := r.quorum.servers[0].newComposite(r.mutex.name, need, parts, &r.quorum.gate)
	c.id, c.mutex.config = r.id, r.mutex.parts[0].config
	return c
}

// regainMissing asks again for the parts that servers have refused.
func (r *quorumRound) regainMissing() {
	for i, c := range r.quorum.servers {
		granted := slices.ContainsFunc(r.granted, func(h *held) bool { return h.client() == c })
		if r.voted[i] && !granted {
			r.regain(i)
		}
	}
}

// untilFree returns the time until the given number of holds, or all of fewer, have ended without a release;
// negative if never.
func untilFree(holds []time.Duration, missing int) time.Duration {
	slices.SortFunc(holds, func(x, y time.Duration) int { return cmp.Compare(forever(x), forever(y)) })
	return holds[min(missing, len(holds))-1]
}

// forever maps the TTL of a key without an expiry to the longest duration.
func forever(ttl time.Duration) time.Duration {
	if ttl < 0 {
		return math.MaxInt64
	}
	return ttl
}
