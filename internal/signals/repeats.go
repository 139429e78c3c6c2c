package signals

import (
	"strings"
	"time"
)

const (
	// quiet is for how long an error must not have come to be a change again.
	quiet = time.Minute

	// maxTexts bounds the texts that Repeats remembers.
	maxTexts = 64
)

// Repeats tells the errors that a log should have from those that repeat them: calls are repeated through an outage,
// and each failure would be a line. The zero value has seen no error. Its user guards it by a lock.
type Repeats struct {
	last map[string]time.Time // when an error of the text came last
}

// Changed records an error at now, and reports whether it is a change: no error of its text, apart from numbers, has
// come within a minute.
func (r *Repeats) Changed(err error, now time.Time) bool {
	text := strings.Map(func(c rune) rune {
		if '0' <= c && c <= '9' {
			return -1
		}
		return c
	}, err.Error())
	last, known := r.last[text]
	if r.last == nil || !known && len(r.last) == maxTexts {
		r.last = make(map[string]time.Time)
	}
	r.last[text] = now
	return !known || now.Sub(last) >= quiet
}
