package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// queueState is the state of a queue of delayed tasks.
type queueState struct {
	Pending int64   `json:"pending"`
	Overdue int64   `json:"overdue"` // of the pending ones
	Claimed int64   `json:"claimed"`
	Failed  int64   `json:"failed"`
	Next    *millis `json:"next_due_ms,omitempty"` // until the first pending task is due; negative if it is overdue
	Paused  *millis `json:"paused_ms,omitempty"`   // since when it is paused
	Tasks   []task  `json:"tasks,omitempty"`       // of the command tasks

	// Subscribers are the connections that listen for tasks that are due earlier: one for each process that serves.
	Subscribers *int64 `json:"subscribers,omitempty"`

	now              int64     // us of the server's clock
	claimed, waiting []redis.Z // the first members of running; see running
}

// task is a task of a queue. One of its times is set, by its phase.
type task struct {
	ID        string      `json:"id"`
	Phase     delay.Phase `json:"phase"`
	Due       *millis     `json:"due_ms,omitempty"` // negative if it is overdue
	Lease     *millis     `json:"lease_ms,omitempty"`
	FailedAgo *millis     `json:"failed_ago_ms,omitempty"`
	Reason    string      `json:"reason,omitempty"` // of a failed one: exhausted, or lost too often
	Error     string      `json:"error,omitempty"`  // with which the last attempt of a failed one ended
	Failures  int         `json:"failures"`
	Losses    int         `json:"losses"`
	Token     int64       `json:"token,omitempty"`
	Cancelled bool        `json:"cancelled,omitempty"` // it is claimed, and no attempt follows
	Next      bool        `json:"next,omitempty"`      // another of the id is scheduled for afterwards
	Bytes     int64       `json:"bytes"`               // of its payload and headers
}

