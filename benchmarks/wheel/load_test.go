package wheel_test

// What pending and firing timers cost the process.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cogwheel-go/cogwheel/benchmarks/internal/netty"
	"github.com/cogwheel-go/cogwheel/wheel"
)

type (
	handleOf    = wheel.Timer
	nettyHandle = *netty.Timeout
)

// benchPending measures while n far timers pend: bytes each, the length of a full collection, and what the
// process uses and how often it wakes up while they wait. Handles are kept where the collector does not look,
// so that gc-ms is what the timers themselves cost; gc+handles-ms is with n handles in ordinary memory.
func benchPending[H any](b *testing.B, p peer[H], n int) {
	defer p.close()
	handles := unscanned[H](n)
	for b.Loop() {
		debug.FreeOSMemory() // or the runtime gives back what others left, while this one is measured
		before := heap()
		for k := range handles {
			handles[k] = p.after(time.Hour+time.Duration(rand.Int64N(int64(time.Hour))), nop)
		}
		if runtime.GC(); n > 0 {
			b.ReportMetric(float64(heap()-before)/float64(n), "B/timer")
		}
		b.ReportMetric(fullCollection(), "gc-ms")
		idle(time.Duration(size(1000)) * time.Millisecond) // what scheduling left to be done is not waiting
		cpu, woken, start := processorTime(), switches(), time.Now()
		idle(time.Duration(size(3000)) * time.Millisecond)
		took := time.Since(start).Seconds()
		b.ReportMetric(float64((processorTime()-cpu).Microseconds())/1000/took, "cpu-ms/s")
		b.ReportMetric(float64(switches()-woken)/took, "wakeups/s")
		visible := slices.Clone(handles)
		b.ReportMetric(fullCollection(), "gc+handles-ms")
		runtime.KeepAlive(visible)
		stopAll(p, handles)
		runtime.GC()
	}
	runtime.KeepAlive(handles)
}

// unscanned makes a slice in memory that the collector takes for numbers. What the handles point to must be
// held by the implementation itself, as pending timers are.
func unscanned[H any](n int) []H {
	var h H
	words := make([]uint64, (uintptr(max(n, 1))*unsafe.Sizeof(h)+7)/8)
	return unsafe.Slice((*H)(unsafe.Pointer(&words[0])), n)
}

// fullCollection is how long a full garbage collection takes, the shorter of two, in milliseconds.
func fullCollection() float64 {
	best := time.Duration(math.MaxInt64)
	for range 2 {
		start := time.Now()
		runtime.GC()
		best = min(best, time.Since(start))
	}
	return float64(best.Microseconds()) / 1000
}

// idle lets real time pass while the process does nothing.
func idle(d time.Duration) { <-time.After(d) }

// BenchmarkPending is the cost of timers that wait.
func BenchmarkPending(b *testing.B) {
	for _, n := range slices.Compact([]int{1000, size(1_000_000), size(10_000_000)}) {
		b.Run(fmt.Sprintf("pending=%d", n), func(b *testing.B) {
			b.Run("impl=wheel", func(b *testing.B) { benchPending(b, newWheel(b), n) })
			b.Run("impl=typed", func(b *testing.B) { benchPending(b, newTyped(b), n) })
			b.Run("impl=floor", func(b *testing.B) { benchPending(b, newFunctions(b), n) })
			b.Run("impl=AfterFunc", func(b *testing.B) { benchPending(b, newAfterFunc(b), n) })
			b.Run("impl=netty", func(b *testing.B) { benchPending(b, newNetty(b), n) })
			if n <= size(1_000_000) {
				b.Run("impl=timingwheel", func(b *testing.B) { benchPending(b, newTimingWheel(b), n) })
				b.Run("impl=gozero", func(b *testing.B) { benchPending(b, newGoZero(b), n) })
			}
		})
	}
}

func newTyped(b *testing.B) peer[wheel.Timer] {
	w, err := wheel.NewTyped(func(uint64) {})
	if err != nil {
		b.Fatal(err)
	}
	return peer[wheel.Timer]{
		after: func(d time.Duration, _ func()) wheel.Timer {
			t, err := w.Add(1, d)
			if err != nil {
				panic(err)
			}
			return t
		},
		stop:  func(t wheel.Timer) { t.Stop() },
		close: func() { _, _ = w.Stop(b.Context()) },
	}
}

// load is what runs beside the timers of BenchmarkFire.
type load struct {
	name     string
	timers   int
	spinners int  // goroutines that never yield
	blocking bool // every 1000th callback sleeps for 100 ms
}

func loads() []load {
	n := size(1_000_000)
	return []load{
		{name: "idle", timers: 1000},
		{name: "dense", timers: n},
		{name: "sparse", timers: size(50_000)},
		{name: "saturated", timers: n, spinners: runtime.GOMAXPROCS(0)},
		{name: "blocking", timers: min(n, 100_000), blocking: true},
	}
}

