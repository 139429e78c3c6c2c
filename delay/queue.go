package delay

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// Queue is a set of tasks in Redis, each with an id, a payload and a time at which it is due. It has no state of its
// own: all values of one name are the same queue. It is safe for concurrent use.
type Queue struct {
	client *Client
	name   string
	tag    string // name with a hash tag: orders and {orders} are one queue
	config queueConfig
	err    error // of the name or an option
}

// Queue returns the queue with the given name. It does not talk to Redis. A name has 1 to 65536 bytes; one that
// contains a brace must contain a hash tag such as {orders}. The names orders and {orders} are those of one queue. If
// the name or an option is invalid, Err and all methods return a *cogwheel.InvalidError.
func (c *Client) Queue(name string, opts ...QueueOption) *Queue {
	q := &Queue{client: c, name: name}
	q.config = queueConfig{
		lease: DefaultLease, attempts: DefaultAttempts, backoff: Backoff(time.Second, time.Hour),
		failed: DefaultMaxFailed,
	}
	if q.err = client.CheckName(argument, name); q.err != nil {
		return q
	}
	q.tag = scripts.DelayTag(name)
	if q.err = conventions.Apply(argument, &q.config, opts, QueueOption.applyQueue); q.err == nil {
		q.err = c.redis.CheckLease("WithLease", q.config.lease)
	}
	return q
}

// Name returns the name of the queue.
func (q *Queue) Name() string { return q.name }

// Err returns the *cogwheel.InvalidError of an invalid name or option, or nil.
func (q *Queue) Err() error { return q.err }

// edit is one request of a caller.
type edit struct {
	verb, id, at, mode, text string
	most                     string // us
	done                     bool   // what the script did
}

// Schedule makes a task run delay from now, by the clock of Redis and never earlier, in a process that serves the
// queue. delay is 0 to MaxDelay: for a time that may have passed, use ScheduleAt. Schedule replaces a pending task of
// the id, and one that has failed. If the task of the id is claimed, the new one is kept until that attempt has
// ended, and runs in place of a further attempt.
//
// An id has 1 to 1024 bytes, a payload up to 1 MiB, which is copied. Schedule blocks for a round trip, which
// concurrent calls share, at most until ctx ends. It takes effect at most once. After an error of Redis or ctx the
// task may have been scheduled; the call can be repeated.
func (q *Queue) Schedule(
	ctx context.Context, id string, delay time.Duration, payload []byte, opts ...ScheduleOption,
) error {
	at, err := after(delay)
	if err == nil {
		_, err = q.edit(ctx, "schedule", id, at, payload, opts)
	}
	return err
}

// ScheduleAt is Schedule for a time, which the clock of Redis reaches. A task whose time has passed runs at once,
// and is late since then.
func (q *Queue) ScheduleAt(ctx context.Context, id string, t time.Time, payload []byte, opts ...ScheduleOption) error {
	at, err := instant(t)
	if err == nil {
		_, err = q.edit(ctx, "schedule", id, at, payload, opts)
	}
	return err
}

// Reschedule makes a pending task run delay from now, with the payload that it has, and reports whether there was one.
// A claimed task is not pending; one that was scheduled meanwhile is. For errors see Schedule.
func (q *Queue) Reschedule(ctx context.Context, id string, delay time.Duration, opts ...ScheduleOption) (bool, error) {
	at, err := after(delay)
	if err != nil {
		return false, err
	}
	return q.edit(ctx, "move", id, at, nil, opts)
}

// Cancel removes a pending task, or makes the present attempt of a claimed one its last:
//
//	pending             true: no attempt of the task begins
//	claimed             false: no attempt follows the present one, which may run, begin soon, or never begin
//	claimed, with Next  true: the next task is removed, and no attempt follows the present one
//	failed, or unknown  false: nothing changes; see DeleteFailed
//
// The first column is the State of the task. For errors see Schedule.
func (q *Queue) Cancel(ctx context.Context, id string) (bool, error) {
	return q.edit(ctx, "cancel", id, "", nil, nil)
}

