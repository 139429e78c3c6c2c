package robustness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// TaskKinds are the kinds of queues of tasks.
var TaskKinds = []*Kind{{Name: "tasks", Tasks: newDelays}}

// taskQueue is an implementation under test: the queues of one library over one connection to Redis.
type taskQueue interface {
	Schedule(ctx context.Context, queue, id string, delay time.Duration, payload []byte) error
	Cancel(ctx context.Context, queue, id string) (bool, error)
	Reschedule(ctx context.Context, queue, id string, delay time.Duration) (bool, error)

	// Serve runs tasks until ctx ends and the handlers have returned.
	Serve(ctx context.Context, queue string, handle func(context.Context, *delay.Task) error) error

	// Empty reports whether no task is pending or claimed.
	Empty(ctx context.Context, queue string) (bool, error)

	Close(ctx context.Context) error
}

// Of a queue of a run.
const (
	taskWorkers  = 4 // of a client
	taskAttempts = 3
	taskDelay    = 1500 * time.Millisecond // the longest
)

// delays are the queues of a delay.Client.
type delays struct {
	*delay.Client
	rdb   redis.UniversalClient
	lease time.Duration
}

func newDelays(rdb redis.UniversalClient, w *wheel.Wheel, s Settings) (taskQueue, error) {
	c, err := delay.New(rdb, delay.WithWheel(w), delay.WithPoll(s.Poll))
	return delays{c, rdb, s.Lease}, err
}

func (d delays) queue(name string) *delay.Queue {
	return d.Queue(name, delay.WithLease(d.lease),
		delay.WithRetry(taskAttempts, delay.Backoff(50*time.Millisecond, time.Second)))
}

func (d delays) Schedule(ctx context.Context, queue, id string, in time.Duration, payload []byte) error {
	return d.queue(queue).Schedule(ctx, id, in, payload)
}

func (d delays) Cancel(ctx context.Context, queue, id string) (bool, error) {
	return d.queue(queue).Cancel(ctx, id)
}

func (d delays) Reschedule(ctx context.Context, queue, id string, in time.Duration) (bool, error) {
	return d.queue(queue).Reschedule(ctx, id, in)
}

func (d delays) Serve(ctx context.Context, queue string, handle func(context.Context, *delay.Task) error) error {
	return d.queue(queue).Serve(ctx, taskWorkers, handle)
}

// Empty deletes the tasks that have failed.
func (d delays) Empty(ctx context.Context, queue string) (bool, error) {
	for s, err := range d.queue(queue).FailedTasks(ctx) {
		if err != nil {
			return false, err
		}
		if _, err := d.queue(queue).DeleteFailed(ctx, s.ID); err != nil {
			return false, err
		}
	}
	n, err := d.rdb.Exists(ctx, scripts.DelayKey(queue, "due"), scripts.DelayKey(queue, "running")).Result()
	return n == 0, err
}

// openTasks makes a client that schedules and serves tasks.
func (s *session) openTasks(rdb redis.UniversalClient, w *wheel.Wheel) (client, error) {
	q, err := s.kind.Tasks(rdb, w, s.Settings)
	if err != nil {
		return client{}, err
	}
	serving, end := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i, queue := range s.Objects {
		rnd := rand.New(rand.NewPCG(s.Seed, uint64(s.number)<<32+uint64(i)+1<<16))
		all.Go(func() { (&server{s.process, q, s.id(), queue, &lockedRand{rnd: rnd}}).run(serving) })
	}
	return client{func(rnd *rand.Rand) func(context.Context) {
		return (&scheduler{process: s.process, queue: q, id: s.id(), rnd: rnd}).once
	}, func(ctx context.Context) error {
		var drained error
		if s.Drain {
			drained = s.drain(ctx, q)
		}
		s.rec.Record(history.Event{Step: history.Stopping, Client: s.id()})
		err := q.Close(ctx)
		end()
		all.Wait()
		return errors.Join(drained, err)
	}}, nil
}

