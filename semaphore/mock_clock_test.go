package semaphore_test

import (
	"context"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Every time that a Client tells is one of its wheel.
func TestClient_TellsTheTimeOfItsWheel(t *testing.T) {
	t.Parallel()
	const passes = 2 * time.Second
	mock := clock.NewMock()
	mock.Set(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	released := make(chan semaphore.Event, 1)
	c := newClient(t, redistest.Shared(t).Client(t), semaphore.WithWheel(newWheel(t, wheel.WithClock(mock))),
		semaphore.WithHooks(semaphore.Hooks{Released: func(e semaphore.Event) { released <- e }}))
	for what, s := range map[string]*semaphore.Semaphore{
		"plain": c.Semaphore(redistest.Name(t)+":plain", 0), "fair": c.FairSemaphore(redistest.Name(t)+":fair", 0),
	} {
		mustSetPermits(t, s, 1)
		g := mustAcquire(t, s, 1)
		acquired := mock.Now()
		ctx, leave := context.WithCancel(t.Context())
		waited := make(chan error, 1)
		s.AcquireFunc(ctx, 1, func(_ *semaphore.Grant, err error) { waited <- err })
		mock.Add(passes)
		for h := range c.Holds() {
			require.WithinDuration(t, acquired, h.Since, 0, what)
		}
		for w := range c.Waits() {
			require.WithinDuration(t, acquired, w.Since, 0, what)
		}
		leave()
		require.ErrorIs(t, <-waited, context.Canceled)
		held := c.Stats().Hold.Sum()
		require.NoError(t, g.Release(t.Context()))
		require.Equal(t, passes, c.Stats().Hold.Sum()-held, what)
		require.Equal(t, passes, (<-released).Took, what)
	}
	count := c.CountingSemaphore(redistest.Name(t) + ":count")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	_, err := count.TrySetPermits(ctx, 0)
	require.NoError(t, err)
	waited := make(chan error, 1)
	count.AcquireFunc(ctx, 1, func(err error) { waited <- err })
	began := mock.Now()
	mock.Add(passes)
	for w := range c.Waits() {
		require.WithinDuration(t, began, w.Since, 0)
	}
	leave()
	require.ErrorIs(t, <-waited, context.Canceled)
	require.NoError(t, count.Release(t.Context(), 1))
	require.Zero(t, (<-released).Took, "the clock stood still")
}
