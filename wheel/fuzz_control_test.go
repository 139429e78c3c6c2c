package wheel_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// The wrong wheels that the differential test has to catch.

type earlySubject struct{ realSubject }

func (s earlySubject) AfterFunc(d time.Duration, f func()) (wheel.Timer, error) {
	return s.realSubject.AfterFunc(d-2*s.TickDuration(), f)
}

type lateSubject struct{ realSubject }

func (s lateSubject) AfterFunc(d time.Duration, f func()) (wheel.Timer, error) {
	return s.realSubject.AfterFunc(d+2*s.TickDuration(), f)
}

type forgetfulSubject struct{ realSubject }

func (s forgetfulSubject) Stop(ctx context.Context) ([]wheel.Unprocessed, error) {
	rest, err := s.realSubject.Stop(ctx)
	return rest[:max(0, len(rest)-1)], err
}

type lyingSubject struct{ realSubject }

func (s lyingSubject) StopTimer(wheel.Timer) bool { return true }

type modestSubject struct{ realSubject }

func (s modestSubject) StopTimer(t wheel.Timer) bool {
	t.Stop()
	return false
}

type doubleSubject struct{ realSubject }

func (s doubleSubject) AfterFunc(d time.Duration, f func()) (wheel.Timer, error) {
	return s.realSubject.AfterFunc(d, func() { f(); f() })
}

type burstSubject struct{ realSubject }

func (s burstSubject) Every(period time.Duration, f func(), _ ...wheel.RepeatOption) (wheel.Timer, error) {
	return s.realSubject.Every(period, func() { f(); f() })
}

type sleepySubject struct{ realSubject }

func (s sleepySubject) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func TestControl_TheDifferentialTestCatchesWrongWheels(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]func(realSubject) subject{
		"fires early":            func(s realSubject) subject { return earlySubject{s} },
		"fires late":             func(s realSubject) subject { return lateSubject{s} },
		"drops an entry on Stop": func(s realSubject) subject { return forgetfulSubject{s} },
		"Timer.Stop says true":   func(s realSubject) subject { return lyingSubject{s} },
		"Timer.Stop says false":  func(s realSubject) subject { return modestSubject{s} },
		"fires twice":            func(s realSubject) subject { return doubleSubject{s} },
		"Every fires in bursts":  func(s realSubject) subject { return burstSubject{s} },
		"Sleep returns at once":  func(s realSubject) subject { return sleepySubject{s} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caught := 0
			for _, seed := range wheelSeeds {
				if err := runOperations(t, []byte(seed), func(w *wheel.Wheel) subject { return broken(realSubject{w}) }); err != nil {
					caught++
				}
			}
			require.Positive(t, caught, "no seed has shown it")
		})
	}
}
