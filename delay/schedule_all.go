package delay

import (
	"context"
	"iter"
	"sync"
	"time"
)

// NewTask is a task for ScheduleAll.
type NewTask struct {
	ID      string
	Delay   time.Duration // 0 to MaxDelay, from when Redis schedules it; ignored if At is set
	At      time.Time     // see ScheduleAt
	Payload []byte        // ScheduleAll copies it
}

// ScheduleAll is Schedule for each task of a sequence, such as slices.Values of a slice, with the same options. Of
// tasks of one id the last one counts. Calls have up to 100 tasks and about 1 MiB, and follow one another. It asks for
// the tasks of a call at a time, on the goroutine of the caller, and blocks for a round trip for each call, at most
// until ctx ends.
//
// It returns the number of tasks, from the first one on, that are scheduled. These are all if err is nil. An invalid
// task ends it, and is the one after these. After an error of Redis or ctx, some of the 100 tasks that follow may have
// been scheduled too, and none after them.
func (q *Queue) ScheduleAll(
	ctx context.Context, tasks iter.Seq[NewTask], opts ...ScheduleOption,
) (scheduled int, err error) {
	cfg, err := q.scheduleConfig(ctx, "schedule", opts)
	switch {
	case err != nil:
		return 0, err
	case tasks == nil:
		return 0, argument.Nil("tasks")
	}
	var call []*edit
	bytes := 0
	send := func() error {
		n, err := q.scheduleCall(ctx, call)
		scheduled += n
		call, bytes = call[:0], 0
		return err
	}
	for task := range tasks {
		e, invalid := q.editOf(ctx, cfg, task)
		if invalid != nil {
			if err := send(); err != nil {
				return scheduled, err
			}
			return scheduled, invalid
		}
		if len(call) == maxBatch || len(call) > 0 && bytes+len(e.text) > maxCallBytes {
			if err := send(); err != nil {
				return scheduled, err
			}
		}
		call, bytes = append(call, e), bytes+len(e.text)
	}
	err = send()
	return scheduled, err
}

// editOf returns the request for a task.
func (q *Queue) editOf(ctx context.Context, cfg scheduleConfig, task NewTask) (*edit, error) {
	at, err := after(task.Delay)
	if !task.At.IsZero() {
		at, err = instant(task.At)
	}
	if err != nil {
		return nil, err
	}
	return q.newEdit(ctx, cfg, "schedule", task.ID, at, task.Payload)
}

// scheduleCall makes the requests of a call, and returns the number of those, from the first one on, that were made.
func (q *Queue) scheduleCall(ctx context.Context, requests []*edit) (made int, err error) {
	c := q.client
	if !c.gate.Enter() {
		return 0, operationError("schedule", q.name, ErrClosed)
	}
	defer c.gate.Leave()
	errs := make([]error, len(requests))
	var all sync.WaitGroup
	all.Add(len(requests))
	for i, e := range requests {
		c.edits.WaitFunc(ctx, q.tag, e, func(_ *edit, err error) {
			_, errs[i] = q.edited(ctx, e, err)
			all.Done()
		})
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			return i, err
		}
	}
	return len(requests), nil
}
