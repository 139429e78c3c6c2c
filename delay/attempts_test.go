package delay_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// The timer of a task may fire just when Serve ends: it begins no task after the last worker has left.
func TestServe_NoTaskBeginsAfterTheEnd(t *testing.T) {
	t.Parallel()
	q := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t))
	ends, err := q.StopThenBegin(func(context.Context, *delay.Task) error {
		t.Error("it has begun")
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []delay.Outcome{delay.OutcomeHandedBack}, ends)
}

// A handler may change its Task.
func TestServe_TheTaskOfAHandlerIsItsOwn(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	q := newClient(t, rdb).Queue(name)
	begun := make(chan struct{}, 10)
	serve(t, q, 1, func(_ context.Context, task *delay.Task) error {
		*task = delay.Task{ID: "changed", Token: 1}
		begun <- struct{}{}
		return nil
	})
	require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
	<-begun
	redistest.Poll(t, func() bool { return rdb.ZCard(t.Context(), "{"+name+"}:delay:running").Val() == 0 })
}

// The handler of a task whose lease is lost returns the error of its context. That is no failure: no process has
// refused the task.
func TestServe_ALostLeaseIsNoFailure(t *testing.T) {
	t.Parallel()
	d := &redistest.FaultDialer{}
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = d.Dial, 500*time.Millisecond })
	ended := make(chan delay.Outcome, 10)
	c := newClient(t, rdb, delay.WithHooks(delay.Hooks{Ended: func(e delay.Event) { ended <- e.Outcome }}))
	q := c.Queue(redistest.Name(t), delay.WithLease(time.Second), delay.WithRetry(1, delay.Backoff(time.Hour, time.Hour)))
	begun := make(chan *delay.Task, 10)
	serve(t, q, 1, func(ctx context.Context, task *delay.Task) error {
		begun <- task
		if task.Losses > 0 {
			return nil
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
	<-begun
	d.Set(redistest.BlackholeUp)
	require.Equal(t, delay.OutcomeLost, <-ended)
	d.Set(redistest.Pass)
	select {
	case again := <-begun:
		require.Equal(t, []int{0, 1}, []int{again.Failures, again.Losses})
	case <-time.After(redistest.Patience):
		s, err := q.State(t.Context(), "a")
		require.FailNow(t, "it does not run again", "%+v %v", s, err)
	}
}

// A task that waits for a worker does not begin after its lease is lost, for it may run in another process. The worker
// goes on, also if a hook ends its goroutine.
// Guarantees: A3.
func TestServe_ATaskWhoseLeaseIsLostDoesNotBegin(t *testing.T) {
	t.Parallel()
	hooks := delay.Hooks{Ended: func(delay.Event) { runtime.Goexit() }}
	c := newClient(t, redistest.Shared(t).Client(t), delay.WithHooks(hooks))
	ends, err := c.Queue(redistest.Name(t)).BeginLost(func(context.Context, *delay.Task) error {
		t.Error("it has begun")
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, ends, "Redis counts the end of its lease")
	require.EqualValues(t, 1, c.Stats().Lost)
}

// Ends for which a call has no room are recorded by the next one, not when the leases end.
func TestServe_MoreEndsThanACallHasRoomFor(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		tasks   int
		payload []byte
	}{"many": {1200, nil}, "long": {12, make([]byte, delay.MaxPayload)}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
			q := newClient(t, rdb, delay.WithPoll(time.Hour)).Queue(name, delay.WithLease(time.Hour))
			var begun sync.WaitGroup
			begun.Add(c.tasks)
			end := make(chan struct{})
			serve(t, q, c.tasks, func(context.Context, *delay.Task) error {
				begun.Done()
				<-end
				return nil
			})
			for i := range c.tasks {
				require.NoError(t, q.Schedule(t.Context(), strconv.Itoa(i), 0, c.payload))
			}
			begun.Wait()
			close(end)
			redistest.Poll(t, func() bool { return rdb.ZCard(t.Context(), "{"+name+"}:delay:running").Val() == 0 })
		})
	}
}

