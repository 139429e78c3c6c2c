package wheel_test

// The checkers of the wheel's promises, each shown to catch a wheel that breaks its promise.

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// scheduler is what the checkers need of a wheel.
type scheduler interface {
	// schedule calls f after d; stop is Timer.Stop.
	schedule(d time.Duration, f func()) (stop func() bool)
	// shutdown is Wheel.Stop and returns how many entries it handed back.
	shutdown() int
}

type realWheel struct{ *wheel.Wheel }

func (w realWheel) schedule(d time.Duration, f func()) func() bool {
	timer, err := w.AfterFunc(d, f)
	if err != nil {
		panic(err)
	}
	return timer.Stop
}

func (w realWheel) shutdown() int {
	rest, err := w.Stop(context.Background())
	if err != nil {
		panic(err)
	}
	return len(rest)
}

// hastyWheel fires one tick early.
type hastyWheel struct{ realWheel }

func (w hastyWheel) schedule(d time.Duration, f func()) func() bool {
	return w.realWheel.schedule(d-wheel.DefaultTickDuration, f)
}

// lossyWheel drops an entry when it is stopped.
type lossyWheel struct{ realWheel }

func (w lossyWheel) shutdown() int { return max(0, w.realWheel.shutdown()-1) }

// lyingWheel says that it stopped an entry which then fires.
type lyingWheel struct{ realWheel }

func (w lyingWheel) schedule(d time.Duration, f func()) func() bool {
	w.realWheel.schedule(d, f)
	return func() bool { return true }
}

// timidWheel ends with the first panic or slow callback: nothing fires after it.
type timidWheel struct {
	realWheel
	broken *atomic.Bool
}

func (w timidWheel) schedule(d time.Duration, f func()) func() bool {
	return w.realWheel.schedule(d, func() {
		if !w.broken.Load() {
			w.broken.Store(true)
			f()
			w.broken.Store(false)
		}
	})
}

// checkNeverEarly lets entries of many delays fire and compares with their deadlines.
func checkNeverEarly(s scheduler) error {
	var early, ran atomic.Int64
	start := time.Now()
	for k := range 2000 {
		d := time.Duration(k*k) * 10 * time.Microsecond
		s.schedule(d, func() {
			if time.Since(start) < d {
				early.Add(1)
			}
			ran.Add(1)
		})
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	s.shutdown()
	if early.Load() > 0 || ran.Load() != 2000 {
		return fmt.Errorf("%d of %d fired early", early.Load(), ran.Load())
	}
	return nil
}

// checkEachEndsOnce shuts down in the middle and counts ends.
func checkEachEndsOnce(s scheduler) error {
	var ran atomic.Int64
	for k := range 1000 {
		s.schedule(time.Duration(k)*time.Millisecond, func() { ran.Add(1) })
	}
	time.Sleep(500*time.Millisecond + time.Microsecond)
	synctest.Wait()
	returned := s.shutdown()
	if ran.Load()+int64(returned) != 1000 {
		return fmt.Errorf("%d fired and %d returned of 1000", ran.Load(), returned)
	}
	return nil
}

// checkStopIsTruthful stops entries before and after their time.
func checkStopIsTruthful(s scheduler) error {
	var wrong, fired atomic.Int64
	stops := make([]func() bool, 1000)
	ran := make([]atomic.Bool, 1000)
	for k := range stops {
		stops[k] = s.schedule(time.Duration(k)*time.Millisecond, func() { ran[k].Store(true); fired.Add(1) })
	}
	time.Sleep(500*time.Millisecond + time.Microsecond)
	synctest.Wait()
	stopped := make([]bool, len(stops))
	for k, stop := range stops {
		stopped[k] = stop()
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	s.shutdown()
	for k := range stops {
		if ran[k].Load() == stopped[k] {
			wrong.Add(1)
		}
	}
	if wrong.Load() > 0 || fired.Load() == 0 || fired.Load() == 1000 {
		return fmt.Errorf("%d entries both fired and were stopped, or neither", wrong.Load())
	}
	return nil
}

// checkPanicHarmsNoOther has a callback panic beside others of its tick, of which none need come after it,
// and before those of another.
func checkPanicHarmsNoOther(s scheduler) error {
	var ran atomic.Int64
	s.schedule(time.Second, func() { panic("control") })
	for range 100 {
		s.schedule(time.Second, func() { ran.Add(1) })
		s.schedule(2*time.Second, func() { ran.Add(1) })
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	s.shutdown()
	if ran.Load() != 200 {
		return fmt.Errorf("%d of 200 fired beside one that panicked", ran.Load())
	}
	return nil
}

func TestControl_EachCheckerPassesTheWheelAndCatchesABrokenOne(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name   string
		check  func(scheduler) error
		broken func(realWheel) scheduler
	}{
		{"one tick early", checkNeverEarly, func(w realWheel) scheduler { return hastyWheel{w} }},
		{"drops an entry on Stop", checkEachEndsOnce, func(w realWheel) scheduler { return lossyWheel{w} }},
		{"Stop lies", checkStopIsTruthful, func(w realWheel) scheduler { return lyingWheel{w} }},
		{"a panic ends the rest", checkPanicHarmsNoOther, func(w realWheel) scheduler {
			return timidWheel{w, new(atomic.Bool)}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				quiet := wheel.WithPanicHandler(func(any, []byte) {})
				require.NoError(t, c.check(realWheel{newWheel(t, quiet)}))
				require.Error(t, c.check(c.broken(realWheel{newWheel(t, quiet)})), "the checker did not notice")
			})
		})
	}
}
