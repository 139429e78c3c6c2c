package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// Promises that more than one check looks at.
const (
	neverEarly      = "a task is never early"
	nothingLost     = "no task is lost"
	asSaid          = "a call about a task does what it says"
	copiesDoNothing = "a copy of a call does nothing"
	tokensRise      = "the token rises with each attempt"
)

// claimedAhead is how long before its time a task may be claimed, in microseconds.
const claimedAhead = 5000

// taskScript is a script of a queue, as the server executed it: its arguments, and the values of its reply or an error.
type taskScript struct {
	args, reply []string
	err         string
}

func (s *taskScript) arg(i int) int64 { return number(s.args[i]) }

func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// taskScriptOf returns a script with its reply.
func taskScriptOf(args []string, text string) *taskScript {
	if strings.HasPrefix(text, "-") {
		return &taskScript{args: args, err: text}
	}
	fields := []string{} // integers and strings
	for text != "" {
		line, rest, _ := strings.Cut(text, "\r\n")
		text = rest
		switch line[0] {
		case ':':
			fields = append(fields, line[1:])
		case '$':
			n := number(line[1:])
			fields, text = append(fields, text[:n]), text[n+2:]
		}
	}
	return &taskScript{args: args, reply: fields}
}

// taskJudge replays what the server executed about a queue by the rules of package delay, in microseconds of the
// server's clock. The server is one, so the order in which it executed the calls decides what they mean, whatever
// their callers learned. Then the judge compares what callers and handlers saw with that.
type taskJudge struct {
	*world
	object  int
	name    string
	tasks   map[string]*taskState
	records map[string]*taskRecord // of the last calls of processes
	edits   []taskEdit
	claims  []*taskClaim
	ends    []taskEnd
	faults  []check.Fault

	works    []taskWork
	lapses   []taskLapse
	renewals map[int][]int64 // when the server executed them, by process
}

// taskWork is a call that claims tasks.
type taskWork struct {
	at   int64
	link int
}

// taskState is a task, and the one that was scheduled while it was claimed.
type taskState struct {
	taskPlan
	phase            delay.Phase
	at, ends         int64 // when a claimed task was claimed, in nanoseconds of the bubble, and the end of its lease
	token            int64 // of the last attempt of the id
	failures, losses int
	cancelled        bool
	later            *taskPlan
	link             int   // of the process that has claimed it
	available        int64 // when it became pending, in nanoseconds of the bubble; 0 if it was not seen since
	begun            bool  // as far as the server knows
	waits            bool  // until ends, after a loss: no process holds it
	lost             bool  // nothing has happened to it since it lost its lease
}

// taskPlan is what Schedule says about a task.
type taskPlan struct {
	payload string
	due     int64
	first   int64 // when it was scheduled, if that bounds its delay
}

// taskRecord is what the server remembers of the last call of a process.
type taskRecord struct {
	number, expires int64
	results         []string
	claims          []*taskClaim
}

// taskEdit is a request that took effect.
type taskEdit struct {
	at                        int64
	link                      int
	verb, id, payload, result string
}

// taskClaim is an attempt that the server granted.
type taskClaim struct {
	taskPlan
	at         int64
	link       int
	id         string
	failures   int // before it, as are losses
	losses     int
	token      int64
	begins     bool  // as far as the server knows, at first
	ends       int64 // of the lease, at first
	available  int64 // when the task had become pending and due
	run        *taskRun
	superseded int64 // when the next attempt of the id was granted, or forever
}

// taskEnd is the end of an attempt that the server recorded.
type taskEnd struct {
	how, id string
	token   int64
	at      int64
}

func (j *taskJudge) faultf(at int64, promise, format string, args ...any) {
	detail := fmt.Sprintf(format, args...) + fmt.Sprintf(", at %v", time.Duration(at))
	j.faults = append(j.faults, check.Fault{Promise: promise, Detail: detail})
}

// task returns the state of an id.
func (j *taskJudge) task(id string) *taskState {
	if j.tasks[id] == nil {
		j.tasks[id] = &taskState{}
	}
	return j.tasks[id]
}

