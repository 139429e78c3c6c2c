package wheel_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// BenchmarkWithTimeout makes a context with a deadline and cancels it, as a request does.
func BenchmarkWithTimeout(b *testing.B) {
	type withTimeout = func(context.Context, time.Duration) (context.Context, context.CancelFunc)
	bench := func(b *testing.B, with withTimeout, pending int) {
		parent := context.Background()
		cancels := make([]context.CancelFunc, pending)
		for k := range cancels {
			_, cancels[k] = with(parent, time.Hour+time.Duration(k)*time.Microsecond)
		}
		for b.Loop() {
			calls := size(1_000_000)
			perCall(b, calls, func() {
				for range calls {
					_, cancel := with(parent, 30*time.Second)
					cancel()
				}
			})
		}
		for _, cancel := range cancels {
			cancel()
		}
	}
	for _, pending := range []int{0, size(1_000_000)} {
		b.Run(fmt.Sprintf("impl=wheel/pending=%d", pending), func(b *testing.B) {
			w, err := wheel.New()
			if err != nil {
				b.Fatal(err)
			}
			bench(b, w.WithTimeout, pending)
			_, _ = w.Stop(b.Context())
		})
		b.Run(fmt.Sprintf("impl=AfterFunc/pending=%d", pending), func(b *testing.B) { bench(b, context.WithTimeout, pending) })
	}
}
