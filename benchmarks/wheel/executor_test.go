package wheel_test

// What the choice of an executor costs, and what callbacks that block do to the others.

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// stream is timers that come due at a steady rate.
type stream struct {
	name   string
	tick   time.Duration
	timers int
	window time.Duration // over which they come due
	every  int           // each callback whose number this divides blocks; 0: none does
	block  time.Duration
}

func streams() []stream {
	const ms = time.Millisecond
	return []stream{
		{name: "idle", tick: ms, timers: 1000, window: 2 * time.Second},
		{name: "dense", tick: ms, timers: 200_000, window: 2 * time.Second},
		{name: "burst", tick: ms, timers: 200_000, window: 0},
		{name: "blocking=25ms/share=1of5", tick: ms, timers: 10_000, window: 2 * time.Second, every: 5, block: 25 * ms},
		{name: "blocking=5ms/share=2of5", tick: ms, timers: 10_000, window: 2 * time.Second, every: 5, block: 5 * ms},
		{name: "blocking=25ms/share=1of10/tick=10ms", tick: 10 * ms, timers: 2000, window: 2 * time.Second, every: 10, block: 25 * ms},
	}
}

func (s stream) blocks(k int) bool {
	switch s.every {
	case 0:
		return false
	case 5:
		return k%5 == 0 || s.block < 10*time.Millisecond && k%5 == 2
	default:
		return k%s.every == 0
	}
}

// run schedules the timers and waits for them. It returns how late they began, sorted, and the processor time
// and the allocations of all of them, from the scheduling to the end of the last callback.
func run[H any](p peer[H], s stream) (late []time.Duration, cpu time.Duration, allocs uint64) {
	const lead = 200 * time.Millisecond // all of them are scheduled by then
	late = make([]time.Duration, s.timers)
	var wg sync.WaitGroup
	wg.Add(s.timers)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	used, start := processorTime(), time.Now()
	for k := range late {
		due := lead + time.Duration(rand.Int64N(int64(s.window)+1))
		p.after(due-time.Since(start), func() {
			late[k] = time.Since(start) - due
			if s.blocks(k) {
				time.Sleep(s.block)
			}
			wg.Done()
		})
	}
	wg.Wait()
	used = processorTime() - used
	runtime.ReadMemStats(&after)
	slices.Sort(late)
	return late, used, after.Mallocs - before.Mallocs
}

func benchStream[H any](b *testing.B, p peer[H], s stream) {
	defer p.close()
	if !full {
		s.timers, s.window = s.timers/100, s.window/100
	}
	for b.Loop() {
		late, cpu, allocs := run(p, s)
		quantile := func(q float64) float64 {
			return float64(late[int(q*float64(len(late)-1))].Microseconds()) / 1000
		}
		b.ReportMetric(quantile(0.5), "p50-late-ms")
		b.ReportMetric(quantile(0.99), "p99-late-ms")
		b.ReportMetric(quantile(1), "max-late-ms")
		b.ReportMetric(float64(cpu.Nanoseconds())/float64(len(late)), "cpu-ns/timer")
		b.ReportMetric(float64(allocs)/float64(len(late))-1, "allocs/timer") // the closure is the caller's
	}
}

// BenchmarkExecutor compares executors under loads that block and loads that do not.
func BenchmarkExecutor(b *testing.B) {
	for _, s := range streams() {
		b.Run("load="+s.name, func(b *testing.B) {
			tick := wheel.WithTickDuration(s.tick)
			b.Run("impl=goroutines", func(b *testing.B) {
				benchStream(b, newWheel(b, tick, wheel.WithExecutor(wheel.Goroutines())), s)
			})
			b.Run("impl=pool", func(b *testing.B) {
				pool := wheel.Pool(runtime.GOMAXPROCS(0))
				benchStream(b, newWheel(b, tick, wheel.WithExecutor(pool)), s)
			})
			if s.every == 0 {
				b.Run("impl=inline", func(b *testing.B) {
					benchStream(b, newWheel(b, tick, wheel.WithExecutor(wheel.Inline())), s)
				})
			}
			b.Run("impl=AfterFunc", func(b *testing.B) { benchStream(b, newAfterFunc(b), s) })
		})
	}
}