// RetryFailed makes a task that has failed due now, and reports whether there was one. It has all its attempts again:
// Failures and Losses begin at 0, while Token rises on. For errors see Schedule.
func (q *Queue) RetryFailed(ctx context.Context, id string) (bool, error) {
	return q.edit(ctx, "retry", id, "", nil, nil)
}

// DeleteFailed removes a task that has failed, and reports whether there was one. For errors see Schedule.
func (q *Queue) DeleteFailed(ctx context.Context, id string) (bool, error) {
	return q.edit(ctx, "forget", id, "", nil, nil)
}

// after returns a delay as the script takes it.
func after(delay time.Duration) (string, error) {
	if delay < 0 || delay > MaxDelay {
		return "", argument.Error("delay", delay, "must be 0 to 87600h")
	}
	return micros(delay), nil
}

// instant returns a time as the script takes it.
func instant(t time.Time) (string, error) {
	if t.Before(time.UnixMicro(0)) || t.After(time.UnixMicro(1<<52)) {
		return "", argument.Error("time", t, "must be 1970 to 2112")
	}
	return "@" + strconv.FormatInt(t.Add(time.Microsecond-1).UnixMicro(), 10), nil // a task is never early
}

// Pause keeps all processes from claiming tasks of the queue until Resume. It returns false if the queue was paused
// already. Claimed tasks run, Schedule and Cancel work, and tasks whose lease has ended become pending. A pause does
// not expire; if Redis loses it, the queue runs again. For errors see Schedule.
func (q *Queue) Pause(ctx context.Context) (bool, error) {
	return q.edit(ctx, "pause", "", "", nil, nil)
}

// Resume ends a pause, and reports whether there was one. Processes that serve the queue begin tasks that are due as
// soon as a message reaches them, and otherwise at their next poll. For errors see Schedule.
func (q *Queue) Resume(ctx context.Context) (bool, error) {
	return q.edit(ctx, "resume", "", "", nil, nil)
}

func (q *Queue) edit(ctx context.Context, verb, id, at string, payload []byte, opts []ScheduleOption) (bool, error) {
	cfg, err := q.scheduleConfig(ctx, verb, opts)
	if err != nil {
		return false, err
	}
	e, err := q.newEdit(ctx, cfg, verb, id, at, payload)
	if err != nil {
		return false, err
	}
	if !q.client.gate.Enter() {
		return false, operationError(verb, q.name, ErrClosed)
	}
	defer q.client.gate.Leave()
	_, err = q.client.edits.Wait(ctx, q.tag, e)
	return q.edited(ctx, e, err)
}

// scheduleConfig checks what the requests of a call have in common, and returns their options.
func (q *Queue) scheduleConfig(ctx context.Context, verb string, opts []ScheduleOption) (c scheduleConfig, err error) {
	for _, o := range opts {
		if o == nil {
			return c, argument.Nil("option")
		}
		o.applySchedule(&c)
	}
	switch {
	case q.err != nil:
		return c, q.err
	case ctx == nil:
		return c, argument.Nil("context")
	case c.most < 0 || c.most > MaxDelay:
		return c, argument.Error("WithMaxWait", c.most, "must be 0 to 87600h")
	case c.attempts < 0:
		return c, argument.Error("WithAttempts", c.attempts, "must be at least 0")
	case c.attempts > 0 && verb == "move":
		return c, argument.Error("WithAttempts", c.attempts, "must not be given to Reschedule")
	}
	return c, nil
}

