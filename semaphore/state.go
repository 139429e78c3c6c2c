package semaphore

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// mostListed bounds the permits of a State.
const mostListed = 1000

// State is the state of a Semaphore in Redis at one instant.
type State struct {
	IsSet   bool     // whether the number of permits is set
	Free    int64    // free permits; 0 if the number is not set, negative if more are held than exist
	Held    int64    // held permits
	Permits []Permit // held permits in the order in which their leases end; at most 1000
	Waiting int64    // processes that wait in the line in Redis, or -1 if that is not known; see State
	Token   int64    // the highest fencing token given out, 0 if none is known
}

// Permit is one held permit of a Semaphore.
type Permit struct {
	ID    string        // as Grant.IDs returns it
	Lease time.Duration // time until it expires unless it is renewed, or Forever
}

// State returns the state of the semaphore in Redis. Unlike Available it changes nothing: permits whose lease
// has ended count as free. It blocks for one round trip, at most until ctx ends. The state may be out of date
// when State returns: show it to people, do not act on it.
//
// Waiting counts the processes, this one included, whatever the number of their calls; Client.Waits has the calls of
// this process. A process counts from when it is refused and its subscription has begun until it is woken, and so does
// one that has died, until it would be woken or nobody else has asked for three poll intervals (see WithPoll). Waiters
// that are in no line do not count: those in Java, and those of users without the rights to the line. Where no waiter
// of a Semaphore has a line, on a Ring and on ordinary channels of a cluster, Waiting is -1 instead of 0, and it is -1
// if this user may not read the line. While the cluster slot of the semaphore migrates, Waiting may be -1 or 0.
func (s *Semaphore) State(ctx context.Context) (State, error) {
	if s.err != nil {
		return State{}, s.err
	}
	scriptKeys := []string{s.keys.permits, s.keys.leases, s.keys.fence}
	r, err := s.client.call(ctx, "state of", s.name, func() scripts.Call {
		return scripts.PermitList.Call(scriptKeys, mostListed, s.keys.channel)
	})
	if err != nil {
		return State{}, err
	}
	v, err := r.Slice()
	if err == nil {
		var state State
		if state, err = parseState(v); err == nil {
			if state.Waiting == 0 && !s.hasLine(ctx) {
				state.Waiting = -1
			}
			return state, nil
		}
	}
	return State{}, operationError("state of", s.name, err)
}

// hasLine reports whether the waiters of the semaphore have a line. It may have to ask a cluster for its kind of
// channels.
func (s *Semaphore) hasLine(ctx context.Context) bool {
	c := s.client
	if channels := c.redis.Channels; !s.fair && !channels.Decided() && c.gate.Enter() {
		defer c.gate.Leave()
		gate.Await(&c.gate, ctx.Done(), func() struct{} {
			channels.Decide()
			return struct{}{}
		})
	}
	return s.fair || c.redis.Channels.Counted()
}

func parseState(v []any) (State, error) {
	const head = 5
	if len(v) < head || len(v)%2 != head%2 {
		return State{}, scripts.Unexpected(v)
	}
	n, err := int64s(v[:head])
	if err != nil {
		return State{}, err
	}
	s := State{IsSet: n[0] == 1, Free: n[1], Held: n[2], Token: n[3], Waiting: n[4]}
	for i := head; i < len(v); i += 2 {
		id, isText := v[i].(string)
		millis, isNumber := v[i+1].(int64)
		if !isText || !isNumber {
			return State{}, scripts.Unexpected(v)
		}
		p := Permit{ID: hex.EncodeToString([]byte(id)), Lease: Forever}
		if millis >= 0 {
			p.Lease = redisconn.Duration(millis)
		}
		s.Permits = append(s.Permits, p)
	}
	return s, nil
}

func int64s(v []any) ([]int64, error) {
	out := make([]int64, len(v))
	for i, x := range v {
		n, ok := x.(int64)
		if !ok {
			return nil, scripts.Unexpected(v)
		}
		out[i] = n
	}
	return out, nil
}
