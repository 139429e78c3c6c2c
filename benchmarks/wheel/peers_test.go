package wheel_test

import (
	"context"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/RussellLuo/timingwheel"
	gost "github.com/dubbogo/gost/time"
	"github.com/zeromicro/go-zero/core/collection"
	"github.com/zeromicro/go-zero/core/logx"

	"github.com/cogwheel-go/cogwheel/benchmarks/internal/netty"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// full is set for a real run; otherwise sizes are small, so that the smoke run is quick. The names say the
// sizes.
var full = os.Getenv("BENCH") == "full"

// slow is the share of the calls that go-zero makes: each takes microseconds, as it passes a channel.
const slow = 20

// size is n in a real run and a thousandth of it otherwise.
func size(n int) int {
	if full {
		return n
	}
	return n / 1000
}

// peer is one implementation behind the functions all of them have. H is its handle, so that none is boxed.
type peer[H any] struct {
	name       string
	after      func(d time.Duration, f func()) H
	stop       func(H)
	reschedule func(h H, d time.Duration)
	close      func()
}

func newWheel(b *testing.B, opts ...wheel.Option) peer[wheel.Timer] {
	w, err := wheel.New(opts...)
	if err != nil {
		b.Fatal(err)
	}
	return peer[wheel.Timer]{
		name: "wheel",
		after: func(d time.Duration, f func()) wheel.Timer {
			t, err := w.AfterFunc(d, f)
			if err != nil {
				panic(err)
			}
			return t
		},
		stop:       func(t wheel.Timer) { t.Stop() },
		reschedule: func(t wheel.Timer, d time.Duration) { t.Reschedule(d) },
		close:      func() { _, _ = w.Stop(context.Background()) },
	}
}

func newAfterFunc(*testing.B) peer[*time.Timer] {
	return peer[*time.Timer]{
		name:       "AfterFunc",
		after:      time.AfterFunc,
		stop:       func(t *time.Timer) { t.Stop() },
		reschedule: func(t *time.Timer, d time.Duration) { t.Reset(d) },
		close:      func() {},
	}
}

func newNetty(*testing.B) peer[*netty.Timeout] {
	w := netty.New(time.Millisecond, 512)
	return peer[*netty.Timeout]{
		name:  "netty",
		after: func(d time.Duration, f func()) *netty.Timeout { return w.NewTimeout(f, d) },
		stop:  func(t *netty.Timeout) { t.Cancel() },
		close: w.Stop, // it cannot reschedule
	}
}

func newGoZero(b *testing.B) peer[*int] {
	logx.Disable()
	w, err := collection.NewTimingWheel(time.Millisecond, 512, func(_, f any) { f.(func())() })
	if err != nil {
		b.Fatal(err)
	}
	return peer[*int]{
		name: "gozero",
		after: func(d time.Duration, f func()) *int {
			key := new(int)
			if err := w.SetTimer(key, f, max(d, time.Millisecond)); err != nil {
				panic(err)
			}
			return key
		},
		stop:       func(key *int) { _ = w.RemoveTimer(key) },
		reschedule: func(key *int, d time.Duration) { _ = w.MoveTimer(key, d) },
		close:      w.Stop,
	}
}

// newTimingWheel cannot reschedule.
func newTimingWheel(*testing.B) peer[*timingwheel.Timer] {
	w := timingwheel.NewTimingWheel(time.Millisecond, 512)
	w.Start()
	return peer[*timingwheel.Timer]{
		name:  "timingwheel",
		after: w.AfterFunc,
		stop:  func(t *timingwheel.Timer) { t.Stop() },
		close: w.Stop,
	}
}

// newGost keeps its buckets as sorted lists: it is measured only while few timers are pending.
func newGost(*testing.B) peer[*gost.Timer] {
	w := gost.NewTimerWheel()
	return peer[*gost.Timer]{
		name: "gost",
		after: func(d time.Duration, f func()) *gost.Timer {
			for {
				if t := w.AfterFunc(d, f); t != nil { // it refuses while its queue is full
					return t
				}
				runtime.Gosched()
			}
		},
		stop:       func(t *gost.Timer) { t.Stop() },
		reschedule: func(t *gost.Timer, d time.Duration) { t.Reset(d) },
		close:      w.Stop, // its Close waits for ever for a goroutine that the stopped ticker no longer wakes
	}
}

// processorTime is what the process has used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// switches is how often a thread of the process went to sleep so far.
func switches() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return u.Nvcsw
}

// heap is what live objects take.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func nop() {}

// perCall runs f, which makes n calls, and reports what one of them took and allocated. cpu-ns/call is the processor
// time of the whole process, background goroutines and collections included.
func perCall(b *testing.B, n int, f func()) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start, cpu := time.Now(), processorTime()
	f()
	took, used := time.Since(start), processorTime()-cpu
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/call")
	b.ReportMetric(float64(used.Nanoseconds())/float64(n), "cpu-ns/call")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(n), "allocs/call")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(n), "B/call")
}
