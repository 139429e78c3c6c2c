package wheel_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// benchEvery lets 1000 functions be called every 10 ms and reports the processor time of each call. start
// begins the calls of a function and returns how to end them.
func benchEvery(b *testing.B, start func(period time.Duration, f func()) (stop func())) {
	for b.Loop() {
		var calls atomic.Int64
		stops := make([]func(), 1000)
		cpu := processorTime()
		for k := range stops {
			stops[k] = start(10*time.Millisecond, func() { calls.Add(1) })
		}
		idle(time.Duration(size(2000)) * time.Millisecond)
		used := processorTime() - cpu
		for _, stop := range stops {
			stop()
		}
		b.ReportMetric(float64(used.Nanoseconds())/float64(max(1, calls.Load())), "cpu-ns/call")
	}
}

// BenchmarkEvery is the cost of functions that are called periodically.
func BenchmarkEvery(b *testing.B) {
	b.Run("impl=wheel", func(b *testing.B) {
		w, err := wheel.New()
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _, _ = w.Stop(b.Context()) }()
		benchEvery(b, func(period time.Duration, f func()) func() {
			t, err := w.Every(period, f)
			if err != nil {
				b.Fatal(err)
			}
			return func() { t.Stop() }
		})
	})
	b.Run("impl=AfterFunc", func(b *testing.B) {
		benchEvery(b, func(period time.Duration, f func()) func() {
			var t atomic.Pointer[time.Timer]
			armed := make(chan struct{})
			t.Store(time.AfterFunc(period, func() {
				<-armed
				f()
				t.Load().Reset(period)
			}))
			close(armed)
			return func() { t.Load().Stop() }
		})
	})
}
