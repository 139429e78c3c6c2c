package wheel

import (
	"math/rand/v2"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

// RepeatOption configures Every, Repeat and Schedule.
type RepeatOption interface{ apply(j *jitter) error }

type repeatOption func(j *jitter) error

func (o repeatOption) apply(j *jitter) error { return o(j) }

// WithJitter delays each firing by a random duration, evenly distributed from 0 to less than most. most must be
// positive, and for Every at most the period. Jitter keeps the processes of a fleet from doing the same at the same
// instant. It does not move the multiples of Every's period or the instants of a Schedule. It lengthens each pause of
// Repeat. A deadline that Timer.Reschedule sets has no jitter.
func WithJitter(most time.Duration) RepeatOption {
	return repeatOption(func(j *jitter) error {
		if most <= 0 {
			return argument.Error("WithJitter", most, "must be positive")
		}
		j.most = most
		return nil
	})
}

// jitter is the part of a rule that delays firings.
type jitter struct {
	most    time.Duration // 0 without WithJitter
	current time.Duration // the delay of the next firing, or of the firing in progress
}

// draw chooses the delay of the next firing.
func (j *jitter) draw() time.Duration {
	if j.most > 0 {
		j.current = rand.N(j.most)
	}
	return j.current
}

// after returns the sum of d and the delay of the next firing. It saturates.
func (j *jitter) after(d time.Duration) time.Duration {
	return time.Duration(deadlineAfter(int64(d), j.draw()))
}

// Every calls f at the multiples of period from now, first after one period, so it does not drift. f never overlaps
// itself. If a firing is late, or f takes longer than period, Every skips the multiples that pass before f returns,
// and calls f at the next multiple. So it calls f at most once in each interval between two multiples. Two firings
// are less than period apart only if the earlier one was late, or with WithJitter.
//
// Timer.Stop ends the entry, also from inside f: after it has returned true no firing begins, but one may be in
// progress. Timer.Reschedule moves the next firing; later firings follow it at multiples of period. A panic of f does
// not end the entry.
//
// Every does not block. It returns a *cogwheel.InvalidError if period is not positive, f is nil or an option is
// invalid, ErrStopped, or ErrTooManyPending; then nothing is scheduled.
func (w *Wheel) Every(period time.Duration, f func(), opts ...RepeatOption) (Timer, error) {
	p := &struct {
		recurring
		fixedRate
	}{recurring{f: f}, fixedRate{period: period}}
	if err := checkRepeat(&p.jitter, opts, "period", period, f); err != nil {
		return Timer{}, err
	}
	if p.most > period {
		return Timer{}, argument.Error("WithJitter", p.most, "must be at most the period")
	}
	p.rule = &p.fixedRate
	return w.objects.schedule(p.after(period), &p.recurring)
}

// Repeat calls f again and again. It pauses between the return of one call and the start of the next: other
// libraries call this a fixed delay. The first call comes after one pause. f never overlaps itself.
//
// Timer.Stop ends the entry, also from inside f: after it has returned true no firing begins, but one may be in
// progress. Timer.Reschedule moves the next firing; a pause follows it as usual. A panic of f does not end the entry.
//
// Repeat does not block. It returns a *cogwheel.InvalidError if pause is not positive, f is nil or an option is
// invalid, ErrStopped, or ErrTooManyPending; then nothing is scheduled.
func (w *Wheel) Repeat(pause time.Duration, f func(), opts ...RepeatOption) (Timer, error) {
	p := &struct {
		recurring
		fixedDelay
	}{recurring{f: f}, fixedDelay{pause: pause}}
	if err := checkRepeat(&p.jitter, opts, "pause", pause, f); err != nil {
		return Timer{}, err
	}
	p.rule = &p.fixedDelay
	return w.objects.schedule(p.after(pause), &p.recurring)
}

// checkRepeat applies the options and checks the other arguments of Every and Repeat.
func checkRepeat(j *jitter, opts []RepeatOption, name string, d time.Duration, f func()) error {
	if f == nil {
		return errNilFunction
	}
	if d <= 0 {
		return argument.Error(name, d, "must be positive")
	}
	return conventions.Apply(argument, j, opts, RepeatOption.apply)
}

// fixedRate is the rule of Every.
type fixedRate struct {
	period time.Duration
	jitter
}

func (r *fixedRate) next(now, due int64, moved bool) (deadline int64, ok bool) {
	if !moved {
		due -= int64(r.current)
	}
	missed := time.Duration(max(0, now-due)).Truncate(r.period)
	return deadlineAfter(deadlineAfter(due+int64(missed), r.period), r.draw()), true
}

// fixedDelay is the rule of Repeat.
type fixedDelay struct {
	pause time.Duration
	jitter
}

func (r *fixedDelay) next(now, _ int64, _ bool) (deadline int64, ok bool) {
	return deadlineAfter(now, r.after(r.pause)), true
}
