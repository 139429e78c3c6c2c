package sim

import (
	"math"
	"time"

	"github.com/cogwheel-go/cogwheel/delay"
)

// The rules of losses.
const (
	mostLosses   = 25 // of its lease that a task may have
	aloneFrom    = 2  // from which on it runs alone
	firstPause   = 1_000_000
	longestPause = 300_000_000
)

// lose ends the lease of a claimed task, or its pause after that.
func (t *taskState) lose(now int64) {
	switch counts := t.begun && !t.waits; {
	case t.cancelled:
		t.leave(delay.PhaseUnknown, 0)
	case !counts:
		lost := t.later == nil
		t.leave(delay.PhasePending, t.since(now))
		t.lost = lost
	case t.losses+1 >= mostLosses:
		lost := t.later == nil
		t.losses++
		t.leave(delay.PhaseFailed, now)
		t.lost = lost
	case t.later != nil:
		t.leave(delay.PhasePending, 0)
	default:
		t.losses++
		longest := min(float64(firstPause)*math.Pow(2, float64(t.losses-1)), longestPause)
		spread := math.Mod(float64(t.token%1_000_000)*0.618034, 1)
		t.waits, t.lost, t.ends = true, true, now+int64(longest/2*(1+spread))
	}
}

// since returns when a claimed task was due, unless the clock was set back since.
func (t *taskState) since(now int64) int64 {
	if t.due > now+claimedAhead {
		return now
	}
	return t.due
}

// over reports whether the lease of a task has ended, or its pause after that. The server keeps half a microsecond more
// for those that have not begun.
func (t *taskState) over(now int64) bool {
	return t.phase == delay.PhaseClaimed && (t.ends < now || t.ends == now && t.begun && !t.waits)
}

// taskService is a call of Serve, until it returned or its process died.
type taskService struct {
	object, process, link, workers int
	from, to                       int64
}

// taskLapse is the end of the lease of an attempt, as the server found it.
type taskLapse struct {
	id    string
	token int64
	link  int
	at    int64 // when it ended
}

// serviceAt returns the Serve of a process at a time, or nil.
func (j *taskJudge) serviceAt(link int, at int64) *taskService {
	for _, s := range j.services {
		if s.object == j.object && s.link == link && s.from <= at && at <= s.to {
			return s
		}
	}
	return nil
}

// workCalls returns when the server executed calls that claim tasks for a process.
func (j *taskJudge) workCalls(link int) (at []int64) {
	for _, c := range j.works {
		if c.link == link {
			at = append(at, c.at)
		}
	}
	return at
}

// judgeLapses finds attempts that returned nil while their process renewed other leases, and whose leases ended before
// their ends were recorded.
func (j *taskJudge) judgeLapses() {
	for _, l := range j.lapses {
		r := j.runOf(l.id, l.token)
		if r == nil || !r.done() || r.ended != r.returned || r.returned > l.at || j.stood(r.process, r.began, l.at) {
			continue
		}
		if s := j.serviceAt(l.link, l.at); s == nil || r.began < s.from {
			continue
		}
		for _, at := range j.renewals[l.link] {
			if from := l.at - int64(j.Lease)/2; from < at && at < l.at-int64(j.Lease)/10 && r.returned < from {
				j.faultf(l.at, "a lease is renewed until the end is recorded", "that of %s, token %d", l.id, l.token)
				break
			}
		}
	}
}

func (j *taskJudge) runOf(id string, token int64) *taskRun {
	for _, r := range j.taskRuns {
		if r.object == j.object && r.ID == id && r.Token == token {
			return r
		}
	}
	return nil
}

// judgeIdle finds processes that do not ask for tasks although a worker has become free, and a task was due when they
// asked last.
func (j *taskJudge) judgeIdle() {
	limit := int64(j.slack() + time.Second)
	for _, r := range j.taskRuns {
		s := j.serviceAt(r.link, r.returned)
		if r.object != j.object || s == nil || j.busy(s, r.returned) < s.workers {
			continue
		}
		last, next := int64(-1), s.to
		for _, at := range j.workCalls(r.link) {
			if at <= r.returned {
				last = at
			} else if next == s.to {
				next = at
			}
		}
		calm := r.returned
		for _, f := range j.spans {
			if f.From <= next {
				calm = max(calm, f.To)
			}
		}
		if next <= calm+limit || last < 0 || j.stood(s.process, last, next) {
			continue
		}
		for _, c := range j.claims {
			if c.available <= last && c.at >= next && j.busy(s, calm) < s.workers && !j.alone(s.process, last, next) {
				j.faultf(next, "a free worker takes a due task", "process %d lets %s wait from %v", s.process, c.id,
					time.Duration(calm))
				return
			}
		}
	}
}

// busy returns how many attempts ran just before a time.
func (j *taskJudge) busy(s *taskService, at int64) (n int) {
	for _, r := range j.taskRuns {
		if r.object == s.object && r.link == s.link && r.began < at && at <= r.returned {
			n++
		}
	}
	return n
}

// alone reports whether a process had a task that runs alone between two times.
func (j *taskJudge) alone(process int, from, to int64) bool {
	for _, r := range j.taskRuns {
		if r.process == process && r.Losses >= aloneFrom && r.began < to && from < r.returned {
			return true
		}
	}
	return false
}

// judgeAlone finds attempts beside one that runs alone.
func (j *taskJudge) judgeAlone() {
	for _, r := range j.taskRuns {
		if r.Losses < aloneFrom || r.object != j.object {
			continue
		}
		for _, other := range j.taskRuns {
			if other != r && other.link == r.link && other.began < r.ended && r.began < other.ended {
				j.faultf(r.began, "a task with two losses runs alone", "%s beside %s", r.ID, other.ID)
			}
		}
	}
}