// replay reports whether each script did what the rules say. It stops at the first that did not.
func (j *taskJudge) replay() bool {
	due := scripts.DelayKey(j.name, "due")
	running := scripts.DelayKey(j.name, "running")
	for _, e := range j.server.executed {
		switch {
		case e.name == "flushall":
			clear(j.tasks)
			clear(j.records)
		case e.task == nil || !slices.Contains(e.keys, due) && !slices.Contains(e.keys, running):
		case e.task.reply == nil && e.ran && !e.refused:
			j.faultf(e.at, "a script does not fail", "%s %v: %s", e.name, e.task.args, e.task.err)
		case e.task.reply == nil:
		case e.name == "delay_edit":
			j.edit(&e)
		case e.name == "delay_work":
			j.work(&e)
		case e.name == "delay_renew":
			j.renewals[e.link] = append(j.renewals[e.link], e.at)
			j.renew(&e)
		}
		for _, t := range j.tasks {
			if t.phase == delay.PhasePending && t.available == 0 {
				t.available = e.at
			}
		}
		if len(j.faults) > 0 {
			return false
		}
	}
	return true
}

// copied reports whether the server remembers the call, or a later one of the process.
func (j *taskJudge) copied(e *execution) (last *taskRecord, copied bool) {
	r := j.records[e.keys[6]]
	return r, r != nil && e.clock < r.expires && r.number >= e.task.arg(0)
}

func (j *taskJudge) remember(e *execution, results []string, claims []*taskClaim) {
	s := e.task
	j.records[e.keys[6]] = &taskRecord{s.arg(0), e.clock + 1000*s.arg(1), results, claims}
}

// edit replays Schedule, Cancel, Reschedule, RetryFailed and DeleteFailed.
func (j *taskJudge) edit(e *execution) {
	s := e.task
	if last, copied := j.copied(e); copied {
		var want []string
		if last.number == s.arg(0) {
			want = last.results
		}
		if !slices.Equal(want, s.reply) {
			j.faultf(e.at, copiesDoNothing, "copy of call %d answered %v", s.arg(0), s.reply)
		}
		return
	}
	var results []string
	for r := s.args[4:]; len(r) > 0; r = r[6:] {
		verb, id := r[0], r[1]
		_, payload, _ := strings.Cut(r[5], ":")
		result := strconv.Itoa(j.request(e.clock, r, payload))
		results = append(results, result)
		j.edits = append(j.edits, taskEdit{e.at, e.link, verb, id, payload, result})
	}
	if !slices.Equal(results, s.reply) {
		j.faultf(e.at, asSaid, "%v answered %v, and not %v", s.args[4:], s.reply, results)
	}
	j.remember(e, results, nil)
}

// request replays one request of a call.
func (j *taskJudge) request(now int64, r []string, payload string) int {
	t, most := j.task(r[1]), number(r[4])
	if t.waits { // for its editor it is pending
		t.phase, t.due, t.waits = delay.PhasePending, t.ends, false
	}
	plan := func(old *taskPlan, payload string, first int64) taskPlan {
		due := now + number(r[2])
		if at, ok := strings.CutPrefix(r[2], "@"); ok {
			due = number(at)
		}
		if most == 0 {
			return taskPlan{payload, due, first}
		}
		if first = now; old != nil && old.first > 0 {
			first = old.first
		}
		return taskPlan{payload, min(due, first+most), first}
	}
	claimed := t.phase == delay.PhaseClaimed
	stands := t.phase == delay.PhasePending || t.later != nil || claimed && !t.cancelled // and will run
	switch verb := r[0]; {
	case verb == "schedule" && r[3] == "absent" && stands:
		return 0
	case verb == "schedule" && claimed:
		later := plan(t.later, payload, 0)
		t.later = &later
	case verb == "schedule":
		var old *taskPlan
		if t.phase == delay.PhasePending && t.failures+t.losses == 0 {
			old = &t.taskPlan
		}
		*t = taskState{taskPlan: plan(old, payload, 0), phase: delay.PhasePending, token: t.token}
	case verb == "cancel" && claimed:
		had := t.later != nil
		if t.later, t.cancelled = nil, true; !had {
			return 0
		}
	case verb == "cancel" && t.phase == delay.PhasePending:
		*t = taskState{token: t.token}
	case verb == "move" && claimed && t.later != nil:
		later := plan(t.later, t.later.payload, t.later.first)
		t.later = &later
	case verb == "move" && t.phase == delay.PhasePending:
		t.taskPlan, t.lost = plan(&t.taskPlan, t.payload, t.first), false
	case verb == "retry" && t.phase == delay.PhaseFailed:
		*t = taskState{taskPlan: taskPlan{t.payload, now, t.first}, phase: delay.PhasePending, token: t.token}
	case verb == "forget" && t.phase == delay.PhaseFailed:
		*t = taskState{token: t.token}
	default:
		return 0
	}
	return 1
}

