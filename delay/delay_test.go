package delay_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// serve runs the tasks of a queue until the returned function is called, or the test ends.
func serve(t testing.TB, q *delay.Queue, workers int, handle func(context.Context, *delay.Task) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- q.Serve(ctx, workers, handle) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(redistest.Patience): // of a test that has failed
			t.Error("a handler does not return")
		}
	})
	t.Cleanup(stop)
	return stop
}

// Guarantees: D1, D2, D3.
func TestQueue_RunsEachTaskOnceAndNeverEarly(t *testing.T) {
	t.Parallel()
	const tasks = 2000
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	c := newClient(t, rdb)
	q := c.Queue(name)
	due := make(map[string]time.Time)
	var mu sync.Mutex
	ran := make(map[string]int)
	done := make(chan struct{})
	for range 2 {
		serve(t, newClient(t, rdb).Queue(name), 8, func(_ context.Context, task *delay.Task) error {
			mu.Lock()
			defer mu.Unlock()
			if early := time.Until(due[task.ID]); early > 0 {
				t.Errorf("%s is %v early", task.ID, early)
			}
			if string(task.Payload) != "payload:"+task.ID {
				t.Errorf("%s has payload %q", task.ID, task.Payload)
			}
			if ran[task.ID]++; len(ran) == tasks {
				close(done)
			}
			return nil
		})
	}
	var all sync.WaitGroup
	for i := range tasks {
		all.Go(func() {
			id, wait := fmt.Sprint("task-", i), time.Duration(i%500)*time.Millisecond
			mu.Lock()
			due[id] = time.Now().Add(wait)
			mu.Unlock()
			if err := q.Schedule(t.Context(), id, wait, []byte("payload:"+id)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	select {
	case <-done:
	case <-time.After(redistest.Patience):
		mu.Lock()
		t.Fatalf("%d of %d tasks have run", len(ran), tasks)
	}
	mu.Lock()
	defer mu.Unlock()
	for id, n := range ran {
		require.Equal(t, 1, n, id)
	}
}

// Guarantees: D3, D8, D13.
func TestQueue_AFailureIsTriedAgain(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	q := newClient(t, rdb).Queue(name, delay.WithRetry(3, delay.Backoff(time.Millisecond, time.Second)))
	var seen []delay.Task
	attempts := make(chan struct{}, 10)
	serve(t, q, 1, func(_ context.Context, task *delay.Task) error {
		seen = append(seen, *task)
		attempts <- struct{}{}
		if len(seen) == 2 {
			panic("the second attempt")
		}
		return errors.New("not now")
	})
	require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
	for range 3 {
		<-attempts
	}
	redistest.Poll(t, func() bool { return rdb.ZCard(t.Context(), "{"+name+"}:delay:failed").Val() == 1 })
	require.Equal(t, []int{0, 1, 2}, []int{seen[0].Failures, seen[1].Failures, seen[2].Failures})
	require.Less(t, seen[0].Token, seen[1].Token)
	require.Less(t, seen[1].Token, seen[2].Token)
	again, err := q.RetryFailed(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, again)
	<-attempts
}

// Guarantees: D5, D7.
func TestQueue_CancelAndReschedule(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	q, ctx := newClient(t, rdb).Queue(name), t.Context()
	require.NoError(t, q.Schedule(ctx, "a", time.Hour, nil))
	ok, err := q.Cancel(ctx, "a")
	require.True(t, ok && err == nil)
	ok, err = q.Cancel(ctx, "a")
	require.True(t, !ok && err == nil)
	require.Empty(t, rdb.Keys(ctx, "{"+name+"}:delay:[dtarlf]*").Val(), "but the record")
	ok, err = q.Reschedule(ctx, "a", 0)
	require.True(t, !ok && err == nil)
	require.NoError(t, q.Schedule(ctx, "a", time.Hour, []byte("p")))
	ok, err = q.Reschedule(ctx, "a", 0)
	require.True(t, ok && err == nil)

	begun, end := make(chan string, 2), make(chan struct{})
	serve(t, q, 2, func(_ context.Context, task *delay.Task) error {
		begun <- string(task.Payload)
		<-end
		return nil
	})
	require.Equal(t, "p", <-begun)
	ok, err = q.Cancel(ctx, "a")
	require.True(t, !ok && err == nil, "it is claimed")
	require.NoError(t, q.Schedule(ctx, "a", 0, []byte("next")))
	require.NoError(t, q.Schedule(ctx, "a", 0, []byte("after next"), delay.IfAbsent()))
	ok, err = q.Cancel(ctx, "a")
	require.True(t, ok && err == nil)
	require.NoError(t, q.Schedule(ctx, "a", 0, []byte("next")))
	end <- struct{}{}
	require.Equal(t, "next", <-begun)
	end <- struct{}{}
	redistest.Poll(t, func() bool { return len(rdb.Keys(ctx, "{"+name+"}:delay:[darlf]*").Val()) == 0 })
}

// What a process that dies has claimed runs again when its lease has ended.
// Guarantees: D2, D11.
func TestServe_TasksOfADeadProcessRunAgain(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	d := &redistest.FaultDialer{}
	dead := newClient(t, redistest.Shared(t).Client(t, func(o *redis.Options) {
		o.Dialer, o.ReadTimeout = d.Dial, 500*time.Millisecond // Close waits for calls that are not answered
	}))
	begun := make(chan int, 2)
	stop := serve(t, dead.Queue(name, delay.WithLease(time.Second)), 1, func(ctx context.Context, task *delay.Task) error {
		begun <- task.Losses
		<-ctx.Done()
		return context.Cause(ctx)
	})
	q := newClient(t, rdb).Queue(name, delay.WithLease(time.Second))
	require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
	<-begun
	d.Set(redistest.BlackholeUp)
	serve(t, q, 1, func(_ context.Context, task *delay.Task) error {
		begun <- task.Losses
		return nil
	})
	require.Equal(t, 1, <-begun)
	d.Set(redistest.Pass)
	stop()
}

// stopped is a clock that stands still.
type stopped struct{ at time.Time }

func (c stopped) Now() time.Time                       { return c.at }
func (c stopped) After(time.Duration) <-chan time.Time { return nil }

// A task is claimed up to 5 ms before its time. One that is handed back before it keeps its time.
func TestServe_ATaskThatIsHandedBackIsNotEarly(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	w, err := wheel.New(wheel.WithClock(stopped{time.Now()})) // on which the time of the task never comes
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = w.Stop(context.Background()) })
	stop := serve(t, newClient(t, rdb, delay.WithWheel(w)).Queue(name), 1,
		func(context.Context, *delay.Task) error { return nil })
	q := newClient(t, rdb).Queue(name)
	var due time.Time
	redistest.Poll(t, func() bool { // until one is claimed before its time
		now, err := rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		due = now.Add(5 * time.Millisecond)
		require.NoError(t, q.ScheduleAt(t.Context(), "a", due, nil))
		for {
			s, err := q.State(t.Context(), "a")
			require.NoError(t, err)
			if s.Phase != delay.PhasePending {
				return s.Phase == delay.PhaseClaimed && s.At.Add(-delay.DefaultLease).Before(due)
			}
		}
	})
	stop()
	s, err := q.State(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, delay.PhasePending, s.Phase)
	require.False(t, s.At.Before(due), "%v early", due.Sub(s.At))
}

func TestQueue_StateAndLists(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	q, ctx := newClient(t, rdb).Queue(name, delay.WithRetry(1, delay.Backoff(time.Second, time.Second))), t.Context()
	s, err := q.State(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, delay.State{ID: "a"}, s)
	for i := range 250 {
		require.NoError(t, q.Schedule(ctx, fmt.Sprint("p", i), time.Duration(1000-i)*time.Hour, []byte{byte(i)}))
	}
	s, err = q.State(ctx, "p7")
	require.NoError(t, err)
	require.Equal(t, delay.PhasePending, s.Phase)
	require.Equal(t, []byte{7}, s.Payload)
	require.InDelta(t, 993*time.Hour, s.In, float64(time.Minute))
	n := 249
	for s, err := range q.PendingTasks(ctx) {
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("p", n), s.ID)
		n--
	}
	require.Equal(t, -1, n)

	begun, end := make(chan struct{}), make(chan error)
	serve(t, q, 1, func(context.Context, *delay.Task) error {
		close(begun)
		return <-end
	})
	require.NoError(t, q.Schedule(ctx, "a", 0, nil))
	<-begun
	s, err = q.State(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, delay.PhaseClaimed, s.Phase)
	require.Positive(t, s.Token)
	require.InDelta(t, delay.DefaultLease, s.In, float64(10*time.Second))
	end <- errors.New("no")
	redistest.Poll(t, func() bool {
		s, err = q.State(ctx, "a")
		return err == nil && s.Phase == delay.PhaseFailed && s.Failures == 1
	})
	for s, err := range q.FailedTasks(ctx) {
		require.NoError(t, err)
		require.Equal(t, "a", s.ID)
		ok, err := q.DeleteFailed(ctx, s.ID)
		require.True(t, ok && err == nil)
	}
	s, err = q.State(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, delay.PhaseUnknown, s.Phase)
}

func TestClient_HooksAndStats(t *testing.T) {
	t.Parallel()
	type key struct{}
	ended := make(chan delay.Event, 10)
	c := newClient(t, redistest.Shared(t).Client(t), delay.WithHooks(delay.Hooks{
		Headers: func(ctx context.Context) string { return ctx.Value(key{}).(string) },
		Context: func(ctx context.Context, e delay.Event) context.Context {
			return context.WithValue(ctx, key{}, e.Headers)
		},
		Ended: func(e delay.Event) { ended <- e },
	}))
	q := c.Queue(redistest.Name(t), delay.WithRetry(2, delay.Backoff(time.Millisecond, time.Second)))
	ctx := context.WithValue(t.Context(), key{}, "trace:1")
	stop := serve(t, q, 1, func(ctx context.Context, task *delay.Task) error {
		if ctx.Value(key{}) != "trace:1" || string(task.Payload) != "1:payload" {
			t.Errorf("context %v, payload %q", ctx.Value(key{}), task.Payload)
		}
		if task.ID == "fails" {
			return errors.New("no")
		}
		return nil
	})
	for _, id := range []string{"a", "fails"} {
		require.NoError(t, q.Schedule(ctx, id, 0, []byte("1:payload")))
	}
	outcomes := map[delay.Outcome]int{}
	for range 3 {
		outcomes[(<-ended).Outcome]++
	}
	require.Equal(t, map[delay.Outcome]int{delay.OutcomeDone: 1, delay.OutcomeRetried: 1, delay.OutcomeExhausted: 1}, outcomes)
	stop()
	s := c.Stats()
	require.EqualValues(t, 2, s.Scheduled)
	require.Equal(t, []int64{1, 1, 1, 0, 0}, []int64{s.Done, s.Retried, s.Exhausted, s.HandedBack, s.Lost})
	require.EqualValues(t, 3, s.Late.Count())
	require.Zero(t, s.Running+s.Claimed+s.Serving)
}

// Large payloads share no call that would block Redis, and each is whole.
// Guarantees: A1.
func TestQueue_LargePayloads(t *testing.T) {
	t.Parallel()
	q := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t))
	large := make([]byte, delay.MaxPayload)
	require.NoError(t, q.Schedule(t.Context(), "largest", time.Hour, large))
	require.ErrorIs(t, q.Schedule(t.Context(), "larger", time.Hour, make([]byte, delay.MaxPayload+1)), cogwheel.ErrInvalid)
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			if err := q.Schedule(t.Context(), fmt.Sprint(i), 0, large[:400<<10]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	ran := make(chan int, 30)
	serve(t, q, 4, func(_ context.Context, task *delay.Task) error {
		ran <- len(task.Payload)
		return nil
	})
	for range 30 {
		require.Equal(t, 400<<10, <-ran)
	}
}

