// Package semaphores compares semaphore with semaphores whose waiters poll, on one redis-server on loopback.
package semaphores_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/benchmarks/internal/trips"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// BENCH=full makes rounds long enough for figures; otherwise they show that the benchmark runs.
var full = os.Getenv("BENCH") == "full"

func TestMain(m *testing.M) { redistest.Main(m) }

// acquire waits for a permit and returns what gives it back.
type acquire func(ctx context.Context) (release func() error, err error)

// processorTime returns how much processor time this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// impls are the implementations of each kind. Only cogwheel has a fair one.
var impls = map[string][]string{"counting": {"cogwheel", "polling"}, "leased": {"cogwheel", "polling"}, "fair": {"cogwheel"}}

var kinds = []string{"counting", "leased", "fair"}

// open returns semaphores on a server of their own, with a connection for each goroutine.
func open(b *testing.B, kind, impl string, permits, names int) (takes []acquire, rdb *redis.Client, n *trips.Counter) {
	b.Helper()
	server := redistest.Start(b)
	n = &trips.Counter{}
	rdb = server.Client(b, func(o *redis.Options) { o.PoolSize = 64 }, n.Count)
	if impl == "polling" {
		for i := range names {
			name := fmt.Sprint("permits", i)
			if kind == "leased" {
				takes = append(takes, pollLease(rdb, name, permits))
				continue
			}
			if err := rdb.Set(b.Context(), name, permits, 0).Err(); err != nil {
				b.Fatal(err)
			}
			takes = append(takes, pollCount(rdb, name))
		}
		return takes, rdb, n
	}
	w, err := wheel.New()
	if err != nil {
		b.Fatal(err)
	}
	c, err := semaphore.New(rdb, semaphore.WithWheel(w))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			b.Error(err)
		}
		if _, err := w.Stop(context.Background()); err != nil {
			b.Error(err)
		}
	})
	for i := range names {
		takes = append(takes, ours(b, c, kind, fmt.Sprint("permits", i), permits))
	}
	return takes, rdb, n
}

// ours returns a semaphore of cogwheel.
func ours(b *testing.B, c *semaphore.Client, kind, name string, permits int) acquire {
	b.Helper()
	if kind == "counting" {
		s := c.CountingSemaphore(name)
		if _, err := s.TrySetPermits(b.Context(), int64(permits)); err != nil {
			b.Fatal(err)
		}
		return func(ctx context.Context) (func() error, error) {
			return func() error { return s.Release(ctx, 1) }, s.Acquire(ctx, 1)
		}
	}
	l := c.Semaphore(name, 0)
	if kind == "fair" {
		l = c.FairSemaphore(name, 0)
	}
	if _, err := l.TrySetPermits(b.Context(), int64(permits)); err != nil {
		b.Fatal(err)
	}
	return func(ctx context.Context) (func() error, error) {
		g, err := l.Acquire(ctx, 1)
		if err != nil {
			return nil, err
		}
		return func() error { return g.Release(ctx) }, nil
	}
}

// round is how long one iteration measures.
func round() time.Duration {
	if full {
		return 2 * time.Second
	}
	return 50 * time.Millisecond
}

// tally is what a round saw.
type tally struct {
	pairs, most int64
	waits       []time.Duration
}

// hammer acquires, holds and releases in n goroutines for a round, at least once in each. The goroutines share the
// semaphores evenly.
func hammer(ctx context.Context, takes []acquire, n int, hold time.Duration) (sum tally, err error) {
	heldOf := make([]atomic.Int64, len(takes))
	var running sync.WaitGroup
	tallies, errs := make([]tally, n), make([]error, n)
	end := time.Now().Add(round())
	for i := range n {
		running.Go(func() {
			mine, take, held := &tallies[i], takes[i%len(takes)], &heldOf[i%len(takes)]
			for first := true; first || time.Now().Before(end); first = false {
				began := time.Now()
				release, err := take(ctx)
				if err != nil {
					errs[i] = err
					return
				}
				mine.waits = append(mine.waits, time.Since(began))
				mine.most = max(mine.most, held.Add(1))
				if hold > 0 {
					time.Sleep(hold)
				}
				held.Add(-1)
				if errs[i] = release(); errs[i] != nil {
					return
				}
				mine.pairs++
			}
		})
	}
	running.Wait()
	for i, x := range tallies {
		if errs[i] != nil {
			return sum, errs[i]
		}
		sum.pairs += x.pairs
		sum.most = max(sum.most, x.most)
		sum.waits = append(sum.waits, x.waits...)
	}
	return sum, nil
}

