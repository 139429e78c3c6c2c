package delay_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Guarantees: A1.
func TestQueue_RefusesBadInput(t *testing.T) {
	t.Parallel()
	rdb, name, ctx := redistest.Shared(t).Client(t), redistest.Name(t), t.Context()
	c := newClient(t, rdb)
	q, backoff := c.Queue(name), delay.Backoff(time.Second, time.Hour)
	schedule := func(q *delay.Queue, opts ...delay.ScheduleOption) error { return q.Schedule(ctx, "a", 0, nil, opts...) }
	second := func(_ bool, err error) error { return err }
	handle := func(context.Context, *delay.Task) error { return nil }
	var none context.Context
	for what, err := range map[string]error{
		"a name without bytes":         schedule(c.Queue("")),
		"a name with a bare brace":     schedule(c.Queue(name + "}")),
		"a lease of nothing":           schedule(c.Queue(name, delay.WithLease(0))),
		"no attempts":                  schedule(c.Queue(name, delay.WithRetry(0, backoff))),
		"no backoff":                   schedule(c.Queue(name, delay.WithRetry(1, nil))),
		"no option":                    schedule(c.Queue(name, nil)),
		"no option of a call":          schedule(q, nil),
		"a negative wait":              schedule(q, delay.WithMaxWait(-1)),
		"a wait above the longest":     schedule(q, delay.WithMaxWait(delay.MaxDelay+1)),
		"negative attempts":            schedule(q, delay.WithAttempts(-1)),
		"Reschedule: attempts":         second(q.Reschedule(ctx, "a", 0, delay.WithAttempts(1))),
		"a negative delay":             q.Schedule(ctx, "a", -1, nil),
		"a delay above the longest":    q.Schedule(ctx, "a", delay.MaxDelay+1, nil),
		"no id":                        q.Schedule(ctx, "", 0, nil),
		"an id above the longest":      q.Schedule(ctx, strings.Repeat("a", delay.MaxID+1), 0, nil),
		"a payload above the largest":  q.Schedule(ctx, "a", 0, make([]byte, delay.MaxPayload+1)),
		"no context":                   q.Schedule(none, "a", 0, nil),
		"a time before 1970":           q.ScheduleAt(ctx, "a", time.Time{}, nil),
		"a time after 2112":            q.ScheduleAt(ctx, "a", time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC), nil),
		"Reschedule: a negative delay": second(q.Reschedule(ctx, "a", -1)),
		"Cancel: no id":                second(q.Cancel(ctx, "")),
		"RetryFailed: no context":      second(q.RetryFailed(none, "a")),
		"Serve: no workers":            q.Serve(ctx, 0, handle),
		"Serve: too many workers":      q.Serve(ctx, 10_001, handle),
		"Serve: no handler":            q.Serve(ctx, 1, nil),
		"Serve: no context":            q.Serve(none, 1, handle),
		"Serve: a lease of nothing":    c.Queue(name, delay.WithLease(0)).Serve(ctx, 1, handle),
	} {
		require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
	}
	require.Empty(t, rdb.Keys(ctx, "{"+name+"*").Val())
}

// Guarantees: A2.
func TestQueue_RefusesKeysOfAnotherKind(t *testing.T) {
	t.Parallel()
	rdb, name, ctx := redistest.Shared(t).Client(t), redistest.Name(t), t.Context()
	q, key := newClient(t, rdb).Queue(name), "{"+name+"}:delay:due"
	require.NoError(t, rdb.Set(ctx, key, "something else", 0).Err())
	require.ErrorIs(t, q.Schedule(ctx, "a", 0, nil), delay.ErrWrongKind)
	require.ErrorIs(t, q.Serve(ctx, 1, func(context.Context, *delay.Task) error { return nil }), delay.ErrWrongKind)
	require.Equal(t, []string{key}, rdb.Keys(ctx, "{"+name+"*").Val())
	require.Equal(t, "something else", rdb.Get(ctx, key).Val())
}

