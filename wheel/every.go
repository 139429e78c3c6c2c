package wheel

import "time"

// Every calls f at the multiples of period from now, so it does not drift. f never overlaps itself. If a
// firing is late, or f takes longer than period, the multiples that pass until f returns are skipped, and f
// is called at the next one. So f is called at most once in each interval between two multiples, and two
// firings are less than period apart only if the earlier one was late.
//
// Timer.Stop ends it, also from inside f: no firing begins after it has returned true, but one may be in
// progress. Timer.Reschedule moves the next firing, and later firings follow it at multiples of period. A panic
// of f does not end it.
//
// Every does not block. It returns a *cogwheel.InvalidError if period is not positive or f is nil, ErrStopped,
// or ErrTooManyPending; then nothing is scheduled.
func (w *Wheel) Every(period time.Duration, f func()) (Timer, error) {
	if f == nil {
		return Timer{}, errNilFunction
	}
	if period <= 0 {
		return Timer{}, argument.Error("period", period, "must be positive")
	}
	p := &struct {
		recurring
		fixedRate
	}{recurring{f: f}, fixedRate{period}}
	p.rule = &p.fixedRate
	return w.objects.schedule(period, &p.recurring)
}

// fixedRate is the rule of Every.
type fixedRate struct{ period time.Duration }

func (r *fixedRate) next(now, due int64, _ bool) (deadline int64, ok bool) {
	missed := time.Duration(max(0, now-due)).Truncate(r.period)
	return deadlineAfter(due+int64(missed), r.period), true
}
