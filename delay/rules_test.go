package delay_test

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// Guarantees: D7.
func TestRules_ATaskScheduledWhileOneOfItsIDRunsIsKept(t *testing.T) {
	t.Parallel()
	ends := map[string]func(p *process, a claimedTask){
		"done":   func(p *process, a claimedTask) { p.end(2, "done", a) },
		"again":  func(p *process, a claimedTask) { p.end(2, "again", a, time.Hour.Microseconds()) },
		"failed": func(p *process, a claimedTask) { p.end(2, "failed", a) },
		"back":   func(p *process, a claimedTask) { p.end(2, "back", a) },
		"lost":   func(p *process, a claimedTask) { p.loseLease(a.id) },
	}
	for how, end := range ends {
		p := newProcess(t)
		p.edit(1, schedule("a", 0, "first")...)
		a := p.claim(1)
		p.edit(2, schedule("a", 0, "second")...)
		_, none := p.other().work(1, 10)
		require.Empty(t, none, "not while the first one runs")
		p.edit(3, append(schedule("a", 0, "third"), []any{"schedule", "a", 0, "absent", 0, ":fourth"}...)...)
		end(p, a)
		third := p.claim(3)
		require.Equal(t, "::third", third.text, how)
		require.Zero(t, third.failures+third.losses, how)
		require.Greater(t, third.token, a.token, how)
		p.end(4, "done", third)
		require.Empty(t, p.tasks(), how)
	}
}

// Guarantees: D5.
func TestRules_NoAttemptFollowsACancelledOne(t *testing.T) {
	t.Parallel()
	ends := map[string]func(p *process, a claimedTask){
		"done":   func(p *process, a claimedTask) { p.end(3, "done", a) },
		"again":  func(p *process, a claimedTask) { p.end(3, "again", a, 0) },
		"failed": func(p *process, a claimedTask) { p.end(3, "failed", a) },
		"back":   func(p *process, a claimedTask) { p.end(3, "back", a) },
		"lost": func(p *process, a claimedTask) {
			p.loseLease(a.id)
			_, found := p.work(3, 10)
			require.Empty(p.t, found)
		},
	}
	for how, end := range ends {
		p := newProcess(t)
		p.edit(1, schedule("a", 0, "p")...)
		a := p.claim(2)
		require.Equal(t, []int64{0}, p.edit(2, request("cancel", "a")...), how)
		end(p, a)
		require.Empty(t, p.tasks(), how)
	}
}

// A cancelled task has no further attempt, so one that is scheduled if there is none is kept for afterwards.
func TestRules_IfAbsentReplacesACancelledTask(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	absent := func(text string) []any { return []any{"schedule", "a", 0, "absent", 0, ":" + text} }
	p.edit(1, absent("first")...)
	a := p.claim(1)
	require.Equal(t, []int64{0}, p.edit(2, absent("no")...))
	p.edit(3, request("cancel", "a")...)
	require.Equal(t, []int64{1}, p.edit(4, absent("second")...))
	require.Equal(t, []int64{0}, p.edit(5, absent("no")...))
	p.end(2, "done", a)
	a = p.claim(3)
	require.Equal(t, "::second", a.text)
	p.end(4, "done", a)
	require.Empty(t, p.tasks())
}

