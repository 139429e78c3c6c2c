package wheel_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func onSchedule(t testing.TB, w *wheel.Wheel, next func(time.Time) time.Time, f func()) wheel.Timer {
	t.Helper()
	timer, err := w.Schedule(wheel.ScheduleFunc(next), func(time.Time) { f() })
	require.NoError(t, err)
	return timer
}

// onThe returns the next whole multiple of d by the wall clock, as a cron expression does.
func onThe(d time.Duration) func(time.Time) time.Time {
	return func(prev time.Time) time.Time { return prev.Truncate(d).Add(d).Round(0) }
}

// cronSchedule has the method of github.com/robfig/cron's Schedule.
type cronSchedule struct{ every time.Duration }

func (s cronSchedule) Next(t time.Time) time.Time { return onThe(s.every)(t) }

func TestSchedule_CallsAtTheInstantsOfTheSchedule(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		pass(123456789 * time.Nanosecond)
		var at []time.Time
		_, err := w.Schedule(cronSchedule{10 * time.Minute}, func(time.Time) { at = append(at, time.Now()) })
		require.NoError(t, err)
		first := time.Now().Truncate(10 * time.Minute).Add(10 * time.Minute)
		pass(3 * time.Hour)
		require.Len(t, at, 18)
		for k, instant := range at {
			require.WithinDuration(t, first.Add(time.Duration(k)*10*time.Minute), instant, 0)
		}
		require.EqualValues(t, 18, w.Stats().Fired, "a look at the wall clock is no firing")
		require.Equal(t, 1, w.Len())
	})
}

// Guarantees: W13.
func TestSchedule_PassesTheInstantOfTheFiring(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		for name, next := range map[string]func(time.Time) time.Time{
			"wall clock":      onThe(time.Minute),
			"monotonic clock": func(prev time.Time) time.Time { return prev.Add(time.Minute) },
		} {
			w := newWheel(t, wheel.WithExecutor(e))
			pass(time.Minute - time.Duration(time.Now().UnixNano())%time.Minute) // to the next whole minute
			start := time.Now()
			var at []time.Duration
			note := func(instant time.Time) {
				at = append(at, instant.Sub(start))
				if len(at) == 2 {
					time.Sleep(90 * time.Second)
				}
			}
			timer, err := w.Schedule(wheel.ScheduleFunc(next), note, wheel.WithJitter(20*time.Second))
			require.NoError(t, err)
			pass(5*time.Minute + 30*time.Second)
			require.Equal(t, time.Minute, at[0], name)
			require.Equal(t, 2*time.Minute, at[1], name)
			if name == "wall clock" { // by the other rule, the next one is a minute after the long call
				require.Equal(t, []time.Duration{4 * time.Minute, 5 * time.Minute}, at[2:])
			}

			at = []time.Duration{0, 0}
			moved := time.Since(start) + time.Second
			require.True(t, timer.Reschedule(time.Second))
			pass(2 * time.Second)
			require.Equal(t, []time.Duration{0, 0, moved}, at, name+": the time to which it was moved")
			rest, err := w.Stop(context.Background())
			require.NoError(t, err)
			rest[0].Func()
			require.Len(t, at, 4)
			require.Equal(t, next(start.Add(moved)).Sub(start), at[3], name+": the one that was next")
		}
	})
}

// The wheel stops while a firing is in progress, and does not wait for it: its function can be called meanwhile.
func TestSchedule_PassesAnInstantAfterStopInAFiring(t *testing.T) {
	t.Parallel()
	w, err := wheel.New()
	require.NoError(t, err)
	next := func(prev time.Time) time.Time { return prev.Add(time.Millisecond) }
	var called counter
	began, finish := make(chan time.Time), make(chan bool)
	_, err = w.Schedule(wheel.ScheduleFunc(next), func(at time.Time) {
		if called.Add(1) == 1 {
			began <- at
			<-finish
		}
	})
	require.NoError(t, err)
	require.False(t, (<-began).IsZero())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	rest, err := w.Stop(ended)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, rest, 1)
	close(finish)
	for range 1000 { // while the firing ends
		rest[0].Func()
	}
	require.EqualValues(t, 1001, called.Load())
}

// Guarantees: W13.
func TestSchedule_NextIsAskedForTheInstantAfterThatOfTheFiring(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		start := time.Now()
		var asked, at []time.Duration
		onSchedule(t, w, func(prev time.Time) time.Time {
			asked = append(asked, prev.Sub(start))
			return prev.Add(10 * time.Millisecond)
		}, func() {
			at = append(at, time.Since(start))
			if len(at) == 2 {
				time.Sleep(37 * time.Millisecond)
			}
		})
		pass(75 * time.Millisecond)
		const ms = time.Millisecond
		require.Equal(t, []time.Duration{10 * ms, 20 * ms, 67 * ms}, at, "what was missed is skipped")
		require.Equal(t, []time.Duration{0, 10 * ms, 20 * ms, 57 * ms, 67 * ms}, asked, "and then it is asked for one after now")
	})
}

