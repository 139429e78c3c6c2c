package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	cogwheel "github.com/cogwheel-go/cogwheel/cmd/cogwheel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// A queue is paused from a shell, also one without tasks.
func TestTasks_PauseAndResume(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	url, q := "redis://"+redistest.Shared(t).Addr(), newQueue(t, rdb, name)
	empty := "; the queue has no tasks\n" // as after a misspelt name
	require.Equal(t, name+": paused: no process claims a task"+empty, must(t, url, "tasks", "pause", name))
	require.Equal(t, name+": was paused before"+empty, must(t, url, "tasks", "pause", name))
	s, err := q.State(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, s.Paused)
	text := must(t, url, "tasks", name)
	require.Regexp(t, `tasks +0 pending, 0 claimed, 0 failed; paused\n`, text)
	require.Regexp(t, `paused +for \S+: no process claims a task\n`, text)
	require.NoError(t, q.Schedule(t.Context(), "a", time.Hour, nil))
	require.Contains(t, must(t, url, "list", name), "1 pending, 0 claimed, 0 failed; paused")
	require.Contains(t, must(t, url, "tasks", "--json", name), `"paused_ms": `)
	require.Equal(t, name+": was paused before\n", must(t, url, "tasks", "pause", name))
	require.JSONEq(t, `{"name": "`+name+`", "paused": false, "changed": true}`, must(t, url, "tasks", "resume", "--json", name))
	require.Equal(t, name+": was not paused\n", must(t, url, "tasks", "resume", name))
	require.NotContains(t, must(t, url, "tasks", name), "paused")
}

// A queue may have the name of a word.
func TestTasks_OfAQueueWithTheNameOfAWord(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	require.NoError(t, newQueue(t, server.Client(t), "pause").Schedule(t.Context(), "a", time.Hour, nil))
	require.Contains(t, must(t, "redis://"+server.Addr(), "tasks", "pause"), "1 pending")
}

// failTasks has tasks fail.
func failTasks(t *testing.T, rdb redis.UniversalClient, name string, tasks int) {
	t.Helper()
	c, err := delay.New(rdb, delay.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	ctx, cancel := context.WithCancel(t.Context())
	q, served := c.Queue(name), make(chan error, 1)
	n, err := q.ScheduleAll(ctx, func(yield func(delay.NewTask) bool) {
		for i := range tasks {
			if !yield(delay.NewTask{ID: fmt.Sprint("order-", i)}) {
				return
			}
		}
	})
	require.NoError(t, err)
	require.Equal(t, tasks, n)
	go func() {
		served <- q.Serve(ctx, 50, func(context.Context, *delay.Task) error { return delay.Fail(errors.New("no")) })
	}()
	redistest.Poll(t, func() bool { return rdb.ZCard(ctx, "{"+name+"}:delay:failed").Val() == int64(tasks) })
	cancel()
	require.NoError(t, <-served)
}

// answering runs the tool with an input.
func answering(t *testing.T, stdin io.Reader, url string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := cogwheel.RunAnswering(redistest.Within(t, redistest.Patience), stdin, args, url, &stdout, &stderr)
	return result{status, stdout.String(), stderr.String()}
}

func TestTasks_RetryAndDeleteAllFailedOnes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ verb, says string }{{"retry", "retried"}, {"delete", "deleted"}} {
		t.Run(c.verb, func(t *testing.T) {
			t.Parallel()
			rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
			url := "redis://" + redistest.Shared(t).Addr()
			failTasks(t, rdb, name, 250)
			left := func() queueTasks { return tasksOf(t, url, name) }

			r := answering(t, strings.NewReader("n\n"), url, "tasks", c.verb, "--all", name)
			require.Equal(t, 2, r.status)
			require.Equal(t, c.verb+" all 250 failed tasks of "+name+"? [y/N] cogwheel: nothing was changed: answer y, or add --yes\n", r.stderr)
			require.Equal(t, 2, run(t, url, "tasks", c.verb, "--all", name).status, "without an answer")
			require.Equal(t, 250, left().Failed)

			r = answering(t, strings.NewReader("Y\n"), url, "tasks", c.verb, name, "--all")
			require.Zero(t, r.status, r.stderr)
			require.Equal(t, name+": "+c.says+" 250 failed tasks\n", r.stdout)
			if c.verb == "retry" {
				require.Equal(t, []int{250, 0}, []int{left().Pending, left().Failed})
			} else {
				require.Contains(t, run(t, url, "tasks", name).stderr, "there is no task")
			}
			require.Equal(t, 1, run(t, url, "tasks", c.verb, "--all", "--yes", name).status, "none is left")
			name += ":few"
			failTasks(t, rdb, name, 3)
			require.JSONEq(t, fmt.Sprintf(`{"name": %q, "retried": %d, "deleted": %d}`, name,
				map[string]int{"retry": 3}[c.verb], map[string]int{"delete": 3}[c.verb]),
				must(t, url, "tasks", c.verb, "--all", "--yes", "--json", name))
		})
	}
}

// A question without an answer ends with the context of the tool, as by an interrupt.
func TestTasks_AnInterruptEndsTheQuestion(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	failTasks(t, rdb, name, 1)
	ctx, cancel := context.WithCancel(t.Context())
	stdin, end := io.Pipe()
	defer end.Close()
	asked := asks{cancel}
	status := cogwheel.RunAnswering(ctx, stdin, []string{"tasks", "retry", "--all", name}, "redis://"+redistest.Shared(t).Addr(), io.Discard, asked)
	require.Equal(t, 2, status)
	require.EqualValues(t, 1, rdb.ZCard(t.Context(), "{"+name+"}:delay:failed").Val())
}

// asks cancels a context when something is asked.
type asks struct {
	cancel func()
}

func (a asks) Write(p []byte) (int, error) {
	a.cancel()
	return len(p), nil
}

// The words that change a queue need the rights of the service, and no others.
func TestTasks_ChangesNeedTheRightsOfTheService(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	failTasks(t, rdb, "app:orders", 1)
	server.User(t, "delay", redistest.DocumentedRights(t, "delay", "app:")...)
	u := url.URL{Scheme: "redis", User: url.UserPassword("delay", "secret"), Host: server.Addr()}
	for _, args := range []string{"pause", "resume", "retry --all --yes"} {
		must(t, u.String(), append([]string{"tasks"}, append(strings.Fields(args), "app:orders")...)...)
	}
	failTasks(t, rdb, "app:orders", 1)
	must(t, u.String(), "tasks", "delete", "--all", "--yes", "app:orders")
}