// The token of an id rises with each attempt, also if the last token is lost while the clock of Redis is set back.
// Guarantees: D8.
func TestRules_TokensRise(t *testing.T) {
	t.Parallel()
	steps := map[string]func(p *process, a claimedTask){
		"after a failure":       func(p *process, a claimedTask) { p.end(2, "again", a, 0) },
		"after a lost lease":    func(p *process, a claimedTask) { p.loseLease("a") },
		"after it was returned": func(p *process, a claimedTask) { p.end(2, "back", a) },
		"of the next task": func(p *process, a claimedTask) {
			p.edit(2, schedule("a", 0, "next")...)
			p.end(2, "done", a)
		},
		"of a task that was retried": func(p *process, a claimedTask) {
			p.end(2, "failed", a)
			p.edit(2, request("retry", "a")...)
		},
		"of a task that replaces a failed one": func(p *process, a claimedTask) {
			p.end(2, "failed", a)
			p.edit(2, schedule("a", 0, "next")...)
		},
		"of a task that replaces one that waits for its next attempt": func(p *process, a claimedTask) {
			p.end(2, "again", a, time.Hour.Microseconds())
			p.edit(2, schedule("a", 0, "next")...)
		},
	}
	for what, step := range steps {
		p := newProcess(t)
		p.edit(1, schedule("a", 0, "p")...)
		a := p.claim(1)
		p.back = time.Hour
		require.NoError(t, p.rdb.Del(t.Context(), p.key("token")).Err())
		step(p, a)
		require.Greater(t, p.claim(3).token, a.token, what)
	}

	t.Run("while the clock is set back", func(t *testing.T) {
		t.Parallel()
		p, last := newProcess(t), int64(0)
		for i := range 10 {
			p.edit(i+1, schedule("a", 0, "p")...)
			a := p.claim(2*i + 1)
			require.Greater(t, a.token, last)
			last = a.token
			p.end(2*i+2, "done", a)
			p.back += time.Hour
		}
	})

	t.Run("after a loss of the last token", func(t *testing.T) {
		t.Parallel()
		p, last := newProcess(t), int64(0)
		for i := range 10 {
			p.edit(i+1, schedule("a", 0, "p")...)
			a := p.claim(2*i + 1)
			require.Greater(t, a.token, last)
			last = a.token
			p.end(2*i+2, "done", a)
			require.NoError(t, p.rdb.Del(t.Context(), p.key("token")).Err())
		}
	})
}

// A lease that begins after the clock of Redis was set back is not longer than others.
// Guarantees: D11.
func TestRules_LeasesEndAlthoughTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, append(schedule("a", 0, "p"), schedule("b", 0, "p")...)...)
	_, found := p.work(1, 1)
	p.back = time.Hour
	p.end(2, "back", found[0])
	p.claim(3)
	p.back -= 2 * 5 * time.Second
	require.EqualValues(t, 1, p.other().claimAfterPause(1).losses)
}

// A lease that was renewed after the clock of Redis was set back is not longer than others either.
func TestRules_RenewedLeasesEndAlthoughTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	a := p.claim(1)
	p.back = time.Hour
	require.Equal(t, []int64{1}, p.renew(a, redistest.SafeLease.Microseconds()))
	p.back -= 2 * redistest.SafeLease
	require.EqualValues(t, 1, p.other().claimAfterPause(1).losses)
}

// No number of Lua is exact from 2^53 on. Then nothing is claimed, and nothing has changed.
func TestRules_TokensEndBelowTheLargestExactNumber(t *testing.T) {
	t.Parallel()
	for last, want := range map[int64]int{1<<53 - 3: 2, 1<<53 - 2: 0, 1<<53 - 1: 0, 1 << 53: 0} {
		p := newProcess(t)
		p.edit(1, append(schedule("a", 0, "p"), schedule("b", 0, "p")...)...)
		require.NoError(t, p.rdb.Set(t.Context(), p.key("token"), last, 0).Err())
		if want == 0 {
			reply := p.tryWork(1, 2)
			require.ErrorContains(t, reply.Err(), "WRONGKIND", last)
			require.EqualValues(t, 2, p.rdb.ZCard(t.Context(), p.key("due")).Val())
			continue
		}
		_, found := p.work(1, 2)
		require.Len(t, found, want)
		require.Less(t, found[1].token, int64(1<<53))
		require.NotEqual(t, found[0].token, found[1].token)
	}
}

// Guarantees: D13.
func TestRules_TheNumberOfFailedTasksIsBounded(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.kept = 3
	var ids []string
	for i := range 10 {
		id := fmt.Sprint("task-", i)
		ids = append(ids, id)
		p.edit(i+1, schedule(id, 0, "p")...)
		p.end(2*i+2, "failed", p.claim(2*i+1))
		require.LessOrEqual(t, p.rdb.ZCard(t.Context(), p.key("failed")).Val(), int64(3))
	}
	require.Equal(t, ids[7:], p.rdb.ZRange(t.Context(), p.key("failed"), 0, -1).Val(), "the last ones")
	require.EqualValues(t, 3, p.rdb.HLen(t.Context(), p.key("tasks")).Val())
	require.EqualValues(t, 3, p.rdb.HLen(t.Context(), p.key("attempts")).Val())
	p.back = -2 * time.Hour
	p.work(30, 0)
	require.Empty(t, p.tasks(), "their time has passed")
}

