package waitqueue_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// A waiter that leaves the front ungranted leaves what it wanted to the waiters behind it, which have not
// been asked for.
// Guarantees: L36, S14.
func TestGroup_TheFirstIsRefused(t *testing.T) {
	tooMuch := errors.New("more than there will ever be")
	// The server grants the longest prefix that fits; what is above ten is refused for good.
	config := func(s *server) func(c *waitqueue.Config[string, int]) {
		return func(c *waitqueue.Config[string, int]) {
			asks(c, func(name string, batch []*waiter) (time.Duration, error) {
				again, err := s.Attempt(name, batch)
				for _, w := range batch {
					if w.Value > 10 {
						w.Fail(tooMuch)
					}
				}
				return again, err
			})
		}
	}

	t.Run("those behind one who is refused are asked for at once", func(t *testing.T) {
		s := &server{}
		bubble(t, s, config(s), func(t *testing.T, g *waitqueue.Group[string, int]) {
			first := start(g, 1)
			refused, behind := start(g, 11), start(g, 1)
			began := time.Now()
			s.release(2, false)
			synctest.Wait()
			require.True(t, first.ended())
			require.True(t, refused.ended())
			require.ErrorIs(t, refused.err, tooMuch)
			require.True(t, behind.ended(), "what it wants is there")
			require.Zero(t, time.Since(began))
		})
	})

	t.Run("and those behind one who only tried", func(t *testing.T) {
		s := &server{free: 3, rtt: time.Second}
		bubble(t, s, func(c *waitqueue.Config[string, int]) { c.Listen = nil }, func(t *testing.T, g *waitqueue.Group[string, int]) {
			first := start(g, 1)
			tried := make(chan error, 1)
			go func() {
				_, err := g.Try(t.Context(), "name", 5)
				tried <- err
			}()
			synctest.Wait()
			behind := start(g, 1)
			time.Sleep(3 * time.Second)
			synctest.Wait()
			require.True(t, first.ended())
			require.ErrorIs(t, <-tried, waitqueue.ErrNotServed)
			require.True(t, behind.ended(), "what it wants is there")
		})
	})

	t.Run("and the waiters behind one that left while it was in flight", func(t *testing.T) {
		s := &server{}
		bubble(t, s, func(c *waitqueue.Config[string, int]) { c.Listen, c.Leave = nil, nil }, func(t *testing.T, g *waitqueue.Group[string, int]) {
			s.rtt = time.Second
			s.free = 2
			lead := start(g, 1)
			front, left, behind := start(g, 1), start(g, 5), start(g, 1)
			s.release(1, true)
			time.Sleep(1500 * time.Millisecond) // in the middle of the second attempt, which grants the front
			left.stop()
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			require.True(t, lead.ended())
			require.True(t, front.ended())
			require.True(t, behind.ended(), "what it wants is there")
		})
	})

	t.Run("while those behind one who waits on wait as well", func(t *testing.T) {
		s := &server{}
		bubble(t, s, config(s), func(t *testing.T, g *waitqueue.Group[string, int]) {
			first, behind := start(g, 5), start(g, 1)
			asked := len(s.attempts)
			s.release(2, false)
			synctest.Wait()
			require.Len(t, s.attempts, asked+1)
			require.False(t, behind.ended())
			first.stop()
			synctest.Wait()
			require.True(t, behind.ended())
		})
	})
}
