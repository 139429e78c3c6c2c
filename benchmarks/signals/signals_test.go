// Package signals measures what counts and hooks cost. It has no peers: hooks=none is what hooks=all is compared
// with, in the same run.
package signals_test

import (
	"context"
	"testing"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func must[T any](b *testing.B) func(T, error) T {
	return func(v T, err error) T {
		if b.Helper(); err != nil {
			b.Fatal(err)
		}
		return v
	}
}

// BenchmarkLock is one uncontended TryLock and Unlock.
func BenchmarkLock(b *testing.B) {
	note := func(redislock.Event) {}
	hooks := redislock.Hooks{
		Acquired: note, Contended: note, Failed: note, Renewed: note, Lost: note, Released: note,
	}
	for name, opts := range map[string][]redislock.Option{"none": nil, "all": {redislock.WithHooks(hooks)}} {
		b.Run("hooks="+name, func(b *testing.B) {
			c := must[*redislock.Client](b)(redislock.New(redistest.Shared(b).Client(b), opts...))
			defer c.Close(context.Background())
			m := c.Mutex(redistest.Name(b))
			b.ReportAllocs()
			for b.Loop() {
				l := must[*redislock.Lock](b)(m.TryLock(context.Background()))
				if err := l.Unlock(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPermit is one Acquire and Release of a Semaphore that has permits.
func BenchmarkPermit(b *testing.B) {
	note := func(semaphore.Event) {}
	hooks := semaphore.Hooks{
		Acquired: note, Contended: note, Failed: note, Renewed: note, Lost: note, Released: note,
	}
	for name, opts := range map[string][]semaphore.Option{"none": nil, "all": {semaphore.WithHooks(hooks)}} {
		b.Run("hooks="+name, func(b *testing.B) {
			c := must[*semaphore.Client](b)(semaphore.New(redistest.Shared(b).Client(b), opts...))
			defer c.Close(context.Background())
			s := c.Semaphore(redistest.Name(b), 0)
			if err := s.SetPermits(context.Background(), 10); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				g := must[*semaphore.Grant](b)(s.Acquire(context.Background(), 1))
				if err := g.Release(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDenied is a denial by what the process knows, from all processors at once.
func BenchmarkDenied(b *testing.B) {
	note := func(ratelimit.Event) {}
	hooks := ratelimit.Hooks{Allowed: note, Denied: note, Failed: note}
	for name, opts := range map[string][]ratelimit.Option{"none": nil, "all": {ratelimit.WithHooks(hooks)}} {
		b.Run("hooks="+name, func(b *testing.B) {
			c := must[*ratelimit.Client](b)(ratelimit.New(redistest.Shared(b).Client(b), opts...))
			defer c.Close(context.Background())
			k := c.Limiter(redistest.Name(b), ratelimit.PerHour(1))
			for range 2 {
				must[ratelimit.Result](b)(k.Allow(context.Background(), "k"))
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := k.Allow(context.Background(), "k"); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkAllow is a grant of Redis.
func BenchmarkAllow(b *testing.B) {
	note := func(ratelimit.Event) {}
	hooks := ratelimit.Hooks{Allowed: note, Denied: note, Failed: note}
	for name, opts := range map[string][]ratelimit.Option{"none": nil, "all": {ratelimit.WithHooks(hooks)}} {
		b.Run("hooks="+name, func(b *testing.B) {
			c := must[*ratelimit.Client](b)(ratelimit.New(redistest.Shared(b).Client(b), opts...))
			defer c.Close(context.Background())
			k := c.Limiter(redistest.Name(b), ratelimit.PerSecond(1_000_000))
			b.ReportAllocs()
			for b.Loop() {
				must[ratelimit.Result](b)(k.Allow(context.Background(), "k"))
			}
		})
	}
}
