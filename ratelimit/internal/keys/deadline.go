package keys

import (
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/outage"
)

// pauseFrom is the delay of a timer from which on the process counts as having been paused.
const pauseFrom = 5 * time.Millisecond

// suspectAfter: a node that has not answered within a third of the time for that is suspect.
const suspectAfter = 3

// armLocked sets the timer of a job to the end of the time of its oldest caller, or before, to the moment when its node
// is suspect.
//
// If that has passed, the process was paused, which is no outage of Redis: the reply may have come meanwhile,
// or the script could not be sent. Then the job gets the same time again, one timeout at most.
func (j *Job) armLocked(now time.Duration) {
	c := j.state.Keys
	late := now - j.endLocked()
	if more := min(late, c.Timeout-j.lent); late >= pauseFrom && more > 0 {
		j.lent += more
		j.extra += late + more
	}
	left := max(0, j.endLocked()-now)
	if !j.suspected {
		left = min(left, c.Patience/suspectAfter)
	}
	timer, err := wheelentry.AfterFunc(c.Wheel, left, j.timeUp)
	if err != nil {
		j.useRuntimeTimerLocked(left)
		return
	}
	j.timer = timer
}

// endLocked returns the end of the time of the oldest caller.
func (j *Job) endLocked() time.Duration { return j.since + j.state.Keys.Timeout + j.extra }

// useRuntimeTimerLocked keeps the deadline of a job whose wheel is stopped.
func (j *Job) useRuntimeTimerLocked(d time.Duration) {
	j.backup = time.AfterFunc(d, j.expire) //nolint:forbidigo // there is no wheel
}

// timeUp is the callback of the job's entry on the wheel.
func (j *Job) timeUp(stopped error) {
	if stopped == nil {
		j.expire()
		return
	}
	s := j.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.stage == queued || j.stage == sent {
		j.useRuntimeTimerLocked(max(0, j.endLocked()-s.Keys.Now()))
	}
}

// stopLocked stops the timer.
func (j *Job) stopLocked() {
	j.timer.Stop()
	if j.backup != nil {
		j.backup.Stop()
	}
}

// expire makes the policy decide for the callers whose time has passed.
func (j *Job) expire() {
	s := j.state
	s.mu.Lock()
	if j.suspectsLocked() {
		s.mu.Unlock()
		s.Keys.Breakers.Suspect(s)
		return
	}
	overdue, over, asked := j.overdueLocked()
	s.mu.Unlock()
	if !over && len(overdue) == 0 {
		return
	}
	err := Unavailable(outage.ErrTimeout)
	if asked {
		s.heard(err, j.sentAt)
	}
	s.mu.Lock()
	var next *Job
	s.decideLocked(overdue, nil, err)
	if over {
		j.err = err
		next = j.deliverLocked(algo.Reading{Sent: s.Keys.Now()})
	}
	s.mu.Unlock()
	s.Keys.Sender.Interrupt(j)
	s.Send(next)
}

// suspectsLocked reports whether the node is suspect for the first time before the end of the job.
func (j *Job) suspectsLocked() bool {
	now := j.state.Keys.Now()
	if j.suspected || j.stage != queued && j.stage != sent || now >= j.endLocked() {
		return false
	}
	j.suspected = true
	j.armLocked(now)
	return true
}

// overdueLocked removes the overdue calls from the job. It reports whether the job is over, and whether Redis
// was asked in vain.
func (j *Job) overdueLocked() (calls []*call, over, asked bool) {
	s, c := j.state, j.state.Keys
	was := j.stage
	if was != queued && was != sent {
		return nil, false, false
	}
	now := c.Now()
	if now-j.endLocked() >= pauseFrom && j.lent < c.Timeout {
		j.armLocked(now)
		return nil, false, false
	}
	asked = was == sent && !j.repeated
	if j.kind == jobCalls {
		until := now - c.Timeout - j.extra
		all := j.calls
		if was == queued {
			all = s.pending
		}
		n := 0 // they are sorted by time
		for n < len(all) && all[n].since <= until {
			n++
		}
		calls = slices.Clone(all[:n])
		if n < len(all) {
			j.dropLocked(n)
			j.since = all[n].since
			j.armLocked(now)
			return slices.DeleteFunc(calls, func(c *call) bool { return c.left }), false, asked
		}
	}
	if s.queued == j {
		s.queued, s.pending = nil, s.room[:0]
	}
	j.stage, j.calls = expired, nil // nobody waits for the reply
	return calls, true, asked
}

// interrupted ends a job that a caller was sending himself when he left. Its script may have charged. If others had
// joined, the next job asks for them.
func (j *Job) interrupted() {
	s := j.state
	s.mu.Lock()
	var next *Job
	if j.stage == sent {
		j.stage = answered
		j.stopLocked()
		others := slices.DeleteFunc(j.calls, func(c *call) bool { return c.left || c.values.Err() != nil })
		s.pending = append(slices.Clone(others), s.pending...)
		if next = s.nextLocked(); next == nil {
			s.inFlight--
		}
	}
	s.mu.Unlock()
	s.Send(next)
	j.over()
}

// dropLocked removes the first n calls from a job. If the job was sent, placeholders stay in their places for
// the reply.
func (j *Job) dropLocked(n int) {
	if j.stage == queued {
		j.state.pending = j.state.pending[n:]
		return
	}
	for i, c := range j.calls[:n] {
		j.calls[i] = &call{n: c.n, since: c.since, left: true}
	}
}