// drain serves until the queues are empty.
func (s *session) drain(ctx context.Context, q taskQueue) error {
	for _, queue := range s.Objects {
		for {
			empty, err := q.Empty(ctx, queue)
			if empty && err == nil {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("%s is not empty: %w", queue, cmp.Or(err, ctx.Err()))
			}
			s.rest(ctx, 20*time.Millisecond) // an error is that of a busy machine
		}
	}
	return nil
}

// rest sleeps unless ctx ends.
func (p *process) rest(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// storeEffect applies an effect if its token is higher than those so far, and reads the clock.
var storeEffect = redis.NewScript(`
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
if #KEYS == 0 then
	return {clock}
end
local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
if tonumber(ARGV[1]) <= tonumber(redis.call('HGET', KEYS[1], 'token') or 0) then
	return {clock, seq, 0}
end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
return {clock, seq, 1}`)

// clock returns the clock of the store in us, which is also that of the other servers on the machine.
func (p *process) clock(ctx context.Context) int64 {
	reply, err := storeEffect.Run(context.WithoutCancel(ctx), p.store, nil).Int64Slice()
	if err != nil {
		p.trouble(fmt.Errorf("the store: %w", err))
		return 0
	}
	return reply[0]
}

// scheduler is a goroutine that schedules, cancels and reschedules tasks of ids of its own.
type scheduler struct {
	*process
	queue taskQueue
	id    uint64
	rnd   *rand.Rand
	ids   []string // the last ones: queue/id
}

// once makes one call. Half of them are of a new id.
func (c *scheduler) once(parent context.Context) {
	call := history.Event{Step: history.Called, ID: c.newID(), Client: c.id, N: 1, Task: &history.Task{
		Verb: "schedule", Delay: time.Duration(c.rnd.Int64N(int64(taskDelay))),
	}}
	if len(c.ids) < 4 || c.rnd.IntN(2) == 0 {
		queue := c.Objects[c.rnd.IntN(len(c.Objects))]
		c.ids = append(c.ids, queue+"/order-"+strconv.FormatUint(call.ID, 10))
		c.ids = c.ids[max(0, len(c.ids)-8):]
		call.Object = c.ids[len(c.ids)-1]
	} else {
		call.Object = c.ids[c.rnd.IntN(len(c.ids))]
		call.Task.Verb = []string{"schedule", "cancel", "move"}[c.rnd.IntN(3)]
	}
	patience := 10 * time.Second
	if c.rnd.Float64() < c.GiveUp {
		patience = time.Duration(1+c.rnd.IntN(30)) * time.Millisecond
	}
	call.Task.Clock = c.clock(parent)
	c.rec.Record(call)
	ctx, cancel := context.WithTimeout(parent, patience)
	defer cancel()
	done, err := c.ask(ctx, call)
	result := history.Event{Step: history.Granted, ID: call.ID}
	switch {
	case err != nil:
		result.Step, result.Note = history.Failed, err.Error()
	case !done:
		result.Step = history.Refused
	}
	c.rec.Record(result)
	c.rest(parent, time.Duration(5+c.rnd.IntN(60))*time.Millisecond)
}

func (c *scheduler) ask(ctx context.Context, call history.Event) (bool, error) {
	queue, id, _ := strings.Cut(call.Object, "/")
	switch call.Task.Verb {
	case "cancel":
		return c.queue.Cancel(ctx, queue, id)
	case "move":
		return c.queue.Reschedule(ctx, queue, id, call.Task.Delay)
	default:
		err := c.queue.Schedule(ctx, queue, id, call.Task.Delay, strconv.AppendUint(nil, call.ID, 10))
		return err == nil, err
	}
}

// lockedRand is a source that handlers share.
type lockedRand struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

func (r *lockedRand) below(n int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rnd.Int64N(n)
}

// server serves a queue with a client.
type server struct {
	*process
	tasks taskQueue
	id    uint64
	queue string
	rnd   *lockedRand
}

// run serves until ctx ends, and begins again after a while or an error.
func (v *server) run(ctx context.Context) {
	for ctx.Err() == nil {
		turn, cancel := context.WithCancel(ctx)
		over := time.AfterFunc(time.Second+time.Duration(v.rnd.below(int64(5*time.Second))), func() {
			v.rec.Record(history.Event{Step: history.Stopping, Client: v.id, Object: v.queue})
			cancel()
		})
		err := v.tasks.Serve(turn, v.queue, v.handle)
		over.Stop()
		cancel()
		switch {
		case errors.Is(err, delay.ErrClosed):
			return
		case errors.Is(err, delay.ErrServing):
			v.trouble(err)
		}
		if err != nil {
			v.rest(ctx, 50*time.Millisecond)
		}
	}
}

var errTask = errors.New("an error of a handler")

// handle is the handler of tasks. Some return errors, some panic, and some last longer than a lease.
func (v *server) handle(ctx context.Context, task *delay.Task) error {
	began := history.Now()
	call, _ := strconv.ParseUint(string(task.Payload), 10, 64)
	id := v.newID()
	v.rec.Record(history.Event{
		Step: history.Began, At: began, ID: id, Client: v.id, Object: v.queue + "/" + task.ID, Token: task.Token,
		Task: &history.Task{Clock: v.clock(ctx), Call: call, Failures: task.Failures, Losses: task.Losses},
	})
	patience := v.rnd.below(int64(v.MaxHold))
	if v.rnd.below(20) == 0 && !v.Drain {
		patience += int64(v.Lease * 3 / 2) // needs renewals
	}
	for {
		now := history.Now()
		if ctx.Err() != nil {
			break
		}
		v.rec.Record(history.Event{Step: history.Relied, ID: id, At: now})
		if now-began > patience {
			break
		}
		v.rest(ctx, 10*time.Millisecond)
	}
	v.apply(id, task)
	outcome := v.rnd.below(20)
	if ctx.Err() == nil && outcome > 2 {
		v.rec.Record(history.Event{Step: history.Done, ID: id})
		return nil
	}
	v.rec.Record(history.Event{Step: history.Raised, ID: id})
	if outcome == 0 {
		panic(errTask)
	}
	return errors.Join(errTask, ctx.Err())
}

// apply applies the effect of a task, also after its context has ended, as a client does that does not look.
func (v *server) apply(id uint64, task *delay.Task) {
	keys := []string{v.queue + "/" + task.ID}
	reply, err := storeEffect.Run(context.Background(), v.store, keys, task.Token).Int64Slice()
	if err != nil {
		v.trouble(fmt.Errorf("the store: %w", err))
		return
	}
	e := history.Event{Step: history.Rejected, ID: id, Seq: reply[1]}
	if reply[2] == 1 {
		e.Step = history.Wrote
	}
	v.rec.Record(e)
}

// TaskFigures are the figures of a run of tasks.
type TaskFigures struct {
	check.TaskFigures
	Takeover Quantiles `json:"takeover"`
}

func (f *TaskFigures) String() string {
	return fmt.Sprintf("%d scheduled, %d rescheduled, %d cancelled; %d attempts: %d done, %d raised, %d exhausted, "+
		"%d after a hand-back, %d leases ended; %d stale writes rejected; takeover: %v",
		f.Scheduled, f.Moved, f.Cancelled, f.Attempts, f.Done, f.Raised, f.Exhausted,
		f.Back, f.Losses, f.Stale, f.Takeover)
}

// judgeTasks checks tasks.
func (r *Run) judgeTasks(res *Result, events []history.Event) {
	figures, faults := check.Tasks(events, check.TaskRules{
		Lease: r.Lease, Attempts: taskAttempts, Slack: toldSlack, Outages: r.outages,
	})
	res.Tasks = &TaskFigures{figures, quantiles(slices.Clone(figures.Takeover))}
	if !r.lostData() { // or nothing is promised
		res.Faults = append(res.Faults, faults...)
	}
}
