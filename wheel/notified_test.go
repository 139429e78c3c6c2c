package wheel_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// notices counts the calls of entries that learn that the wheel was stopped.
type notices struct{ due, stopped counter }

func (n *notices) called(t testing.TB) func(stopped error) {
	return func(stopped error) {
		if stopped == nil {
			n.due.inc()
			return
		}
		require.Equal(t, wheel.ErrStopped, stopped)
		n.stopped.inc()
	}
}

// Guarantees: W21.
func TestStop_NotifiesTheEntriesOfOtherPackages(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		var n notices
		for k := range 300 {
			_, err := wheelentry.AfterFunc(w, time.Duration(k)*time.Second, n.called(t))
			require.NoError(t, err)
		}
		ended, err := wheelentry.AfterFunc(w, time.Hour, n.called(t))
		require.NoError(t, err)
		require.True(t, ended.Stop())
		mine := after(t, w, time.Hour, func() {})
		pass(99*time.Second + time.Millisecond)
		require.EqualValues(t, 100, n.due.Load())
		start := time.Now()
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Zero(t, time.Since(start))
		require.EqualValues(t, 200, n.stopped.Load(), "all have been called when Stop returns")
		require.Len(t, rest, 1, "they are not returned")
		require.False(t, mine.Pending())
		_, err = wheelentry.AfterFunc(w, time.Second, n.called(t))
		require.ErrorIs(t, err, wheel.ErrStopped)
		pass(time.Hour)
		require.EqualValues(t, 100, n.due.Load())
		require.EqualValues(t, 200, n.stopped.Load())
	})
}

// Callbacks of the executor may wait for what the entries end.
// Guarantees: W21.
func TestStop_NotifiesAlthoughTheExecutorIsBlocked(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		notified := make(chan struct{})
		for range 10 {
			after(t, w, time.Second, func() { <-notified })
		}
		var n notices
		for k := range 300 {
			_, err := wheelentry.AfterFunc(w, time.Hour, func(stopped error) {
				n.called(t)(stopped)
				if k == 299 {
					close(notified)
				}
			})
			require.NoError(t, err)
		}
		pass(2 * time.Second)
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.EqualValues(t, 300, n.stopped.Load())
	})
}

// Guarantees: W21.
func TestStop_NotifiesTheOthersWhenOneBlocks(t *testing.T) {
	t.Parallel()
	for name, e := range executors() {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWheel(t, wheel.WithExecutor(e))
				release := make(chan struct{})
				var n notices
				for range 300 {
					_, err := wheelentry.AfterFunc(w, time.Hour, func(stopped error) { n.called(t)(stopped); <-release })
					require.NoError(t, err)
				}
				within, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_, err := w.Stop(within)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.EqualValues(t, 300, n.stopped.Load())
				close(release)
			})
		})
	}
}

// While the caller's executor and a notice block, Stop still ends with its context.
func TestStop_EndsWithItsContextWhenEverythingBlocks(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		release := make(chan struct{})
		for range 10 {
			after(t, w, time.Second, func() { <-release })
			_, err := wheelentry.AfterFunc(w, time.Hour, func(error) { <-release })
			require.NoError(t, err)
		}
		pass(2 * time.Second)
		within, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := w.Stop(within)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		close(release)
	})
}

// An executor may accept tasks and drop them.
// Guarantees: W21.
func TestStop_NotifiesEntriesWhoseTasksWereDropped(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithExecutor(wheel.ExecutorFunc(func(func()) {})))
		var n notices
		_, err := wheelentry.AfterFunc(w, time.Second, n.called(t))
		require.NoError(t, err)
		pass(time.Minute)
		require.Zero(t, n.due.Load())
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
		require.EqualValues(t, 1, n.stopped.Load())
	})
}

func TestStop_NotifiesWhenItsContextHasEnded(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		release := make(chan struct{})
		after(t, w, time.Second, func() { <-release })
		var n notices
		_, err := wheelentry.AfterFunc(w, time.Hour, n.called(t))
		require.NoError(t, err)
		pass(2 * time.Second)
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = w.Stop(ended)
		require.ErrorIs(t, err, context.Canceled)
		pass(0)
		require.EqualValues(t, 1, n.stopped.Load())
		close(release)
	})
}

