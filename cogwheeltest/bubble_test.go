package cogwheeltest_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// In a bubble, time stands still while a goroutine runs. So a batch must not wait for time to pass in a loop.
func TestBubble_ManyCallersEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := cogwheeltest.Start(t).Locks()
		var callers sync.WaitGroup
		for i := range 64 {
			callers.Go(func() {
				l, err := c.Mutex(fmt.Sprint("name:", i)).Lock(t.Context())
				if err == nil {
					err = l.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
	})
}

// far is a hook that delays each call.
type far time.Duration

func (far) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d far) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(time.Duration(d))
		return next(ctx, cmd)
	}
}

func (d far) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		time.Sleep(time.Duration(d))
		return next(ctx, cmds)
	}
}

// When the second part of a MultiMutex fails, Lock releases the first part, and returns even if its context ends
// meanwhile.
func TestMultiMutex_ReturnsWhenItsContextEndsWhileItGivesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const trip = time.Second
		s := cogwheeltest.Start(t)
		rdb := s.NewClient()
		require.NoError(t, rdb.Set(t.Context(), "{m}:b", "no lock", 0).Err())
		rdb.AddHook(far(trip))
		c, err := redislock.New(rdb, redislock.WithWheel(s.Wheel()))
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close(t.Context())) }()
		for end, want := range map[time.Duration]time.Duration{
			2*trip + trip/2: 2*trip + trip/2, // while the first part is being released
			10 * trip:       3 * trip,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), end)
			began := time.Now()
			_, err := c.MultiMutex([]string{"{m}:a", "{m}:b"}).Lock(ctx)
			require.ErrorIs(t, err, redislock.ErrWrongKind)
			require.InDelta(t, want, time.Since(began), float64(trip/10))
			cancel()
			time.Sleep(5 * trip)
			require.Zero(t, s.Client().Exists(t.Context(), "{m}:a").Val())
		}
	})
}

// When the context ends while a MultiMutex waits for its second part, no goroutine stays that waits for Redis.
func TestMultiMutex_LeavingCostsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := cogwheeltest.Start(t)
		held, err := s.Locks().Mutex("{m}:b").Lock(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, held.Unlock(t.Context())) }()
		c := s.Locks()
		ctx, cancel := context.WithCancel(t.Context())
		const callers = 100
		ended := make(chan error, callers)
		for i := range callers {
			go func() {
				_, err := c.MultiMutex([]string{fmt.Sprint("{m}:a", i), "{m}:b"}).Lock(ctx)
				ended <- err
			}()
		}
		time.Sleep(time.Second) // all have their first part
		s.Hang()
		cancel()
		for range callers {
			require.ErrorIs(t, <-ended, context.Canceled)
		}
		synctest.Wait()
		require.Less(t, runtime.NumGoroutine(), callers)
		s.Resume()
	})
}
