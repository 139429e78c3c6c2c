package delay_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// newTasks yields tasks that are due in an hour and have a payload of some bytes.
func newTasks(tasks, bytes int) iter.Seq[delay.NewTask] {
	return func(yield func(delay.NewTask) bool) {
		payload := make([]byte, bytes) // of all of them
		for i := range tasks {
			copy(payload, fmt.Sprint(i, ";"))
			if !yield(delay.NewTask{ID: fmt.Sprint("task-", i), Delay: time.Hour, Payload: payload}) {
				return
			}
		}
	}
}

// callSizes is a hook that notes how many requests and bytes the calls of delay_edit have.
type callSizes struct {
	redis.Hook
	calls, mostRequests, mostBytes atomic.Int64
	fail                           func(calls int64) error
}

// note notes a command, and returns an error if it is to fail.
func (h *callSizes) note(cmd redis.Cmder) error {
	bytes, requests := int64(0), int64(0)
	for _, arg := range cmd.Args() {
		text, _ := arg.(string)
		bytes += int64(len(text))
		if text == "schedule" {
			requests++
		}
	}
	if requests == 0 {
		return nil
	}
	if h.fail != nil {
		if err := h.fail(h.calls.Load()); err != nil {
			cmd.SetErr(err)
			return err
		}
	}
	h.calls.Add(1)
	h.mostRequests.Store(max(h.mostRequests.Load(), requests))
	h.mostBytes.Store(max(h.mostBytes.Load(), bytes))
	return nil
}

func (h *callSizes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *callSizes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.note(cmd); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (h *callSizes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if err := h.note(cmd); err != nil {
				return err
			}
		}
		return next(ctx, cmds)
	}
}

func TestScheduleAll_SchedulesInBoundedCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ tasks, bytes int }{{1050, 10}, {50, 200_000}} {
		rdb, sizes := redistest.Shared(t).Client(t), &callSizes{}
		rdb.AddHook(sizes)
		client := newClient(t, rdb)
		q, ctx := client.Queue(redistest.Name(t)), t.Context()
		n, err := q.ScheduleAll(ctx, newTasks(c.tasks, c.bytes))
		require.NoError(t, err)
		require.Equal(t, c.tasks, n)
		require.EqualValues(t, c.tasks, client.Stats().Scheduled)
		require.Less(t, sizes.calls.Load(), int64(c.tasks), "tasks share calls")
		require.LessOrEqual(t, sizes.mostRequests.Load(), int64(100))
		require.LessOrEqual(t, sizes.mostBytes.Load(), int64(1<<20+20_000))
		for _, i := range []int{0, c.tasks - 1} {
			s, err := q.State(ctx, fmt.Sprint("task-", i))
			require.NoError(t, err)
			require.Equal(t, delay.PhasePending, s.Phase)
			require.Len(t, s.Payload, c.bytes)
			require.True(t, strings.HasPrefix(string(s.Payload), fmt.Sprint(i, ";")))
		}
	}
}

// Of two tasks of an id the later one counts. At takes the place of Delay. The options are those of each task.
// Guarantees: D4.
func TestScheduleAll_IsScheduleOfEach(t *testing.T) {
	t.Parallel()
	q, ctx := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t)), t.Context()
	at := time.Now().Add(3 * time.Hour).Truncate(time.Microsecond)
	all := func(tasks ...delay.NewTask) iter.Seq[delay.NewTask] {
		return func(yield func(delay.NewTask) bool) {
			for _, one := range tasks {
				if !yield(one) {
					return
				}
			}
		}
	}
	n, err := q.ScheduleAll(ctx, all(
		delay.NewTask{ID: "a", Delay: time.Hour}, delay.NewTask{ID: "b", At: at, Delay: time.Hour}, delay.NewTask{ID: "a", Delay: 2 * time.Hour},
	), delay.WithAttempts(7))
	require.Equal(t, 3, n)
	require.NoError(t, err)
	n, err = q.ScheduleAll(ctx, all(delay.NewTask{ID: "a"}, delay.NewTask{ID: "c"}), delay.IfAbsent())
	require.Equal(t, 2, n)
	require.NoError(t, err)
	a, err := q.State(ctx, "a")
	require.NoError(t, err)
	require.InDelta(t, 2*time.Hour, a.In, float64(time.Minute))
	require.Equal(t, 7, a.Attempts)
	b, err := q.State(ctx, "b")
	require.NoError(t, err)
	require.True(t, at.Equal(b.At), "%v", b.At)
	n, err = q.ScheduleAll(ctx, all())
	require.Zero(t, n)
	require.NoError(t, err)
}

