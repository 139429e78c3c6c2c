package algo

import (
	"math"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// exact is the greatest integer up to which Lua counts exactly. Scripts return no greater integers, except the
// fields of a limiter that others have set.
const exact = 1 << 53

// replyReader reads the integers of a reply one after another. If one is missing or out of range, it returns
// the least value, and end returns the error.
type replyReader struct {
	reply []int64
	at    int
	bad   bool
}

// next returns the next integer, which must be least to most.
func (r *replyReader) next(least, most int64) int64 {
	if r.bad = r.bad || r.at == len(r.reply); r.bad {
		return least
	}
	n := r.reply[r.at]
	if r.at++; n < least || n > most {
		r.bad = true
		return least
	}
	return n
}

// more reports whether there are further integers.
func (r *replyReader) more() bool { return !r.bad && r.at < len(r.reply) }

// time returns the next two integers: a time with a fraction.
func (r *replyReader) time(p GCRAParams) GCRATime {
	return GCRATime{Micros: r.next(-exact, exact), Num: r.next(0, p.Den-1)}
}

// granted returns the number of granted requests of each run.
func (r *replyReader) granted(runs []Run) []int64 {
	granted := make([]int64, len(runs))
	for k, run := range runs {
		granted[k] = r.run(run)
	}
	return granted
}

// run returns the number of granted requests of a run, or hopeless for a waiter whose permits come after its deadline.
// A run of requests for 0 permits has none.
func (r *replyReader) run(run Run) int64 {
	switch {
	case run.N == 0:
		return r.next(0, 0)
	case run.Alone:
		return r.next(Hopeless, run.Count)
	}
	return r.next(0, run.Count)
}

// Hopeless takes the place of the number of granted requests of a run.
const Hopeless = -1

// end returns an error that matches scripts.ErrReply unless the reply had all integers, in range, and no more.
func (r *replyReader) end() error {
	if r.bad || r.at != len(r.reply) {
		return scripts.Unexpected(r.reply)
	}
	return nil
}

// times returns n periods, at most MaxBurstTime.
func times(n int64, period time.Duration) time.Duration {
	if period > 0 && n > int64(MaxBurstTime/period) {
		return MaxBurstTime
	}
	return time.Duration(n) * period
}

// Plus returns the sum of a time and one of 0 or more, at most the greatest Duration.
func Plus(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
