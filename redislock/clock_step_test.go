package redislock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/clock"
	"github.com/cogwheel-go/cogwheel/internal/clock/clocktest"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Guarantees: C1.
func TestLock_AStepOfTheWallClock(t *testing.T) {
	for _, step := range []time.Duration{time.Minute, -time.Minute} {
		t.Run(fmt.Sprintf("by %v loses none of 100 locks, renewed or not", step), func(t *testing.T) {
			t.Parallel()
			if !clock.Reader(time.Now)().HasBoot {
				t.Skip("without a boot clock, a step forward counts as elapsed time")
			}
			const n, lease = 100, redistest.SafeLease
			machine, renewed := new(clocktest.Clock), make(chan struct{}, 100*n)
			w, err := wheel.New(wheel.WithClock(machine))
			require.NoError(t, err)
			c, err := redislock.New(redistest.Shared(t).Client(t), redislock.WithWheel(w),
				redislock.WithHooks(redislock.Hooks{Renewed: func(redislock.Event) { renewed <- struct{}{} }}))
			require.NoError(t, err)
			name := redistest.Name(t)
			locks := make([]*redislock.Lock, 2*n)
			for i := range locks {
				opts := []redislock.LockOption{redislock.WithLease(lease)}
				if i >= n {
					opts = []redislock.LockOption{redislock.WithLease(time.Minute), redislock.WithoutRenewal()}
				}
				locks[i], err = c.Mutex(fmt.Sprint(name, i), opts...).Lock(t.Context())
				require.NoError(t, err)
			}
			require.Empty(t, renewed)

			machine.Step(step)
			for _, l := range locks {
				require.True(t, l.Valid())
			}
			for range n {
				<-renewed
			}
			for _, l := range locks {
				require.NoError(t, l.Err())
				require.NoError(t, l.Unlock(t.Context()))
			}
			require.NoError(t, c.Close(t.Context()))
			_, err = w.Stop(t.Context())
			require.NoError(t, err)
		})
	}
}
