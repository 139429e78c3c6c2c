package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// queueState is the state of a queue of delayed tasks.
type queueState struct {
	Pending int64   `json:"pending"`
	Claimed int64   `json:"claimed"`
	Failed  int64   `json:"failed"`
	Next    *millis `json:"next_due_ms,omitempty"` // until the first pending task is due; negative if it is overdue
	Tasks   []task  `json:"tasks,omitempty"`       // of the command tasks

	// Subscribers are the connections that listen for tasks that are due earlier: one for each process that serves.
	Subscribers *int64 `json:"subscribers,omitempty"`
}

// task is a task of a queue. One of its times is set, by its phase.
type task struct {
	ID        string      `json:"id"`
	Phase     delay.Phase `json:"phase"`
	Due       *millis     `json:"due_ms,omitempty"` // negative if it is overdue
	Lease     *millis     `json:"lease_ms,omitempty"`
	FailedAgo *millis     `json:"failed_ago_ms,omitempty"`
	Failures  int         `json:"failures"`
	Losses    int         `json:"losses"`
	Token     int64       `json:"token,omitempty"`
	Next      bool        `json:"next,omitempty"` // another of the id is scheduled for afterwards
	Bytes     int         `json:"payload_bytes"`
}

// tasks lists the tasks of a queue.
func tasks(ctx context.Context, t *tool) error {
	if t.rows < 1 {
		return usageError("--rows must be at least 1")
	}
	found, err := t.find(ctx)
	if err != nil {
		return err
	}
	found = only(found, object.isQueue)
	for _, o := range found {
		if err := t.addTasks(ctx, o.Queue); err != nil {
			return err
		}
	}
	return t.report(found, "there is no task in a queue of that name")
}

// withDelays calls f with a client for queues and closes it.
func (t *tool) withDelays(ctx context.Context, f func(*delay.Client) error) error {
	c, err := delay.New(t.rdb, delay.WithLogger(quiet()))
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close(context.WithoutCancel(ctx)))
}

// queue returns the state of a queue without its tasks.
func (t *tool) queue(ctx context.Context) (object, error) {
	found := &queueState{Subscribers: t.subscribers(ctx, scripts.DelayChannel(t.name))}
	o := object{Kind: kindQueue, Queue: found}
	for suffix, count := range map[string]*int64{
		"due": &found.Pending, "running": &found.Claimed, "failed": &found.Failed,
	} {
		n, err := t.rdb.ZCard(ctx, scripts.DelayKey(t.name, suffix)).Result()
		if err != nil {
			return o, err
		}
		*count = n
	}
	first, err := t.rdb.ZRangeWithScores(ctx, scripts.DelayKey(t.name, "due"), 0, 0).Result()
	if err != nil || len(first) == 0 {
		return o, err
	}
	now, err := t.rdb.Time(ctx).Result()
	next := millis(time.UnixMicro(int64(first[0].Score)).Sub(now).Milliseconds())
	found.Next = &next
	return o, err
}

// addTasks adds up to t.rows tasks of each phase: claimed ones by the ends of their leases, pending ones by due time,
// and failed ones from the oldest.
func (t *tool) addTasks(ctx context.Context, found *queueState) error {
	return t.withDelays(ctx, func(c *delay.Client) error {
		q := c.Queue(t.name)
		claimed, err := t.rdb.ZRange(ctx, scripts.DelayKey(t.name, "running"), 0, int64(t.rows-1)).Result()
		if err != nil {
			return err
		}
		for _, id := range claimed {
			s, err := q.State(ctx, id)
			if err != nil {
				return err
			}
			if s.Phase == delay.Claimed { // still
				found.Tasks = append(found.Tasks, taskOf(s))
			}
		}
		for _, list := range []iter.Seq2[delay.State, error]{q.PendingTasks(ctx), q.FailedTasks(ctx)} {
			left := t.rows
			for s, err := range list {
				if err != nil {
					return err
				}
				found.Tasks = append(found.Tasks, taskOf(s))
				if left--; left == 0 {
					break
				}
			}
		}
		return nil
	})
}

func taskOf(s delay.State) task {
	one := task{
		ID: s.ID, Phase: s.Phase, Failures: s.Failures, Losses: s.Losses, Token: s.Token, Next: s.Next,
		Bytes: len(s.Payload),
	}
	in := millis(s.In.Milliseconds())
	switch s.Phase {
	case delay.Claimed:
		in = max(0, in)
		one.Lease = &in
	case delay.Failed:
		in = max(0, -in)
		one.FailedAgo = &in
	default:
		one.Due = &in
	}
	return one
}

func (s *queueState) show(l lines) {
	l.add("tasks", fmt.Sprintf("%d pending, %d claimed, %d failed", s.Pending, s.Claimed, s.Failed))
	if s.Next != nil {
		l.add("next", s.Next.due())
	}
	if s.Subscribers != nil {
		l.add("listening", fmt.Sprintf("%d (connections of processes that serve the queue)", *s.Subscribers))
	}
	shown := make(map[delay.Phase]int64)
	for _, one := range s.Tasks {
		shown[one.Phase]++
		l.add(string(one.Phase), one.words()...)
	}
	if len(s.Tasks) == 0 {
		return
	}
	for _, phase := range []struct {
		name  delay.Phase
		count int64
	}{{delay.Claimed, s.Claimed}, {delay.Pending, s.Pending}, {delay.Failed, s.Failed}} {
		if more := phase.count - shown[phase.name]; more > 0 {
			l.add("", fmt.Sprintf("and %d more %s; see --rows", more, phase.name))
		}
	}
}

// due says when a pending task is due.
func (m millis) due() string {
	if m < 0 {
		return "overdue by " + (-m).String()
	}
	return "due in " + m.String()
}

func (t task) words() []string {
	words := []string{quote(t.ID)}
	switch {
	case t.Lease != nil:
		words = append(words, "lease "+t.Lease.String())
	case t.FailedAgo != nil:
		words = append(words, "failed "+t.FailedAgo.String()+" ago")
	case t.Due != nil:
		words = append(words, t.Due.due())
	}
	words = append(words, plural(t.Bytes, "byte"))
	var extra []string
	if t.Failures > 0 {
		extra = append(extra, plural(t.Failures, "failure"))
	}
	if t.Losses > 0 {
		extra = append(extra, plural(t.Losses, "lost lease"))
	}
	if t.Next {
		extra = append(extra, "scheduled again")
	}
	if extra != nil {
		words = append(words, strings.Join(extra, ", "))
	}
	return words
}
