package cogwheeltest_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Main looks for goroutines that are left behind.
func TestMain(m *testing.M) { redistest.Main(m) }

// world is a server in a bubble, and two processes that use it.
type world struct {
	*cogwheeltest.Server
	ctx        context.Context
	locks      [2]*redislock.Client
	limits     [2]*ratelimit.Client
	semaphores [2]*semaphore.Client
	delays     [2]*delay.Client
	other      *redis.Client // of the second process
}

// inBubbles runs each behaviour as a subtest in a bubble of its own.
func inBubbles(t *testing.T, behaviours map[string]func(*testing.T, *world)) {
	t.Helper()
	for name, f := range behaviours {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, newWorld(t)) })
		})
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Server: cogwheeltest.Start(t), ctx: t.Context()}
	w.locks[0], w.limits[0], w.semaphores[0], w.delays[0] = w.Locks(), w.Limits(), w.Semaphores(), w.Delays()
	other := w.NewClient()
	w.other = other
	var err error
	w.locks[1], err = redislock.New(other, redislock.WithWheel(w.Wheel()))
	require.NoError(t, err)
	redistest.CloseWith(t, w.locks[1].Close)
	w.limits[1], err = ratelimit.New(other, ratelimit.WithWheel(w.Wheel()))
	require.NoError(t, err)
	redistest.CloseWith(t, w.limits[1].Close)
	w.semaphores[1], err = semaphore.New(other, semaphore.WithWheel(w.Wheel()))
	require.NoError(t, err)
	redistest.CloseWith(t, w.semaphores[1].Close)
	w.delays[1], err = delay.New(other, delay.WithWheel(w.Wheel()))
	require.NoError(t, err)
	redistest.CloseWith(t, w.delays[1].Close)
	return w
}

// calling runs f on a goroutine, and returns a channel that gets its error.
func calling(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// requireWaiting fails unless the call has not returned although nothing is left to do in the bubble.
func requireWaiting(t *testing.T, done <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		t.Fatalf("the call did not wait: %v", err)
	default:
	}
}

// requireDone fails unless the call has returned nil as soon as nothing is left to do in the bubble.
func requireDone(t *testing.T, done <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-done:
		require.NoError(t, err)
	default:
		t.Fatal("the call still waits")
	}
}

// What a bubble has used must not come up in another: the runtime ends a program that uses a channel of
// another bubble.
func TestStart_OneBubbleAfterTheOther(t *testing.T) {
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			k := cogwheeltest.Start(t).Limits().Limiter("api", ratelimit.PerHour(1000))
			var callers sync.WaitGroup
			for range 50 {
				callers.Go(func() {
					_, err := k.Allow(context.Background(), "user")
					require.NoError(t, err)
				})
			}
			callers.Wait()
		})
	}
}