// firing is what the callbacks of one run share, so that each of them is a small closure.
type firing struct {
	late     []int64
	origin   time.Time
	blocking bool
	fired    func()
}

func (r *firing) fire(k int, due time.Duration) {
	r.late[k] = int64(time.Since(r.origin) - due)
	if r.blocking && k%1000 == 0 {
		time.Sleep(100 * time.Millisecond)
	}
	r.fired()
}

// scheduleFiring schedules the timers of a run. It is a function of its own, as b.Loop keeps each variable of its body
// alive by its address: the closures would hold a pointer to due, which costs each of them an allocation and a cache miss.
func scheduleFiring[H any](p peer[H], run *firing, window time.Duration) {
	for k := range run.late {
		// A timer is due a second from now at the earliest, when all of them are scheduled.
		due := window/2 + time.Duration(rand.Int64N(int64(window)))
		p.after(due-time.Since(run.origin), func() { run.fire(k, due) })
	}
}

// benchFire lets timers fire, spread over 2 s, and reports the process's time per timer, scheduling included,
// and how late they were.
func benchFire[H any](b *testing.B, p peer[H], l load) {
	defer p.close()
	window := time.Duration(size(2000)) * time.Millisecond
	for b.Loop() {
		late := make([]int64, l.timers)
		runtime.GC() // what the peers before left behind is not this one's
		var wg sync.WaitGroup
		wg.Add(l.timers)
		var stop atomic.Bool
		for range l.spinners {
			go func() {
				for !stop.Load() {
				}
			}()
		}
		run := firing{late: late, origin: time.Now(), blocking: l.blocking, fired: wg.Done}
		cpu := processorTime()
		scheduleFiring(p, &run, window)
		wg.Wait()
		used := processorTime() - cpu
		stop.Store(true)
		slices.Sort(late)
		if l.spinners == 0 {
			b.ReportMetric(float64(used.Nanoseconds())/float64(l.timers), "cpu-ns/timer")
		}
		quantile := func(share float64) float64 {
			return float64(late[int(share*float64(len(late)-1))]) / float64(time.Millisecond)
		}
		for _, percent := range []float64{10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99} {
			b.ReportMetric(quantile(percent/100), fmt.Sprintf("p%g-late-ms", percent))
		}
		b.ReportMetric(quantile(1), "max-late-ms")
		b.ReportMetric(max(0, -quantile(0)), "early-ms")
	}
}

// BenchmarkFire is the cost and the punctuality of timers that fire.
func BenchmarkFire(b *testing.B) {
	for _, l := range loads() {
		b.Run(fmt.Sprintf("load=%s/timers=%d", l.name, l.timers), func(b *testing.B) {
			b.Run("impl=wheel", func(b *testing.B) { benchFire(b, newWheel(b), l) })
			b.Run("impl=inline", func(b *testing.B) { benchFire(b, newWheel(b, wheel.WithExecutor(wheel.Inline())), l) })
			b.Run("impl=AfterFunc", func(b *testing.B) { benchFire(b, newAfterFunc(b), l) })
			b.Run("impl=netty", func(b *testing.B) { benchFire(b, newNetty(b), l) })
			b.Run("impl=timingwheel", func(b *testing.B) { benchFire(b, newTimingWheel(b), l) })
			b.Run("impl=floor", func(b *testing.B) { benchFire(b, newCalendar(b), l) })
			if l.timers <= 1000 {
				b.Run("impl=gozero", func(b *testing.B) { benchFire(b, newGoZero(b), l) })
			}
		})
	}
}

// benchBurst fires n timers that are due in one tick: what is measured is the throughput of firing.
func benchBurst[H any](b *testing.B, p peer[H], n int) {
	defer p.close()
	for b.Loop() {
		var wg sync.WaitGroup
		wg.Add(n)
		done := wg.Done
		cpu := processorTime()
		for range n {
			p.after(time.Millisecond, done)
		}
		wg.Wait()
		b.ReportMetric(float64((processorTime()-cpu).Nanoseconds())/float64(n), "cpu-ns/timer")
	}
}

// BenchmarkBurst schedules a million timers for now and waits for them.
func BenchmarkBurst(b *testing.B) {
	n := size(1_000_000)
	b.Run("impl=wheel", func(b *testing.B) { benchBurst(b, newWheel(b), n) })
	b.Run("impl=inline", func(b *testing.B) { benchBurst(b, newWheel(b, wheel.WithExecutor(wheel.Inline())), n) })
	b.Run("impl=pool", func(b *testing.B) {
		benchBurst(b, newWheel(b, wheel.WithExecutor(wheel.Pool(runtime.GOMAXPROCS(0)))), n)
	})
	b.Run("impl=AfterFunc", func(b *testing.B) { benchBurst(b, newAfterFunc(b), n) })
	b.Run("impl=netty", func(b *testing.B) { benchBurst(b, newNetty(b), n) })
	b.Run("impl=floor", func(b *testing.B) { benchBurst(b, newCalendar(b), n) })
}
