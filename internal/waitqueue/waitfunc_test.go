package waitqueue_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

func TestGroup_WaitFunc(t *testing.T) {
	record := func() (func(int, error), chan error) {
		got := make(chan error, 2)
		return func(_ int, err error) { got <- err }, got
	}

	t.Run("calls back once", func(t *testing.T) {
		s := &server{}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			f, got := record()
			cancel := g.WaitFunc(t.Context(), "name", 1, f)
			synctest.Wait()
			require.Empty(t, got)
			s.release(1, false)
			require.NoError(t, <-got)
			require.False(t, cancel())
			require.Empty(t, got)
		})
	})

	t.Run("a cancel in time means no call", func(t *testing.T) {
		s := &server{rtt: time.Second, free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			f, got := record()
			cancel := g.WaitFunc(t.Context(), "name", 1, f)
			synctest.Wait()
			require.True(t, cancel())
			require.False(t, cancel())
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.Empty(t, got)
			require.Equal(t, []int{1}, s.back)
		})
	})

	t.Run("the end of its context is told", func(t *testing.T) {
		s := &server{}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			f, got := record()
			g.WaitFunc(ctx, "name", 1, f)
			require.ErrorIs(t, <-got, context.DeadlineExceeded)
			g.WaitFunc(ctx, "name", 1, f)
			require.ErrorIs(t, <-got, context.DeadlineExceeded)
		})
	})
}
