package gate_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

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
	late := func(int) { t.Error("late") }

	t.Run("returns the result", func(t *testing.T) {
		var g gate.Gate
		for _, ended := range []chan struct{}{nil, make(chan struct{})} {
			r, answered := gate.Await(&g, ended, func() int { return 7 }, late)
			require.True(t, answered)
			require.Equal(t, 7, r)
		}
		require.NoError(t, g.Wait(t.Context()))
	})

	t.Run("waits longer for a result that comes after the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for _, tt := range []struct {
				takes, waits time.Duration
				answered     bool
			}{{3 * time.Second, 2 * time.Second, true}, {4 * time.Second, 2 * time.Second, false}, {0, 0, true}} {
				var g gate.Gate
				ended, over, results := make(chan struct{}), make(chan struct{}), make(chan int, 1)
				time.AfterFunc(1500*time.Millisecond, func() { close(ended) })
				longer := func() <-chan struct{} {
					time.AfterFunc(tt.waits, func() { close(over) })
					return over
				}
				r, answered := gate.Call[int]{
					Do: func() int {
						time.Sleep(tt.takes)
						return 7
					},
					Late:   func(r int) { results <- r },
					Longer: longer,
				}.Await(&g, ended)
				require.Equal(t, tt.answered, answered)
				require.NoError(t, g.Wait(t.Context()))
				if answered {
					require.Equal(t, 7, r)
					require.Empty(t, results)
				} else {
					require.Equal(t, 7, <-results, "late")
				}
				time.Sleep(5 * time.Second)
			}
		})
	})

	t.Run("a call that has begun well is finished by its caller, another by a goroutine", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for _, well := range []bool{true, false} {
				var g gate.Gate
				ended, by := make(chan struct{}), ""
				r, answered := gate.Call[int]{
					Begin: func(until <-chan struct{}) bool {
						require.Equal(t, (<-chan struct{})(ended), until)
						return well
					},
					Do: func() int {
						by = goroutine()
						return 7
					},
					Late: late,
				}.Await(&g, ended)
				require.True(t, answered)
				require.Equal(t, 7, r)
				require.Equal(t, well, by == goroutine())
				require.NoError(t, g.Wait(t.Context()))
			}
		})
	})

	t.Run("returns when it is ended; the result is late, and the gate held until then", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var g gate.Gate
			require.True(t, g.Enter())
			ended, answer, results := make(chan struct{}), make(chan int), make(chan int, 1)
			close(ended)
			_, answered := gate.Await(&g, ended, func() int { return <-answer }, func(r int) { results <- r })
			require.False(t, answered)
			g.Leave()
			idle := make(chan error, 1)
			go func() { idle <- g.Wait(t.Context()) }()
			synctest.Wait()
			require.Empty(t, idle)
			answer <- 7
			require.NoError(t, <-idle)
			require.Equal(t, 7, <-results)
		})
	})
}
