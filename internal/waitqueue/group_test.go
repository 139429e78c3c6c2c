package waitqueue_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestGroup_Handoff(t *testing.T) {
	s := &server{}
	bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
		require.False(t, g.Handoff("name", func(*int) { t.Error("there is no waiter") }))
		first, second := start(g, 1), start(g, 1)
		require.True(t, g.Handoff("name", func(v *int) { *v = 7 }))
		require.True(t, first.ended())
		require.NoError(t, first.err)
		require.False(t, second.ended())
		require.Equal(t, 1, g.Waiting("name"))
		second.stop()
		require.True(t, second.ended())
	})
}

// The context of a caller ends, and before the caller has left its waiter is granted.
func TestGroup_AGrantForOneThatIsLeavingIsGivenBack(t *testing.T) {
	s := &server{}
	bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
		leaving := start(g, 1)
		require.True(t, g.Handoff("name", func(v *int) {
			leaving.stop() // it is woken by that, and waits for the lock of the group
			*v = 7
		}))
		require.True(t, leaving.ended())
		require.ErrorIs(t, leaving.err, context.Canceled)
		require.Equal(t, []int{7}, s.back)
	})
}

func TestGroup_Close(t *testing.T) {
	t.Run("fails those who wait and those who come, and gives back what is granted meanwhile", func(t *testing.T) {
		s := &server{free: 1, rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			flying, waiting := start(g, 1), start(g, 1)
			short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			require.ErrorIs(t, g.Close(short, errClosed), context.DeadlineExceeded)
			require.True(t, flying.ended())
			require.ErrorIs(t, flying.err, errClosed)
			require.True(t, waiting.ended())
			require.ErrorIs(t, waiting.err, errClosed)
			require.NoError(t, g.Close(t.Context(), errors.New("another")))
			require.Equal(t, []int{1}, s.back)
			_, err := g.Wait(t.Context(), "name", 1)
			require.ErrorIs(t, err, errClosed)
		})
	})
}

func TestGroup_CostsNothingPerWaiter(t *testing.T) {
	const waiters = 1000
	s := &server{}
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		cfg := waitqueue.Config[string, int]{MaxBatch: 100, Poll: poll}
		asks(&cfg, s.Attempt)
		g := waitqueue.New(w, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		calls.Add(waiters)
		for range waiters {
			g.WaitFunc(ctx, "name", 1, func(int, error) { calls.Done() })
		}
		synctest.Wait()
		require.Equal(t, waiters, g.Waiting("name"))
		require.Equal(t, 1, w.Len(), "one wheel entry for all of them")
		require.Equal(t, 1, s.looks())
		cancel()
		calls.Wait()
		synctest.Wait()
		require.Zero(t, g.Len())
		require.Zero(t, w.Len())
		require.NoError(t, g.Close(t.Context(), errClosed))
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
	})
}
