package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// tasksKind is the kind of queues of delayed tasks.
const tasksKind = "delayed tasks"

func isTasks(kind string) bool { return kind == tasksKind }

// Task is what an operation says about a task. The handler of its attempts takes as long as the Hold of the operation.
type Task struct {
	ID     string        `json:"id"`
	Delay  time.Duration `json:"delay,omitempty"`
	Most   time.Duration `json:"most,omitempty"` // of WithMaxWait
	Absent bool          `json:"absent,omitempty"`
	Fails  int           `json:"fails,omitempty"` // attempts that fail
	Panics bool          `json:"panics,omitempty"`
	Deaf   bool          `json:"deaf,omitempty"` // does not look at its context
}

// How queues retry tasks that fail.
const (
	taskAttempts = 3
	firstBackoff = 200 * time.Millisecond
	lastBackoff  = time.Second
)

// slowPoll is the poll interval of schedules in which a process that waits for it is seen. They have few workers, and
// mostly quick tasks, so that tasks are claimed ahead and handed back.
const slowPoll = 30 * time.Second

func (t Task) describe() string {
	text := fmt.Sprintf(" %s delay=%v", t.ID, t.Delay)
	if t.Most > 0 {
		text += fmt.Sprintf(" most=%v", t.Most)
	}
	if t.Absent {
		text += " absent"
	}
	if t.Deaf {
		text += " deaf"
	}
	if t.Fails > 0 {
		text += fmt.Sprintf(" fails=%d panics=%v", t.Fails, t.Panics)
	}
	return text
}

// task draws an operation about a task: of an id of a few, which repeats, or of a fresh one.
func (d drawer) task(s *Schedule, o *Op) {
	if o.Action = Plan; d.IntN(4) == 0 {
		o.Patience = d.between(0, d.one(20*time.Millisecond, time.Second)) + time.Millisecond
	}
	o.Task.ID = string(rune('a' + d.IntN(3)))
	o.Task.Delay = d.between(0, d.one(0, 10*time.Millisecond, time.Second, 5*time.Second))
	if d.IntN(3) == 0 {
		o.Task.ID = fmt.Sprint("task-", len(s.Ops))
	}
	if d.IntN(5) == 0 {
		o.Task.Most = d.between(0, 3*time.Second)
	}
	switch action := d.IntN(20); {
	case action < 2:
		o.Action, o.Patience, o.N = Serve, 0, 1+d.Int64N(4)
		o.Hold = d.between(0, s.Length/2)
		return
	case action < 9:
		o.Action = []Action{Cancel, Cancel, Cancel, Move, Move, Retry, Forget}[action-2]
		if len(s.Ops) > 0 && d.IntN(3) == 0 {
			o.Task.ID = s.Ops[d.IntN(len(s.Ops))].Task.ID
		}
		return
	}
	o.Task.Absent = d.IntN(6) == 0
	o.Hold = d.between(0, d.one(0, 10*time.Millisecond, time.Second, s.Lease/2, s.Lease*3/2))
	if s.Poll == slowPoll && d.IntN(4) > 0 {
		o.Hold = 0
	}
	o.Task.Deaf = d.IntN(4) == 0
	if d.IntN(4) == 0 {
		o.Task.Fails, o.Task.Panics = 1+d.IntN(taskAttempts), d.IntN(2) == 0
	}
}

// servers draws processes that serve the queues most of the time.
func (d drawer) servers(s *Schedule) {
	others := slices.ContainsFunc(s.Objects, func(o Object) bool { return !isTasks(o.Kind) })
	if !others && d.IntN(2) == 0 {
		s.Poll = slowPoll
	}
	for i, o := range s.Objects {
		for p := range s.Processes {
			if isTasks(o.Kind) && d.IntN(4) > 0 {
				o := Op{At: d.between(0, s.Length/10), Process: p, Object: i, Action: Serve, N: 1 + d.Int64N(8)}
				if s.Poll == slowPoll {
					o.N = 1 + o.N/4
				}
				o.Hold = d.between(s.Length/2, s.Length)
				s.Ops = append(s.Ops, o)
			}
		}
	}
}

// taskCall is a call of Schedule, Cancel, Reschedule, RetryFailed or DeleteFailed.
type taskCall struct {
	Op
	link             int
	payload          string // of Schedule; each call has another one
	called, returned int64
	clock            int64 // of the server, us, when it was called
	done             bool
	err              error
}

