package wheel_test

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// benchSteady keeps a window of timers pending: each step schedules one and stops, nine times of ten, the
// oldest; the tenth is left to fire.
func benchSteady[H any](b *testing.B, p peer[H]) {
	defer p.close()
	window := make([]H, size(100_000))
	for k := range window {
		window[k] = p.after(time.Minute, nop)
	}
	for b.Loop() {
		calls := size(3_000_000)
		perCall(b, calls, func() {
			for k := range calls {
				if k%10 != 0 {
					p.stop(window[k%len(window)])
				}
				window[k%len(window)] = p.after(time.Duration(50+k%50)*time.Millisecond, nop)
			}
		})
	}
	stopAll(p, window)
}

// BenchmarkSteady is a service under constant load: as many timers end as begin, 90 % of them stopped.
func BenchmarkSteady(b *testing.B) {
	b.Run("impl=wheel", func(b *testing.B) { benchSteady(b, newWheel(b)) })
	b.Run("impl=AfterFunc", func(b *testing.B) { benchSteady(b, newAfterFunc(b)) })
	b.Run("impl=netty", func(b *testing.B) { benchSteady(b, newNetty(b)) })
}

// benchStall freezes the process while timers come due, and reports the processor time used and the real time
// lost from before the freeze until all of them have fired. Starting and ending the shell that does it is
// part of both.
func benchStall[H any](b *testing.B, p peer[H], frozen time.Duration) {
	defer p.close()
	const timers = 1000
	for b.Loop() {
		var wg sync.WaitGroup
		wg.Add(timers)
		for k := range timers {
			p.after(frozen/2+frozen/2*time.Duration(k)/timers, wg.Done)
		}
		pid := os.Getpid()
		script := fmt.Sprintf("kill -STOP %d; sleep %f; kill -CONT %d", pid, frozen.Seconds(), pid)
		cpu, start := processorTime(), time.Now()
		if err := exec.Command("sh", "-c", script).Run(); err != nil {
			b.Fatal(err)
		}
		wg.Wait()
		b.ReportMetric(float64((processorTime()-cpu).Microseconds())/1000, "catchup-cpu-ms")
		b.ReportMetric(float64((time.Since(start)-frozen).Microseconds())/1000, "catchup-ms")
	}
}

// BenchmarkStall is the return from a frozen process, as after a suspended virtual machine.
func BenchmarkStall(b *testing.B) {
	frozen := time.Duration(size(5000)) * time.Millisecond
	b.Run("impl=wheel", func(b *testing.B) { benchStall(b, newWheel(b), frozen) })
	b.Run("impl=AfterFunc", func(b *testing.B) { benchStall(b, newAfterFunc(b), frozen) })
	b.Run("impl=netty", func(b *testing.B) { benchStall(b, newNetty(b), frozen) })
	b.Run("impl=gozero", func(b *testing.B) { benchStall(b, newGoZero(b), frozen) })
}
