package cogwheeltest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// A queue does on the embedded server what it does on a real one. Half an hour takes milliseconds.
func TestDelays(t *testing.T) {
	t.Parallel()
	inBubbles(t, map[string]func(*testing.T, *world){
		"an order closes after half an hour":             orderCloses,
		"an order that was paid does not close":          orderIsPaid,
		"an order closes earlier than another":           orderIsRescheduled,
		"a debounce ends after its longest wait":         debounceEnds,
		"a task runs again when its process crashes":     taskOfACrash,
		"a lost lease is no failure":                     taskOfALostLease,
		"a task runs again after its backoff, and fails": taskFails,
		"lost replies make no second attempt":            taskOfLostReplies,
		"a late copy of a call claims no task":           lateCopyOfAClaim,
		"tasks are overdue behind handlers that hang":    tasksBehindHandlersThatHang,
		"a task that another process runs is in time":    taskOfAnotherProcess,
		"a paused queue runs when it is resumed":         pausedQueue,
	})
}

// attempt is an attempt that a handler has seen.
type attempt struct {
	delay.Task
	at time.Duration // since the queue was served
}

// serve serves the queue "orders" in a process. The returned function ends that, and must be called.
func serve(
	t *testing.T, w *world, process int, handle func(context.Context, *delay.Task) error, opts ...delay.QueueOption,
) (attempts chan attempt, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	attempts = make(chan attempt, 100)
	began := time.Now()
	done := calling(func() error {
		return w.delays[process].Queue("orders", opts...).Serve(ctx, 2, func(ctx context.Context, task *delay.Task) error {
			attempts <- attempt{*task, time.Since(began)}
			return handle(ctx, task)
		})
	})
	return attempts, func() {
		cancel()
		require.NoError(t, <-done)
	}
}

func succeed(context.Context, *delay.Task) error { return nil }

// requireAt checks the time of an attempt: it is never early, and prompt.
func requireAt(t *testing.T, want time.Duration, a attempt) {
	t.Helper()
	require.GreaterOrEqual(t, a.at, want)
	require.Less(t, a.at, want+10*time.Millisecond)
}

func requireNoMore(t *testing.T, attempts chan attempt) {
	t.Helper()
	time.Sleep(10 * time.Minute) // longer than leases and backoffs
	require.Empty(t, attempts)
}

// Guarantees: D1.
func orderCloses(t *testing.T, w *world) {
	attempts, end := serve(t, w, 1, succeed)
	defer end()
	require.NoError(t, w.delays[0].Queue("orders").Schedule(w.ctx, "order-7", 30*time.Minute, []byte("17 euros")))
	a := <-attempts
	requireAt(t, 30*time.Minute, a)
	require.Equal(t, "order-7", a.ID)
	require.Equal(t, "17 euros", string(a.Payload))
	requireNoMore(t, attempts)
}

// Guarantees: D5.
func orderIsPaid(t *testing.T, w *world) {
	attempts, end := serve(t, w, 1, succeed)
	defer end()
	orders := w.delays[0].Queue("orders")
	require.NoError(t, orders.Schedule(w.ctx, "order-7", 30*time.Minute, nil))
	time.Sleep(29 * time.Minute)
	cancelled, err := orders.Cancel(w.ctx, "order-7")
	require.NoError(t, err)
	require.True(t, cancelled)
	requireNoMore(t, attempts)
}

// The process that serves sleeps until the first order is due; a message wakes it.
func orderIsRescheduled(t *testing.T, w *world) {
	attempts, end := serve(t, w, 1, succeed, delay.WithLease(time.Minute))
	defer end()
	orders := w.delays[0].Queue("orders")
	require.NoError(t, orders.Schedule(w.ctx, "order-7", 30*time.Minute, nil))
	require.NoError(t, orders.Schedule(w.ctx, "order-8", 20*time.Minute, nil))
	time.Sleep(time.Second)
	moved, err := orders.Reschedule(w.ctx, "order-7", 2*time.Second)
	require.NoError(t, err)
	require.True(t, moved)
	first, second := <-attempts, <-attempts
	require.Equal(t, "order-7", first.ID)
	requireAt(t, 3*time.Second, first)
	require.Equal(t, "order-8", second.ID)
	requireAt(t, 20*time.Minute, second)
}

