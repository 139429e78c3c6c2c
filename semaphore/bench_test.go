package semaphore_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// BenchmarkAcquireRelease acquires a permit and releases it: each goroutine of a semaphore of its own, or all of them
// of one semaphore with 5 permits.
func BenchmarkAcquireRelease(b *testing.B) {
	permits := newClient(b, redistest.Bench(b))
	const each = 5
	for _, c := range []struct{ goroutines, names int }{{1, 1}, {64, 64}, {64, 1}} {
		name := fmt.Sprintf("goroutines=%d/names=%d/impl=", c.goroutines, c.names)
		b.Run(name+"leased", func(b *testing.B) {
			semaphores := make([]*semaphore.Semaphore, c.names)
			for i := range semaphores {
				semaphores[i] = permits.Semaphore(redistest.Name(b), each)
			}
			redistest.Calls(b, c.goroutines, func(goroutine int) error {
				grant, err := semaphores[goroutine%c.names].Acquire(b.Context(), 1)
				if err != nil {
					return err
				}
				return grant.Release(b.Context())
			})
		})
		b.Run(name+"counting", func(b *testing.B) {
			semaphores := make([]*semaphore.CountingSemaphore, c.names)
			for i := range semaphores {
				semaphores[i] = permits.CountingSemaphore(redistest.Name(b))
				_, err := semaphores[i].TrySetPermits(b.Context(), each)
				require.NoError(b, err)
			}
			redistest.Calls(b, c.goroutines, func(goroutine int) error {
				s := semaphores[goroutine%c.names]
				if err := s.Acquire(b.Context(), 1); err != nil {
					return err
				}
				return s.Release(b.Context(), 1)
			})
		})
	}
}