// leave ends an attempt: the task that was scheduled meanwhile follows, or another attempt at an instant, or none.
func (t *taskState) leave(phase delay.Phase, at int64) {
	switch {
	case t.later != nil:
		*t = taskState{taskPlan: *t.later, phase: delay.PhasePending, token: t.token}
	case phase == delay.PhaseUnknown || t.cancelled:
		*t = taskState{token: t.token}
	default:
		t.phase, t.due, t.waits, t.lost = phase, at, false, false
	}
}

// work replays the ends of attempts, the ends of leases, and claims.
func (j *taskJudge) work(e *execution) {
	s, now := e.task, e.clock
	last, copied := j.copied(e)
	if copied {
		j.workAgain(e, last)
		return
	}
	var over []*taskState
	for _, t := range j.tasks {
		if t.over(now) {
			over = append(over, t)
		}
	}
	j.works = append(j.works, taskWork{e.at, e.link})
	recorded := int64(0)
	for r := s.args[17:]; len(r) > 0; r = r[4:] {
		t, token := j.task(r[1]), number(r[2])
		claimed := t.phase == delay.PhaseClaimed && t.token == token
		switch {
		case r[0] == "begun":
			t.begun = t.begun || claimed && !t.waits
		case claimed:
			recorded++
			j.ends = append(j.ends, taskEnd{r[0], r[1], token, e.at})
			j.endOf(e, t, r)
		case r[0] == "done" && t.token == token && t.lost:
			recorded++
			j.ends = append(j.ends, taskEnd{r[0], r[1], token, e.at})
			*t = taskState{token: token}
		}
	}
	if n := number(s.reply[1]); n != recorded {
		j.faultf(e.at, "an end names the token of its attempt", "%d of %v recorded, not %d", n, s.args[17:], recorded)
	}
	for id, t := range j.tasks {
		if slices.Contains(over, t) && t.over(now) {
			if !t.waits {
				j.lapses = append(j.lapses, taskLapse{id, t.token, t.link, e.at - 1000*(now-t.ends)})
			}
			t.lose(now)
		}
	}
	claims := j.claim(e)
	stops := s.reply[3] == "1" || len(claims) > 0 && j.task(claims[len(claims)-1].id).losses >= aloneFrom
	for id, t := range j.tasks { // what is due within claimedAhead, a process leaves to those before it in the list
		if t.phase == delay.PhasePending && t.due <= now && len(claims) < int(s.arg(3)) && !stops {
			j.faultf(e.at, "a call claims the tasks that are due", "%s is left", id)
		}
	}
	j.remember(e, nil, claims)
}

// endOf replays the end of an attempt.
func (j *taskJudge) endOf(e *execution, t *taskState, r []string) {
	now := e.clock
	switch r[0] {
	case "done":
		t.leave(delay.PhaseUnknown, 0)
	case "again":
		t.failures++
		pause := delay.Backoff(firstBackoff, lastBackoff)(t.failures, nil)
		if t.failures >= taskAttempts || number(r[3]) != pause.Microseconds() {
			j.faultf(e.at, "a task that failed runs again", "%d failures, again in %s us", t.failures, r[3])
		}
		t.leave(delay.PhasePending, now+number(r[3]))
	case "failed":
		if t.failures++; t.failures < taskAttempts {
			j.faultf(e.at, "a task fails after its last attempt", "after %d failures", t.failures)
		}
		t.leave(delay.PhaseFailed, now)
	default:
		t.leave(delay.PhasePending, t.since(now))
	}
}