// Guarantees: D13.
func TestRules_ATaskWhoseLeaseIsLostTooOftenHasFailed(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	for i := range 3 {
		a := p.claim(2*i + 1)
		require.EqualValues(t, i, a.losses)
		p.begin(2*i+2, a)
		p.loseLease("a")
	}
	_, found := p.work(10, 10)
	require.Empty(t, found)
	require.Equal(t, []string{"a"}, p.rdb.ZRange(t.Context(), p.key("failed"), 0, -1).Val())
}

// A debounce runs at the latest the longest wait after it was scheduled first, whichever call bounds it.
// Guarantees: D14.
func TestRules_ALongestWaitCountsFromTheFirstCallThatSetsOne(t *testing.T) {
	t.Parallel()
	bounded := func(verb, text string) []any {
		return []any{verb, "a", time.Hour.Microseconds(), "replace", time.Minute.Microseconds(), text}
	}
	p := newProcess(t)
	p.back = time.Hour
	p.edit(1, schedule("a", 24*time.Hour, "p")...)
	p.edit(2, bounded("move", "")...)
	due := p.due()
	p.back -= 50 * time.Second
	p.edit(3, bounded("move", "")...)
	require.Equal(t, due, p.due())
	p.edit(4, bounded("schedule", ":new")...)
	require.Equal(t, due, p.due())
	p.back -= time.Minute
	a := p.claim(1)
	p.end(2, "failed", a)
	p.back -= time.Minute
	p.edit(5, bounded("schedule", ":again")...)
	_, found := p.work(3, 10)
	require.Empty(t, found, "the wait of a task that has failed is over")
}

// Tasks that a process hands back run at once in another one, which knows of them by a message alone.
// Guarantees: D10.
func TestRules_TasksThatAreHandedBackRunAtOnceElsewhere(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	queue := func(c *delay.Client) *delay.Queue { return c.Queue(name, delay.WithLease(time.Hour)) }
	first, second := newClient(t, rdb, delay.WithPoll(time.Hour)), newClient(t, rdb, delay.WithPoll(time.Hour))
	q, begun := queue(first), make(chan string, 10)
	stop := serve(t, q, 3, func(ctx context.Context, task *delay.Task) error {
		begun <- task.ID
		<-ctx.Done()
		return ctx.Err()
	})
	for _, id := range []string{"a", "b", "c"} {
		require.NoError(t, q.Schedule(t.Context(), id, 0, nil))
	}
	claimed := <-begun
	redistest.Poll(t, func() bool { return rdb.ZCard(t.Context(), "{"+name+"}:delay:running").Val() == 3 })
	again := make(chan *delay.Task, 10)
	serve(t, queue(second), 1, func(_ context.Context, task *delay.Task) error {
		again <- task
		return nil
	})
	redistest.Poll(t, func() bool { return len(rdb.Keys(t.Context(), "{"+name+"}:delay:claims:*").Val()) == 2 })
	stop()
	var ids []string
	for range 3 {
		select {
		case task := <-again:
			ids = append(ids, task.ID)
			require.Zero(t, task.Failures+task.Losses, task.ID)
		case <-time.After(redistest.Patience):
			require.FailNow(t, "a task was not run", "%v have run, %s first", ids, claimed)
		}
	}
	require.ElementsMatch(t, []string{"a", "b", "c"}, ids)
}

// Calls of many tasks are read and written in parts.
func TestRules_CallsOfManyTasks(t *testing.T) {
	t.Parallel()
	const tasks = 2500
	p := newProcess(t)
	var requests, ends []any
	for i := range tasks {
		requests = append(requests, schedule(fmt.Sprint(i), 0, fmt.Sprint("payload ", i))...)
	}
	require.Len(t, p.edit(1, requests...), tasks)
	_, found := p.work(1, tasks)
	require.Len(t, found, tasks)
	for i, task := range found {
		require.Equal(t, "::payload "+task.id, task.text)
		require.Equal(t, found[0].token+int64(i), task.token)
		ends = append(ends, "again", task.id, task.token, 0)
	}
	recorded, again := p.work(2, tasks, ends...)
	require.EqualValues(t, tasks, recorded)
	require.Len(t, again, tasks)
	ends = nil
	for _, task := range again {
		require.Equal(t, "::payload "+task.id, task.text)
		require.EqualValues(t, 1, task.failures)
		ends = append(ends, "done", task.id, task.token, "")
	}
	recorded, _ = p.work(3, 0, ends...)
	require.EqualValues(t, tasks, recorded)
	require.Empty(t, p.tasks())
}

