package redislock

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// serverMark is what precedes the number of the server in the ids of one ballot: <client>:<n>:s<server>[:m=<metadata>]. What precedes it
// is the same on all servers, which tells State that they speak of one holder. The ids differ all the same: otherwise two clients
// of one server, given by mistake, could pass for two servers.
const serverMark = ":s"

// ballot is one round of asking all servers of a Quorum for a lock.
//
// Ground rules. mu guards everything below it. The ballot is decided once, in decide; won, err and split do not change after decided is
// closed. A vote that comes later joins the lock that was won, or is given back.
type ballot struct {
	quorum  *Quorum
	mutex   *QuorumMutex
	id      string
	decided chan struct{}

	mu     sync.Mutex
	over   bool
	voted  []bool
	locks  []*Lock
	locked []time.Duration // how long others hold it where it was refused
	errs   []error

	won   *joint
	err   error
	split bool // some servers gave the lock, and too few
}

func newBallot(q *Quorum, m *QuorumMutex) *ballot {
	return &ballot{quorum: q, mutex: m, id: q.servers[0].nextID(), decided: make(chan struct{}), voted: make([]bool, len(q.servers))}
}

// open asks every server on a goroutine of its own, which ends by the client's timeouts.
func (b *ballot) open() {
	for i, part := range b.mutex.parts {
		c := part.client
		switch {
		case b.quorum.stuck[i].Load() >= maxStuck:
			b.cast(i, nil, errStuck)
		case !c.gate.Enter():
			b.cast(i, nil, ErrClosed)
		default:
			go func() {
				defer c.gate.Leave()
				w := part.wish(false)
				w.req.id = b.id + serverMark + strconv.Itoa(i) + part.config.metadata
				l, err := w.ask(nil) // also when the round is decided: the lock may be held by more servers than it needs
				if err == nil {
					c.limit(l)
				}
				b.cast(i, l, err)
			}()
		}
	}
}

// cast counts the vote of a server.
func (b *ballot) cast(i int, l *Lock, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.voted[i] = true
	if b.over {
		b.quorum.stuck[i].Add(-1)
		if l != nil && (b.won == nil || !b.won.add(l)) {
			l.giveUp()
		}
		return
	}
	if err == nil {
		b.locks = append(b.locks, l)
	} else if locked, ok := errors.AsType[*LockedError](err); ok {
		b.locked = append(b.locked, locked.TTL)
	} else {
		b.errs = append(b.errs, err)
	}
	need, servers := b.quorum.majority(), len(b.voted)
	answers := len(b.locks) + len(b.locked)
	switch {
	case len(b.locks) >= need: // won
	case len(b.errs) > servers-need: // no majority will answer
	case answers >= need && len(b.locked)+len(b.errs) > servers-need: // a majority has answered, and none will give it
	default:
		return
	}
	b.decide()
}

// end decides the ballot by the votes that there are, for a reason.
func (b *ballot) end(reason error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.errs = append(b.errs, reason)
		b.decide()
	}
}

// decide is called with mu held, once.
func (b *ballot) decide() {
	b.over = true
	defer close(b.decided)
	for i, voted := range b.voted {
		if !voted {
			b.quorum.stuck[i].Add(1)
		}
	}
	need := b.quorum.majority()
	if len(b.locks) >= need {
		if j := newJoint(need, b.locks); j.Valid() {
			b.won = j
			return
		}
		b.errs = append(b.errs, errSlow) // the first leases were over when the last answer came
	}
	for _, l := range b.locks {
		l.giveUp()
	}
	if len(b.locked) == 0 || len(b.locks)+len(b.locked) < need {
		b.err = noQuorum(b.errs)
		return
	}
	b.err = &LockedError{Name: b.mutex.name, TTL: untilFree(b.locked, max(need-len(b.locks), 1))}
	b.split = len(b.locks) > 0
}

// untilFree is when so many of several holds have ended by themselves, or all if there are fewer; negative if never.
func untilFree(holds []time.Duration, missing int) time.Duration {
	slices.SortFunc(holds, func(x, y time.Duration) int { return cmp.Compare(forever(x), forever(y)) })
	return holds[min(missing, len(holds))-1]
}

// forever turns the TTL of a key without one into the longest.
func forever(ttl time.Duration) time.Duration {
	if ttl < 0 {
		return math.MaxInt64
	}
	return ttl
}
