package recipes_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/examples/recipes"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// closings records which orders were closed, and when.
type closings struct {
	mu     sync.Mutex
	began  time.Time
	failed bool // the database is down
	closed map[string]time.Duration
}

func (c *closings) close(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed {
		return errors.New("the database is down")
	}
	c.closed[id] = time.Since(c.began).Round(time.Second)
	return nil
}

func newClosings() *closings { return &closings{began: time.Now(), closed: map[string]time.Duration{}} }

func TestOrderTimers_CloseUnlessPaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClosings()
		o, err := recipes.NewOrderTimers(c.close)
		require.NoError(t, err)
		for _, id := range []string{"7", "8"} {
			require.NoError(t, o.Add(id, time.Now().Add(30*time.Minute)))
		}
		time.Sleep(20 * time.Minute)
		o.Paid("8")
		time.Sleep(time.Hour)
		require.NoError(t, o.Stop(t.Context()))
		require.Equal(t, map[string]time.Duration{"7": 30 * time.Minute}, c.closed)
	})
}

func TestOrderTimers_AskAgainWhileTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClosings()
		c.failed = true
		o, err := recipes.NewOrderTimers(c.close)
		require.NoError(t, err)
		require.NoError(t, o.Add("7", time.Now()))
		time.Sleep(25 * time.Second)
		c.mu.Lock()
		c.failed = false
		c.mu.Unlock()
		time.Sleep(time.Minute)
		require.NoError(t, o.Stop(t.Context()))
		require.Equal(t, map[string]time.Duration{"7": 30 * time.Second}, c.closed)
	})
}

// SIGTERM comes while an order is being closed: that one is, and the next process closes the others.
func TestOrderTimers_GoOnInTheNextProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClosings()
		open := map[string]time.Time{ // in the database
			"7": c.began.Add(time.Minute), "8": c.began.Add(2 * time.Minute), "9": c.began.Add(2 * time.Hour),
		}
		started := make(chan struct{})
		first, err := recipes.NewOrderTimers(func(id string) error {
			close(started)
			time.Sleep(time.Minute / 2)
			return c.close(id)
		})
		require.NoError(t, err)
		for id, at := range open {
			require.NoError(t, first.Add(id, at))
		}
		<-started
		require.NoError(t, first.Stop(t.Context()))
		require.Equal(t, map[string]time.Duration{"7": 90 * time.Second}, c.closed)
		require.ErrorIs(t, first.Add("10", time.Now()), wheel.ErrStopped)

		time.Sleep(time.Hour)
		second, err := recipes.NewOrderTimers(c.close)
		require.NoError(t, err)
		for _, id := range []string{"8", "9"} {
			require.NoError(t, second.Add(id, open[id]))
		}
		time.Sleep(2 * time.Hour)
		require.NoError(t, second.Stop(t.Context()))
		require.Equal(t, map[string]time.Duration{
			"7": 90 * time.Second, "8": time.Hour + 90*time.Second, "9": 2 * time.Hour,
		}, c.closed)
	})
}
