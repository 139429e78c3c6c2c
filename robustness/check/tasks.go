package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// TaskRules say what queues of tasks promise, and what could end a lease beside the end of a process.
type TaskRules struct {
	Lease    time.Duration
	Attempts int           // after which a task whose handler fails has failed
	Slack    time.Duration // for a busy machine
	Outages  []Span        // of servers and networks
}

// TaskFigures count the tasks of a run.
type TaskFigures struct {
	Scheduled int `json:"scheduled"` // calls that returned nil
	Moved     int `json:"moved"`
	Cancelled int `json:"cancelled"`
	Attempts  int `json:"attempts"`
	Done      int `json:"done"`
	Raised    int `json:"raised"`    // errors and panics
	Exhausted int `json:"exhausted"` // tasks that have failed
	Back      int `json:"back"`      // attempts after one that was begun and handed back
	Losses    int `json:"losses"`    // leases that ended
	Stale     int `json:"stale"`     // writes that the store rejected

	Takeover Waits `json:"-"` // from the death of a process to the next attempt, without the lease
}

// tasks are the histories of the tasks of a run.
type tasks struct {
	TaskRules
	stops   map[int][]Span // of processes; a killed one does not go on
	kills   map[int]int64
	ends    []history.Event // of servings: Stopping
	figures TaskFigures
	faults  []Fault
}

// task is the history of one id. One caller made its calls, one after the other.
type task struct {
	*tasks
	object   string
	calls    []*history.Call
	attempts []*history.Attempt
}

// Tasks checks tasks after a run at whose end the queues are empty. Whether a call that returned an error took effect
// is unknown; it did so before the next call for that id that returned none. The simulation knows the order in which
// its server executed the calls, and replays them by the rules of package delay instead.
func Tasks(events []history.Event, r TaskRules) (TaskFigures, []Fault) {
	all := &tasks{TaskRules: r, stops: Stops(events), kills: make(map[int]int64)}
	for _, e := range events {
		switch p := history.ProcessOf(e.Client); e.Step {
		case history.Killed:
			all.kills[p] = e.At
			all.stops[p] = append(all.stops[p], Span{e.At, history.Never})
		case history.Stopping:
			all.ends = append(all.ends, e)
		}
	}
	byID := make(map[string]*task)
	for object, calls := range history.ByObject(history.Calls(events)) {
		byID[object] = &task{tasks: all, object: object, calls: calls}
	}
	for _, a := range history.Attempts(events) {
		t := byID[a.Object]
		if t != nil && slices.ContainsFunc(t.calls, func(c *history.Call) bool { return c.ID == a.Task.Call }) {
			t.attempts = append(t.attempts, a)
		} else {
			all.faults = append(all.faults, Fault{"each attempt is of a schedule", a.Object, "no call scheduled it"})
		}
	}
	for _, t := range byID {
		t.check()
	}
	return all.figures, all.faults
}

func (t *task) fault(promise, format string, args ...any) {
	t.faults = append(t.faults, Fault{promise, t.object, fmt.Sprintf(format, args...)})
}

// of returns the attempts of a schedule in the order in which they were claimed.
func (t *task) of(schedule *history.Call) (attempts []*history.Attempt) {
	for _, a := range t.attempts {
		if a.Task.Call == schedule.ID {
			attempts = append(attempts, a)
		}
	}
	slices.SortFunc(attempts, func(a, b *history.Attempt) int {
		earlier := cmp.Compare(a.Task.Failures+a.Task.Losses, b.Task.Failures+b.Task.Losses)
		return cmp.Or(earlier, cmp.Compare(a.Token, b.Token))
	})
	return attempts
}