// claim replays the claims of a call.
func (j *taskJudge) claim(e *execution) (claims []*taskClaim) {
	s, now := e.task, e.clock
	for r := s.reply[9:]; len(r) > 0; r = r[3:] {
		t, c := j.task(r[0]), claimOf(e, r)
		begins := len(claims) < int(s.arg(11)) && t.losses < aloneFrom
		text := fmt.Sprintf("task %s #%s, token %d", c.id, c.payload, c.token)
		switch {
		case t.phase != delay.PhasePending || t.payload != c.payload:
			j.faultf(e.at, "only a pending task is claimed", "%s: it is %q, #%s", text, t.phase, t.payload)
		case t.due > now+claimedAhead || c.due != t.due:
			j.faultf(e.at, neverEarly, "%s: due in %d us, told %d us", text, t.due-now, c.due-now)
		case c.token <= t.token:
			j.faultf(e.at, tokensRise, "%s after %d", text, t.token)
		case begins != (len(claims) < int(number(s.reply[8]))) || t.losses >= aloneFrom && len(r) > 3:
			j.faultf(e.at, "a task with losses runs alone, and the server knows who has begun", "%s: %s begun, %v",
				text, s.reply[8], r)
		case c.failures != t.failures || c.losses != t.losses:
			j.faultf(e.at, "failures are counted", "%s: %s, not %d and %d", text, r[2], t.failures, t.losses)
		case t.losses > 0 && !j.leasesEnd():
			j.faultf(e.at, "a second attempt has a cause", "%s: after %d losses", text, t.losses)
		}
		c.taskPlan, c.begins, c.ends = t.taskPlan, begins, now+s.arg(2)
		c.available = max(t.available, e.at-1000*(now-t.due))
		t.link, t.available = e.link, 0
		t.phase, t.at, t.token, t.ends = delay.PhaseClaimed, c.at, c.token, c.ends
		t.begun, t.waits, t.lost = begins, false, false
		claims = append(claims, c)
	}
	j.claims = append(j.claims, claims...)
	return claims
}

// claimOf reads what a reply says of a claimed task.
func claimOf(e *execution, fields []string) *taskClaim {
	parts := strings.SplitN(fields[1], ":", 3)
	c := &taskClaim{
		taskPlan: taskPlan{payload: parts[len(parts)-1]}, at: e.at, link: e.link, id: fields[0], superseded: forever,
	}
	_, err := fmt.Sscanf(fields[2], "%d:%d:%d@%d", &c.failures, &c.losses, &c.token, &c.due)
	if text := fmt.Sprintf("%d:%d:%d@%d", c.failures, c.losses, c.token, c.due); text != fields[2] {
		panic(fmt.Sprintf("the attempt %q: %v", fields[2], err))
	}
	return c
}

// workAgain replays a copy of a call: the last one of a process gets the tasks that it claimed and that are still its.
func (j *taskJudge) workAgain(e *execution, last *taskRecord) {
	var want, got []string
	for _, c := range last.claims {
		t := j.task(c.id)
		held := t.phase == delay.PhaseClaimed && !t.waits && t.token == c.token && t.ends == c.ends && t.ends > e.clock
		if held && last.number == e.task.arg(0) {
			want = append(want, fmt.Sprint(c.id, " ", c.token, " ", t.failures, " ", t.losses, " ", c.begins))
		}
	}
	for r := e.task.reply[9:]; len(r) > 0; r = r[3:] {
		c := claimOf(e, r)
		if t := j.task(c.id); c.due != t.due {
			j.faultf(e.at, neverEarly, "a copy was told that %s is due in %d us: %d",
				c.id, t.due-e.clock, c.due-e.clock)
		}
		begins := len(got) < int(number(e.task.reply[8]))
		got = append(got, fmt.Sprint(c.id, " ", c.token, " ", c.failures, " ", c.losses, " ", begins))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		j.faultf(e.at, "a copy of a claim gets the same tasks", "%v, and not %v", got, want)
	}
}

// renew replays renewals.
func (j *taskJudge) renew(e *execution) {
	s := e.task
	for i := range s.reply {
		t := j.task(s.args[3*i])
		held := t.phase == delay.PhaseClaimed && !t.waits && t.token == s.arg(3*i+1) && !t.over(e.clock)
		if held != (s.reply[i] == "1") {
			j.faultf(e.at, "a renewal tells who holds the task", "%v: %v", s.args, s.reply)
		}
		if held {
			lease, waits := strings.CutSuffix(s.args[3*i+2], ".5")
			t.ends, t.begun = e.clock+number(lease), !waits // also if the clock was set back
		}
	}
}