// Serve looks at all keys before it claims a task.
// Guarantees: A2.
func TestServe_RefusesKeysOfAnotherKindBeforeItClaims(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"later", "failed", "tasks", "attempts", "running", "token", "paused"} {
		rdb, name, ctx := redistest.Shared(t).Client(t), redistest.Name(t), t.Context()
		q, key := newClient(t, rdb).Queue(name), "{"+name+"}:delay:"+part
		require.NoError(t, q.Schedule(ctx, "a", 0, nil))
		require.NoError(t, rdb.Del(ctx, key).Err())
		require.NoError(t, rdb.RPush(ctx, key, "something else").Err())
		require.ErrorIs(t, q.Serve(ctx, 1, func(context.Context, *delay.Task) error {
			t.Error("it was claimed")
			return nil
		}), delay.ErrWrongKind, part)
		require.EqualValues(t, 1, rdb.ZCard(ctx, "{"+name+"}:delay:due").Val(), part)
		require.Equal(t, []string{"something else"}, rdb.LRange(ctx, key, 0, -1).Val(), part)
	}
}

// Whatever else happens at that time, a Serve that returns because the wheel stops says so.
// Guarantees: A4.
func TestServe_SaysThatTheWheelHasStopped(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	for i := range 1000 {
		w, err := wheel.New()
		require.NoError(t, err)
		c, err := delay.New(rdb, delay.WithWheel(w))
		require.NoError(t, err)
		q := c.Queue(redistest.Name(t))
		require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
		ctx, end := context.WithCancel(t.Context())
		begun, served := make(chan struct{}), make(chan error, 1)
		go func() {
			served <- q.Serve(ctx, 1, func(ctx context.Context, _ *delay.Task) error {
				close(begun)
				<-ctx.Done()
				return nil
			})
		}()
		if i%3 == 0 {
			<-begun
		}
		if i%2 == 0 {
			go end()
		}
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
		if err = <-served; i%2 > 0 || err != nil { // it may have ended before
			require.ErrorIs(t, err, wheel.ErrStopped)
		}
		end()
		_ = c.Close(t.Context())
	}
}

func TestServe_OnceForEachClient(t *testing.T) {
	t.Parallel()
	c, name := newClient(t, redistest.Shared(t).Client(t)), redistest.Name(t)
	ran := make(chan string, 2)
	handle := func(_ context.Context, task *delay.Task) error {
		ran <- task.ID
		return nil
	}
	stop := serve(t, c.Queue(name), 1, handle)
	require.NoError(t, c.Queue(name).Schedule(t.Context(), "a", 0, nil))
	require.Equal(t, "a", <-ran)
	require.ErrorIs(t, c.Queue(name, delay.WithLease(time.Minute)).Serve(t.Context(), 1, handle), delay.ErrServing)
	require.NoError(t, c.Queue(name).Schedule(t.Context(), "b", 0, nil))
	require.Equal(t, "b", <-ran, "the first Serve goes on")
	stop()
	serve(t, c.Queue(name), 1, handle) // and may be followed by another
	require.NoError(t, c.Queue(name).Schedule(t.Context(), "c", 0, nil))
	require.Equal(t, "c", <-ran)
}

// "orders" and "{orders}" have the same keys, so they are one queue.
func TestQueue_ANameAndItsHashTagAreOneQueue(t *testing.T) {
	t.Parallel()
	c, name := newClient(t, redistest.Shared(t).Client(t)), redistest.Name(t)
	handle := func(context.Context, *delay.Task) error { return nil }
	serve(t, c.Queue(name), 1, handle)
	redistest.Poll(t, func() bool { return c.Stats().Serving == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), redistest.Patience)
	defer cancel()
	require.ErrorIs(t, c.Queue("{"+name+"}").Serve(ctx, 1, handle), delay.ErrServing)

	errs := make(chan error)
	for i := range 200 {
		go func() {
			either := []string{name, "{" + name + "}"}[i%2]
			errs <- c.Queue(either).Schedule(t.Context(), strconv.Itoa(i), time.Hour, nil)
		}()
	}
	for range 200 {
		require.NoError(t, <-errs)
	}
}

func TestClient_IsClosed(t *testing.T) {
	t.Parallel()
	c, ctx := newClient(t, redistest.Shared(t).Client(t)), t.Context()
	q := c.Queue(redistest.Name(t))
	serve(t, q, 1, func(context.Context, *delay.Task) error { return nil })
	redistest.Poll(t, func() bool { return c.Stats().Serving == 1 })
	require.NoError(t, c.Close(ctx))
	require.ErrorIs(t, q.Schedule(ctx, "a", 0, nil), delay.ErrClosed)
	require.ErrorIs(t, q.Serve(ctx, 1, func(context.Context, *delay.Task) error { return nil }), delay.ErrClosed)
	_, err := q.State(ctx, "a")
	require.ErrorIs(t, err, delay.ErrClosed)
}

