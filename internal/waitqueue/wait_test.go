package waitqueue_test

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestGroup_Wait(t *testing.T) {
	t.Run("is granted by one attempt where no other waits, without listening", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			v, err := g.Wait(t.Context(), "name", 1)
			require.NoError(t, err)
			require.Equal(t, 1, v)
			require.Equal(t, [][]int{{1}}, s.attempts)
			synctest.Wait()
			require.Zero(t, g.Len())
		})
	})

	t.Run("the first attempt is the caller's own if its context cannot end", func(t *testing.T) {
		s := &server{free: 3}
		var stacks []string
		watch := func(c *waitqueue.Config[string, int]) {
			asks(c, func(name string, batch []*waiter) (time.Duration, error) {
				stacks = append(stacks, string(debug.Stack()))
				return s.Attempt(name, batch)
			})
		}
		bubble(t, s, watch, func(t *testing.T, g *waitqueue.Group[string, int]) {
			_, err := g.Wait(context.Background(), "name", 1)
			require.NoError(t, err)
			_, err = g.Try(context.Background(), "name", 1)
			require.NoError(t, err)
			require.Zero(t, g.Len(), "nothing is left to do for another goroutine")
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			_, err = g.Wait(ctx, "name", 1)
			require.NoError(t, err)
			require.Len(t, stacks, 3)
			const caller = "waitqueue.(*Group[...]).Wait("
			require.Contains(t, stacks[0], caller)
			require.Contains(t, stacks[1], "waitqueue.(*Group[...]).Try(")
			require.NotContains(t, stacks[2], caller)

			refused := make(chan error, 1)
			go func() {
				_, err := g.Wait(context.Background(), "name", 1)
				refused <- err
			}()
			synctest.Wait()
			require.Contains(t, stacks[3], caller)
			s.release(1, false)
			require.NoError(t, <-refused)
			require.NotContains(t, stacks[4], caller, "a later one")
		})
	})

	t.Run("a server that must know whether more than one waits hears of the second", func(t *testing.T) {
		s := &server{}
		second := func(c *waitqueue.Config[string, int]) { c.Second = true }
		bubble(t, s, second, func(t *testing.T, g *waitqueue.Group[string, int]) {
			var calls []*call
			for _, looks := range []int{1, 2, 2, 2} {
				calls = append(calls, start(g, 1))
				require.Equal(t, looks, s.looks())
			}
			for _, c := range calls {
				c.stop()
			}
		})
	})

	t.Run("a message wakes a whole prefix with one attempt", func(t *testing.T) {
		s := &server{}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			var calls []*call
			for range 10 {
				calls = append(calls, start(g, 1))
			}
			before := s.looks()
			require.Equal(t, 1, before, "who comes behind one that waits does not ask")
			s.release(10, false)
			for _, c := range calls {
				require.True(t, c.ended())
				require.NoError(t, c.err)
			}
			require.Equal(t, before+1, s.looks())
		})
	})

	t.Run("who arrives during an attempt is in the next", func(t *testing.T) {
		s := &server{free: 100, rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			calls := []*call{start(g, 1)}
			for range 20 {
				calls = append(calls, start(g, 2))
			}
			time.Sleep(2*time.Second + time.Millisecond)
			for _, c := range calls {
				require.True(t, c.ended())
			}
			require.Equal(t, [][]int{{1}, slices.Repeat([]int{2}, 20)}, s.attempts)
			require.Equal(t, 1, s.most)
		})
	})

	t.Run("a large request is not overtaken by small ones", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			large, small := start(g, 3), start(g, 1)
			require.False(t, small.ended())
			s.release(1, false)
			require.False(t, small.ended())
			s.release(1, false)
			require.True(t, large.ended())
			require.False(t, small.ended())
			s.release(1, false)
			require.True(t, small.ended())
		})
	})

	t.Run("a cancelled head lets the others go at once, also where no hook is told that it left", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, func(c *waitqueue.Config[string, int]) { c.Leave = nil }, func(t *testing.T, g *waitqueue.Group[string, int]) {
			large, small := start(g, 3), start(g, 1)
			large.stop()
			require.True(t, large.ended())
			require.True(t, small.ended())
			require.NoError(t, small.err)
		})
	})

	t.Run("a cancelled head lets the others go at once", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			large, small := start(g, 3), start(g, 1)
			large.stop()
			require.True(t, large.ended())
			require.ErrorIs(t, large.err, context.Canceled)
			require.True(t, small.ended())
			require.NoError(t, small.err)
			require.Equal(t, []int{3}, s.left)
		})
	})

	t.Run("a lost message costs at most the poll interval", func(t *testing.T) {
		s := &server{}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			c := start(g, 1)
			free := time.Now()
			s.release(1, true)
			<-c.done
			require.Less(t, c.at.Sub(free), poll+2*time.Millisecond)
			require.Greater(t, c.at.Sub(free), time.Millisecond, "nothing told it")
			c.stop()
		})
	})

	t.Run("the attempt says when to look again", func(t *testing.T) {
		s := &server{}
		first := true
		sooner := func(c *waitqueue.Config[string, int]) {
			asks(c, func(name string, batch []*waiter) (time.Duration, error) {
				if first {
					first = false
					return 300 * time.Millisecond, nil
				}
				return s.Attempt(name, batch)
			})
		}
		bubble(t, s, sooner, func(t *testing.T, g *waitqueue.Group[string, int]) {
			c := start(g, 1)
			began := time.Now()
			s.release(1, true)
			<-c.done
			require.GreaterOrEqual(t, c.at.Sub(began), 300*time.Millisecond)
			require.Less(t, c.at.Sub(began), 302*time.Millisecond)
			c.stop()
		})
	})

	t.Run("a grant that comes for one who has gone is given back and serves the next", func(t *testing.T) {
		s := &server{free: 1, rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			gone, next := start(g, 1), start(g, 1)
			gone.stop()
			require.True(t, gone.ended(), "it does not wait for the attempt")
			require.ErrorIs(t, gone.err, context.Canceled)
			time.Sleep(2*time.Second + time.Millisecond)
			require.True(t, next.ended())
			require.NoError(t, next.err)
			require.Equal(t, []int{1}, s.back)
			require.Zero(t, s.free)
		})
	})

	t.Run("an error of the attempt fails those it was for", func(t *testing.T) {
		s := &server{err: errors.New("down"), rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			a, b := start(g, 1), start(g, 1)
			time.Sleep(time.Second + time.Millisecond)
			require.True(t, a.ended())
			require.ErrorIs(t, a.err, s.err)
			require.False(t, b.ended())
			time.Sleep(time.Second)
			require.True(t, b.ended())
			require.ErrorIs(t, b.err, s.err)
		})
	})

	t.Run("with a context that has ended nothing is asked", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := g.Wait(ctx, "name", 1)
			require.ErrorIs(t, err, context.Canceled)
			require.Empty(t, s.attempts)
		})
	})

	t.Run("a kick during an attempt causes one more", func(t *testing.T) {
		s := &server{rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			c := start(g, 1)
			for range 5 {
				g.Kick("name")
			}
			time.Sleep(2*time.Second + 500*time.Millisecond)
			require.Equal(t, 2, s.looks())
			c.stop()
			require.True(t, c.ended())
		})
	})

	t.Run("a wheel that takes no entry fails the waiters instead of stranding them", func(t *testing.T) {
		s := &server{}
		synctest.Test(t, func(t *testing.T) {
			w, err := wheel.New()
			require.NoError(t, err)
			_, err = w.Stop(t.Context())
			require.NoError(t, err)
			cfg := waitqueue.Config[string, int]{MaxBatch: 1, Poll: poll}
			asks(&cfg, s.Attempt)
			g := waitqueue.New(w, cfg)
			_, err = g.Wait(t.Context(), "name", 1)
			require.ErrorIs(t, err, wheel.ErrStopped)
			require.NoError(t, g.Close(t.Context(), errClosed))
		})
	})
}
