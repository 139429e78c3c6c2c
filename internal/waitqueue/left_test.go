package waitqueue_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// An attempt learns that the waiter it works for has left, whenever it asks, and not about one that stays.
func TestWaiter_Left(t *testing.T) {
	for name, asksAfter := range map[string]time.Duration{"asked before": 0, "asked after": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			s := &server{}
			var told time.Time
			began := time.Now()
			watch := func(c *waitqueue.Config[string, int]) {
				c.Attempt = func(_ string, batch []*waiter) (time.Duration, error) {
					time.Sleep(asksAfter)
					select {
					case <-batch[0].Left():
						told = time.Now()
					case <-time.After(10 * time.Second):
					}
					return 0, nil
				}
			}
			bubble(t, s, watch, func(t *testing.T, g *waitqueue.Group[string, int]) {
				began = time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := g.Wait(ctx, "name", 1)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				synctest.Wait()
				time.Sleep(asksAfter)
				synctest.Wait()
				require.Equal(t, max(time.Second, asksAfter), told.Sub(began))

				told = time.Time{}
				stays := start(g, 1)
				time.Sleep(asksAfter + 11*time.Second)
				synctest.Wait()
				require.True(t, told.IsZero())
				stays.stop()
			})
		})
	}
}

func TestWaiter_Waits(t *testing.T) {
	var waits []bool
	s := &server{free: 2}
	watch := func(c *waitqueue.Config[string, int]) {
		c.Attempt = func(name string, batch []*waiter) (time.Duration, error) {
			waits = append(waits, batch[0].Waits())
			return s.Attempt(name, batch)
		}
	}
	bubble(t, s, watch, func(t *testing.T, g *waitqueue.Group[string, int]) {
		_, err := g.Wait(t.Context(), "name", 1)
		require.NoError(t, err)
		_, err = g.Try(t.Context(), "name", 1)
		require.NoError(t, err)
		require.Equal(t, []bool{true, false}, waits)
	})
}