func run(b *testing.B, ctx context.Context, kind, impl string, permits, names, goroutines int, hold time.Duration) {
	b.Helper()
	takes, rdb, n := open(b, kind, impl, permits, names)
	var all tally
	var spent time.Duration
	before, client, server := n.Load(), processorTime(b), redistest.ProcessorTime(b, rdb)
	for b.Loop() {
		began := time.Now()
		x, err := hammer(ctx, takes, goroutines, hold)
		if err != nil {
			b.Fatal(err)
		}
		spent += time.Since(began)
		all.pairs += x.pairs
		all.most = max(all.most, x.most)
		all.waits = append(all.waits, x.waits...)
	}
	if all.most > int64(permits) {
		b.Errorf("%d permits were held of %d", all.most, permits)
	}
	slices.Sort(all.waits)
	b.ReportMetric(float64(all.pairs)/spent.Seconds(), "pairs/s")
	b.ReportMetric(float64((processorTime(b)-client).Microseconds())/float64(all.pairs), "client-us/pair")
	b.ReportMetric((redistest.ProcessorTime(b, rdb)-server)*1e6/float64(all.pairs), "server-us/pair")
	b.ReportMetric(float64(n.Load()-before)/float64(all.pairs), "trips/pair")
	b.ReportMetric(all.waits[len(all.waits)*99/100].Seconds()*1000, "wait-p99-ms")
}

// BenchmarkUncontended is an acquisition and a release where there are permits for all, under a context
// that may end, as that of a request, and under one that cannot: cogwheel lets a caller go when its context
// ends, also if Redis hangs, which costs a call that is alone a goroutine.
func BenchmarkUncontended(b *testing.B) {
	for _, kind := range kinds {
		for _, goroutines := range []int{1, 64} {
			for _, impl := range impls[kind] {
				b.Run(fmt.Sprintf("kind=%s/permits=64/goroutines=%d/ctx=endless/impl=%s", kind, goroutines, impl), func(b *testing.B) {
					run(b, context.Background(), kind, impl, 64, 1, goroutines, 0)
				})
				b.Run(fmt.Sprintf("kind=%s/permits=64/goroutines=%d/ctx=cancellable/impl=%s", kind, goroutines, impl), func(b *testing.B) {
					run(b, b.Context(), kind, impl, 64, 1, goroutines, 0)
				})
			}
		}
	}
}

// BenchmarkContended is 64 goroutines that want one of a few permits all the time, and hold it for no time or for 2 ms.
func BenchmarkContended(b *testing.B) {
	for _, kind := range kinds {
		for _, load := range []struct {
			permits int
			hold    time.Duration
		}{{5, 0}, {30, 0}, {5, 2 * time.Millisecond}} {
			for _, impl := range impls[kind] {
				b.Run(fmt.Sprintf("kind=%s/permits=%d/goroutines=64/hold=%v/impl=%s", kind, load.permits, load.hold, impl), func(b *testing.B) {
					run(b, b.Context(), kind, impl, load.permits, 1, 64, load.hold)
				})
			}
		}
	}
}

// BenchmarkOwnNames is 64 goroutines with a semaphore each, as many tenants have them.
func BenchmarkOwnNames(b *testing.B) {
	for _, kind := range kinds {
		for _, impl := range impls[kind] {
			b.Run(fmt.Sprintf("kind=%s/permits=64/names=64/goroutines=64/impl=%s", kind, impl), func(b *testing.B) {
				run(b, b.Context(), kind, impl, 64, 64, 64, 0)
			})
		}
	}
}