// errNotReturned is the error of a call that has not returned.
var errNotReturned = errors.New("it has not returned")

// taskRun is an attempt, as its handler saw it.
type taskRun struct {
	delay.Task
	object, process, link int
	began                 int64
	clock                 int64 // of the server, us, when it began
	ended                 int64 // when its context ended, or it returned
	returned              int64
	err                   error
}

func (w *world) queueOf(p *process, object int) *delay.Queue {
	return p.delays.Queue(w.Objects[object].Name, delay.WithLease(w.Lease),
		delay.WithRetry(taskAttempts, delay.Backoff(firstBackoff, lastBackoff)))
}

// doTask carries out an operation about a task.
func (w *world) doTask(ctx context.Context, p *process, o Op) {
	if o.Action == Serve {
		w.serveTasks(p, o)
		return
	}
	c := &taskCall{Op: o, link: p.link.number, clock: w.server.micros(), returned: forever, err: errNotReturned}
	w.mu.Lock()
	w.ids++
	c.payload, c.called = strconv.FormatUint(w.ids, 10), w.stampLocked()
	if o.Action == Plan {
		w.planned[c.payload] = o
	}
	w.taskCalls = append(w.taskCalls, c)
	w.traceLocked(c.called, fmt.Sprintf("process %d: #%s %s%s", p.number, c.payload, o.Action, o.Task.describe()))
	w.mu.Unlock()
	var done bool
	err := safely(func() (err error) { done, err = callTask(ctx, w.queueOf(p, o.Object), o, c.payload); return err })
	if !p.awake() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		w.troubledLocked(p, o, c.called, false, err)
	}
	c.returned, c.done, c.err = w.stampLocked(), done, err
	w.traceLocked(c.returned, fmt.Sprintf("process %d: #%s returned %v, %v", p.number, c.payload, done, err))
}

// callTask makes the call of an operation about a task.
func callTask(ctx context.Context, q *delay.Queue, o Op, payload string) (done bool, err error) {
	var opts []delay.ScheduleOption
	if o.Task.Most > 0 {
		opts = append(opts, delay.WithMaxWait(o.Task.Most))
	}
	if o.Task.Absent {
		opts = append(opts, delay.IfAbsent())
	}
	switch id := o.Task.ID; o.Action {
	case Cancel:
		return q.Cancel(ctx, id)
	case Move:
		return q.Reschedule(ctx, id, o.Task.Delay, opts...)
	case Retry:
		return q.RetryFailed(ctx, id)
	case Forget:
		return q.DeleteFailed(ctx, id)
	default:
		return true, q.Schedule(ctx, id, o.Task.Delay, []byte(payload), opts...)
	}
}

// serveTasks serves a queue for a while.
func (w *world) serveTasks(p *process, o Op) {
	ctx, cancel := context.WithTimeout(context.Background(), o.Hold)
	defer cancel()
	ends, called := time.Now().Add(o.Hold), w.since()
	w.mu.Lock()
	service := &taskService{o.Object, p.number, p.link.number, int(o.N), w.stampLocked(), 0}
	w.services = append(w.services, service)
	w.mu.Unlock()
	context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		service.to = w.stampLocked()
	})
	err := safely(func() error {
		return w.queueOf(p, o.Object).Serve(ctx, int(o.N), func(ctx context.Context, t *delay.Task) error {
			return w.handle(ctx, p, o.Object, t)
		})
	})
	late := time.Since(ends)
	if !p.awake() {
		return
	}
	w.mu.Lock()
	w.traceLocked(w.stampLocked(), fmt.Sprintf("process %d: Serve returned %v", p.number, err))
	known := []error{nil, delay.ErrServing, delay.ErrClosed, context.DeadlineExceeded}
	if !slices.ContainsFunc(known, func(e error) bool { return errors.Is(err, e) }) {
		w.refused = true
		w.troubledLocked(p, o, called, false, err)
	}
	longest := w.longestTaskLocked()
	w.mu.Unlock()
	if limit := w.Lease + longest + w.Tick + time.Second; late > limit && !w.has("process stands still") {
		w.faultf("Serve returns a lease after its handlers", w.Objects[o.Object].Name, "it took %v: %v", late, err)
	}
}