// A message of Resume wakes the process that serves, which otherwise asks at its next poll.
// Guarantees: D25.
func pausedQueue(t *testing.T, w *world) {
	attempts, end := serve(t, w, 1, succeed)
	defer end()
	orders := w.delays[0].Queue("orders")
	paused, err := orders.Pause(w.ctx)
	require.NoError(t, err)
	require.True(t, paused)
	require.NoError(t, orders.Schedule(w.ctx, "order-7", time.Minute, nil))
	requireNoMore(t, attempts)
	require.Equal(t, 1, w.delays[1].Stats().Paused)
	require.Greater(t, w.delays[1].Stats().Overdue, 8*time.Minute)
	resumed, err := orders.Resume(w.ctx)
	require.NoError(t, err)
	require.True(t, resumed)
	requireAt(t, 10*time.Minute, <-attempts)
}

// Guarantees: D14.
func debounceEnds(t *testing.T, w *world) {
	attempts, end := serve(t, w, 1, succeed)
	defer end()
	orders, bound := w.delays[0].Queue("orders"), delay.WithMaxWait(10*time.Second)
	require.NoError(t, orders.Schedule(w.ctx, "order-7", 4*time.Second, nil, bound))
	for range 3 {
		time.Sleep(3 * time.Second)
		moved, err := orders.Reschedule(w.ctx, "order-7", 4*time.Second, bound)
		require.NoError(t, err)
		require.True(t, moved)
	}
	requireAt(t, 10*time.Second, <-attempts)
	requireNoMore(t, attempts)
}

// Guarantees: D9, D11.
func taskOfACrash(t *testing.T, w *world) {
	lost := make(chan error, 1)
	_, endFirst := serve(t, w, 1, func(ctx context.Context, _ *delay.Task) error {
		w.Isolate(w.other)
		<-ctx.Done() // before another process can run the task
		lost <- context.Cause(ctx)
		return ctx.Err()
	})
	require.NoError(t, w.delays[0].Queue("orders").Schedule(w.ctx, "order-7", time.Minute, nil))
	time.Sleep(time.Minute + time.Second)
	attempts, end := serve(t, w, 0, succeed)
	defer end()
	a := <-attempts
	require.Len(t, lost, 1, "its context had ended before")
	require.ErrorIs(t, <-lost, delay.ErrLost)
	require.Equal(t, 1, a.Losses)
	require.Zero(t, a.Failures)
	require.Less(t, a.at, delay.DefaultLease+time.Second+200*time.Millisecond) // with a pause
	w.Rejoin(w.other)
	endFirst()
	requireNoMore(t, attempts)
}

// The handler returns the error of its context while its lease has a moment left in Redis.
func taskOfALostLease(t *testing.T, w *world) {
	attempts, end := serve(t, w, 1, func(ctx context.Context, task *delay.Task) error {
		if task.Losses > 0 {
			return nil
		}
		w.Isolate(w.other)
		<-ctx.Done()
		w.Rejoin(w.other)
		return ctx.Err()
	}, delay.WithRetry(1, delay.Backoff(time.Minute, time.Hour)))
	defer end()
	require.NoError(t, w.delays[0].Queue("orders").Schedule(w.ctx, "order-7", time.Minute, nil))
	time.Sleep(10 * time.Minute)
	require.Len(t, attempts, 2)
	<-attempts
	a := <-attempts
	require.Equal(t, []int{0, 1}, []int{a.Failures, a.Losses})
	// It connects again meanwhile, and a renewal that was in flight may prolong the lost lease once.
	require.Less(t, a.at, time.Minute+2*delay.DefaultLease+delay.DefaultPoll+time.Second)
}

// Guarantees: D13.
func taskFails(t *testing.T, w *world) {
	failed := errors.New("no stock")
	attempts, end := serve(t, w, 0, func(context.Context, *delay.Task) error { return failed },
		delay.WithRetry(3, delay.Backoff(time.Minute, time.Hour)))
	defer end()
	orders := w.delays[0].Queue("orders")
	require.NoError(t, orders.Schedule(w.ctx, "order-7", time.Hour, nil))
	token := int64(0)
	at := time.Hour
	for failures := range 3 {
		a := <-attempts
		require.Equal(t, failures, a.Failures)
		require.GreaterOrEqual(t, a.at, at)
		require.Greater(t, a.Token, token)
		token, at = a.Token, a.at+time.Minute<<failures
	}
	requireNoMore(t, attempts)
	require.EqualValues(t, 2, w.delays[0].Stats().Retried)
	require.EqualValues(t, 1, w.delays[0].Stats().Exhausted)
}

