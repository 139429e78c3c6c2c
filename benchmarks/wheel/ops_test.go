package wheel_test

// What a call costs the caller.

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// fill makes n timers pend, far enough away not to fire, and returns how to end them.
func fill[H any](p peer[H], n int) (end func()) {
	handles := make([]H, n)
	for k := range handles {
		handles[k] = p.after(time.Hour+time.Duration(rand.Int64N(int64(time.Hour))), nop)
	}
	return func() {
		for _, h := range handles {
			p.stop(h)
		}
	}
}

func benchScheduleStop[H any](b *testing.B, p peer[H], pending, goroutines int) {
	defer p.close()
	calls := size(4_000_000)
	if p.name == "gozero" || p.name == "gost" {
		calls /= slow
	}
	defer fill(p, pending)()
	for b.Loop() {
		perCall(b, calls, func() {
			var wg sync.WaitGroup
			for range goroutines {
				wg.Go(func() {
					for range calls / goroutines {
						p.stop(p.after(30*time.Second, nop))
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkScheduleStop is a request timeout that is not reached: schedule, then stop at once.
func BenchmarkScheduleStop(b *testing.B) {
	for _, goroutines := range []int{1, 2} {
		for _, pending := range slices.Compact([]int{0, size(10_000), size(100_000), size(1_000_000), size(10_000_000)}) {
			b.Run(fmt.Sprintf("goroutines=%d/pending=%d", goroutines, pending), func(b *testing.B) {
				b.Run("impl=wheel", func(b *testing.B) { benchScheduleStop(b, newWheel(b), pending, goroutines) })
				b.Run("impl=AfterFunc", func(b *testing.B) { benchScheduleStop(b, newAfterFunc(b), pending, goroutines) })
				b.Run("impl=netty", func(b *testing.B) { benchScheduleStop(b, newNetty(b), pending, goroutines) })
				if goroutines == 1 {
					b.Run("impl=floor", func(b *testing.B) { benchScheduleStop(b, newLocks(b), pending, goroutines) })
				}
				if pending <= size(1_000_000) {
					b.Run("impl=timingwheel", func(b *testing.B) { benchScheduleStop(b, newTimingWheel(b), pending, goroutines) })
					b.Run("impl=gozero", func(b *testing.B) { benchScheduleStop(b, newGoZero(b), pending, goroutines) })
				}
				if pending <= 1000 {
					b.Run("impl=gost", func(b *testing.B) { benchScheduleStop(b, newGost(b), pending, goroutines) })
				}
			})
		}
	}
}

// BenchmarkProducers is the same for 64 goroutines, while the process may use more processors than the machine may
// have: then a goroutine loses its processor in the middle of a call more often.
func BenchmarkProducers(b *testing.B) {
	pending := size(1_000_000)
	for _, procs := range []int{2, 8, 16} {
		b.Run(fmt.Sprintf("procs=%d", procs), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs)) // before the wheel is made, which has a shard for each
			b.Run("impl=wheel", func(b *testing.B) { benchScheduleStop(b, newWheel(b), pending, 64) })
			b.Run("impl=AfterFunc", func(b *testing.B) { benchScheduleStop(b, newAfterFunc(b), pending, 64) })
		})
	}
}

// batch is how many timers the benchmarks below schedule before they stop or reschedule them.
func batch() int { return size(1_000_000) }

// order arranges handles as they are stopped.
func order[H any](name string, handles []H) {
	switch name {
	case "lifo":
		for i, j := 0, len(handles)-1; i < j; i, j = i+1, j-1 {
			handles[i], handles[j] = handles[j], handles[i]
		}
	case "random":
		rand.Shuffle(len(handles), func(i, j int) { handles[i], handles[j] = handles[j], handles[i] })
	}
}

// benchBatch measures one step of a batch's life: schedule, then timed, then untimed.
func benchBatch[H any](b *testing.B, p peer[H], orderName string, timed, untimed func(p peer[H], handles []H)) {
	defer p.close()
	handles := make([]H, batch())
	for b.Loop() {
		if timed == nil { // the scheduling itself
			perCall(b, len(handles), func() { scheduleAll(p, handles) })
		} else {
			scheduleAll(p, handles)
			order(orderName, handles)
			perCall(b, len(handles), func() { timed(p, handles) })
		}
		untimed(p, handles)
	}
}

func scheduleAll[H any](p peer[H], handles []H) {
	for k := range handles {
		handles[k] = p.after(10*time.Second+time.Duration(k%8192)*time.Millisecond, nop)
	}
}

func stopAll[H any](p peer[H], handles []H) {
	for _, h := range handles {
		p.stop(h)
	}
}

func rescheduleAll[H any](p peer[H], handles []H) {
	for _, h := range handles {
		p.reschedule(h, 30*time.Second)
	}
}

func none[H any](peer[H], []H) {}

// BenchmarkSchedule is scheduling alone, delays spread over 8 s, up to a million pending.
func BenchmarkSchedule(b *testing.B) {
	b.Run("impl=wheel", func(b *testing.B) { benchBatch(b, newWheel(b), "", nil, stopAll[handleOf]) })
	b.Run("impl=AfterFunc", func(b *testing.B) { benchBatch(b, newAfterFunc(b), "", nil, stopAll[*time.Timer]) })
	b.Run("impl=netty", func(b *testing.B) { benchBatch(b, newNetty(b), "", nil, stopAll[nettyHandle]) })
}

// BenchmarkStop is stopping alone, a million pending.
func BenchmarkStop(b *testing.B) {
	for _, o := range []string{"fifo", "lifo", "random"} {
		b.Run("order="+o, func(b *testing.B) {
			b.Run("impl=wheel", func(b *testing.B) { benchBatch(b, newWheel(b), o, stopAll, none[handleOf]) })
			b.Run("impl=AfterFunc", func(b *testing.B) { benchBatch(b, newAfterFunc(b), o, stopAll, none[*time.Timer]) })
			b.Run("impl=netty", func(b *testing.B) { benchBatch(b, newNetty(b), o, stopAll, none[nettyHandle]) })
		})
	}
}

// BenchmarkReschedule moves the deadline of a pending timer later, as each packet of an idle connection does.
func BenchmarkReschedule(b *testing.B) {
	b.Run("impl=wheel", func(b *testing.B) { benchBatch(b, newWheel(b), "random", rescheduleAll, stopAll[handleOf]) })
	b.Run("impl=AfterFunc", func(b *testing.B) { benchBatch(b, newAfterFunc(b), "random", rescheduleAll, stopAll[*time.Timer]) })
}
