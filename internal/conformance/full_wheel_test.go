package conformance_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// newOnAFullWheel returns a library on a wheel that refuses further timers of the user.
func newOnAFullWheel(t *testing.T) *onAWheel {
	t.Helper()
	l := newOnAWheelOf(t, redistest.Shared(t).Client(t), wheel.WithMaxPendingTimeouts(1))
	require.NoError(t, second(l.wheel.AfterFunc(time.Hour, func() {})))
	t.Cleanup(func() {
		require.ErrorIs(t, second(l.wheel.AfterFunc(time.Hour, func() {})), wheel.ErrTooManyPending)
	})
	return l
}

// Guarantees: W23.
func TestFullWheel_HasRoomForEveryWait(t *testing.T) {
	t.Parallel()
	for what, wait := range waits {
		if what == "wheel.Wheel.Sleep" { // of the user
			continue
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := newOnAFullWheel(t)
			l.occupy(t)
			ctx, leave := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			before := l.wheel.Len()
			go func() { ended <- wait(ctx, l) }()
			redistest.Poll(t, func() bool {
				select {
				case err := <-ended:
					require.FailNow(t, "it did not wait", err)
				default:
				}
				return l.wheel.Len() > before && (l.waiting() == 1 || strings.Contains(what, "Reservation"))
			})
			leave()
			if err := <-ended; !strings.Contains(what, "Serve") {
				require.ErrorIs(t, err, context.Canceled)
			}
		})
	}
}

// Guarantees: W23.
func TestFullWheel_LocksPermitsLimitsAndTasksWork(t *testing.T) {
	t.Parallel()
	for what, work := range map[string]func(ctx context.Context, t *testing.T, l *onAWheel){
		"a lock, also with a longest hold": func(ctx context.Context, t *testing.T, l *onAWheel) {
			other := newOnAWheelOf(t, l.rdb)
			held, err := other.locks.Mutex(l.mutex.Name()).TryLock(ctx)
			require.NoError(t, err)
			var lock *redislock.Lock
			after(t, l, func() { require.NoError(t, held.Unlock(ctx)) }, func() (err error) {
				lock, err = l.locks.Mutex(l.mutex.Name(), redislock.WithMaxHold(time.Second)).Lock(ctx)
				return err
			})
			<-lock.Done()
			require.ErrorIs(t, lock.Err(), redislock.ErrMaxHold)
		},
		"a permit": func(ctx context.Context, t *testing.T, l *onAWheel) {
			require.NoError(t, l.plain.SetPermits(ctx, 1))
			held, err := newOnAWheelOf(t, l.rdb).semaphores.Semaphore(l.plain.Name(), 0).TryAcquire(ctx, 1)
			require.NoError(t, err)
			after(t, l, func() { require.NoError(t, held.Release(ctx)) }, func() error {
				grant, err := l.plain.Acquire(ctx, 1)
				if err != nil {
					return err
				}
				return grant.Release(ctx)
			})
		},
		"a limit": func(ctx context.Context, t *testing.T, l *onAWheel) {
			k := l.limits.Limiter(l.name+":works", ratelimit.PerSecond(10))
			for range 15 {
				require.NoError(t, k.Wait(ctx, "k"))
			}
		},
		"a task": func(ctx context.Context, t *testing.T, l *onAWheel) {
			q := l.delays.Queue(l.name + ":works")
			for range 3 {
				require.NoError(t, q.Schedule(ctx, redistest.Name(t), 0, nil))
			}
			serving, stop := context.WithCancel(ctx)
			began := make(chan struct{}, 3)
			ended := make(chan error, 1)
			go func() {
				ended <- q.Serve(serving, 1, func(context.Context, *delay.Task) error {
					began <- struct{}{}
					return nil
				})
			}()
			for range cap(began) {
				select {
				case <-began:
				case <-ctx.Done():
					require.FailNow(t, "a task does not begin")
				}
			}
			stop()
			require.NoError(t, <-ended)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			work(redistest.Within(t, redistest.Patience), t, newOnAFullWheel(t))
		})
	}
}

// after calls free when a call waits, and returns when that has got what it waited for.
func after(t *testing.T, l *onAWheel, free func(), wait func() error) {
	t.Helper()
	got := make(chan error, 1)
	go func() { got <- wait() }()
	redistest.Poll(t, func() bool { return l.waiting() == 1 })
	free()
	require.NoError(t, <-got)
}
