// Package limits compares ratelimit with redis_rate on one redis-server on loopback. rueidislimiter, a module
// of its own, is not served by the Go module proxy, so it is not here.
package limits_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/benchmarks/internal/trips"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// BENCH=full makes rounds long enough for figures; otherwise they show that the benchmark runs.
var full = os.Getenv("BENCH") == "full"

func TestMain(m *testing.M) { redistest.Main(m) }

// peer is one implementation: a decision of one permit on a key.
type peer struct {
	name  string
	allow func(ctx context.Context, key string) (bool, error)
}

// plenty is the limit of redis_rate's own benchmark, and is never used up here: with a still higher rate
// redis_rate, which counts in floating point, would see nothing to write. none is used up after one permit.
var (
	plenty = ratelimit.PerSecond(1_000_000)
	none   = ratelimit.PerHour(1)
)

func newClient(b *testing.B) (*ratelimit.Client, *redis.Client, *trips.Counter) {
	b.Helper()
	n := &trips.Counter{}
	rdb := redistest.Shared(b).Client(b, func(o *redis.Options) { o.PoolSize = 64 }, n.Count)
	w, err := wheel.New()
	if err != nil {
		b.Fatal(err)
	}
	c, err := ratelimit.New(rdb, ratelimit.WithWheel(w), ratelimit.WithTimeout(10*time.Second)) // also on a busy machine
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
	return c, rdb, n
}

// peers returns the implementations. The floor is for loads in which callers share a key that has permits.
func peers(b *testing.B, limit ratelimit.Limit, floor bool) ([]peer, *trips.Counter) {
	b.Helper()
	c, rdb, n := newClient(b)
	limiter := c.Limiter("bench", limit)
	window := c.Limiter("window", limit, ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	theirs := redis_rate.NewLimiter(rdb)
	their := redis_rate.Limit{Rate: int(limit.Rate), Period: limit.Per, Burst: int(limit.Burst)}
	all := []peer{
		{"cogwheel", func(ctx context.Context, key string) (bool, error) {
			r, err := limiter.Allow(ctx, key)
			return r.Allowed, err
		}},
		{"cogwheel-window", func(ctx context.Context, key string) (bool, error) {
			r, err := window.Allow(ctx, key)
			return r.Allowed, err
		}},
		{"redis_rate", func(ctx context.Context, key string) (bool, error) {
			r, err := theirs.Allow(ctx, key, their)
			return err == nil && r.Allowed > 0, err
		}},
	}
	if floor {
		all = append(all, newFloor(rdb))
	}
	return all, n
}

// BenchmarkAllow measures decisions; ctx=cancel is the context of a request, which can end while Redis is
// asked.
func BenchmarkAllow(b *testing.B) {
	ending, cancel := context.WithCancel(b.Context())
	defer cancel()
	for what, ctx := range map[string]context.Context{"background": context.Background(), "cancel": ending} {
		for _, load := range []struct{ keys, goroutines int }{{1, 1}, {1, 64}, {64, 64}} {
			all, n := peers(b, plenty, load.keys < load.goroutines)
			for _, p := range all {
				b.Run(fmt.Sprintf("keys=%d/goroutines=%d/ctx=%s/impl=%s", load.keys, load.goroutines, what, p.name), func(b *testing.B) {
					base := redistest.Name(b)
					before, began := n.Load(), time.Now()
					var left atomic.Int64
					left.Store(int64(b.N))
					var running sync.WaitGroup
					b.ResetTimer()
					for g := range load.goroutines {
						key := fmt.Sprint(base, g%load.keys)
						running.Go(func() {
							for left.Add(-1) >= 0 {
								if ok, err := p.allow(ctx, key); err != nil || !ok {
									b.Errorf("denied: %v", err)
									return
								}
							}
						})
					}
					running.Wait()
					b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "decisions/s")
					b.ReportMetric(float64(n.Load()-before)/float64(b.N), "trips/op")
				})
			}
		}
	}
}

