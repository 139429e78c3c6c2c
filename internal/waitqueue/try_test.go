package waitqueue_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

func TestGroup_Try(t *testing.T) {
	t.Run("is answered by its attempt", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			_, err := g.Try(t.Context(), "name", 1)
			require.NoError(t, err)
			_, err = g.Try(t.Context(), "name", 1)
			require.ErrorIs(t, err, waitqueue.ErrNotServed)
			require.Len(t, s.attempts, 2)
			synctest.Wait()
			require.Zero(t, g.Len(), "no waiter is left")
		})
	})

	t.Run("does not overtake those who wait, and says when they look again", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			c := start(g, 2)
			_, err := g.Try(t.Context(), "name", 1)
			refused, ok := errors.AsType[*waitqueue.NotServedError](err)
			require.True(t, ok)
			require.Greater(t, refused.Again, time.Duration(0))
			require.LessOrEqual(t, refused.Again, poll)
			require.Len(t, s.attempts, 1)
			c.stop()
			require.True(t, c.ended())
		})
	})

	t.Run("behind others in flight it is answered when they have to wait", func(t *testing.T) {
		s := &server{rtt: time.Second}
		bubble(t, s, func(c *waitqueue.Config[string, int]) { c.MaxBatch = 1 }, func(t *testing.T, g *waitqueue.Group[string, int]) {
			c := start(g, 1)
			_, err := g.Try(t.Context(), "name", 1)
			require.ErrorIs(t, err, waitqueue.ErrNotServed)
			c.stop()
			require.True(t, c.ended())
		})
	})
}
