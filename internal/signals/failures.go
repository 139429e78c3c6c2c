package signals

import (
	"context"
	"errors"
	"time"
)

// Failures keeps the last failure of a Client for its Stats, and tells which of those that repeat themselves its log
// should have. Its user guards it by a lock.
type Failures struct {
	Closed error // with which the calls fail that Close ends; they are no failures

	last    error
	at      time.Time
	repeats Repeats
}

// Keep keeps an error, unless Close or a caller has caused it, and reports whether it does.
func (f *Failures) Keep(err error) (kept bool) {
	if errors.Is(err, f.Closed) || errors.Is(err, context.Canceled) {
		return false
	}
	f.last, f.at = err, time.Now() //nolint:forbidigo // for people
	return true
}

// Repeated keeps the error of a call that is repeated: of a wait that goes on, or in the background. It reports whether
// the log should have it: for the first of several.
func (f *Failures) Repeated(err error) (first bool) {
	return f.Keep(err) && f.repeats.Changed(err, f.at)
}

// Last returns when the last error was kept, and that error: the zero time and nil if there was none.
func (f *Failures) Last() (at time.Time, err error) { return f.at, f.last }
