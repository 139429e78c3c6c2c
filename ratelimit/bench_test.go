package ratelimit_test

import (
	"fmt"
	"testing"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// BenchmarkAllow asks for one permit: each goroutine under a key of its own, or all of them under one.
func BenchmarkAllow(b *testing.B) {
	limits := newClient(b, redistest.Bench(b))
	for _, c := range []struct{ goroutines, keys int }{{1, 1}, {64, 64}, {64, 1}} {
		b.Run(fmt.Sprintf("goroutines=%d/keys=%d", c.goroutines, c.keys), func(b *testing.B) {
			limiter := limits.Limiter(redistest.Name(b), ratelimit.PerSecond(1_000_000))
			keys := make([]string, c.keys)
			for i := range keys {
				keys[i] = fmt.Sprint("user:", i)
			}
			redistest.Calls(b, c.goroutines, func(goroutine int) error {
				_, err := limiter.Allow(b.Context(), keys[goroutine%c.keys])
				return err
			})
		})
	}
}