// It says how many tasks were scheduled when it ends in the middle, and asks for no further ones.
func TestScheduleAll_SaysWhatIsScheduledWhenItFails(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for what, c := range map[string]struct {
		fails   func(calls int64) error // a call
		fault   delay.NewTask           // in place of one
		at      int                     // its place
		ends    bool                    // the context, at that place
		want    error
		atLeast int // are scheduled
	}{
		"a call is refused": {fails: func(calls int64) error {
			if calls < 2 {
				return nil
			}
			return refused
		}, at: 1000, fault: delay.NewTask{ID: "x"}, want: refused, atLeast: 1},
		"an invalid id":    {at: 333, want: cogwheel.ErrInvalid, atLeast: 333},
		"an invalid delay": {at: 333, fault: delay.NewTask{ID: "x", Delay: -1}, want: cogwheel.ErrInvalid, atLeast: 333},
		"an invalid time":  {at: 333, fault: delay.NewTask{ID: "x", At: time.Unix(-1, 0)}, want: cogwheel.ErrInvalid, atLeast: 333},
		"its context ends": {at: 333, fault: delay.NewTask{ID: "x"}, ends: true, want: context.Canceled, atLeast: 300},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
			calls := rdb.WithTimeout(redistest.Patience)
			calls.AddHook(&callSizes{fail: c.fails})
			q := newClient(t, calls).Queue(name)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			yielded := 0
			n, err := q.ScheduleAll(ctx, func(yield func(delay.NewTask) bool) {
				for one := range newTasks(2000, 1) {
					if yielded == c.at {
						one = c.fault
						if c.ends {
							cancel()
						}
					}
					if yielded++; !yield(one) {
						return
					}
				}
			})
			require.ErrorIs(t, err, c.want)
			require.GreaterOrEqual(t, n, c.atLeast)
			require.Less(t, n, 400)
			require.LessOrEqual(t, yielded, 500)
			states := newClient(t, rdb).Queue(name)
			for i := range n {
				s, err := states.State(t.Context(), fmt.Sprint("task-", i))
				require.NoError(t, err)
				require.Equal(t, delay.PhasePending, s.Phase, i)
			}
			if errors.Is(c.want, cogwheel.ErrInvalid) {
				require.Equal(t, c.at, n)
				require.EqualValues(t, n, rdb.ZCard(t.Context(), "{"+name+"}:delay:due").Val())
			}
		})
	}
}

func TestScheduleAll_RefusesBadInput(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	c := newClient(t, rdb)
	var none context.Context
	for what, all := range map[string]func() (int, error){
		"no context":   func() (int, error) { return c.Queue(name).ScheduleAll(none, newTasks(1, 1)) },
		"no tasks":     func() (int, error) { return c.Queue(name).ScheduleAll(t.Context(), nil) },
		"a bad name":   func() (int, error) { return c.Queue("").ScheduleAll(t.Context(), newTasks(0, 1)) },
		"a bad option": func() (int, error) { return c.Queue(name).ScheduleAll(t.Context(), newTasks(1, 1), nil) },
	} {
		n, err := all()
		require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
		require.Zero(t, n)
	}
	require.NoError(t, c.Close(t.Context()))
	_, err := c.Queue(name).ScheduleAll(t.Context(), newTasks(1, 1))
	require.ErrorIs(t, err, delay.ErrClosed)
	require.Empty(t, rdb.Keys(t.Context(), "{"+name+"*").Val())
}