// Ids and payloads are bytes.
func TestRules_IDsAndPayloadsOfAnyBytes(t *testing.T) {
	t.Parallel()
	id, payload := "a:1 \x00\n%\xff", "1:2 \x00\n%d\xff:"
	bounded := []any{"schedule", id, 0, "replace", time.Minute.Microseconds(), ":" + payload}
	p := newProcess(t)
	p.edit(1, bounded...)
	p.edit(2, bounded...)
	a := p.claim(1)
	require.Equal(t, id, a.id)
	require.Regexp(t, `^\d{16}::`, a.text)
	require.Equal(t, payload, a.text[18:])
	p.edit(3, bounded...)
	p.edit(4, "move", id, 0, "", time.Minute.Microseconds(), "")
	p.end(2, "done", a)
	a = p.claim(3)
	require.Equal(t, payload, a.text[18:])
	require.Equal(t, []int64{0}, p.edit(5, request("cancel", id)...))
	p.end(4, "back", a)
	require.Empty(t, p.tasks())
}

func TestClaim_OfLongTasksIsBounded(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	long := ":" + strings.Repeat("x", 1<<20)
	for i := range 6 {
		p.edit(i+1, "schedule", strconv.Itoa(i), 0, "replace", 0, long)
	}
	claimed := func(number int) int { // the tasks are too long to be printed
		_, found := p.work(number, 10)
		return len(found)
	}
	require.Equal(t, 3, claimed(1), "a fourth one would exceed the bound by what Redis adds to each")
	require.Equal(t, 3, claimed(2))
	p.edit(7, "schedule", "longest", 0, "replace", 0, strings.Repeat(long, 5))
	require.Equal(t, 1, claimed(3), "one task is never too long")
}

// A claim of long tasks, and one of ends before which others were scheduled, reads few that it has no room for.
func TestClaim_ReadsFewTasksInVain(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	p := newProcess(t)
	readBytes := func() int {
		n, err := p.rdb.GetDel(t.Context(), "read:"+p.name).Int()
		require.NoError(t, err)
		return n
	}
	const hmget = "redis.call('HMGET', ...)"
	p.replaced = strings.NewReplacer(hmget, "(function(values) for i = 1, #values do redis.call('INCRBY', 'read:"+p.name+
		"', #(values[i] or '')) end return values end)("+hmget+")")
	const tasks, most = 40, 6 << 20
	long := strings.Repeat("x", 1<<20-1000)
	scheduleAll := func(number int, in time.Duration) {
		for i := range tasks {
			p.edit(number+i, schedule(strconv.Itoa(i), in, long)...)
		}
		readBytes()
	}
	scheduleAll(1, 0)
	var ends []any
	for number := 1; len(ends) < 4*tasks; number++ {
		_, found := p.work(number, tasks)
		require.Less(t, readBytes(), most)
		for _, a := range found {
			ends = append(ends, "done", a.id, a.token, "")
		}
	}
	scheduleAll(tasks+1, time.Hour)
	recorded, _ := p.work(tasks+1, 0, ends...)
	require.Positive(t, recorded)
	require.Less(t, readBytes(), most)
	read := p.read
	require.Less(t, read, int64(tasks))
	_, _ = p.work(tasks+1, 0, ends...)
	require.Equal(t, read, p.read, "the reply to a copy of the call says the same: the other ends are still to be recorded")
}

// Redis counts microseconds. A time between two of them means the later one.
func TestRules_ATimeIsRoundedUp(t *testing.T) {
	t.Parallel()
	q := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t))
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond).Add(999)
	require.NoError(t, q.ScheduleAt(t.Context(), "a", at, nil))
	s, err := q.State(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, s.At.Before(at), "%v is before %v", s.At, at)

	require.NoError(t, q.Schedule(t.Context(), "bounded", time.Hour, nil, delay.WithMaxWait(1)))
	s, err = q.State(t.Context(), "bounded")
	require.NoError(t, err)
	require.LessOrEqual(t, s.In, time.Microsecond, "a shorter longest wait than a microsecond is none")
}

func TestBackoff_DoublesUpToTheLongest(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for failures, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 17: 65536 * time.Second, 18: day, 1000: day} {
		require.Equal(t, want, delay.Backoff(time.Second, day)(failures, nil), failures)
	}
	require.Equal(t, time.Second, delay.Backoff(time.Minute, time.Second)(1, nil))
	require.Equal(t, time.Duration(math.MaxInt64), delay.Backoff(time.Second, math.MaxInt64)(1000, nil))
}
