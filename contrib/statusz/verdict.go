package statusz

import (
	"fmt"
	"time"
)

// recently is for how long an error of a call or of a renewal counts as a problem. Renewals that fail are repeated
// within a third of their lease, so while Redis is down and something is held, there is a younger one.
const recently = time.Minute

// overdue is how late a task may begin without being a problem, as in the alert CogwheelTasksOverdue.
const overdue = 20 * time.Second

// verdict is a summary of a page.
type verdict struct {
	OK         bool     `json:"ok"`
	Problems   []string `json:"problems"`    // of now
	SinceStart []string `json:"since_start"` // that are over, and that someone should know of
}

func newVerdict(p *page) verdict {
	v := verdict{Problems: []string{}, SinceStart: []string{}}
	for _, l := range p.Locks {
		v.addError("Locks "+l.Name, l.LastError)
		v.count(l.Lost, "Locks "+l.Name, "lost")
	}
	for _, s := range p.Semaphores {
		v.addError("Semaphores "+s.Name, s.LastError)
		v.count(s.Lost, "Semaphores "+s.Name, "grants lost")
	}
	for _, d := range p.Delays {
		v.addError("Tasks "+d.Name, d.LastError)
		if time.Duration(d.Overdue) > overdue {
			v.Problems = append(v.Problems, fmt.Sprintf("Tasks %s: overdue for %v", d.Name, d.Overdue))
		}
		v.count(d.Exhausted, "Tasks "+d.Name, "failed")
		v.count(d.LostOften, "Tasks "+d.Name, "failed by losses")
		v.count(d.Deleted, "Tasks "+d.Name, "failed and deleted")
		v.count(d.NoPayload, "Tasks "+d.Name, "removed without payload")
		v.count(d.Lost, "Tasks "+d.Name, "attempts lost")
	}
	for _, l := range p.Limits {
		if b := l.Breaker; b.Open {
			v.Problems = append(v.Problems,
				fmt.Sprintf("Limits %s: no answer from Redis for %v; decided by policy", l.Name, b.OpenFor))
		}
	}
	for _, r := range p.Renewers {
		v.count(r.Lost, "Renewer "+r.Name, "leases lost")
	}
	for _, w := range p.Wheels {
		v.count(w.Panicked, "Wheel "+w.Name, "callbacks panicked")
	}
	v.OK = len(v.Problems) == 0
	return v
}

func (v *verdict) addError(object string, e *lastError) {
	if e != nil && time.Duration(e.Ago) < recently {
		v.Problems = append(v.Problems, fmt.Sprintf("%s: failed %v ago: %s", object, e.Ago, e.Text))
	}
}

func (v *verdict) count(n int64, object, event string) {
	if n > 0 {
		v.SinceStart = append(v.SinceStart, fmt.Sprintf("%s: %d %s", object, n, event))
	}
}

// lastError is the last error of the calls and renewals of a client.
type lastError struct {
	Text string  `json:"error"`
	Ago  seconds `json:"seconds_ago"`
}

func newLastError(err error, at, now time.Time) *lastError {
	if err == nil {
		return nil
	}
	return &lastError{shown(err.Error(), maxError), seconds(max(0, now.Sub(at)))}
}
