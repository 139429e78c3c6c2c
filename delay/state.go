package delay

import (
	"context"
	"iter"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Phase tells what becomes of a task.
type Phase string

// The phases.
const (
	Unknown Phase = ""        // there is no task of the id, or it has ended
	Pending Phase = "pending" // it waits for its time
	Claimed Phase = "claimed" // a process runs it, or is about to
	Failed  Phase = "failed"  // it was attempted as often as WithRetry allows, and stays until it is retried or deleted
)

// State is what Redis knows of a task.
type State struct {
	ID      string
	Phase   Phase
	Payload []byte

	// At is when a pending task is due, the lease of a claimed one ends, or a failed one has failed, by the clock of
	// Redis. In is the time until then.
	At time.Time
	In time.Duration

	Failures int   // attempts that returned an error or panicked
	Losses   int   // attempts whose lease was lost
	Token    int64 // of the last attempt, or 0
	Next     bool  // the task is claimed, and another of its id is scheduled for afterwards
}

// State returns the state of a task; its Phase is Unknown if there is none. It blocks for a round trip, at most until
// ctx ends.
func (q *Queue) State(ctx context.Context, id string) (State, error) {
	if err := q.check(ctx); err != nil {
		return State{}, err
	}
	defer q.client.gate.Leave()
	states, err := q.states(ctx, []string{id})
	if err != nil {
		return State{}, err
	}
	return states[0], nil
}

// pageSize is the number of tasks that an iterator reads at once.
const pageSize = 100

// PendingTasks yields the pending tasks in the order of their times. Tasks that come, go or move meanwhile may be
// missed or yielded twice; the loop may change the task that it was given. It ends with an error of Redis or ctx, or
// ErrClosed. Each page of 100 blocks for three round trips. A claimed task is not pending. One that was scheduled
// meanwhile under its id is not yielded either; it is the Next of State.
func (q *Queue) PendingTasks(ctx context.Context) iter.Seq2[State, error] {
	return q.list(ctx, "due", Pending)
}

// FailedTasks yields the tasks that have failed, the oldest first; see PendingTasks.
func (q *Queue) FailedTasks(ctx context.Context) iter.Seq2[State, error] {
	return q.list(ctx, "failed", Failed)
}

func (q *Queue) list(ctx context.Context, part string, phase Phase) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		set := scripts.DelayKey(q.name, part)
		for at := (&redis.ZRangeBy{Min: "-inf", Max: "+inf", Count: pageSize}); at != nil; {
			states, last, err := q.page(ctx, set, at)
			for _, s := range states {
				if s.Phase == phase && !yield(s, nil) {
					return
				}
			}
			if err == nil {
				at, err = q.pageAfter(ctx, set, at, last)
			}
			if err != nil {
				yield(State{}, err)
				return
			}
		}
	}
}

// page reads the tasks of a page of a sorted set. last are their members and scores.
func (q *Queue) page(
	ctx context.Context, set string, at *redis.ZRangeBy,
) (states []State, last []redis.Z, err error) {
	if err = q.check(ctx); err != nil {
		return nil, nil, err
	}
	defer q.client.gate.Leave()
	last, err = q.client.redis.Client.ZRangeByScoreWithScores(ctx, set, at).Result()
	if err != nil {
		return nil, nil, operationError("list", q.name, err)
	}
	if len(last) == 0 {
		return nil, nil, nil
	}
	ids := make([]string, len(last))
	for i, z := range last {
		ids[i], _ = z.Member.(string)
	}
	states, err = q.states(ctx, ids)
	return states, last, err
}

// pageAfter returns the page after one that was read at a place, or nil after the last one: it begins at the last
// score, after the members that still have it. So those that came or went before it move none of the others.
func (q *Queue) pageAfter(
	ctx context.Context, set string, at *redis.ZRangeBy, last []redis.Z,
) (*redis.ZRangeBy, error) {
	if len(last) < pageSize {
		return nil, nil //nolint:nilnil // there is no page, and no error
	}
	if err := q.check(ctx); err != nil {
		return nil, err
	}
	defer q.client.gate.Leave()
	score := last[len(last)-1].Score
	next := &redis.ZRangeBy{Min: strconv.FormatFloat(score, 'f', -1, 64), Max: at.Max, Count: pageSize}
	if next.Min == at.Min {
		next.Offset = at.Offset
	}
	var same []string
	for _, z := range last {
		if id, _ := z.Member.(string); z.Score == score {
			same = append(same, id)
		}
	}
	scores, err := q.client.redis.Client.ZMScore(ctx, set, same...).Result()
	if err != nil {
		return nil, operationError("list", q.name, err)
	}
	for _, s := range scores {
		if s == score {
			next.Offset++
		}
	}
	return next, nil
}

// check checks a call without arguments, and enters the gate if there is no error.
func (q *Queue) check(ctx context.Context) error {
	switch {
	case q.err != nil:
		return q.err
	case ctx == nil:
		return argument.Nil("context")
	case !q.client.gate.Enter():
		return ErrClosed
	}
	return nil
}

// states reads the states of tasks.
func (q *Queue) states(ctx context.Context, ids []string) ([]State, error) {
	r, answered := q.client.redis.Sender.Do(ctx, calls.Request{Key: q.name, Build: func() scripts.Call {
		args := make([]any, len(ids))
		for i, id := range ids {
			args[i] = id
		}
		return scripts.DelayState.Call(keysOf(q.name), args...)
	}})
	if !answered {
		return nil, operationError("state", q.name, contexts.Error(ctx))
	}
	states, err := readStates(&r, ids)
	if err != nil {
		return nil, operationError("state", q.name, err)
	}
	return states, nil
}

// readStates reads the reply of delay_state.
func readStates(r *redisconn.Reply, ids []string) ([]State, error) {
	reply, err := r.Slice()
	if err != nil {
		return nil, err
	}
	read := fieldReader{fields: reply}
	now := read.number()
	var states []State
	for _, id := range ids {
		s := State{ID: id, Phase: Phase(read.text())}
		at := read.number()
		_, payload := readTask(read.text())
		s.Failures, s.Losses = int(read.number()), int(read.number())
		s.Token, s.Next = read.number(), read.number() == 1
		if s.Phase != Unknown {
			s.Payload = payload
			s.At, s.In = time.UnixMicro(at), time.Duration(at-now)*time.Microsecond
		}
		states = append(states, s)
	}
	if read.bad || len(read.fields) > 0 {
		return nil, r.Unexpected()
	}
	return states, nil
}