// BenchmarkSettle measures reservations of ten permits of which seven are used.
func BenchmarkSettle(b *testing.B) {
	c, rdb, _ := newClient(b)
	limiter := c.Limiter("settle", plenty)
	for _, load := range []struct{ keys, goroutines int }{{1, 1}, {1, 64}, {64, 64}} {
		b.Run(fmt.Sprintf("keys=%d/goroutines=%d", load.keys, load.goroutines), func(b *testing.B) {
			settle := func(ctx context.Context, key string) (bool, error) {
				r, err := limiter.Reserve(ctx, key, 10)
				if err != nil {
					return false, err
				}
				return true, r.Settle(ctx, 7)
			}
			before := scriptTime(b, rdb)
			b.ResetTimer()
			decide(b, b.Context(), peer{allow: settle}, redistest.Name(b), load.keys, load.goroutines, b.N)
			b.ReportMetric((scriptTime(b, rdb)-before)/float64(b.N), "server-us/op")
		})
	}
}

// BenchmarkDenied measures decisions on a key that is known to be exhausted.
func BenchmarkDenied(b *testing.B) {
	all, n := peers(b, none, false)
	for _, p := range all {
		b.Run("impl="+p.name, func(b *testing.B) {
			key := redistest.Name(b)
			for range 2 {
				if _, err := p.allow(context.Background(), key); err != nil {
					b.Fatal(err)
				}
			}
			before, began := n.Load(), time.Now()
			for b.Loop() {
				if ok, err := p.allow(context.Background(), key); err != nil || ok {
					b.Fatal(ok, err)
				}
			}
			b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(b.N), "ns/denial")
			b.ReportMetric(float64(n.Load()-before)/float64(b.N), "trips/op")
		})
	}
}

// BenchmarkWaiters measures what 200 waiters cost, of which ten can go at a time.
func BenchmarkWaiters(b *testing.B) {
	c, _, n := newClient(b)
	k := c.Limiter("waiters", ratelimit.Limit{Rate: 10, Per: 20 * time.Millisecond, Burst: 10}, ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	ctx := context.Background()
	before := n.Load()
	for b.Loop() {
		key := redistest.Name(b)
		if _, err := k.AllowN(ctx, key, 10); err != nil {
			b.Fatal(err)
		}
		done := make(chan error, 200)
		for range 200 {
			k.WaitFunc(ctx, key, 1, func(err error) { done <- err })
		}
		for range 200 {
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(n.Load()-before)/float64(b.N), "trips/op")
}

// BenchmarkStoredLimiter measures decisions of the sliding log by its scope.
func BenchmarkStoredLimiter(b *testing.B) {
	c, _, n := newClient(b)
	limit := ratelimit.Limit{Rate: 1_000_000, Per: 100 * time.Millisecond, Burst: 1_000_000} // more than can be asked for
	for what, scope := range map[string]ratelimit.Scope{"overall": ratelimit.Overall, "per-client": ratelimit.PerClient} {
		for _, goroutines := range []int{1, 64} {
			b.Run(fmt.Sprintf("scope=%s/goroutines=%d", what, goroutines), func(b *testing.B) {
				l := c.StoredLimiter(redistest.Name(b))
				if err := l.SetRate(b.Context(), limit, ratelimit.WithScope(scope)); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				before, began := n.Load(), time.Now()
				var left atomic.Int64
				left.Store(int64(b.N))
				var running sync.WaitGroup
				b.ResetTimer()
				for range goroutines {
					running.Go(func() {
						for left.Add(-1) >= 0 {
							if r, err := l.Allow(context.Background()); err != nil || !r.Allowed {
								b.Errorf("denied: %v", err)
								return
							}
						}
					})
				}
				running.Wait()
				b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "decisions/s")
				b.ReportMetric(float64(n.Load()-before)/float64(b.N), "trips/op")
			})
		}
	}
}
