package waitqueue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// refused returns a waiter that has been refused, and the Caller of its queue.
func refused(t *testing.T, l *line, g *waitqueue.Group[string, int]) (*call, calls.Caller) {
	t.Helper()
	c := start(g, 1)
	attempt := l.build(t)
	attempt.Apply(redisconn.Reply{})
	require.False(t, c.ended())
	return c, attempt
}

func TestGroup_Next(t *testing.T) {
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

// The attempt of a refused waiter may be built before a call that takes the next attempt along. Then it leaves itself to
// that call.
func TestGroup_Behind(t *testing.T) {
	// behind has a Group know of such a call, unless built is true, the second time that it looks.
	behind := func(l *line, built bool) func(*waitqueue.Config[string, int]) {
		looks := 0
		return func(c *waitqueue.Config[string, int]) {
			l.holds(c)
			c.Behind = func(string) bool {
				looks++
				return !built || looks != 2
			}
		}
	}
	// yielded runs f with a waiter whose attempt has left itself to another call.
	yielded := func(t *testing.T, free int, built bool, f func(t *testing.T, g *waitqueue.Group[string, int], s *server, l *line)) {
		t.Helper()
		s, l := &server{}, &line{}
		bubble(t, s, behind(l, built), func(t *testing.T, g *waitqueue.Group[string, int]) {
			c, attempt := refused(t, l, g)
			s.free = free
			g.Kick("name")
			require.True(t, g.Unbuilt("name"))
			require.Equal(t, attempt, l.next(t))
			_, ok := attempt.Build()
			require.False(t, ok)
			f(t, g, s, l)
			require.True(t, c.ended())
			require.NoError(t, c.err)
			require.Len(t, s.attempts, 2)
		})
	}

	t.Run("which takes it along", func(t *testing.T) {
		yielded(t, 1, false, func(t *testing.T, g *waitqueue.Group[string, int], _ *server, l *line) {
			require.False(t, g.Unbuilt("name"))
			require.NotNil(t, g.Next("name"))
			time.Sleep(10 * time.Millisecond)
			require.False(t, g.Unbuilt("name"), "it is taken")
			l.queued = append(l.queued, l.last) // the queue is the Caller of all its attempts
			l.build(t).Apply(redisconn.Reply{})
		})
	})

	t.Run("or begins by itself soon, once", func(t *testing.T) {
		yielded(t, 1, false, func(t *testing.T, g *waitqueue.Group[string, int], _ *server, l *line) {
			time.Sleep(time.Millisecond)
			require.False(t, g.Unbuilt("name"))
			time.Sleep(3 * time.Millisecond)
			require.True(t, g.Unbuilt("name"))
			l.build(t).Apply(redisconn.Reply{})
		})
	})

	t.Run("or at once if that was built meanwhile", func(t *testing.T) {
		yielded(t, 1, true, func(t *testing.T, _ *waitqueue.Group[string, int], _ *server, l *line) {
			require.Len(t, l.queued, 1)
			l.build(t).Apply(redisconn.Reply{})
		})
	})

	t.Run("also for a caller that comes then", func(t *testing.T) {
		yielded(t, 2, false, func(t *testing.T, g *waitqueue.Group[string, int], _ *server, l *line) {
			other := start(g, 1)
			require.False(t, g.Unbuilt("name"), "it waits with the first one")
			time.Sleep(4 * time.Millisecond)
			l.build(t).Apply(redisconn.Reply{})
			require.True(t, other.ended())
			require.NoError(t, other.err)
		})
	})

	t.Run("and no message puts it off", func(t *testing.T) {
		yielded(t, 1, false, func(t *testing.T, _ *waitqueue.Group[string, int], s *server, l *line) {
			s.wake(60 * time.Millisecond)
			time.Sleep(4 * time.Millisecond)
			l.build(t).Apply(redisconn.Reply{})
		})
	})

	t.Run("also if more may be granted at once", func(t *testing.T) {
		s, l := &server{}, &line{}
		change := func(c *waitqueue.Config[string, int]) {
			asks(c, func(key string, batch []*waiter) (time.Duration, error) {
				again, err := s.Attempt(key, batch)
				if len(s.attempts) == 1 {
					again = waitqueue.AtOnce
				}
				return again, err
			})
			behind(l, false)(c)
		}
		bubble(t, s, change, func(t *testing.T, g *waitqueue.Group[string, int]) {
			c, attempt := refused(t, l, g)
			s.free = 1
			_, ok := l.next(t).Build()
			require.False(t, ok)
			require.NotNil(t, g.Next("name"))
			_, ok = attempt.Build()
			require.True(t, ok)
			attempt.Apply(redisconn.Reply{})
			require.True(t, c.ended())
		})
	})

	t.Run("but not if it was taken along", func(t *testing.T) {
		s, l := &server{}, &line{}
		bubble(t, s, behind(l, false), func(t *testing.T, g *waitqueue.Group[string, int]) {
			c, attempt := refused(t, l, g)
			s.free = 1
			require.NotNil(t, g.Next("name"))
			_, ok := attempt.Build()
			require.True(t, ok)
			attempt.Apply(redisconn.Reply{})
			require.True(t, c.ended())
		})
	})

	t.Run("but not if a caller tries once", func(t *testing.T) {
		s, l := &server{}, &line{}
		bubble(t, s, behind(l, false), func(t *testing.T, g *waitqueue.Group[string, int]) {
			c, _ := refused(t, l, g)
			s.free = 2
			g.Kick("name")
			tried := make(chan error)
			go func() {
				_, err := g.Try(t.Context(), "name", 1)
				tried <- err
			}()
			l.build(t).Apply(redisconn.Reply{})
			require.NoError(t, <-tried)
			require.True(t, c.ended())
		})
	})
}