// newEdit returns a request. at is when the task is to run, as the script takes it.
func (q *Queue) newEdit(
	ctx context.Context, cfg scheduleConfig, verb, id, at string, payload []byte,
) (*edit, error) {
	switch isOfQueue := verb == "pause" || verb == "resume"; {
	case id == "" && !isOfQueue || len(id) > MaxID:
		return nil, argument.Error("id", scripts.Quote(id), "must be 1 to 1024 bytes")
	case len(payload) > MaxPayload:
		return nil, argument.Error("payload", fmt.Sprint(len(payload), " bytes"), "must be at most 1 MiB")
	}
	e := &edit{verb: verb, id: id, at: at, mode: "replace", most: micros(cfg.most)}
	if cfg.absent {
		e.mode = "absent"
	}
	if verb == "schedule" {
		e.text = q.client.taskText(ctx, payload, cfg.attempts)
	}
	return e, nil
}

// edited counts a request that has ended, and returns its result.
func (q *Queue) edited(ctx context.Context, e *edit, err error) (bool, error) {
	switch {
	case err == nil:
		if e.done {
			q.client.monitor.edited(e.verb)
		}
		return e.done, nil
	case ctx.Err() != nil && err == ctx.Err(): //nolint:errorlint // only the bare error of the group
		err = conventions.Cause(ctx)
	}
	if ctx.Err() == nil {
		q.client.monitor.failed(err)
	}
	return false, operationError(e.verb, q.name, err)
}

// taskText returns the headers and the payload of a task as Redis keeps them: "length/attempts:headers payload" without
// the space. The length is empty if there are none, and the attempts with their stroke if WithRetry decides.
func (c *Client) taskText(ctx context.Context, payload []byte, attempts int) string {
	headers, length := c.monitor.headers(ctx), ""
	if headers != "" {
		length = strconv.Itoa(len(headers))
	}
	if attempts > 0 {
		length += "/" + strconv.Itoa(attempts)
	}
	return length + ":" + headers + string(payload)
}

// readTask reads a task, which is "first:" and the text of taskText.
func readTask(task string) (headers string, payload []byte, attempts int) {
	_, text, _ := strings.Cut(task, ":")
	numbers, rest, _ := strings.Cut(text, ":")
	length, limit, _ := strings.Cut(numbers, "/")
	n, _ := strconv.Atoi(length)
	n = min(max(n, 0), len(rest))
	attempts, _ = strconv.Atoi(limit)
	return rest[:n], []byte(rest[n:]), attempts
}

// micros returns d in microseconds, rounded up: a task is never early.
func micros(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Microsecond-1)/time.Microsecond), 10)
}

// maxCallBytes is how many bytes of tasks a call has, unless the first one is longer.
const maxCallBytes = 1 << 20

// buildEdits makes the requests of a batch one call, as far as they fit.
func (c *Client) buildEdits(name string, batch []*waitqueue.Waiter[*edit]) waitqueue.Attempt {
	args := []any{c.lastNumber.Add(1), recordMillis, c.redis.Channels.Verb(), scripts.DelayChannel(name)}
	size, sent := 0, batch
	for i, w := range batch {
		e := w.Value
		if size += len(e.text); i > 0 && size > maxCallBytes {
			sent = batch[:i]
			break
		}
		args = append(args, e.verb, e.id, e.at, e.mode, e.most, e.text)
	}
	keys := append(keysOf(name), c.recordKey(name, "edits"), scripts.DelayKey(name, "waiting"), pausedKey(name))
	return waitqueue.Attempt{
		Call: calls.Call{Call: scripts.DelayEdit.Call(keys, args...)},
		Read: func(r redisconn.Reply) (time.Duration, error) { return readEdits(sent, r) },
	}
}

// readEdits reads the reply to the requests of a call.
func readEdits(sent []*waitqueue.Waiter[*edit], r redisconn.Reply) (time.Duration, error) {
	done, err := r.Flags(len(sent))
	if err != nil {
		for _, w := range sent {
			w.Fail(err)
		}
		return waitqueue.AtOnce, nil
	}
	for i, w := range sent {
		w.Value.done = done[i]
		w.Grant()
	}
	return waitqueue.AtOnce, nil
}