func TestStop_IsRefusedInANotice(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		var refused error
		_, err := wheelentry.AfterFunc(w, time.Hour, func(error) { _, refused = w.Stop(context.Background()) })
		require.NoError(t, err)
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
		require.ErrorIs(t, refused, wheel.ErrStopFromTask)
	})
}

func TestStop_ReportsThePanicOfANotice(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		var panics counter
		w := newWheel(t, wheel.WithExecutor(e), wheel.WithPanicHandler(func(any, []byte) { panics.inc() }))
		for range 100 {
			_, err := wheelentry.AfterFunc(w, time.Hour, func(error) { panic("of a notice") })
			require.NoError(t, err)
		}
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.EqualValues(t, 100, panics.Load())
	})
}

// Entries of the library and contexts have room, and make none when they end.
// Guarantees: W23.
func TestWheel_MaxPendingCountsTheUsersTimers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t, wheel.WithMaxPendingTimeouts(2))
		var n notices
		of := func(d time.Duration) wheel.Timer {
			timer, err := wheelentry.AfterFunc(w, d, n.called(t))
			require.NoError(t, err)
			return timer
		}
		newContext := func(d time.Duration) context.CancelFunc {
			_, cancel := w.WithTimeout(context.Background(), d)
			return cancel
		}
		refused := func() {
			_, err := w.AfterFunc(time.Hour, func() {})
			require.ErrorIs(t, err, wheel.ErrTooManyPending)
			_, err = w.NewTimeout(&task{}, time.Hour)
			require.ErrorIs(t, err, wheel.ErrTooManyPending)
			_, err = w.Every(time.Hour, func() {})
			require.ErrorIs(t, err, wheel.ErrTooManyPending)
			require.ErrorIs(t, w.Sleep(t.Context(), time.Hour), wheel.ErrTooManyPending)
		}
		for range 3 {
			of(time.Second)
			defer newContext(time.Second)()
		}
		stopped, cancel := of(time.Hour), newContext(time.Hour)
		mine := after(t, w, time.Hour, func() {})
		after(t, w, time.Hour, func() {})
		refused()
		of(2 * time.Second)
		defer newContext(2 * time.Second)()
		require.Equal(t, 12, w.Len(), "all are on the wheel")
		require.Equal(t, 12, w.Stats().Pending)
		require.True(t, stopped.Stop())
		cancel()
		refused()
		pass(time.Second + time.Millisecond)
		require.EqualValues(t, 3, n.due.Load())
		refused()
		require.True(t, mine.Stop())
		after(t, w, time.Hour, func() {})
		refused()
		require.EqualValues(t, 2, w.Reserved())
		_, err := w.Stop(t.Context())
		require.NoError(t, err)
		require.Zero(t, w.Reserved())
		require.EqualValues(t, 1, n.stopped.Load())
	})
}

// Entries that are scheduled while the wheel stops are refused or called.
// Guarantees: W21.
func TestRace_NoticesAgainstTheWheelsStop(t *testing.T) {
	t.Parallel()
	for name, e := range executors() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 10 {
				w := newWheel(t, wheel.WithExecutor(e))
				var n notices
				var accepted counter
				begun := make(chan struct{}, 4)
				var scheduling sync.WaitGroup
				for range cap(begun) {
					scheduling.Go(func() {
						for k := range 300 {
							if k == 10 {
								begun <- struct{}{}
							}
							if _, err := wheelentry.AfterFunc(w, time.Duration(k%3)*time.Millisecond, n.called(t)); err != nil {
								return
							}
							accepted.inc()
						}
					})
				}
				for range cap(begun) {
					<-begun
				}
				rest, err := w.Stop(context.Background())
				require.NoError(t, err)
				require.Empty(t, rest)
				scheduling.Wait()
				require.Equal(t, accepted.Load(), n.due.Load()+n.stopped.Load())
			}
		})
	}
}

// A callback may wait for a context whose deadline is on the same wheel.
// Guarantees: W21.
func TestWithTimeout_KeepsItsDeadlineWhileTheWheelStops(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		ctx, cancel := w.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		after(t, w, time.Second, func() { <-ctx.Done() })
		pass(2 * time.Second)
		within, release := context.WithTimeout(context.Background(), time.Minute)
		defer release()
		start := time.Now()
		rest, err := w.Stop(within)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
	})
}
