package delay_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

func pause(t *testing.T, q *delay.Queue) {
	t.Helper()
	paused, err := q.Pause(t.Context())
	require.True(t, paused && err == nil, "%v", err)
}

func resume(t *testing.T, q *delay.Queue) {
	t.Helper()
	resumed, err := q.Resume(t.Context())
	require.True(t, resumed && err == nil, "%v", err)
}

// No process claims a task of a paused queue. Resume wakes as many as there are tasks for: within the test nobody polls.
// Guarantees: D25.
func TestPause_NoTaskBeginsUntilResume(t *testing.T) {
	t.Parallel()
	f := newCrew(t, redistest.Shared(t).Client(t))
	var clients []*delay.Client
	begun, end := make(chan string, 10), make(chan struct{})
	for i := range 3 {
		c := newClient(t, f.rdb, delay.WithPoll(time.Hour))
		clients = append(clients, c)
		serve(t, c.Queue(f.name), 1, func(_ context.Context, task *delay.Task) error {
			begun <- task.ID
			<-end
			return nil
		})
		f.await(int64(i + 1))
	}
	defer close(end)
	q, ctx := f.queue(f.rdb), t.Context()
	pause(t, q)
	again, err := q.Pause(ctx)
	require.True(t, !again && err == nil)
	for i := range 3 {
		require.NoError(t, q.Schedule(ctx, fmt.Sprint(i), 0, nil))
	}
	redistest.Poll(t, func() bool { // the first one has asked, and so have those that ask in case it has not
		for _, c := range clients {
			if c.Stats().Paused != 1 {
				return false
			}
		}
		return true
	})
	require.Empty(t, begun)
	require.EqualValues(t, 3, f.waiting())
	s, err := q.State(ctx, "0")
	require.NoError(t, err)
	require.True(t, s.Paused)
	require.Equal(t, delay.PhasePending, s.Phase)
	resume(t, q)
	again, err = q.Resume(ctx)
	require.True(t, !again && err == nil)
	ran := map[string]bool{}
	for range 3 { // at once, as no handler returns
		select {
		case id := <-begun:
			ran[id] = true
		case <-time.After(redistest.Patience):
			require.Fail(t, "a task has not begun", "%v", ran)
		}
	}
	require.Len(t, ran, 3)
	redistest.Poll(t, func() bool { return clients[0].Stats().Paused == 0 })
	s, err = q.State(ctx, "0")
	require.NoError(t, err)
	require.False(t, s.Paused)
}

// A handler that runs goes on, and its end is recorded; tasks are cancelled and moved.
// Guarantees: D25.
func TestPause_EverythingElseGoesOn(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, append(schedule("a", 0, "p"), schedule("b", 0, "p")...)...)
	_, found := p.work(1, 10)
	require.Len(t, found, 2)
	require.Equal(t, []int64{1}, p.edit(2, request("pause", "")...))
	require.Equal(t, []int64{1}, p.renew(found[0], redistest.SafeLease.Microseconds()))
	p.end(2, "done", found[0])
	require.Empty(t, p.phase(found[0].id))
	p.edit(3, append(schedule("c", time.Hour, "p"), schedule("d", 0, "p")...)...)
	require.Equal(t, []int64{1, 1}, p.edit(4, append(request("cancel", "c"), "move", "d", 0, "", 0, "")...))
	p.endLease(found[1].id)
	_, none := p.work(3, 10)
	require.Empty(t, none)
	require.Equal(t, "pending", p.phase(found[1].id), "it waits after its loss")
	require.Less(t, p.next, 2*time.Second, "until that wait is over")
	p.endLease(found[1].id)
	_, none = p.work(4, 10)
	require.Empty(t, none)
	require.Negative(t, p.next, "nobody is to ask for what is due")
	require.Positive(t, p.overdue)
	require.False(t, p.careful)
	require.Equal(t, []int64{1}, p.edit(5, request("resume", "")...))
	require.NotContains(t, p.tasks(), "paused")
	_, both := p.work(5, 10)
	require.Len(t, both, 2)
}

// A copy of a call pauses no queue that was resumed since, and has the answer of the call.
// Guarantees: D25.
func TestCopies_PauseAndResume(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	require.Equal(t, []int64{1}, p.edit(2, request("pause", "")...))
	require.Equal(t, []int64{1}, p.edit(2, request("pause", "")...))
	require.Equal(t, []int64{1, 0}, p.other().edit(1, append(request("resume", ""), request("resume", "")...)...))
	require.Equal(t, []int64{1}, p.edit(2, request("pause", "")...))
	p.claim(1)
	require.Equal(t, []int64{1}, p.edit(3, request("pause", "")...))
	require.Equal(t, []int64{1, 0}, p.other().edit(1, append(request("resume", ""), request("resume", "")...)...))
	require.Contains(t, p.tasks(), "paused")
	_, found := p.work(1, 10)
	require.Len(t, found, 1, "the call that claimed it was before")
}

// Processes that are not in the waiting list listen to the channel of the queue.
// Guarantees: D25.
func TestResume_WakesProcessesThatAreNotListed(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, append(request("pause", ""), schedule("a", 0, "p")...)...)
	heard := p.rdb.Subscribe(t.Context(), scripts.DelayChannel(p.name))
	defer heard.Close()
	_, err := heard.Receive(t.Context())
	require.NoError(t, err)
	p.edit(2, request("resume", "")...)
	message, err := heard.ReceiveMessage(redistest.Within(t, redistest.Patience))
	require.NoError(t, err)
	require.Empty(t, message.Payload)
}

// A pause does not expire. If Redis loses it, the queue runs again.
// Guarantees: D25.
func TestPause_ALostKeyResumes(t *testing.T) {
	t.Parallel()
	f := newCrew(t, redistest.Shared(t).Client(t))
	c := newClient(t, f.rdb, delay.WithPoll(10*time.Millisecond))
	pause(t, c.Queue(f.name))
	serve(t, c.Queue(f.name), 1, f.handle)
	require.NoError(t, c.Queue(f.name).Schedule(t.Context(), "a", 0, nil))
	redistest.Poll(t, func() bool { return c.Stats().Paused == 1 })
	require.EqualValues(t, -1, f.rdb.TTL(t.Context(), f.key("paused")).Val())
	require.NoError(t, f.rdb.Del(t.Context(), f.key("paused")).Err())
	f.awaitRun("a")
}

func TestPause_RefusesBadInput(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Shared(t).Client(t))
	var none context.Context
	for _, call := range []func() (bool, error){
		func() (bool, error) { return c.Queue("").Pause(t.Context()) },
		func() (bool, error) { return c.Queue("a").Pause(none) },
		func() (bool, error) { return c.Queue("a").Resume(none) },
	} {
		done, err := call()
		require.Error(t, err)
		require.False(t, done)
	}
}