// longestTaskLocked returns how long a handler takes at most that does not look at its context.
func (w *world) longestTaskLocked() (longest time.Duration) {
	for _, o := range w.planned {
		if o.Task.Deaf {
			longest = max(longest, o.Hold)
		}
	}
	return longest
}

// errHandler is what handlers return that fail.
var errHandler = errors.New("the handler fails")

// handle is the handler of all tasks.
func (w *world) handle(ctx context.Context, p *process, object int, t *delay.Task) error {
	if !p.awake() {
		return errHandler
	}
	r := &taskRun{
		Task: *t, object: object, process: p.number, link: p.link.number,
		clock: w.server.micros(), ended: forever, returned: forever,
	}
	w.mu.Lock()
	o := w.planned[string(t.Payload)]
	r.began = w.stampLocked()
	w.taskRuns = append(w.taskRuns, r)
	w.traceLocked(r.began, fmt.Sprintf("process %d: attempt %d of %s #%s begins", p.number, t.Token, t.ID, t.Payload))
	w.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		r.ended = min(r.ended, w.stampLocked())
		text := fmt.Sprintf("process %d: the context of attempt %d ends: %v", p.number, t.Token, context.Cause(ctx))
		w.traceLocked(r.ended, text)
	})
	defer stop()
	timer := time.NewTimer(o.Hold)
	defer timer.Stop()
	heard := ctx.Done()
	if o.Task.Deaf && !w.has("wheel stopped") { // which ends everything at once
		heard = nil
	}
	select {
	case <-timer.C:
	case <-heard:
	}
	if !p.awake() {
		return errHandler
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case t.Failures < o.Task.Fails:
		r.err = errHandler
	case heard != nil:
		r.err = ctx.Err()
	}
	r.returned = w.stampLocked()
	r.ended = min(r.ended, r.returned)
	w.traceLocked(r.returned, fmt.Sprintf("process %d: attempt %d returns %v", p.number, t.Token, r.err))
	if r.err != nil && o.Task.Panics {
		panic(r.err)
	}
	return r.err
}

// drain serves each queue until all of its tasks have ended, after all faults and when no request is on its way.
func (w *world) drain() {
	if !slices.ContainsFunc(w.Objects, func(o Object) bool { return isTasks(o.Kind) }) {
		return
	}
	time.Sleep(w.Lease + w.Lease/2 + 4*w.Poll + w.slack() + w.outages())
	for _, f := range w.Faults {
		if f.Kind == "server's clock steps" { // the due times of some tasks may be far ahead
			w.server.step(f.After.Abs(), w.since())
		}
	}
	for i, o := range w.Objects {
		if !isTasks(o.Kind) {
			continue
		}
		ends := time.Now().Add(4 * w.patience())
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() {
			served <- w.queueOf(w.admin, i).Serve(ctx, 100, func(ctx context.Context, t *delay.Task) error {
				return w.handle(ctx, w.admin, i, t)
			})
		}()
		for w.left(o.Name, "due", "running", "later") && time.Now().Before(ends) {
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // until the last ends are recorded
		cancel()
		if err := <-served; err != nil {
			w.faultf("no trouble", o.Name, "Serve returned %v", err)
		}
		for _, part := range []string{"due", "running", "later"} {
			if w.left(o.Name, part) {
				w.faultf("no task is lost", o.Name, "after the end there is the key %s", scripts.DelayKey(o.Name, part))
			}
		}
		failed, _ := w.server.redis.ZMembers(scripts.DelayKey(o.Name, "failed")) // none if there is no key
		slices.Sort(failed)
		for _, part := range []string{"tasks", "attempts"} {
			ids, _ := w.server.redis.HKeys(scripts.DelayKey(o.Name, part))
			if slices.Sort(ids); !slices.Equal(ids, failed) {
				w.faultf("nothing is left", o.Name, "%s of %v, but %v have failed", part, ids, failed)
			}
		}
		w.mu.Lock()
		w.failed[o.Name] = failed
		w.mu.Unlock()
	}
}

// left reports whether a queue has one of these keys.
func (w *world) left(name string, parts ...string) bool {
	exists := func(part string) bool { return w.server.redis.Exists(scripts.DelayKey(name, part)) }
	return slices.ContainsFunc(parts, exists)
}
