package delay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// A handler that knows that no further attempt can help fails the task for good, also after a panic of an earlier one.
// Guarantees: D13.
func TestQueue_AHandlerFailsATaskForGood(t *testing.T) {
	t.Parallel()
	unknown, ended := errors.New("unknown order"), make(chan delay.Event, 10)
	c := newClient(t, redistest.Shared(t).Client(t), delay.WithHooks(delay.Hooks{Ended: func(e delay.Event) { ended <- e }}))
	q, ctx := c.Queue(redistest.Name(t), delay.WithRetry(9, delay.Backoff(time.Millisecond, time.Second))), t.Context()
	serve(t, q, 1, func(_ context.Context, task *delay.Task) error {
		if task.Failures == 0 {
			panic("the first attempt")
		}
		return fmt.Errorf("close: %w", delay.Fail(unknown))
	})
	require.NoError(t, q.Schedule(ctx, "a", 0, []byte("p")))
	require.Equal(t, delay.OutcomeRetried, (<-ended).Outcome)
	e := <-ended
	require.Equal(t, delay.OutcomeExhausted, e.Outcome)
	require.ErrorIs(t, e.Err, unknown)
	var s delay.State
	redistest.Poll(t, func() (failed bool) {
		var err error
		s, err = q.State(ctx, "a")
		return err == nil && s.Phase == delay.PhaseFailed
	})
	require.Equal(t, "close: unknown order", s.Error)
	require.Equal(t, []int{2, 0}, []int{s.Failures, s.Losses})
	require.Equal(t, "p", string(s.Payload))
	for listed, err := range q.FailedTasks(ctx) {
		require.NoError(t, err)
		require.Equal(t, s.Error, listed.Error)
	}
	require.EqualValues(t, 1, c.Stats().Exhausted)
	require.NoError(t, q.Schedule(ctx, "a", time.Hour, nil))
	s, err := q.State(ctx, "a")
	require.NoError(t, err)
	require.Empty(t, s.Error, "another task has its place")
	require.NoError(t, delay.Fail(nil))
}

// The error of a task that has failed is cut at a character, and may hold any bytes.
func TestQueue_KeepsTheErrorOfTheLastAttempt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a: b!\x00\nc":                 "a: b!\x00\nc",
		"":                             "",
		strings.Repeat("é", 300):       strings.Repeat("é", 256),
		"a" + strings.Repeat("é", 300): "a" + strings.Repeat("é", 255),
	} {
		q := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t), delay.WithRetry(1, delay.Backoff(0, 0)))
		stop := serve(t, q, 1, func(context.Context, *delay.Task) error { return errors.New(text) })
		require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
		redistest.Poll(t, func() bool {
			s, err := q.State(t.Context(), "a")
			return err == nil && s.Phase == delay.PhaseFailed && s.Error == want
		})
		stop()
	}
}

// A handler says so although its lease is lost, or Serve ends.
func TestQueue_AHandlerFailsATaskForGoodAtTheEndOfServe(t *testing.T) {
	t.Parallel()
	q, begun := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t)), make(chan struct{})
	stop := serve(t, q, 1, func(ctx context.Context, _ *delay.Task) error {
		close(begun)
		<-ctx.Done()
		return delay.Fail(errors.New("no"))
	})
	require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
	<-begun
	stop()
	s, err := q.State(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, delay.PhaseFailed, s.Phase)
}

// The verdict of a handler counts after the end of its lease, as its success does, unless another attempt has begun.
// Guarantees: D13.
func TestLosses_ALateFailureForGoodCountsWhileItsTokenIsTheLast(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	a := p.claim(1)
	p.loseLease("a")
	p.work(2, 0)
	require.Equal(t, "pending", p.phase("a"))
	recorded, _ := p.work(3, 0, "failed", "a", a.token, "no")
	require.EqualValues(t, 1, recorded)
	require.Equal(t, "failed", p.phase("a"))
	require.Equal(t, []int64{1}, p.edit(2, request("retry", "a")...))
	require.Equal(t, "::p", p.claim(4).text)
	recorded, _ = p.work(5, 0, "failed", "a", a.token, "no")
	require.Zero(t, recorded)
}

// A backoff may follow what the server that refused the call has said.
func TestWithRetry_TheBackoffGetsTheError(t *testing.T) {
	t.Parallel()
	ended := make(chan delay.Event, 10)
	c := newClient(t, redistest.Shared(t).Client(t), delay.WithHooks(delay.Hooks{Ended: func(e delay.Event) { ended <- e }}))
	busy := errors.New("busy for an hour")
	q := c.Queue(redistest.Name(t), delay.WithRetry(9, func(failures int, err error) time.Duration {
		if errors.Is(err, busy) {
			return time.Duration(failures) * time.Hour
		}
		if !strings.Contains(err.Error(), "a fault") {
			t.Errorf("error %v of a panic", err)
		}
		return 0
	}))
	serve(t, q, 1, func(_ context.Context, task *delay.Task) error {
		if task.Failures == 0 {
			panic("a fault")
		}
		return fmt.Errorf("call: %w", busy)
	})
	require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
	require.Equal(t, delay.OutcomeRetried, (<-ended).Outcome)
	require.ErrorIs(t, (<-ended).Err, busy)
	redistest.Poll(t, func() bool {
		s, err := q.State(t.Context(), "a")
		return err == nil && s.Failures == 2 && s.In > 2*time.Hour-time.Minute
	})
}