// A task is late from its time on, not from its claim on.
func TestStats_LateCountsTheTimeBeforeTheClaim(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Shared(t).Client(t))
	q := c.Queue(redistest.Name(t))
	require.NoError(t, q.ScheduleAt(t.Context(), "a", time.Now().Add(-time.Hour), nil))
	ran := make(chan struct{})
	stop := serve(t, q, 1, func(context.Context, *delay.Task) error {
		close(ran)
		return nil
	})
	<-ran
	stop()
	require.InDelta(t, time.Hour, c.Stats().Late.Sum(), float64(time.Minute))
}

// A process claims what its workers begin soon. The rest is for others.
func TestServe_ASlowProcessLeavesTasksToOthers(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	slow, fast := newClient(t, rdb).Queue(name), newClient(t, rdb).Queue(name)
	for i := range 3 {
		require.NoError(t, slow.Schedule(t.Context(), strconv.Itoa(i), 0, nil))
	}
	begun, end := make(chan struct{}), make(chan struct{})
	serve(t, slow, 1, func(context.Context, *delay.Task) error {
		begun <- struct{}{}
		<-end
		return nil
	})
	<-begun
	others := make(chan struct{}, 3)
	serve(t, fast, 1, func(context.Context, *delay.Task) error {
		others <- struct{}{}
		return nil
	})
	<-others
	<-others
	close(end)
}