func TestSchedule_EndsWhenThereIsNoNextInstant(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var out bytes.Buffer
		w := newWheel(t, wheel.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
		left := 3
		var ran counter
		timer := onSchedule(t, w, func(prev time.Time) time.Time {
			if left--; left < 0 {
				return time.Time{}
			}
			return prev.Add(time.Hour)
		}, ran.inc)
		pass(24 * time.Hour)
		require.EqualValues(t, 3, ran.Load())
		require.False(t, timer.Pending())
		require.False(t, timer.Stop())
		require.Zero(t, w.Len())
		require.Zero(t, w.Stats().Stopped, "it ended by itself")
		require.Empty(t, out.String())
	})
}

func TestSchedule_RefusesWhatHasNoInstantAfterNow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		for name, next := range map[string]func(time.Time) time.Time{
			"none":       func(time.Time) time.Time { return time.Time{} },
			"now":        func(prev time.Time) time.Time { return prev },
			"the past":   func(prev time.Time) time.Time { return prev.Add(-time.Hour) },
			"long ago":   func(time.Time) time.Time { return time.Unix(0, 0) },
			"by the way": func(prev time.Time) time.Time { return prev.Round(0) },
		} {
			_, err := w.Schedule(wheel.ScheduleFunc(next), func(time.Time) { t.Error(name) })
			require.ErrorIs(t, err, wheel.ErrNoNextTime, name)
		}
		require.PanicsWithValue(t, "boom", func() {
			_, _ = w.Schedule(wheel.ScheduleFunc(func(time.Time) time.Time { panic("boom") }), func(time.Time) {})
		})
		require.Zero(t, w.Len())
		pass(time.Hour)

		_, err := w.Stop(context.Background())
		require.NoError(t, err)
		_, err = w.Schedule(cronSchedule{time.Hour}, func(time.Time) {})
		require.ErrorIs(t, err, wheel.ErrStopped)
	})
}

func TestSchedule_AScheduleThatStandsStillEndsInsteadOfFiringWithoutPause(t *testing.T) {
	for name, broken := range map[string]func(prev, first time.Time) time.Time{
		"the same time for ever": func(_, first time.Time) time.Time { return first },
		"its argument":           func(prev, _ time.Time) time.Time { return prev },
		"a time in the past":     func(prev, _ time.Time) time.Time { return prev.Add(-time.Nanosecond) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var out bytes.Buffer
				w := newWheel(t, wheel.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
				first := time.Now().Add(time.Second)
				var asked, ran counter
				timer := onSchedule(t, w, func(prev time.Time) time.Time {
					if asked.Add(1) == 1 {
						return first
					}
					return broken(prev, first)
				}, ran.inc)
				pass(time.Hour)
				require.EqualValues(t, 1, ran.Load())
				require.LessOrEqual(t, asked.Load(), int64(1000), "a bounded number of questions")
				require.False(t, timer.Pending())
				require.Contains(t, out.String(), "level=ERROR")
				require.Contains(t, out.String(), "a schedule has ended")
			})
		})
	}
}

func TestSchedule_APanicOrTheEndOfItsGoroutineInNextEndsTheEntryAlone(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("in Next") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			eachExecutor(t, func(t *testing.T, e wheel.Executor) {
				var reported []any
				w := newWheel(t, wheel.WithExecutor(e),
					wheel.WithPanicHandler(func(v any, _ []byte) { reported = append(reported, v) }))
				var asked, ran, others counter
				timer := onSchedule(t, w, func(prev time.Time) time.Time {
					if asked.Add(1) == 3 {
						fail()
					}
					return prev.Add(time.Second)
				}, func() { ran.inc(); panic("in f") })
				every(t, w, time.Second, others.inc)
				pass(time.Minute)
				require.EqualValues(t, 2, ran.Load())
				require.EqualValues(t, 60, others.Load())
				require.False(t, timer.Pending())
				require.Equal(t, 1, w.Len())
				want := []any{"in f", "in f"}
				if name == "panic" {
					want = []any{"in f", "in Next", "in f"}
				}
				require.ElementsMatch(t, want, reported)
			})
		})
	}
}

// Guarantees: W14.
func TestSchedule_NeverOverlapsItself(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		var running atomic.Bool
		var ran counter
		enter := func(d time.Duration) {
			if running.Swap(true) {
				t.Error("it overlaps itself")
			}
			time.Sleep(d)
			running.Store(false)
		}
		onSchedule(t, w, func(prev time.Time) time.Time {
			if ran.Load() > 0 {
				enter(3 * time.Millisecond)
			}
			return prev.Add(time.Millisecond)
		}, func() { ran.inc(); enter(10 * time.Millisecond) })
		pass(time.Minute)
		require.Greater(t, ran.Load(), int64(1000))
	})
}

