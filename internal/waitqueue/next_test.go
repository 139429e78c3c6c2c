package waitqueue_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

func TestGroup_Next(t *testing.T) {
	// refused returns a waiter that has been refused, and the Caller of its queue.
	refused := func(t *testing.T, l *line, g *waitqueue.Group[string, int]) (*call, calls.Caller) {
		t.Helper()
		c := start(g, 1)
		attempt := l.build(t)
		attempt.Apply(redisconn.Reply{})
		require.False(t, c.ended())
		return c, attempt
	}

	t.Run("is the next attempt of those who wait", func(t *testing.T) {
		s, l := &server{}, &line{}
		bubble(t, s, l.holds, func(t *testing.T, g *waitqueue.Group[string, int]) {
			c, attempt := refused(t, l, g)
			require.NotNil(t, g.Next("name"))
			s.free = 1
			_, ok := attempt.Build()
			require.True(t, ok)
			attempt.Apply(redisconn.Reply{})
			require.True(t, c.ended())
			require.NoError(t, c.err)
			require.Empty(t, l.queued)
		})
	})

	t.Run("is none while nobody waits, or an attempt is in flight", func(t *testing.T) {
		s, l := &server{}, &line{}
		bubble(t, s, l.holds, func(t *testing.T, g *waitqueue.Group[string, int]) {
			require.Nil(t, g.Next("name"))
			c := start(g, 1)
			require.Nil(t, g.Next("name"), "it is queued")
			attempt := l.build(t)
			require.Nil(t, g.Next("name"), "it is sent")
			attempt.Apply(redisconn.Reply{})
			require.NotNil(t, g.Next("name"))
			require.Nil(t, g.Next("name"), "it is taken along")
			s.free = 1
			_, ok := attempt.Build()
			require.True(t, ok)
			attempt.Apply(redisconn.Reply{})
			require.True(t, c.ended())
		})
	})

	t.Run("sends nothing if the waiter has left", func(t *testing.T) {
		s, l := &server{}, &line{}
		bubble(t, s, l.holds, func(t *testing.T, g *waitqueue.Group[string, int]) {
			c, attempt := refused(t, l, g)
			require.NotNil(t, g.Next("name"))
			c.stop()
			require.True(t, c.ended())
			_, ok := attempt.Build()
			require.False(t, ok)
			require.Zero(t, g.Len())
		})
	})
}

// An attempt waits a moment for callers that are expected.
func TestGroup_Gather(t *testing.T) {
	s, l := &server{free: 6}, &line{}
	expected := 3
	change := func(c *waitqueue.Config[string, int]) {
		l.holds(c)
		c.Gather = func(string) int { return expected }
	}
	bubble(t, s, change, func(t *testing.T, g *waitqueue.Group[string, int]) {
		start(g, 1)
		attempt := l.next(t)
		for range 2 {
			go func() { _, _ = g.Wait(t.Context(), "name", 1) }()
		}
		_, ok := attempt.Build()
		require.True(t, ok)
		attempt.Apply(redisconn.Reply{})
		require.Equal(t, [][]int{{1, 1, 1}}, s.attempts)

		expected = 100 // of whom none comes
		c := start(g, 1)
		l.build(t).Apply(redisconn.Reply{})
		require.True(t, c.ended())
		synctest.Wait()
	})
}
