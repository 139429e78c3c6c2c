package wheel_test

// What callbacks that block do to others: nothing by default, and what the documentation says elsewhere.

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// lateness collects how late callbacks begin.
type lateness struct{ most, ran atomic.Int64 }

func (l *lateness) add(late time.Duration) {
	for most := l.most.Load(); int64(late) > most && !l.most.CompareAndSwap(most, int64(late)); {
		most = l.most.Load()
	}
	l.ran.Add(1)
}

func (l *lateness) worst() time.Duration { return time.Duration(l.most.Load()) }

// unlimited are the executors that let no callback wait for another.
func unlimited() map[string][]wheel.Option {
	return map[string][]wheel.Option{
		"by default":       nil,
		"Goroutines":       {wheel.WithExecutor(wheel.Goroutines())},
		"ExecutorFunc(go)": {wheel.WithExecutor(wheel.ExecutorFunc(func(task func()) { go task() }))},
	}
}

// Guarantees: W9.
func TestWheel_BlockingCallbacksDelayNoOther(t *testing.T) {
	t.Parallel()
	loads := []struct {
		name         string
		tick         time.Duration
		perSecond    int
		every, block int // each so many callbacks one blocks for so many milliseconds
	}{
		{"a fifth for 25 ms", time.Millisecond, 5000, 5, 25},
		{"two fifths for 5 ms", time.Millisecond, 5000, 2, 5},
		{"a tenth for 25 ms, ticks of 10 ms", 10 * time.Millisecond, 1000, 10, 25},
		{"all of them for an hour", time.Millisecond, 3000, 1, 3_600_000},
	}
	for name, opts := range unlimited() {
		for _, load := range loads {
			t.Run(name+": "+load.name, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					w := newWheel(t, append(opts, wheel.WithTickDuration(load.tick))...)
					var late lateness
					start := time.Now()
					for k := range load.perSecond {
						due := time.Second + time.Duration(rand.Int64N(int64(time.Second)))
						after(t, w, due, func() {
							late.add(time.Since(start) - due)
							if k%load.every == 0 {
								time.Sleep(time.Duration(load.block) * time.Millisecond)
							}
						})
					}
					pass(2*time.Second + load.tick)
					require.EqualValues(t, load.perSecond, late.ran.Load())
					require.LessOrEqual(t, late.worst(), load.tick)
				})
			})
		}
	}
}

// Guarantees: W9.
func TestWheel_CallbacksOfOneInstantThatAllBlockBeginTogether(t *testing.T) {
	t.Parallel()
	for name, opts := range unlimited() {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWheel(t, opts...)
				release := make(chan struct{})
				var late lateness
				start := time.Now()
				for range 10_000 {
					after(t, w, time.Second, func() { late.add(time.Since(start) - time.Second); <-release })
				}
				pass(time.Second + time.Millisecond)
				require.EqualValues(t, 10_000, late.ran.Load())
				require.LessOrEqual(t, late.worst(), time.Millisecond)
				close(release)
			})
		})
	}
}

// heldClock is a stepped clock that can hold up one reading of it.
type heldClock struct {
	steppedClock
	hold     atomic.Bool
	reached  chan struct{} // receives when a reading is held up
	released chan struct{} // closed to let it go on
}

func (c *heldClock) Now() time.Time {
	if c.hold.CompareAndSwap(true, false) {
		c.reached <- struct{}{}
		<-c.released
	}
	return c.steppedClock.Now()
}