func TestQueue_AListMayBeChangedInItsLoop(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	q, ctx := newClient(t, rdb).Queue(name), t.Context()
	at := time.Now().Add(time.Hour)
	for i := range 250 {
		require.NoError(t, q.ScheduleAt(ctx, strconv.Itoa(i), at, nil))
	}
	seen := 0
	for s, err := range q.PendingTasks(ctx) {
		require.NoError(t, err)
		if seen++; seen%3 != 0 { // the others stay
			cancelled, err := q.Cancel(ctx, s.ID)
			require.NoError(t, err)
			require.True(t, cancelled)
		}
	}
	require.Equal(t, 250, seen)
}

// A task that does not change is yielded once, whatever comes and goes beside it at the same instant.
func TestQueue_AListSkipsNoTaskThatStays(t *testing.T) {
	t.Parallel()
	q, ctx := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t)), t.Context()
	at := time.Now().Add(time.Hour)
	name := func(i int) string { return fmt.Sprintf("%04d", i) }
	for i := range 1000 {
		require.NoError(t, q.ScheduleAt(ctx, name(i), at.Add(time.Duration(i/900)*time.Second), nil))
	}
	seen, gone := map[string]int{}, map[string]bool{}
	for s, err := range q.PendingTasks(ctx) {
		require.NoError(t, err)
		seen[s.ID]++
		if n := len(seen); n > 150 { // behind the loop one goes, and two come now and then
			_, err := q.Cancel(ctx, name(n-150))
			require.NoError(t, err)
			gone[name(n-150)] = true
			if n%50 == 0 {
				require.NoError(t, q.ScheduleAt(ctx, name(0)+s.ID, at, nil))
				require.NoError(t, q.ScheduleAt(ctx, name(1)+s.ID, at, nil))
			}
		}
	}
	for i := range 1000 {
		require.Equal(t, 1, seen[name(i)], i)
	}
	require.Greater(t, len(gone), 800)
}

// Tasks that a process has claimed ahead do not wait for its slow handlers.
func TestServe_TasksBehindASlowHandlerRunElsewhere(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	first, second := newClient(t, rdb), newClient(t, rdb)
	q, begun, end := first.Queue(name), make(chan string), make(chan struct{})
	serve(t, q, 1, func(_ context.Context, task *delay.Task) error {
		begun <- task.ID
		if task.ID != "fast" {
			<-end
		}
		return nil
	})
	require.NoError(t, q.Schedule(t.Context(), "fast", 0, nil))
	require.Equal(t, "fast", <-begun)
	redistest.Poll(t, func() bool { return first.Stats().Done == 1 })
	at := time.Now().Add(time.Second) // for all, so that one call claims them
	for i := range 3 {
		require.NoError(t, q.ScheduleAt(t.Context(), strconv.Itoa(i), at, nil))
	}
	slow := <-begun
	redistest.Poll(t, func() bool { return first.Stats().HandedBack >= 2 })
	others := make(chan string)
	serve(t, second.Queue(name), 1, func(_ context.Context, task *delay.Task) error {
		others <- task.ID
		return nil
	})
	require.ElementsMatch(t, []string{"0", "1", "2"}, []string{slow, <-others, <-others})
	close(end)
}
