package wheel_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// timers are those of an implementation, with the handle H.
type timers[H any] struct {
	after func(d time.Duration, f func()) H
	stop  func(H) bool
	reset func(H, time.Duration) bool
}

func wheelTimers(b *testing.B) timers[wheel.Timer] {
	b.Helper()
	w := newWheel(b)
	return timers[wheel.Timer]{
		after: func(d time.Duration, f func()) wheel.Timer {
			t, err := w.AfterFunc(d, f)
			if err != nil {
				b.Error(err)
			}
			return t
		},
		stop:  wheel.Timer.Stop,
		reset: wheel.Timer.Reschedule,
	}
}

var runtimeTimers = timers[*time.Timer]{time.AfterFunc, (*time.Timer).Stop, (*time.Timer).Reset}

// beside runs a benchmark while n timers pend that do not fire.
func (t timers[H]) beside(b *testing.B, n int, name string, f func(b *testing.B)) {
	b.Helper()
	all := make([]H, n)
	for i := range all {
		all[i] = t.after(time.Hour+rand.N(time.Hour), nop)
	}
	b.Run(name, f)
	for _, h := range all {
		t.stop(h)
	}
}

func nop() {}

// BenchmarkScheduleStop is a timeout that is not reached.
func BenchmarkScheduleStop(b *testing.B) {
	for _, c := range []struct{ goroutines, pending int }{{1, 0}, {1, 1000}, {1, 1_000_000}, {64, 1000}} {
		name := fmt.Sprintf("goroutines=%d/pending=%d/impl=", c.goroutines, c.pending)
		scheduleStop(b, wheelTimers(b), c.goroutines, c.pending, name+"wheel")
		scheduleStop(b, runtimeTimers, c.goroutines, c.pending, name+"AfterFunc")
	}
}

func scheduleStop[H any](b *testing.B, t timers[H], goroutines, pending int, name string) {
	b.Helper()
	t.beside(b, pending, name, func(b *testing.B) {
		b.ReportAllocs()
		var left atomic.Int64
		left.Store(int64(b.N))
		var running sync.WaitGroup
		for range goroutines {
			running.Go(func() {
				const calls = 100
				for left.Add(-calls) > -calls {
					for range calls {
						t.stop(t.after(30*time.Second, nop))
					}
				}
			})
		}
		running.Wait()
	})
}

// BenchmarkReschedule moves a timer that pends, as an idle timeout does with each request.
func BenchmarkReschedule(b *testing.B) {
	for _, pending := range []int{0, 1000, 1_000_000} {
		reschedule(b, wheelTimers(b), pending, fmt.Sprintf("pending=%d/impl=wheel", pending))
		reschedule(b, runtimeTimers, pending, fmt.Sprintf("pending=%d/impl=AfterFunc", pending))
	}
}

func reschedule[H any](b *testing.B, t timers[H], pending int, name string) {
	b.Helper()
	t.beside(b, pending, name, func(b *testing.B) {
		b.ReportAllocs()
		moved := t.after(30*time.Second, nop)
		defer t.stop(moved)
		for b.Loop() {
			t.reset(moved, 30*time.Second)
		}
	})
}

// BenchmarkFire schedules timers that fire 10 ms later, and waits for all of them. ns/op is that of one timer.
func BenchmarkFire(b *testing.B) {
	b.Run("impl=wheel", func(b *testing.B) { fire(b, wheelTimers(b)) })
	b.Run("impl=AfterFunc", func(b *testing.B) { fire(b, runtimeTimers) })
}

func fire[H any](b *testing.B, t timers[H]) {
	b.Helper()
	b.ReportAllocs()
	var fired sync.WaitGroup
	fired.Add(b.N)
	for range b.N {
		t.after(10*time.Millisecond, fired.Done)
	}
	fired.Wait()
}