// Guarantees: W9.
func TestWheel_CallbacksTakenWhileTheWorkerIsAboutToSleepBeginThoughTheFirstBlocks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := &heldClock{
			steppedClock: steppedClock{wait: make(chan time.Time)},
			reached:      make(chan struct{}),
			released:     make(chan struct{}),
		}
		w := newWheel(t, wheel.WithClock(c))
		after(t, w, time.Hour, func() {}) // the worker has something to sleep for
		end := make(chan struct{})
		var began counter
		for range 2 {
			after(t, w, time.Second, func() {
				if began.Add(1) == 1 {
					close(c.released)
				}
				<-end
			})
		}
		pass(time.Second) // the worker sleeps, and nothing is left to wake it
		after(t, w, 0, func() {
			// The next to read the clock is the new worker, which has found nothing to help with. It may have read it
			// before, and sleep by now: then it wakes and reads it again.
			c.hold.Store(true)
			select {
			case <-c.reached:
			case c.wait <- time.Time{}:
				<-c.reached
			}
			c.now.Add(int64(time.Second))
		})
		pass(time.Second)
		require.EqualValues(t, 2, began.Load(), "one blocks, the other begins all the same")
		close(end)
	})
}

// Guarantees: W9.
func TestWithTimeout_IsPunctualWhileCallbacksBlock(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		for range 5000 {
			after(t, w, time.Duration(rand.Int64N(int64(time.Second))), func() { time.Sleep(5 * time.Millisecond) })
		}
		var late lateness
		start := time.Now()
		for k := range 1000 {
			d := time.Duration(k)*time.Millisecond + 500*time.Microsecond
			ctx, cancel := w.WithTimeout(t.Context(), d)
			defer cancel()
			context.AfterFunc(ctx, func() { late.add(time.Since(start) - d) })
		}
		pass(time.Second)
		require.EqualValues(t, 1000, late.ran.Load())
		require.LessOrEqual(t, late.worst(), time.Millisecond)
	})
}

// Guarantees: W9.
func TestPool_CallsAtMostItsNumberAtATime(t *testing.T) {
	for _, n := range []int{1, 2, 7} {
		t.Run(wheel.Pool(n).String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWheel(t, wheel.WithExecutor(wheel.Pool(n)))
				var now, most, ran atomic.Int64
				start := time.Now()
				for k := range 70 {
					after(t, w, time.Second+time.Duration(k)*10*time.Microsecond, func() {
						most.Store(max(most.Load(), now.Add(1)))
						time.Sleep(10 * time.Millisecond)
						now.Add(-1)
						if ran.Add(1) == 70 {
							require.InDelta(t, time.Second+70/time.Duration(n)*10*time.Millisecond, time.Since(start), 1e6)
						}
					})
				}
				pass(time.Minute)
				require.EqualValues(t, 70, ran.Load())
				require.EqualValues(t, n, most.Load(), "all of its goroutines work, and no more")
			})
		})
	}
}

// Guarantees: W4.
func TestPool_EntriesWaitTheirTurnInOrderAndStayPending(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithExecutor(wheel.Pool(2)))
		release := make(chan struct{})
		for range 2 {
			after(t, w, time.Second, func() { <-release })
		}
		order := make(chan int, 100)
		timers := make([]wheel.Timer, 100)
		for k := range timers {
			timers[k] = after(t, w, time.Second+time.Duration(100-k)*time.Millisecond, func() { order <- k })
		}
		pass(time.Minute) // all of them are due, and both goroutines are blocked
		wakeups := w.Stats().Wakeups
		pass(time.Hour)
		require.LessOrEqual(t, w.Stats().Wakeups-wakeups, int64(1), "nothing could be called")
		require.Equal(t, 100, w.Len())
		require.True(t, timers[50].Pending())
		require.True(t, timers[50].Stop())
		require.True(t, timers[60].Reschedule(time.Minute))
		require.Equal(t, 99, w.Len())
		close(release)
		pass(time.Second)
		require.Len(t, order, 98)
		pass(time.Minute)
		last, late := 100, 0
		for range 98 {
			if k := <-order; k < last {
				last = k
			} else {
				late++
			}
		}
		require.LessOrEqual(t, late, 2, "in the order of their ticks, unless a goroutine is held up after it has begun")
		require.Equal(t, 60, <-order, "as it was rescheduled")
		require.Empty(t, order)
	})
}