func TestSchedule_StopAndRescheduleWorkAsOnEvery(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		pass(time.Minute - time.Duration(time.Now().UnixNano())%time.Minute) // to the next whole minute
		start := time.Now()
		var at []time.Duration
		var self atomic.Pointer[wheel.Timer]
		timer := onSchedule(t, w, onThe(time.Minute), func() {
			if at = append(at, time.Since(start)); len(at) == 4 {
				require.True(t, self.Load().Stop())
			}
		})
		self.Store(&timer)
		require.True(t, timer.Reschedule(90*time.Second), "to a time at which nothing was scheduled")
		pass(time.Hour)
		require.Equal(t, []time.Duration{90 * time.Second, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute}, at)
		require.False(t, timer.Pending())

		at = nil
		timer = onSchedule(t, w, onThe(time.Hour), func() { at = append(at, time.Since(start)) })
		require.True(t, timer.Reschedule(time.Minute), "which is when the wall clock is looked at")
		pass(time.Minute)
		require.Len(t, at, 1)
		require.True(t, timer.Stop())
		pass(time.Hour)
		require.Len(t, at, 1)
	})
}

func TestSchedule_TheWheelsStopReturnsIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		var ran counter
		onSchedule(t, w, func(prev time.Time) time.Time { return prev.Add(time.Minute) }, ran.inc)
		pass(90 * time.Second)
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, 1)
		require.Equal(t, 30*time.Second, rest[0].Left)
		rest[0].Func()
		require.EqualValues(t, 2, ran.Load())
	})
}

// Guarantees: W2.
func TestSchedule_InstantsOfCenturiesAreNotThePast(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		for _, next := range []func(time.Time) time.Time{
			func(prev time.Time) time.Time { return prev.AddDate(1000, 0, 0) },
			func(prev time.Time) time.Time { return prev.Add(1<<63 - 1) },
			func(time.Time) time.Time { return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) },
		} {
			onSchedule(t, w, next, func() { t.Error("long before its time") })
		}
		pass(24 * time.Hour)
		require.Equal(t, 3, w.Len())
	})
}

// wall is a wall clock that a test sets; it runs with the time of the bubble.
type wall struct{ offset atomic.Int64 }

func (c *wall) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

func (c *wall) set(by time.Duration) { c.offset.Add(int64(by)) }

// Guarantees: W2.
func TestSchedule_AfterAStepOfTheWallClock(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	cases := []struct {
		name string
		step time.Duration
		want []time.Duration // since the start; the clock is set half a day after it
	}{
		{"forward: it is noticed within a minute", 6 * hour, []time.Duration{18 * hour, 42 * hour}},
		{"forward beyond an instant: it is late by up to a minute", 13 * hour, []time.Duration{12 * hour, 35 * hour, 59 * hour}},
		{"back: it waits until the clock shows the instant", -6 * hour, []time.Duration{30 * hour, 54 * hour}},
		{"back beyond an instant: that instant does not count twice", -36 * hour, []time.Duration{60 * hour}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWheel(t)
				var clock wall
				w.SetWallClock(clock.now)
				pass(day - time.Duration(time.Now().UnixNano())%day) // to midnight
				start := time.Now()
				var at []time.Duration
				onSchedule(t, w, onThe(day), func() { at = append(at, time.Since(start)) })
				pass(day / 2)
				clock.set(c.step)
				pass(2 * day)
				require.Len(t, at, len(c.want))
				for k := range at {
					require.GreaterOrEqual(t, at[k], c.want[k])
					require.LessOrEqual(t, at[k], c.want[k]+time.Minute)
					if c.step < 12*time.Hour {
						require.Equal(t, c.want[k], at[k], "late only if the step passed over it")
					}
				}
			})
		})
	}
}

func TestSchedule_InstantsWithAMonotonicReadingDoNotMoveWithTheWallClock(t *testing.T) {
	t.Parallel() // in real time, as the time of a bubble has no monotonic reading
	w := newWheel(t)
	fired := make(chan time.Time)
	start := time.Now()
	onSchedule(t, w, func(prev time.Time) time.Time { return prev.Add(time.Millisecond) }, func() {
		select {
		case fired <- time.Now():
		case <-t.Context().Done():
		}
	})
	w.SetWallClock(func() time.Time { return time.Now().Add(-6 * time.Hour).Round(0) })
	for k := range 20 {
		require.GreaterOrEqual(t, (<-fired).Sub(start), time.Duration(k+1)*time.Millisecond)
	}
}

func TestSchedule_ACustomClockIsTheOnlyTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := &steppedClock{wait: make(chan time.Time)}
		c.now.Store(int64(1000 * time.Hour))
		w := newWheel(t, wheel.WithClock(c))
		var at []time.Time
		onSchedule(t, w, onThe(time.Hour), func() { at = append(at, c.Now()) })
		pass(time.Second)
		for range 3 {
			c.now.Add(int64(time.Hour))
			c.wait <- time.Time{}
			pass(time.Second)
		}
		require.Len(t, at, 3)
		require.True(t, at[0].Equal(time.Unix(0, int64(1001*time.Hour))))
	})
}
