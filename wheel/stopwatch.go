package wheel

import (
	"sync/atomic"
	"time"
)

const (
	longStretch = 16                            // callbacks measured as one
	slowStretch = int64(100 * time.Microsecond) // from here on they are measured one by one
)

// stopwatch measures callbacks without reading the clock for each: a stretch of them is measured as one, and only
// when that was slow are the next measured one by one.
type stopwatch struct {
	core          *core
	from          int64
	stretch, left int
}

func newStopwatch(c *core) stopwatch {
	return stopwatch{core: c, from: c.time.now(), stretch: 1, left: 1}
}

// count is called after each callback.
func (s *stopwatch) count() {
	if s.left--; s.left == 0 {
		s.lap()
	}
}

// lap ends a stretch.
func (s *stopwatch) lap() {
	now := s.core.time.now()
	took := now - s.from
	s.from = now
	if s.stretch-s.left <= 1 || took >= slowStretch {
		s.core.tasks.record(took, patience(s.core.tick))
	}
	s.stretch = min(2*s.stretch, longStretch)
	if took >= slowStretch {
		s.stretch = 1
	}
	s.left = s.stretch
}

// tasks is what is known of the callbacks' length.
type tasks struct{ longest, blocked atomic.Int64 }

func (t *tasks) record(took, patience int64) {
	for longest := t.longest.Load(); took > longest && !t.longest.CompareAndSwap(longest, took); {
		longest = t.longest.Load()
	}
	if took > patience {
		t.blocked.Add(took)
	}
}
