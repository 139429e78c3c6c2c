package redislock_test

import (
	"fmt"
	"testing"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// BenchmarkLockUnlock locks and unlocks: each goroutine a mutex of its own, or all of them one mutex.
func BenchmarkLockUnlock(b *testing.B) {
	locks := newClient(b, redistest.Bench(b))
	for _, c := range []struct{ goroutines, names int }{{1, 1}, {64, 64}, {64, 1}} {
		b.Run(fmt.Sprintf("goroutines=%d/names=%d", c.goroutines, c.names), func(b *testing.B) {
			mutexes := make([]*redislock.Mutex, c.names)
			for i := range mutexes {
				mutexes[i] = locks.Mutex(redistest.Name(b))
			}
			redistest.Calls(b, c.goroutines, func(goroutine int) error {
				lock, err := mutexes[goroutine%c.names].Lock(b.Context())
				if err != nil {
					return err
				}
				return lock.Unlock(b.Context())
			})
		})
	}
}