// A worker that has nothing to record does not forget when the next task is due.
func TestServe_ATaskIsDueWhileAnotherRuns(t *testing.T) {
	t.Parallel()
	q := newClient(t, redistest.Shared(t).Client(t), delay.WithPoll(time.Hour)).Queue(redistest.Name(t))
	begun, end := make(chan string, 10), make(chan struct{})
	stop := serve(t, q, 3, func(_ context.Context, task *delay.Task) error {
		if begun <- task.ID; task.ID == "long" {
			<-end
		}
		return nil
	})
	require.NoError(t, q.Schedule(t.Context(), "later", time.Second, nil))
	require.NoError(t, q.Schedule(t.Context(), "short", 0, nil))
	require.Equal(t, "short", <-begun)
	require.NoError(t, q.Schedule(t.Context(), "long", 0, nil)) // the claim of this one records the end of the other
	require.Equal(t, "long", <-begun)
	select {
	case id := <-begun:
		require.Equal(t, "later", id)
	case <-time.After(redistest.Patience):
		t.Error("it has not begun")
	}
	close(end)
	stop()
}

// Tasks that have failed were scheduled before. Their retry and their end count as neither.
func TestStats_CountScheduledAndCancelledTasks(t *testing.T) {
	t.Parallel()
	ended := make(chan delay.Event, 10)
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	c := newClient(t, rdb, delay.WithHooks(delay.Hooks{Ended: func(e delay.Event) { ended <- e }}))
	q, ctx := c.Queue(name, delay.WithRetry(1, delay.Backoff(time.Second, time.Second))), t.Context()
	serve(t, q, 1, func(context.Context, *delay.Task) error { return errors.New("no") })
	isFailed := func() bool {
		s, err := q.State(ctx, "a")
		return err == nil && s.Phase == delay.PhaseFailed
	}
	require.NoError(t, q.Schedule(ctx, "a", 0, nil))
	require.Equal(t, delay.OutcomeExhausted, (<-ended).Outcome)
	redistest.Poll(t, isFailed)
	retried, err := q.RetryFailed(ctx, "a")
	require.True(t, retried && err == nil)
	require.Equal(t, delay.OutcomeExhausted, (<-ended).Outcome)
	redistest.Poll(t, isFailed)
	deleted, err := q.DeleteFailed(ctx, "a")
	require.True(t, deleted && err == nil)
	require.NoError(t, q.Schedule(ctx, "b", time.Hour, nil))
	moved, err := q.Reschedule(ctx, "b", time.Hour)
	require.True(t, moved && err == nil)
	cancelled, err := q.Cancel(ctx, "b")
	require.True(t, cancelled && err == nil)
	s := c.Stats()
	require.Equal(t, []int64{3, 1, 2}, []int64{s.Scheduled, s.Cancelled, s.Exhausted})
}

// A process whose wheel has stopped cannot keep the lease of a task. It does not claim tasks again and again.
func TestServe_EndsIfTheWheelStopsDuringAClaim(t *testing.T) {
	t.Parallel()
	w, err := wheel.New()
	require.NoError(t, err)
	q := newClient(t, redistest.Shared(t).Client(t), delay.WithWheel(w)).Queue(redistest.Name(t))
	_, err = w.Stop(t.Context())
	require.NoError(t, err)
	ends, err := q.AddOne()
	require.ErrorIs(t, err, wheel.ErrStopped)
	require.Equal(t, []delay.Outcome{delay.OutcomeHandedBack}, ends)
}

// The timer that records ends may fire when a call has taken them along, just before a message of an earlier task.
func TestServe_ARecordOfNoEndsLeavesTheMessageOfATask(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1, newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t)).NextAfterRecording())
}

func TestServe_AHugeBackoffIsTheLongestDelay(t *testing.T) {
	t.Parallel()
	for name, backoff := range map[string]func(int, error) time.Duration{
		"doubled": delay.Backoff(math.MaxInt64/2+1, math.MaxInt64),
		"longest": delay.Backoff(math.MaxInt64, math.MaxInt64),
		"late":    func(int, error) time.Duration { return math.MaxInt64 - 1000 },
		"at once": func(int, error) time.Duration { return math.MinInt64 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan delay.Event, 10)
			c := newClient(t, redistest.Shared(t).Client(t), delay.WithHooks(delay.Hooks{Ended: func(e delay.Event) { ended <- e }}))
			q := c.Queue(redistest.Name(t), delay.WithRetry(3, backoff))
			stop := serve(t, q, 1, func(context.Context, *delay.Task) error { return errors.New("no") })
			require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
			require.Equal(t, delay.OutcomeRetried, (<-ended).Outcome)
			if name == "at once" {
				require.Equal(t, delay.OutcomeRetried, (<-ended).Outcome)
				require.Equal(t, delay.OutcomeExhausted, (<-ended).Outcome)
				return
			}
			stop()
			s, err := q.State(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, 1, s.Failures)
			require.Equal(t, delay.PhasePending, s.Phase)
			require.InDelta(t, delay.MaxDelay, s.In, float64(time.Hour))
		})
	}
}
