package delay

import (
	"context"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Phase tells what becomes of a task.
type Phase string

// The phases.
const (
	PhaseUnknown Phase = ""        // there is no task of the id, or it has ended
	PhasePending Phase = "pending" // it waits for its time, or after a lost lease
	PhaseClaimed Phase = "claimed" // a process runs it, or is about to
	PhaseFailed  Phase = "failed"  // no attempt follows; it stays for a while, see WithMaxFailed
)

// State is what Redis knows of a task.
type State struct {
	ID      string
	Phase   Phase
	Payload []byte

	// At is when a pending task may run, the lease of a claimed one ends, or a failed one has failed, by the clock of
	// Redis. In is the time until then, negative if At has passed.
	At time.Time
	In time.Duration

	Attempts int   // of WithAttempts, or 0 if WithRetry decides
	Failures int   // attempts that returned an error or panicked
	Losses   int   // attempts that had begun when their lease was lost
	Token    int64 // of the last attempt, or 0
	Next     bool  // the task is claimed, and another of its id is scheduled for afterwards

	Paused bool // the queue; see Pause

	// Error is the text of the error with which the last attempt of a failed task ended, cut to 512 bytes. It is empty
	// if the task has failed by losses of its lease.
	Error string
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

// PendingTasks yields the pending tasks in the order of their times, and then those that wait after a lost lease. A
// task that neither comes, goes nor moves meanwhile is yielded once. The loop may change tasks; it meets one that it
// moves to a later time again. It ends with an error of Redis or ctx, or ErrClosed. Each page of 100 blocks for two
// round trips, or a few more. A claimed task is not pending. One that was scheduled meanwhile under its id is not
// yielded either; it is the Next of State.
func (q *Queue) PendingTasks(ctx context.Context) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		for _, part := range []string{"due", "running"} {
			for s, err := range q.list(ctx, part, PhasePending) {
				if !yield(s, err) || err != nil {
					return
				}
			}
		}
	}
}

// FailedTasks yields the tasks that have failed, the oldest first; see PendingTasks.
func (q *Queue) FailedTasks(ctx context.Context) iter.Seq2[State, error] {
	return q.list(ctx, "failed", PhaseFailed)
}

func (q *Queue) list(ctx context.Context, part string, phase Phase) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		for at := (&place{set: scripts.DelayKey(q.name, part), score: math.Inf(-1)}); !at.last; {
			states, err := q.page(ctx, at)
			for _, s := range states {
				if s.Phase == phase && !yield(s, nil) {
					return
				}
			}
			if err != nil {
				yield(State{}, err)
				return
			}
		}
	}
}

// place is where a page of a sorted set ended: at a member. Members of one score are in the order of their bytes.
type place struct {
	set   string
	score float64
	id    string
	index int64 // of the next task among those of the score and above, unless tasks have come or gone since
	last  bool  // no page follows
}

func (at *place) isBefore(z redis.Z) bool {
	id, _ := z.Member.(string)
	return z.Score > at.score || z.Score == at.score && id > at.id
}

// page reads the tasks of the page after a place, and moves the place to the last of them.
func (q *Queue) page(ctx context.Context, at *place) ([]State, error) {
	if err := q.check(ctx); err != nil {
		return nil, err
	}
	defer q.client.gate.Leave()
	found, err := q.after(ctx, at)
	if err != nil {
		return nil, operationError("list", q.name, err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	ids := make([]string, len(found))
	for i, z := range found {
		ids[i], _ = z.Member.(string)
	}
	return q.states(ctx, ids)
}

// after returns the next members after a place, and moves the place to the last of them. The index of the place is a
// guess, as tasks come and go, so it reads from the member before that on. If all that it reads comes after the place,
// it goes back by growing steps. If all comes before, it goes on.
func (q *Queue) after(ctx context.Context, at *place) ([]redis.Z, error) {
	by := redis.ZRangeBy{Min: "-inf", Max: "+inf", Offset: max(0, at.index-1), Count: pageSize}
	if !math.IsInf(at.score, -1) {
		by.Min = strconv.FormatFloat(at.score, 'f', -1, 64)
	}
	for back := int64(pageSize); ; {
		found, err := q.client.redis.Client.ZRangeByScoreWithScores(ctx, at.set, &by).Result()
		if err != nil {
			return nil, err
		}
		n := int64(len(found))
		switch first := slices.IndexFunc(found, at.isBefore); {
		case by.Offset > 0 && (first == 0 || n == 0):
			by.Offset = max(0, by.Offset-back)
			back *= 2
		case first < 0 && n == pageSize:
			by.Offset += n - 1 // the last one again, so that none is skipped if others go meanwhile
		case first < 0:
			at.last = true
			return nil, nil
		default:
			at.last = n < pageSize
			at.moveTo(found, by.Offset+n)
			return found[first:], nil
		}
	}
}

// moveTo moves the place to the last of some members. end is its index among those of the score of the place.
func (at *place) moveTo(found []redis.Z, end int64) {
	last := found[len(found)-1]
	at.id, _ = last.Member.(string)
	if at.index = end; last.Score != at.score {
		at.index = int64(len(found) - slices.IndexFunc(found, func(z redis.Z) bool { return z.Score == last.Score }))
		at.score = last.Score
	}
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
		return scripts.DelayState.Call(append(keysOf(q.name), pausedKey(q.name)), args...)
	}})
	if !answered {
		return nil, operationError("state", q.name, conventions.Cause(ctx))
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
	now, paused := read.number(), read.number() == 1
	var states []State
	for _, id := range ids {
		s := State{ID: id, Phase: Phase(read.text()), Paused: paused}
		at := read.number()
		_, payload, attempts := readTask(read.text())
		s.Failures, s.Losses = int(read.number()), int(read.number())
		s.Token, s.Next, s.Error = read.number(), read.number() == 1, read.text()
		if s.Phase != PhaseUnknown {
			s.Payload, s.Attempts = payload, attempts
			s.At, s.In = time.UnixMicro(at), time.Duration(at-now)*time.Microsecond
		}
		states = append(states, s)
	}
	if read.bad || len(read.fields) > 0 {
		return nil, r.Unexpected()
	}
	return states, nil
}
