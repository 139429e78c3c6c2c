package redistest

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Bench returns a client of the shared server for a benchmark, which it skips where no server is installed.
func Bench(b *testing.B) *redis.Client {
	b.Helper()
	if _, err := findBinary(); err != nil {
		b.Skip(err)
	}
	return Shared(b).Client(b)
}

// Calls runs f b.N times in all, on n goroutines, and measures that. It hands each goroutine its number, from 0 on. The
// first error fails the benchmark.
func Calls(b *testing.B, n int, f func(goroutine int) error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			for left.Add(-1) >= 0 {
				if err := f(i); err != nil {
					left.Store(0)
					b.Error(err)
				}
			}
		})
	}
	running.Wait()
	b.StopTimer()
}