func (t *task) check() {
	t.tokens()
	t.effects()
	t.alone()
	t.kept()
	for i, c := range t.calls {
		done := c.Outcome == history.Granted
		switch c.Task.Verb {
		case "schedule":
			t.schedule(c, t.calls[i+1:])
			t.figures.Scheduled += count(done)
		case "move":
			t.figures.Moved += count(done)
		case "cancel":
			t.cancelled(c, t.calls[:i])
			t.figures.Cancelled += count(done)
		}
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// tokens finds tokens that did not rise.
func (t *task) tokens() {
	scheduled := make(map[uint64]int64)
	for _, c := range t.calls {
		scheduled[c.ID] = c.At
	}
	for i, a := range t.attempts {
		for _, b := range t.attempts[i+1:] {
			if a.Token == b.Token || a.Token > b.Token && a.At < scheduled[b.Task.Call] {
				t.fell(a, b)
			}
		}
	}
}

func (t *task) fell(a, b *history.Attempt) {
	t.fault("tokens rise", "attempt %d has token %d, the earlier one %d has %d", b.ID, b.Token, a.ID, a.Token)
}

// effects finds an effect that the store applied twice under one token, or after that of a higher one.
func (t *task) effects() {
	type write struct {
		history.Write
		token int64
	}
	var writes []write
	for _, a := range t.attempts {
		for _, w := range a.Writes {
			writes = append(writes, write{w, a.Token})
		}
	}
	slices.SortFunc(writes, func(a, b write) int { return cmp.Compare(a.Seq, b.Seq) })
	highest := int64(0)
	for _, w := range writes {
		switch {
		case !w.Accepted:
			t.figures.Stale++
		case w.token <= highest:
			t.fault("an effect is applied once", "token %d was accepted after %d", w.token, highest)
		default:
			highest = w.token
		}
	}
}

// alone finds handlers whose context had not ended although another attempt had begun.
func (t *task) alone() {
	for _, a := range t.attempts {
		for _, b := range t.attempts {
			if b.At > a.At && a.Relied > b.At+int64(t.Slack) && !t.stood(a, b.At-int64(t.Lease), a.Relied) {
				t.fault("one attempt at a time", "attempt %d went on %v after attempt %d had begun",
					a.ID, time.Duration(a.Relied-b.At), b.ID)
			}
		}
	}
}

// stood reports whether the process of an attempt was stopped within a time.
func (t *task) stood(a *history.Attempt, from, to int64) bool {
	return within(t.stops[history.ProcessOf(a.Client)], from, to)
}

// kept finds a task that was lost: that was scheduled last, and has not ended.
func (t *task) kept() {
	for i, last := range slices.Backward(t.calls) {
		switch {
		case last.Task.Verb == "cancel":
			return // nothing is scheduled, or that is not known
		case last.Task.Verb != "schedule" || last.Outcome != history.Granted:
			continue
		}
		for _, c := range t.calls[i:] {
			for _, a := range t.of(c) {
				if a.Outcome == history.Done || a.Outcome == history.Raised && a.Task.Failures+1 >= t.Attempts {
					return
				}
			}
		}
		t.fault("no task is lost", "call %d scheduled it, and %d attempts did not end it", last.ID, len(t.of(last)))
		return
	}
}

// earliest returns when the task of a schedule may run at the earliest, for an attempt that began at an instant, by the
// clock of the servers in us, and when it may have been claimed first, by that of the history. later are the calls
// after the schedule.
func earliest(schedule *history.Call, later []*history.Call, began int64) (clock, at int64) {
	due := func(c *history.Call) (int64, int64) {
		return c.Task.Clock + c.Task.Delay.Microseconds(), c.At + int64(c.Task.Delay)
	}
	clock, at = due(schedule)
	replaced := false // perhaps
	for _, c := range later {
		if c.Task.Verb == "schedule" {
			if c.Outcome == history.Granted {
				break
			}
			replaced = true
		}
		if c.Task.Verb != "move" || c.Outcome == history.Refused || c.At > began {
			continue
		}
		moved, movedAt := due(c)
		if c.Outcome == history.Granted && c.Return < began && !replaced {
			clock = moved // it was pending, and earlier calls have no effect any more
		} else {
			clock = min(clock, moved)
		}
		at = min(at, movedAt) // a lease may have ended before the call
	}
	return clock, at
}

// schedule checks the attempts of a schedule. later are the calls after it.
func (t *task) schedule(s *history.Call, later []*history.Call) {
	attempts := t.of(s)
	var before *history.Attempt
	var claimed int64 // at this instant or later
	for _, a := range attempts {
		clock, at := earliest(s, later, a.At)
		if a.Task.Clock < clock {
			t.fault("never early", "attempt %d began %d us before its time", a.ID, clock-a.Task.Clock)
		}
		claimed = t.follows(s, before, a, max(claimed, at-int64(10*time.Millisecond)))
		before = a
		t.figures.Attempts++
		switch a.Outcome {
		case history.Done:
			t.figures.Done++
		case history.Raised:
			t.figures.Raised++
			t.figures.Exhausted += count(a.Task.Failures+1 >= t.Attempts)
		}
	}
	for _, c := range later {
		if c.Outcome == history.Granted && c.Task.Verb == "schedule" || c.Task.Verb == "cancel" && known(c) {
			if n := begun(attempts, c.Return); n > 1 {
				t.fault("nothing runs after its end", "%d attempts began after call %d, %s", n, c.ID, c.Task.Verb)
			}
		}
	}
}

func known(c *history.Call) bool {
	return c.Outcome == history.Granted || c.Outcome == history.Refused
}

// begun counts the attempts that began after an instant.
func begun(attempts []*history.Attempt, after int64) (n int) {
	for _, a := range attempts {
		n += count(a.At > after)
	}
	return n
}

// follows finds an attempt that follows another one without a cause. The former was claimed at an instant or later;
// follows returns that of the latter. Attempts that were claimed and not begun are not in the history.
func (t *task) follows(s *history.Call, a, b *history.Attempt, claimed int64) int64 {
	const promise = "each further attempt has a cause"
	failures, losses := b.Task.Failures, b.Task.Losses
	if a != nil {
		failures, losses = failures-a.Task.Failures, losses-a.Task.Losses
	}
	raised := a != nil && a.Outcome == history.Raised
	if raised && failures == 1 {
		claimed = max(claimed, a.Return)
	}
	claimed += int64(losses) * int64(t.Lease-t.Lease/100)
	t.figures.Losses += max(0, losses)
	switch {
	case a != nil && a.Token > b.Token:
		t.fell(a, b)
	case failures < 0 || losses < 0:
		t.fault(promise, "attempt %d counts fewer failures or losses than the earlier one %d", b.ID, a.ID)
	case failures > 1 || failures == 1 && (!raised || b.At < a.Return):
		t.fault(promise, "attempt %d counts a failure that was none", b.ID)
	case losses > 0 && b.At < claimed:
		t.fault(promise, "%v before attempt %d began, %d leases could not have ended",
			time.Duration(claimed-b.At), b.ID, losses)
	case losses > 0 && !t.lost(s, a, b):
		t.fault(promise, "attempt %d counts the end of a lease, which nothing ended", b.ID)
	case a == nil || failures > 0:
	case losses > 0:
		if killed, dead := t.kills[history.ProcessOf(a.Client)]; dead && losses == 1 && a.Outcome == history.Began {
			t.figures.Takeover = append(t.figures.Takeover, time.Duration(b.At-killed)-t.Lease)
		}
	case !raised && b.At >= claimed+int64(t.Lease-t.Lease/100) && t.lost(s, a, b): // Redis did not know that a ran
	case !raised || !t.stopping(a, b):
		t.fault(promise, "attempt %d follows attempt %d, which did not fail", b.ID, a.ID)
	default:
		t.figures.Back++
	}
	return min(claimed, b.At)
}

// lost reports whether a lease could have ended after attempt a and before attempt b of a schedule: that of a, or if
// a failed or there was none, that of an attempt that was not begun.
func (t *task) lost(s *history.Call, a, b *history.Attempt) bool {
	if within(t.Outages, s.At, b.At) {
		return true
	}
	if a != nil && a.Outcome != history.Raised {
		return t.stood(a, s.At, b.At) || t.closed(a.Client, b.At)
	}
	for _, stops := range t.stops {
		if within(stops, s.At, b.At) {
			return true
		}
	}
	return slices.ContainsFunc(t.ends, func(e history.Event) bool { return e.Object == "" && e.At < b.At })
}

// closed reports whether a client was closed before an instant.
func (t *task) closed(client uint64, before int64) bool {
	return slices.ContainsFunc(t.ends, func(e history.Event) bool {
		return e.Client == client && e.Object == "" && e.At < before
	})
}

// stopping reports whether the serving of attempt a was told to end before attempt b began.
func (t *task) stopping(a, b *history.Attempt) bool {
	return slices.ContainsFunc(t.ends, func(e history.Event) bool {
		return e.Client == a.Client && a.At-int64(t.Slack) < e.At && e.At < b.At
	})
}

// cancelled finds attempts that ran after a Cancel that returned true, or that followed the one that ran meanwhile.
// before are the calls before it.
func (t *task) cancelled(c *history.Call, before []*history.Call) {
	if !known(c) {
		return
	}
	last := true // the schedule is the last one before the Cancel
	for _, s := range slices.Backward(before) {
		if s.Task.Verb != "schedule" {
			continue
		}
		attempts := t.of(s)
		after := begun(attempts, c.Return)
		running := slices.ContainsFunc(attempts, func(a *history.Attempt) bool {
			_, due := earliest(s, before[slices.Index(before, s)+1:], a.At)
			sure := a.Relied < due+int64(t.Lease*9/10) || // the lease has not ended
				a.Relied > c.Return+int64(t.Slack) && !t.stood(a, c.At-int64(t.Lease), a.Relied)
			return a.At < c.At && a.Relied > c.Return && sure
		})
		switch {
		case c.Outcome == history.Granted && last && (after > 0 || running):
			t.fault("nothing runs after Cancel", "call %d returned true", c.ID)
		case running && after > 0:
			t.fault("nothing runs after Cancel", "an attempt followed the one that ran during call %d", c.ID)
		}
		last = false
	}
}
