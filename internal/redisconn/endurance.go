package redisconn

import "time"

// Endurance decides for how long something that has begun goes on while its calls fail: a wait, a release, the serving
// of a queue. It has begun once the server has answered a call of it. The zero value has seen no failure. Endurance is
// for one goroutine at a time.
type Endurance struct {
	failures int       // in a row
	refused  time.Time // when the login was refused first; zero: not in this outage
}

// Refused returns when the login was refused first, or the zero Time if it is not refused now.
func (e *Endurance) Refused() time.Time { return e.refused }

// Answered records that the server has answered a call.
func (e *Endurance) Answered() { *e = Endurance{} }

// Endures records the error of a call at now, and reports whether to go on. An outage is endured without end. A refused
// login is endured for patience, the time of a lease: it passes soon while a password is rotated, and whatever was held
// with the old one has ended by then.
func (e *Endurance) Endures(err error, now time.Time, patience time.Duration) bool {
	e.failures++
	switch classify(err) {
	case Unavailable:
		return true
	case LoginRefused:
		if e.refused.IsZero() {
			e.refused = now
		}
		return now.Sub(e.refused) < patience
	}
	return false
}

// Pause returns the pause before the next call: first after one failure, and twice as long after each further one, at
// most longest.
func (e *Endurance) Pause(first, longest time.Duration) time.Duration {
	return min(first<<min(max(e.failures-1, 0), 16), longest)
}
