package gate_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cogwheel-go/cogwheel/internal/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGate(t *testing.T) {
	t.Run("lets nothing new begin once it is closed, and waits for the rest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var g gate.Gate
			require.True(t, g.Enter())
			require.True(t, g.Enter())
			require.False(t, g.Closed())
			require.True(t, g.Close())
			require.False(t, g.Close(), "the second to close")
			require.True(t, g.Closed())
			require.False(t, g.Enter())
			returned := make(chan error, 2)
			for range 2 {
				go func() { returned <- g.Wait(t.Context()) }()
			}
			g.Leave()
			synctest.Wait()
			require.Empty(t, returned, "one is inside")
			g.Leave()
			require.NoError(t, <-returned)
			require.NoError(t, <-returned)
		})
	})

	t.Run("waits also for what is begun after it was idle", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var g gate.Gate
			g.Close()
			require.NoError(t, g.Wait(t.Context()))
			g.EnterInside()
			returned := make(chan error, 1)
			go func() { returned <- g.Wait(t.Context()) }()
			synctest.Wait()
			require.Empty(t, returned)
			g.Leave()
			require.NoError(t, <-returned)
			g.EnterInside()
			g.Leave()
		})
	})

	t.Run("waits for all that it let in", func(t *testing.T) {
		for range 30_000 {
			var g gate.Gate
			var started, over atomic.Bool
			var running sync.WaitGroup
			running.Go(func() {
				for started.Store(true); g.Enter(); g.Leave() {
					if over.Load() {
						t.Error("inside after Wait")
					}
				}
			})
			for !started.Load() {
				runtime.Gosched()
			}
			g.Close()
			require.NoError(t, g.Wait(t.Context()))
			over.Store(true)
			running.Wait()
		}
	})

	t.Run("waits for what was let in before the last one has left", func(t *testing.T) {
		for range 1000 {
			var g gate.Gate
			require.NoError(t, g.Wait(t.Context())) // from now on, Leave wakes
			require.True(t, g.Enter())
			var inside atomic.Bool
			returned, left := make(chan bool), make(chan struct{})
			g.Locked(func() {
				go func() {
					_ = g.Wait(t.Context())
					returned <- inside.Load()
				}()
				runtime.Gosched()
				go func() {
					g.Leave()
					close(left)
				}()
				for g.InFlight() != 0 {
					runtime.Gosched()
				}
				require.True(t, g.Enter())
				inside.Store(true)
			})
			<-left
			runtime.Gosched()
			inside.Store(false)
			g.Leave()
			require.False(t, <-returned, "Wait has returned while an operation was inside")
		}
	})

	t.Run("waits no longer than the context", func(t *testing.T) {
		var g gate.Gate
		g.Enter()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, g.Wait(ctx), context.Canceled)
		g.Leave()
		require.NoError(t, g.Wait(ctx), "nothing is inside, whatever the context")
	})
}

func TestAwait(t *testing.T) {
	t.Run("returns the result", func(t *testing.T) {
		var g gate.Gate
		for _, ended := range []chan struct{}{nil, make(chan struct{})} {
			r, answered := gate.Await(&g, ended, func() int { return 7 })
			require.True(t, answered)
			require.Equal(t, 7, r)
		}
		require.NoError(t, g.Wait(t.Context()))
	})

	t.Run("returns when it is ended; the gate is held until f returns", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var g gate.Gate
			require.True(t, g.Enter())
			ended, answer := make(chan struct{}), make(chan int)
			close(ended)
			_, answered := gate.Await(&g, ended, func() int { return <-answer })
			require.False(t, answered)
			g.Leave()
			idle := make(chan error, 1)
			go func() { idle <- g.Wait(t.Context()) }()
			synctest.Wait()
			require.Empty(t, idle)
			answer <- 7
			require.NoError(t, <-idle)
		})
	})
}