// tasks lists the tasks of a queue.
func tasks(ctx context.Context, t *tool) error {
	if t.rows < 1 {
		return usageError("--rows must be at least 1")
	}
	switch t.verb {
	case "retry", "delete":
		return t.changeFailed(ctx)
	default:
		if t.all || t.yes {
			return usageError("--all and --yes are for tasks retry and tasks delete")
		}
	}
	if t.verb != "" {
		return t.pause(ctx)
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
	now, err := t.rdb.Time(ctx).Result()
	if err != nil {
		return o, err
	}
	found.now = now.UnixMicro()
	due := scripts.DelayKey(t.name, "due")
	for count, call := range map[*int64]*redis.IntCmd{
		&found.Pending: t.rdb.ZCard(ctx, due),
		&found.Overdue: t.rdb.ZCount(ctx, due, "-inf", strconv.FormatInt(found.now, 10)),
		&found.Claimed: t.rdb.ZCard(ctx, scripts.DelayKey(t.name, "running")),
		&found.Failed:  t.rdb.ZCard(ctx, scripts.DelayKey(t.name, "failed")),
	} {
		if *count, err = call.Result(); err != nil {
			return o, err
		}
	}
	if err := t.paused(ctx, found); err != nil {
		return o, err
	}
	if err := t.running(ctx, found); err != nil {
		return o, err
	}
	first, err := t.first(ctx, "due", 1)
	if err != nil {
		return o, err
	}
	if first = byScore(first, found.waiting); len(first) > 0 {
		next := found.until(first[0])
		found.Next = &next
	}
	return o, nil
}

// paused reads since when a queue is paused.
func (t *tool) paused(ctx context.Context, s *queueState) error {
	since, err := t.rdb.HGet(ctx, scripts.DelayKey(t.name, "paused"), "").Int64()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	ago := millis((time.Duration(max(0, s.now-since)) * time.Microsecond).Milliseconds())
	s.Paused = &ago
	return err
}

// first returns the first n members of a part of a queue.
func (t *tool) first(ctx context.Context, part string, n int) ([]redis.Z, error) {
	return t.rdb.ZRangeWithScores(ctx, scripts.DelayKey(t.name, part), 0, int64(n-1)).Result()
}

const (
	mostRunning = 10_000 // members of running that are looked at
	taskPage    = 100    // tasks in a pipeline
)

// running tells the claimed tasks from those that wait after a lost lease. It takes those after the first mostRunning
// for claimed.
func (t *tool) running(ctx context.Context, s *queueState) error {
	all, err := t.first(ctx, "running", mostRunning)
	if err != nil {
		return err
	}
	for page := range slices.Chunk(all, taskPage) {
		attempts, err := t.rdb.HMGet(ctx, scripts.DelayKey(t.name, "attempts"), idsOf(page)...).Result()
		if err != nil {
			return err
		}
		for i, z := range page {
			if attemptOf(attempts[i]).mark != lost {
				s.claimed = append(s.claimed, z)
				continue
			}
			s.waiting = append(s.waiting, z)
			s.Claimed, s.Pending = s.Claimed-1, s.Pending+1
			if z.Score <= float64(s.now) {
				s.Overdue++
			}
		}
	}
	return nil
}

func idsOf(members []redis.Z) []string {
	ids := make([]string, len(members))
	for i, z := range members {
		ids[i], _ = z.Member.(string)
	}
	return ids
}

// byScore returns the members of two lists in the order of their scores.
func byScore(a, b []redis.Z) []redis.Z {
	all := slices.Concat(a, b)
	slices.SortStableFunc(all, func(a, b redis.Z) int { return cmp.Compare(a.Score, b.Score) })
	return all
}

// until returns the time until the instant of a member.
func (s *queueState) until(z redis.Z) millis {
	return millis((time.Duration(int64(z.Score)-s.now) * time.Microsecond).Milliseconds())
}

// attempt is what Redis knows of the attempts of a task; see delay_task.lua.
type attempt struct {
	failures, losses int
	token            int64
	mark             string
	err              string // of a task that has failed
}

// The marks of an attempt, and what precedes its error.
const (
	cancelled = ":x"
	lost      = ":"
	failed    = "!"
)

var attemptText = regexp.MustCompile(`(?s)^(\d+):(\d+):(\d+)(?:@\d+)?(.*)$`)

func attemptOf(value any) (a attempt) {
	text, _ := value.(string)
	if parts := attemptText.FindStringSubmatch(text); parts != nil {
		a.failures, _ = strconv.Atoi(parts[1])
		a.losses, _ = strconv.Atoi(parts[2])
		a.token, _ = strconv.ParseInt(parts[3], 10, 64)
		a.mark = parts[4]
		if text, hasError := strings.CutPrefix(a.mark, failed); hasError {
			a.mark, a.err = failed, text
		}
	}
	return a
}

// addTasks adds up to t.rows tasks of each phase: claimed ones by the ends of their leases, pending ones by due time,
// and failed ones from the oldest.
func (t *tool) addTasks(ctx context.Context, s *queueState) error {
	due, err := t.first(ctx, "due", t.rows)
	if err != nil {
		return err
	}
	failed, err := t.first(ctx, "failed", t.rows)
	if err != nil {
		return err
	}
	for _, of := range []struct {
		phase   delay.Phase
		members []redis.Z
	}{{delay.PhaseClaimed, s.claimed}, {delay.PhasePending, byScore(due, s.waiting)}, {delay.PhaseFailed, failed}} {
		for page := range slices.Chunk(of.members[:min(t.rows, len(of.members))], taskPage) {
			if err := t.addPage(ctx, s, of.phase, page); err != nil {
				return err
			}
		}
	}
	return nil
}

// addPage adds the tasks of a phase, without those that have ended meanwhile. It reads their sizes and no payloads.
func (t *tool) addPage(ctx context.Context, s *queueState, phase delay.Phase, members []redis.Z) error {
	pipe, ids := t.rdb.Pipeline(), idsOf(members)
	call := func(command, part string, fields ...string) *redis.Cmd {
		words := []any{command, scripts.DelayKey(t.name, part)}
		for _, f := range fields {
			words = append(words, f)
		}
		c := redis.NewCmd(ctx, words...)
		_ = pipe.Process(ctx, scripts.Once(c)) // only queues
		return c
	}
	attempts := call("hmget", "attempts", ids...)
	sizes, nexts := make([]*redis.Cmd, len(ids)), make([]*redis.Cmd, len(ids))
	for i, id := range ids {
		sizes[i], nexts[i] = call("hstrlen", "tasks", id), call("hexists", "later", id)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	read, err := attempts.Slice()
	for i, z := range members {
		size, err2 := sizes[i].Int64()
		next, err3 := nexts[i].Int64()
		if err = cmp.Or(err, err2, err3); err != nil || i >= len(read) {
			return cmp.Or(err, scripts.Unexpected(read))
		}
		if size > 0 {
			one := taskOf(phase, s.until(z), attemptOf(read[i]))
			one.ID, one.Bytes, one.Next = ids[i], max(0, size-int64(len("::"))), next == 1
			s.Tasks = append(s.Tasks, one)
		}
	}
	return nil
}

func taskOf(phase delay.Phase, in millis, a attempt) task {
	one := task{Phase: phase, Failures: a.failures, Losses: a.losses, Token: a.token}
	switch phase {
	case delay.PhaseClaimed:
		in = max(0, in)
		one.Lease, one.Cancelled = &in, a.mark == cancelled
	case delay.PhaseFailed:
		in = max(0, -in)
		one.FailedAgo, one.Reason, one.Error = &in, "exhausted", a.err
		if a.mark == lost {
			one.Reason = string(delay.IncidentLostTooOften)
		}
	default:
		one.Due = &in
	}
	return one
}

// counts says how many tasks there are.
func (s *queueState) counts() string {
	overdue := ""
	if s.Overdue > 0 {
		overdue = fmt.Sprintf(" (%d overdue)", s.Overdue)
	}
	paused := ""
	if s.Paused != nil {
		paused = "; paused"
	}
	return fmt.Sprintf("%d pending%s, %d claimed, %d failed%s", s.Pending, overdue, s.Claimed, s.Failed, paused)
}

func (s *queueState) show(l lines) {
	l.add("tasks", s.counts())
	if s.Paused != nil {
		l.add("paused", "for "+s.Paused.String()+": no process claims a task")
	}
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
	}{{delay.PhaseClaimed, s.Claimed}, {delay.PhasePending, s.Pending}, {delay.PhaseFailed, s.Failed}} {
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
	words := []string{cut(quote(t.ID))}
	switch {
	case t.Lease != nil:
		words = append(words, "lease "+t.Lease.String())
	case t.FailedAgo != nil:
		words = append(words, "failed "+t.FailedAgo.String()+" ago")
	case t.Due != nil:
		words = append(words, t.Due.due())
	}
	words = append(words, plural(int(t.Bytes), "byte"))
	var extra []string
	if t.Cancelled {
		extra = append(extra, "cancelled")
	}
	if t.Reason != "" {
		extra = append(extra, t.Reason)
	}
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
	if t.Error != "" {
		words = append(words, cut(quote(t.Error)))
	}
	return words
}

// cut shortens a text that would make a table too wide.
func cut(text string) string {
	const most = 64
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}
