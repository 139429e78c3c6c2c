package waitqueue_test

import (
	"context"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// early has a server asked by Begin, which takes a second, and notes on which goroutines Attempt finishes.
func early(stacks *[]string, s *server) func(*waitqueue.Config[string, int]) {
	return func(c *waitqueue.Config[string, int]) {
		c.Begin = func(_ string, _ []*waiter, ended <-chan struct{}) bool {
			select {
			case <-time.After(time.Second):
				return true
			case <-ended:
				return false
			}
		}
		c.Attempt = func(name string, batch []*waiter) (time.Duration, error) {
			*stacks = append(*stacks, string(debug.Stack()))
			return s.Attempt(name, batch)
		}
	}
}

func TestGroup_Begin(t *testing.T) {
	t.Run("a caller that may leave makes the first attempt too", func(t *testing.T) {
		s := &server{free: 2}
		var stacks []string
		bubble(t, s, early(&stacks, s), func(t *testing.T, g *waitqueue.Group[string, int]) {
			for range 2 {
				_, err := g.Wait(t.Context(), "name", 1)
				require.NoError(t, err)
				require.Zero(t, g.Len(), "nothing is left to do for another goroutine")
			}
			require.Len(t, stacks, 2)
			for _, stack := range stacks {
				require.Contains(t, stack, "waitqueue.(*Group[...]).Wait(")
			}
		})
	})

	t.Run("another goroutine goes on for one that leaves, and what it is granted is given back", func(t *testing.T) {
		s := &server{free: 1}
		var stacks []string
		bubble(t, s, early(&stacks, s), func(t *testing.T, g *waitqueue.Group[string, int]) {
			c := start(g, 1)
			c.stop()
			require.True(t, c.ended(), "before the answer")
			require.ErrorIs(t, c.err, context.Canceled)
			require.Equal(t, []int{1}, s.back)
			require.Zero(t, g.Len())
			require.Len(t, stacks, 1)
			require.NotContains(t, stacks[0], "waitqueue.(*Group[...]).Wait(")
		})
	})

	t.Run("a caller that has to wait leaves the next attempt to another goroutine", func(t *testing.T) {
		s := &server{}
		var stacks []string
		bubble(t, s, early(&stacks, s), func(t *testing.T, g *waitqueue.Group[string, int]) {
			c := start(g, 1)
			time.Sleep(1100 * time.Millisecond)
			s.release(1, false)
			require.True(t, c.ended())
			require.NoError(t, c.err)
			require.Len(t, stacks, 2)
			require.NotContains(t, stacks[1], "waitqueue.(*Group[...]).Wait(")
		})
	})

	t.Run("a grant that comes when its caller has gone is given back by another goroutine", func(t *testing.T) {
		s := &server{free: 1}
		var stacks []string
		bubble(t, s, early(&stacks, s), func(t *testing.T, g *waitqueue.Group[string, int]) {
			left, next := start(g, 1), start(g, 1)
			left.stop()
			require.True(t, left.ended())
			require.True(t, next.ended())
			require.NoError(t, next.err)
			require.Equal(t, []int{1}, s.back)
		})
	})

	t.Run("nothing is asked for a queue that was closed meanwhile", func(t *testing.T) {
		s := &server{free: 1}
		var stacks []string
		bubble(t, s, early(&stacks, s), func(t *testing.T, g *waitqueue.Group[string, int]) {
			c := start(g, 1)
			closed := make(chan error, 1)
			go func() { closed <- g.Close(t.Context(), errClosed) }()
			synctest.Wait()
			require.Empty(t, closed, "an attempt is in flight")
			require.NoError(t, <-closed)
			require.True(t, c.ended())
			require.ErrorIs(t, c.err, errClosed)
			require.Equal(t, []int{1}, s.back)
		})
	})
}

func TestGroup_Stay(t *testing.T) {
	for _, begins := range []bool{false, true} {
		change := func(stacks *[]string, s *server) func(*waitqueue.Config[string, int]) {
			if begins {
				return early(stacks, s)
			}
			return nil
		}
		t.Run("what its caller has left stays in the queue", func(t *testing.T) {
			s := &server{rtt: time.Second}
			var stacks []string
			bubble(t, s, change(&stacks, s), func(t *testing.T, g *waitqueue.Group[string, int]) {
				ended, began := make(chan struct{}), time.Now()
				time.AfterFunc(100*time.Millisecond, func() { close(ended) })
				done, result := g.Stay(ended, "name", 1)
				require.LessOrEqual(t, time.Since(began), 100*time.Millisecond)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				require.Empty(t, done)
				require.Equal(t, 1, g.Waiting("name"))
				s.release(1, false)
				<-done
				v, err := result()
				require.NoError(t, err)
				require.Equal(t, 1, v)
				require.Empty(t, s.back)
			})
		})

		t.Run("is answered by one attempt", func(t *testing.T) {
			s := &server{free: 2}
			var stacks []string
			bubble(t, s, change(&stacks, s), func(t *testing.T, g *waitqueue.Group[string, int]) {
				for _, ended := range []chan struct{}{nil, make(chan struct{})} {
					done, result := g.Stay(ended, "name", 1)
					<-done
					_, err := result()
					require.NoError(t, err)
				}
				require.Len(t, s.attempts, 2)
			})
		})

		t.Run("fails when the group is closed", func(t *testing.T) {
			s := &server{}
			var stacks []string
			bubble(t, s, change(&stacks, s), func(t *testing.T, g *waitqueue.Group[string, int]) {
				require.NoError(t, g.Close(t.Context(), errClosed))
				done, result := g.Stay(make(chan struct{}), "name", 1)
				<-done
				_, err := result()
				require.ErrorIs(t, err, errClosed)
			})
		})
	}
}