// The attempts of a task are its own, whatever becomes of it: it waits for another of its id, moves, fails and is retried.
// Guarantees: D13.
func TestWithAttempts_CountsForOneTask(t *testing.T) {
	t.Parallel()
	ended := make(chan delay.Event, 10)
	c := newClient(t, redistest.Shared(t).Client(t), delay.WithHooks(delay.Hooks{
		Headers: func(context.Context) string { return "12/3:trace" },
		Ended:   func(e delay.Event) { ended <- e },
	}))
	q, ctx := c.Queue(redistest.Name(t), delay.WithRetry(2, delay.Backoff(0, 0))), t.Context()
	begun, end := make(chan string, 10), make(chan struct{}, 10)
	serve(t, q, 1, func(_ context.Context, task *delay.Task) error {
		begun <- string(task.Payload)
		<-end
		return errors.New("no")
	})
	expect := func(payload string, outcomes ...delay.Outcome) {
		t.Helper()
		for _, outcome := range outcomes {
			require.Equal(t, payload, <-begun)
			end <- struct{}{}
			e := <-ended
			require.Equal(t, outcome, e.Outcome)
			require.Equal(t, "12/3:trace", e.Headers)
		}
	}
	require.NoError(t, q.Schedule(ctx, "a", 0, []byte("1:p"), delay.WithAttempts(1)))
	expect("1:p", delay.OutcomeExhausted)
	var s delay.State
	redistest.Poll(t, func() bool {
		var err error
		s, err = q.State(ctx, "a")
		return err == nil && s.Phase == delay.PhaseFailed
	})
	require.Equal(t, 1, s.Attempts)
	retried, err := q.RetryFailed(ctx, "a")
	require.True(t, retried && err == nil)
	require.Equal(t, "1:p", <-begun)
	require.NoError(t, q.Schedule(ctx, "a", time.Hour, []byte("p"), delay.WithAttempts(3), delay.WithMaxWait(2*time.Hour)))
	end <- struct{}{}
	require.Equal(t, delay.OutcomeExhausted, (<-ended).Outcome)
	redistest.Poll(t, func() bool {
		moved, err := q.Reschedule(ctx, "a", 0)
		require.NoError(t, err)
		return moved
	})
	expect("p", delay.OutcomeRetried, delay.OutcomeRetried, delay.OutcomeExhausted)
	require.NoError(t, q.Schedule(ctx, "a", 0, nil, delay.WithAttempts(0)))
	expect("", delay.OutcomeRetried, delay.OutcomeExhausted)
	s, err = q.State(ctx, "a")
	require.NoError(t, err)
	require.Zero(t, s.Attempts)
}

// A handler that is too early schedules its own id. What it schedules has no failures, and takes the place of a further
// attempt, whatever the handler returns.
// Guarantees: D7.
func TestQueue_AHandlerSnoozesItsTask(t *testing.T) {
	t.Parallel()
	ended := make(chan delay.Event, 10)
	c := newClient(t, redistest.Shared(t).Client(t), delay.WithHooks(delay.Hooks{Ended: func(e delay.Event) { ended <- e }}))
	q, ctx := c.Queue(redistest.Name(t), delay.WithRetry(2, delay.Backoff(0, 0))), t.Context()
	attempt := 0
	stop := serve(t, q, 1, func(ctx context.Context, task *delay.Task) error {
		attempt++
		if want := map[int]int{2: 1}[attempt]; task.Failures != want || string(task.Payload) != "p" {
			t.Errorf("attempt %d: %d failures, payload %q", attempt, task.Failures, task.Payload)
		}
		switch attempt {
		case 1:
			return errors.New("the first failure of two")
		case 2:
			return q.Schedule(ctx, task.ID, 0, task.Payload)
		case 3:
			return errors.Join(q.Schedule(ctx, task.ID, 0, task.Payload), errors.New("no"))
		default:
			return q.Schedule(ctx, task.ID, time.Hour, task.Payload)
		}
	})
	require.NoError(t, q.Schedule(ctx, "a", 0, []byte("p")))
	for _, outcome := range []delay.Outcome{delay.OutcomeRetried, delay.OutcomeDone, delay.OutcomeRetried, delay.OutcomeDone} {
		require.Equal(t, outcome, (<-ended).Outcome)
	}
	stop()
	s, err := q.State(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, delay.PhasePending, s.Phase)
	require.InDelta(t, time.Hour, s.In, float64(time.Minute))
	require.Zero(t, s.Failures)
}
