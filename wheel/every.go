package wheel

import (
	"sync/atomic"
	"time"
)

// periodic is an entry of Every. It keeps its node from firing to firing, so its handle stays valid.
type periodic struct {
	f      func()
	period int64
	state  atomic.Int32
}

const (
	periodicIdle int32 = iota
	periodicRunning
	periodicStopped
)

// Every calls f at a fixed rate: first when period has passed, then each period after that. The instants are
// multiples of period from the call, so there is no drift however late single firings are. f never overlaps
// itself: a firing that comes up while f is still running is skipped, and those missed while the wheel was held
// up (a stalled process, a blocking Inline callback) are made good by a single late one. Stop ends it, also
// from inside f; no firing begins after Stop has returned true, but one may be in progress. A panic of f does
// not end it.
//
// Errors: ErrNilFunc; ErrInvalidPeriod for a period of zero or less; ErrStopped; ErrTooManyPending.
func (w *Wheel) Every(period time.Duration, f func()) (Timer, error) {
	if f == nil {
		return Timer{}, ErrNilFunc
	}
	if period <= 0 {
		return Timer{}, ErrInvalidPeriod
	}
	return w.objects.schedule(period, &periodic{f: f, period: int64(period)})
}

func (p *periodic) bind(Timer) {}

func (p *periodic) fire() {
	if !p.state.CompareAndSwap(periodicIdle, periodicRunning) {
		return
	}
	defer p.state.CompareAndSwap(periodicRunning, periodicIdle)
	p.f()
}

// next returns the first multiple of the period that is still to come.
func (p *periodic) next(deadline, now int64) int64 {
	last := deadline + (now-deadline)/p.period*p.period
	return deadlineAfter(last, time.Duration(p.period))
}

// end lets no firing begin any more; it returns true to the first caller.
func (p *periodic) end() bool { return p.state.Swap(periodicStopped) != periodicStopped }
