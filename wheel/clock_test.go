package wheel_test

import (
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestWheel_RunsOnAMockClock(t *testing.T) {
	t.Parallel()
	mock := clock.NewMock()
	w := newWheel(t, wheel.WithClock(mock))
	early := make(chan time.Duration, 10) // how early each fired, by the mock's time
	start := mock.Now()
	for _, d := range []time.Duration{5 * time.Millisecond, time.Second, time.Hour} {
		after(t, w, d, func() { early <- d - mock.Now().Sub(start) })
	}
	mock.Add(4 * time.Millisecond)
	require.Equal(t, 3, w.Len())
	mock.Add(time.Millisecond)
	require.LessOrEqual(t, <-early, time.Duration(0))
	require.Equal(t, 2, w.Len())
	mock.Set(start.Add(time.Hour))
	for range 2 {
		require.LessOrEqual(t, <-early, time.Duration(0))
	}
}

// steppedClock is a clock that tests move at will; its waits end when the test says so.
type steppedClock struct {
	now  atomic.Int64
	wait chan time.Time
}

func (c *steppedClock) Now() time.Time                       { return time.Unix(0, c.now.Load()) }
func (c *steppedClock) After(time.Duration) <-chan time.Time { return c.wait }

// Guarantees: W2.
func TestWheel_AClockThatJumpsFiresLateNeverEarlyOrTwice(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := &steppedClock{wait: make(chan time.Time)}
		step := func(d time.Duration) {
			c.now.Add(int64(d))
			c.wait <- time.Time{}
			time.Sleep(time.Second) // real steps give the worker time; here virtual time does
		}
		c.now.Store(int64(1000 * time.Hour))
		w := newWheel(t, wheel.WithClock(c))
		var ran counter
		after(t, w, 10*365*24*time.Hour, func() {}) // keeps the wheel from ending its goroutines
		after(t, w, time.Minute, ran.inc)
		time.Sleep(time.Second)
		step(-time.Hour)
		require.Zero(t, ran.Load(), "back an hour")
		step(0)
		step(time.Nanosecond)
		require.Zero(t, ran.Load(), "frozen")
		step(time.Hour + time.Minute - 2*time.Nanosecond)
		require.Zero(t, ran.Load(), "one nanosecond short")
		step(time.Nanosecond)
		require.EqualValues(t, 1, ran.Load())
		after(t, w, time.Minute, ran.inc)
		step(30 * 24 * time.Hour)
		require.EqualValues(t, 2, ran.Load(), "forward 30 days")
		step(-30 * 24 * time.Hour)
		require.EqualValues(t, 2, ran.Load(), "and back again")
	})
}

// Guarantees: W2.
func TestWheel_TheSystemClockIsReadMonotonically(t *testing.T) {
	t.Parallel()
	require.Contains(t, wheel.SystemOrigin().String(), "m=", "a step of the wall clock would move deadlines")
}

// movedClock is a Clock that a test moves just before the worker begins to wait.
type movedClock struct {
	*clock.Mock
	steps []time.Duration // before each call of After; the worker is the only caller
}

func (c *movedClock) After(d time.Duration) <-chan time.Time {
	if len(c.steps) > 0 {
		step := c.steps[0]
		c.steps = c.steps[1:]
		c.Mock.Add(step)
	}
	return c.Mock.After(d)
}

func TestWheel_AClockThatIsMovedWhileTheWorkerGoesToSleep(t *testing.T) {
	t.Parallel()
	for what, steps := range map[string][]time.Duration{
		"less than to the deadline": {29 * time.Minute},
		"in several steps":          {time.Minute, 10 * time.Minute, 18 * time.Minute},
		"to the deadline":           {30 * time.Minute},
		"beyond the deadline":       {time.Hour},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			moved := &movedClock{clock.NewMock(), steps}
			w := newWheel(t, wheel.WithClock(moved))
			fired := make(chan struct{})
			after(t, w, 30*time.Minute, func() { close(fired) })
			for patience := time.Now().Add(5 * time.Second); moved.Now().Before(time.Unix(29*60, 0)); runtime.Gosched() {
				require.True(t, time.Now().Before(patience), "the worker waits although the clock was moved")
			}
			moved.Set(time.Unix(59*60-1, 0))
			select {
			case <-fired:
			case <-time.After(10 * time.Second):
				require.Fail(t, "the deadline was 30 minutes after the start, and 59 have passed")
			}
		})
	}
}

// A mock often starts at the zero time and is set to today, which is further than an int64 of nanoseconds reaches.
// Guarantees: W2.
func TestWheel_AClockThatJumpsByMillenniaNeverFiresEarly(t *testing.T) {
	t.Parallel()
	today := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	for name, jump := range map[string]struct{ from, to time.Time }{
		"forward": {time.Time{}, today},
		"back":    {today, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mock := clock.NewMock()
			mock.Set(jump.from)
			w := newWheel(t, wheel.WithClock(mock))
			fired := make(chan struct{})
			after(t, w, time.Minute, func() { close(fired) })
			mock.Set(jump.to)
			if jump.to.After(jump.from) {
				<-fired // it is due
			}
			wakeups := w.Stats().Wakeups
			var early counter
			for _, d := range []time.Duration{time.Second, time.Hour, math.MaxInt64} {
				after(t, w, d, early.inc)
				every(t, w, d, early.inc)
			}
			for range 1000 {
				runtime.Gosched()
			}
			require.Zero(t, early.Load())
			require.Less(t, w.Stats().Wakeups-wakeups, int64(100), "the worker spins")
		})
	}
}