// Guarantees: D3.
func taskOfLostReplies(t *testing.T, w *world) {
	orders := w.delays[0].Queue("orders")
	w.DropReplies(1) // of Schedule
	require.NoError(t, orders.Schedule(w.ctx, "order-7", time.Minute, nil))
	require.Zero(t, w.PendingFaults())
	attempts, end := serve(t, w, 1, succeed)
	defer end()
	synctest.Wait()
	time.Sleep(time.Minute - 20*time.Millisecond)
	w.DropReplies(1) // of the claim
	a := <-attempts
	require.Less(t, a.at, time.Minute+time.Second)
	require.Zero(t, a.Losses)
	require.Zero(t, w.PendingFaults())
	requireNoMore(t, attempts)
}

// The second call finds the record of one that claimed nothing, and its own record tells the copy of the first one apart.
func lateCopyOfAClaim(t *testing.T, w *world) {
	var keys []string
	for _, part := range []string{"due", "tasks", "attempts", "running", "later", "failed", "claims:1", "token", "waiting", "paused"} {
		keys = append(keys, scripts.DelayKey("orders", part))
	}
	claim := func(number int) []any {
		lease, day := time.Minute.Microseconds(), (24 * time.Hour).Milliseconds()
		args := []any{number, day, lease, 8, 5_000, 3, 100, 1000 * day, day, "PUBLISH", scripts.DelayChannel("orders"), 8, 2, "", "", 0, ""}
		reply, err := scripts.DelayWork.Run(w.ctx, w.other, keys, args...).Slice()
		require.NoError(t, err)
		return reply[9:]
	}
	require.Empty(t, claim(1))
	require.Empty(t, claim(2))
	require.NoError(t, w.delays[0].Queue("orders").Schedule(w.ctx, "order-7", 0, nil))
	require.Empty(t, claim(1), "a copy")
	require.Len(t, claim(3), 3)
}

// hanging returns a handler that hangs until it is released.
func hanging() (handle func(context.Context, *delay.Task) error, release func()) {
	hang := make(chan struct{})
	return func(context.Context, *delay.Task) error {
		<-hang
		return nil
	}, sync.OnceFunc(func() { close(hang) })
}

// counted is a hook that counts the claims of a process.
type counted struct{ claims atomic.Int64 }

func (*counted) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*counted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *counted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && args[1] == scripts.DelayWork.SHA() {
			c.claims.Add(1)
		}
		return next(ctx, cmd)
	}
}

// No worker is free, so no claim follows by itself.
func tasksBehindHandlersThatHang(t *testing.T, w *world) {
	calls := &counted{}
	w.other.AddHook(calls)
	handle, release := hanging()
	attempts, end := serve(t, w, 1, handle)
	defer end()
	defer release()
	orders, stats := w.delays[0].Queue("orders"), w.delays[1].Stats
	for i := range 2 {
		require.NoError(t, orders.Schedule(w.ctx, fmt.Sprint("hangs-", i), 0, nil))
		<-attempts
	}
	time.Sleep(time.Minute)
	require.Zero(t, stats().Overdue, "no task waits")
	began, claims := time.Now(), calls.claims.Load()
	require.Positive(t, claims)
	for i := range 18 {
		require.NoError(t, orders.Schedule(w.ctx, fmt.Sprint("waits-", i), time.Duration(i)*time.Second, nil))
	}
	time.Sleep(5*time.Second + 100*time.Millisecond)
	for range 100 { // it is known, and grows
		require.InDelta(t, time.Since(began), stats().Overdue, float64(10*time.Millisecond))
		time.Sleep(4801 * time.Millisecond)
	}
	require.LessOrEqual(t, calls.claims.Load()-claims, int64(time.Since(began)/(5*time.Second))+1, "messages cost no calls")
	release()
	time.Sleep(time.Second)
	require.Zero(t, stats().Overdue)
	require.Zero(t, w.delays[0].Stats().Overdue, "it does not serve the queue")
	require.EqualValues(t, 20, stats().Done)
}

func taskOfAnotherProcess(t *testing.T, w *world) {
	handle, release := hanging()
	attempts, end := serve(t, w, 1, handle)
	defer end()
	defer release()
	orders := w.delays[0].Queue("orders")
	for i := range 3 {
		require.NoError(t, orders.Schedule(w.ctx, fmt.Sprint("order-", i), 0, nil))
	}
	<-attempts
	<-attempts
	time.Sleep(time.Minute)
	require.InDelta(t, time.Minute, w.delays[1].Stats().Overdue, float64(10*time.Millisecond))
	others, endOther := serve(t, w, 0, succeed)
	defer endOther()
	<-others
	time.Sleep(5*time.Second + 100*time.Millisecond)
	require.Zero(t, w.delays[1].Stats().Overdue+w.delays[0].Stats().Overdue)
}