// A loop over a list may last as long as it wants.
func TestClose_DoesNotWaitForLoopsOverLists(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Shared(t).Client(t))
	q, n := c.Queue(redistest.Name(t)), 0
	for i := range 150 {
		require.NoError(t, q.Schedule(t.Context(), strconv.Itoa(i), time.Hour, nil))
	}
	for _, err := range q.PendingTasks(t.Context()) {
		if n++; n == 1 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			require.NoError(t, c.Close(ctx))
		}
		if n > 100 {
			require.ErrorIs(t, err, delay.ErrClosed)
		} else {
			require.NoError(t, err)
		}
	}
	require.Equal(t, 101, n, "the tasks of the page, and the error of the next one")
}

// Guarantees: D18.
func TestClose_WaitsNoLongerThanALeaseForARedisThatHangs(t *testing.T) {
	t.Parallel()
	server, d := redistest.Shared(t), &redistest.FaultDialer{}
	c := newClient(t, server.Client(t, func(o *redis.Options) {
		o.Dialer, o.ReadTimeout, o.MaxRetries = d.Dial, time.Minute, -1
	}), delay.WithPoll(10*time.Millisecond))
	q := c.Queue(redistest.Name(t), delay.WithLease(time.Second))
	served := make(chan error, 1)
	go func() { served <- q.Serve(t.Context(), 1, func(context.Context, *delay.Task) error { return nil }) }()
	redistest.Poll(t, func() bool { return c.Stats().Serving == 1 })
	defer d.Reset()
	<-d.LoseReply("evalsha", 1, redistest.Swallow) // of a query
	began := time.Now()
	require.ErrorIs(t, c.Close(t.Context()), context.DeadlineExceeded)
	require.Less(t, time.Since(began), 20*time.Second)
	require.ErrorIs(t, <-served, context.DeadlineExceeded)
}

// The end of an attempt that Redis has not recorded is an error, also if no call hangs for long.
// Guarantees: D18.
func TestClose_SaysThatAnEndIsNotRecorded(t *testing.T) {
	t.Parallel()
	d := &redistest.FaultDialer{}
	c := newClient(t, redistest.Shared(t).Client(t, func(o *redis.Options) {
		o.Dialer, o.ReadTimeout = d.Dial, 100*time.Millisecond
	}))
	q := c.Queue(redistest.Name(t), delay.WithLease(500*time.Millisecond))
	begun, served := make(chan struct{}), make(chan error, 1)
	go func() {
		served <- q.Serve(t.Context(), 1, func(ctx context.Context, _ *delay.Task) error {
			close(begun)
			<-ctx.Done()
			return nil
		})
	}()
	require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
	<-begun
	d.Set(redistest.Refuse) // so that no call is in flight, which Close would report as well
	d.Reset()
	defer d.Set(redistest.Pass)
	require.ErrorIs(t, c.Close(t.Context()), context.DeadlineExceeded)
	require.ErrorIs(t, <-served, context.DeadlineExceeded)
}

// Guarantees: D18.
func TestClose_WaitsForHandlers(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Shared(t).Client(t))
	q := c.Queue(redistest.Name(t))
	begun, leave, left := make(chan struct{}), make(chan struct{}), false
	serve(t, q, 1, func(ctx context.Context, _ *delay.Task) error {
		close(begun)
		<-ctx.Done() // that of Close
		<-leave
		left = true
		return nil
	})
	require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
	<-begun
	closed := make(chan error, 1)
	go func() { closed <- c.Close(t.Context()) }()
	redistest.Poll(t, func() bool {
		return errors.Is(q.Schedule(t.Context(), "b", 0, nil), delay.ErrClosed)
	})
	select {
	case err := <-closed:
		require.FailNow(t, "Close has returned", "%v", err)
	default:
	}
	close(leave)
	require.NoError(t, <-closed)
	require.True(t, left)
}
