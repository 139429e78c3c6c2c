package delay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/clock/clocktest"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// A process that dies takes along tasks that it has claimed ahead. That costs them nothing: they are due as before.
// Guarantees: D11.
func TestLosses_ATaskThatHasNotBegunLosesNothing(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.busy = 1 // of two
	p.edit(1, append(schedule("a first one", 0, "p"), schedule("one ahead", 0, "p")...)...)
	due := p.rdb.ZScore(t.Context(), p.key("due"), "one ahead").Val()
	_, found := p.work(1, 2)
	require.Equal(t, []bool{true, false}, []bool{found[0].begun, found[1].begun})
	p.endLease("a first one")
	p.endLease("one ahead")
	other := p.other()
	other.work(1, 0)
	require.InDelta(t, due, p.rdb.ZScore(t.Context(), p.key("due"), "one ahead").Val(), 0)
	other.busy = 0
	ahead := other.claim(2)
	require.Zero(t, ahead.losses)
	require.True(t, ahead.begun)
	require.True(t, other.careful)
}

// One that was lost so is claimed again for a free worker only, so that the next loss counts if it has begun.
func TestLosses_ATaskThatWasLostIsNotClaimedAhead(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.busy = 9 // of ten
	p.edit(1, append(schedule("a", 0, "p"), schedule("b", 0, "p")...)...)
	_, found := p.work(1, 10)
	require.Equal(t, []bool{true, false}, []bool{found[0].begun, found[1].begun})
	lost := found[1].id
	p.loseLease(lost)
	p.busy = 10
	_, found = p.work(2, 10)
	require.Empty(t, found)
	require.True(t, p.careful)
	p.busy = 9
	require.Equal(t, lost, p.claim(3).id)
}

// What a process tells of the beginning of an attempt travels with its calls and renewals.
// Guarantees: D22.
func TestLosses_ABeginningIsKnownByTheNextCallOrRenewal(t *testing.T) {
	t.Parallel()
	for how, tell := range map[string]func(p *process, a claimedTask){
		"call": func(p *process, a claimedTask) { p.begin(2, a) },
		"renewal": func(p *process, a claimedTask) {
			require.Equal(t, []int64{1}, p.renew(a, redistest.SafeLease.Microseconds()))
		},
	} {
		p := newProcess(t)
		p.busy = 10
		p.edit(1, schedule("a", 0, "p")...)
		a := p.claim(1)
		require.False(t, a.begun)
		require.Equal(t, []int64{1}, p.renew(a, fmt.Sprint(redistest.SafeLease.Microseconds(), ".5")))
		tell(p, a)
		p.loseLease("a")
		p.busy = 0
		require.EqualValues(t, 1, p.other().claim(1).losses, how)
	}
}

// After a loss a task waits for a pause that grows. It keeps its due time, and its state is that of a pending task.
// Guarantees: D11.
func TestLosses_ATaskWaitsForAGrowingPause(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.lost = 25
	p.back = time.Hour
	p.edit(1, schedule("a", 0, "p")...)
	due := p.due()
	p.back = 0
	longest := time.Second
	for i := range 12 {
		a := p.claim(3*i + 1)
		require.EqualValues(t, i, a.losses)
		require.InDelta(t, time.Hour, -a.wait, float64(time.Minute), "it is late since it was due")
		p.begin(3*i+2, a)
		p.endLease("a")
		p.at = time.Now()
		p.work(3*i+3, 0)
		ends := p.rdb.ZScore(t.Context(), p.key("running"), "a").Val()
		pause := time.Duration(int64(ends)-p.at.UnixMicro()) * time.Microsecond
		require.True(t, longest/2 <= pause && pause <= longest, "%v of %v", pause, longest)
		require.Equal(t, "pending", p.phase("a"))
		require.Equal(t, []string{"a"}, p.pending())
		longest = min(2*longest, 5*time.Minute)
		p.at = time.Time{}
		p.endLease("a")
	}
	p.work(100, 0)
	require.Equal(t, due, p.due())
}

// While a task waits for the end of its pause, calls find a pending one.
func TestLosses_ATaskThatWaitsIsPending(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		request []any
		answer  int64
		text    string // of the next attempt
	}{
		"cancel":   {request("cancel", "a"), 1, ""},
		"schedule": {schedule("a", 0, "new"), 1, "::new"},
		"absent":   {[]any{"schedule", "a", 0, "absent", 0, ":no"}, 0, "::p"},
		"move":     {[]any{"move", "a", 0, "", 0, ""}, 1, "::p"},
	} {
		p := newProcess(t)
		p.edit(1, schedule("a", 0, "p")...)
		a := p.claim(1)
		p.endLease("a")
		p.work(2, 0)
		require.Equal(t, []int64{c.answer}, p.edit(2, c.request...), what)
		p.back = -5 * time.Minute
		if c.text == "" {
			require.Empty(t, p.tasks(), what)
			continue
		}
		require.NotContains(t, p.rdb.HGet(t.Context(), p.key("attempts"), "a").Val(), "@", what) // the due time is in due again
		recorded, _ := p.work(3, 0, "done", "a", a.token, "")
		require.Equal(t, what == "absent", recorded == 1, what)
		if what != "absent" { // a call changed the task, so the attempt before cannot end it
			require.Equal(t, c.text, p.claim(4).text, what)
		}
	}
}

// A handler that returns after the end of its lease has done its task, unless another attempt has begun.
// Guarantees: D3.
func TestLosses_ALateEndCountsWhileItsTokenIsTheLast(t *testing.T) {
	t.Parallel()
	lost := map[string]func(p *process) claimedTask{
		"before it is found": func(p *process) claimedTask {
			a := p.claim(1)
			p.endLease("a")
			return a
		},
		"during its pause": func(p *process) claimedTask {
			a := p.claim(1)
			p.endLease("a")
			p.other().work(1, 0)
			return a
		},
		"after its pause": func(p *process) claimedTask {
			a := p.claim(1)
			p.loseLease("a")
			p.other().work(1, 0)
			return a
		},
		"before the beginning was known": func(p *process) claimedTask {
			p.busy = 10
			a := p.claim(1)
			p.endLease("a")
			p.other().work(1, 0)
			return a
		},
		"when it has failed": func(p *process) claimedTask {
			p.lost = 1
			a := p.claim(1)
			p.endLease("a")
			p.other().work(1, 0)
			require.EqualValues(p.t, 1, p.rdb.ZCard(p.t.Context(), p.key("failed")).Val())
			return a
		},
		"in the call that would claim it": func(p *process) claimedTask {
			a := p.claim(1)
			p.loseLease("a")
			p.other().work(1, 0)
			recorded, found := p.work(2, 10, "done", "a", a.token, "")
			require.EqualValues(p.t, 1, recorded)
			require.Empty(p.t, found)
			return claimedTask{}
		},
	}
	for what, lose := range lost {
		p := newProcess(t)
		p.edit(1, schedule("a", 0, "p")...)
		if a := lose(p); a.id != "" {
			recorded, _ := p.work(2, 0, "done", "a", a.token, "")
			require.EqualValues(t, 1, recorded, what)
		}
		require.Empty(t, p.tasks(), what)
	}
}

// A task that was handed back, or lost before it had begun, keeps its place before newer ones.
// Guarantees: D10.
func TestLosses_TheDueTimeStays(t *testing.T) {
	t.Parallel()
	for how, leave := range map[string]func(p *process, a claimedTask){
		"handed back": func(p *process, a claimedTask) { p.end(2, "back", a) },
		"lost":        func(p *process, _ claimedTask) { p.loseLease("a") },
		"lost before it had begun": func(p *process, a claimedTask) {
			require.Equal(t, []int64{1}, p.renew(a, "5000000.5"))
			p.loseLease("a")
		},
	} {
		p := newProcess(t)
		p.back = time.Hour
		p.edit(1, schedule("a", 0, "p")...)
		p.back = time.Minute
		p.edit(2, schedule("newer", 0, "p")...)
		p.back = 0
		_, found := p.work(1, 1)
		require.Equal(t, "a", found[0].id)
		leave(p, found[0])
		p.other().work(1, 0)
		_, found = p.work(3, 1)
		require.Equal(t, "a", found[0].id, how)
		require.InDelta(t, time.Hour, -found[0].wait, float64(30*time.Second), how)
	}
}

// fleet is a process that is started again whenever a task kills it, played on the scripts with a clock of its own.
type fleet struct {
	*process
	number, starts int
	runs           map[string]int // beginnings
}

// start begins a process.
func (f *fleet) start() {
	f.starts++
	f.number, f.id = 0, fmt.Sprint("start-", f.starts)
}

// run lets a process with some workers run tasks of a second until it dies, or the time is over.
func (f *fleet) run(workers int, until time.Time, kills func(id string) bool) {
	for f.at.Before(until) {
		f.number++
		_, found := f.work(f.number, workers)
		if len(found) == 0 {
			if f.next < 0 {
				return // no task is left
			}
			f.at = f.at.Add(max(f.next, time.Millisecond))
			continue
		}
		f.at = f.at.Add(time.Second)
		var ends []any
		for _, a := range found {
			if !a.begun { // it runs alone: all others have ended
				f.begin(f.number+1, a)
				f.number++
			}
			f.runs[a.id]++
			if kills(a.id) {
				f.start() // the ends of the others are lost with the process
				ends = nil
				break
			}
			ends = append(ends, "done", a.id, a.token, "")
		}
		if len(ends) > 0 {
			f.number++
			f.work(f.number, 0, ends...)
		}
	}
}

// A deploy crashes at one task. The others that are due with it run meanwhile, and only it fails.
// Guarantees: D22.
func TestLosses_OnlyTheTaskThatCrashesFails(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.at, p.lost, p.lease = time.Now(), 25, 5*time.Second
	f := &fleet{process: p, runs: map[string]int{}}
	f.start()
	kills := func(id string) bool { return id == "order-03" }
	for i := range 12 {
		f.edit(i+1, schedule(fmt.Sprintf("order-%02d", i), 0, "p")...)
	}
	began := f.at
	f.run(4, began.Add(10*time.Minute), kills)
	require.Empty(t, f.rdb.ZRange(t.Context(), f.key("failed"), 0, -1).Val(), "after ten minutes")
	for id, runs := range f.runs {
		if !kills(id) {
			require.LessOrEqual(t, runs, 3, "%s died with the process twice at most", id)
		}
	}
	require.Len(t, f.runs, 12)
	require.EqualValues(t, 1, f.rdb.HLen(t.Context(), f.key("tasks")).Val(), "the others have ended")
	f.run(4, began.Add(2*time.Hour), kills)
	require.Equal(t, 25, f.runs["order-03"])
	require.Equal(t, []string{"order-03"}, f.rdb.ZRange(t.Context(), f.key("failed"), 0, -1).Val())
	require.Equal(t, 26, f.starts)
}

// runCrashing is the process of TestLosses_ACrashingDeploy. When it ends, every task that it has claimed for a worker is
// in its log: each worker has one whose handler runs.
func runCrashing(name string) error {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("DELAY_ADDR")})
	c, err := delay.New(rdb)
	if err != nil {
		return err
	}
	q, crashing := c.Queue(name, crashLease), make(chan struct{})
	return q.Serve(context.Background(), 2, func(ctx context.Context, task *delay.Task) error {
		if err := rdb.RPush(ctx, name+":log", task.ID).Err(); err != nil {
			return err
		}
		if task.ID == "crash" {
			if task.Losses < 2 { // or it runs alone
				crashing <- struct{}{}
			}
			os.Exit(7)
		}
		short, end := q.Wheel().WithTimeout(ctx, 300*time.Millisecond)
		defer end()
		select {
		case <-short.Done():
		case <-crashing:
			<-ctx.Done() // it runs when the process ends
		}
		return nil
	})
}

// crashLease is the lease of TestLosses_ACrashingDeploy, which ends it in Redis.
var crashLease = delay.WithLease(2 * redistest.Patience)

// A deploy crashes at one task again and again. Then a good one runs at once what had not begun, and none has failed.
// Guarantees: D22.
func TestLosses_ACrashingDeploy(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server, name := redistest.Shared(t), redistest.Name(t)
	rdb := server.Client(t)
	c := newClient(t, rdb, delay.WithPoll(time.Hour))
	q := c.Queue(name, crashLease)
	require.NoError(t, q.ScheduleAt(t.Context(), "crash", time.Now().Add(-time.Minute), nil))
	const orders = 200
	for i := range orders {
		require.NoError(t, q.Schedule(t.Context(), fmt.Sprint("order-", i), 0, nil))
	}
	p := &process{t: t, rdb: rdb, name: name}
	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), redistest.ChildEnv+"="+name, "DELAY_ADDR="+server.Addr())
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Run(), &exit)
		require.Equal(t, 7, exit.ExitCode())
		for _, id := range rdb.ZRange(t.Context(), p.key("running"), 0, -1).Val() {
			p.endLease(id)
		}
	}
	begun := rdb.LRange(t.Context(), name+":log", 0, -1).Val()
	require.Less(t, len(begun), orders, "some orders have not begun")
	var fresh []string // the first call claims these, and puts the others off
	for i := range orders {
		if id := fmt.Sprint("order-", i); !slices.Contains(begun, id) {
			fresh = append(fresh, id)
		}
	}
	var mu sync.Mutex
	var before []string // crash, which runs alone, after those that were claimed before it
	runs := map[string][]delay.Task{}
	done := make(chan struct{})
	stop := serve(t, q, 2*orders, func(_ context.Context, task *delay.Task) error {
		mu.Lock()
		defer mu.Unlock()
		runs[task.ID] = append(runs[task.ID], *task)
		if task.ID == "crash" {
			before = slices.Collect(maps.Keys(runs))
			close(done)
		}
		return nil
	})
	select {
	case <-done:
	case <-time.After(redistest.Patience):
		t.Error("it does not run again")
	}
	redistest.Poll(t, func() bool { return rdb.HLen(t.Context(), p.key("tasks")).Val() == 0 })
	stop()
	require.Subset(t, before, fresh)
	for _, id := range fresh {
		require.Len(t, runs[id], 1, id)
		require.Zero(t, runs[id][0].Losses, id)
	}
	require.Equal(t, 3, runs["crash"][0].Losses)
	require.Zero(t, c.Stats().LostTooOften+c.Stats().Exhausted)
}

// A lost lease makes room for a task that is due. The process asks for it, and not at the next poll.
// Guarantees: D11.
func TestServe_AWorkerThatIsFreeAfterALossTakesADueTask(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	rdb, name := redistest.Start(t).Client(t), redistest.Name(t)
	c := newClient(t, rdb, delay.WithPoll(time.Hour))
	q := c.Queue(name, delay.WithLease(time.Second))
	begun, refuses := make(chan string, 100), make(chan struct{})
	serve(t, q, 4, func(ctx context.Context, task *delay.Task) error {
		begun <- task.ID
		if task.ID == "quick" {
			return nil
		}
		select {
		case <-refuses:
		case <-ctx.Done():
		}
		return context.Cause(ctx)
	})
	require.NoError(t, q.Schedule(t.Context(), "quick", 0, nil)) // so that tasks are claimed ahead, and handed back
	<-begun
	for i := range 20 {
		require.NoError(t, q.Schedule(t.Context(), strconv.Itoa(i), 0, nil))
	}
	for range 4 {
		<-begun
	}
	redistest.Poll(t, func() bool { return rdb.ZCard(t.Context(), "{"+name+"}:delay:running").Val() == 4 })
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	redistest.Poll(t, func() bool { return c.Stats().Lost >= 4 })
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	close(refuses)
	for range 20 {
		select {
		case <-begun:
		case <-time.After(redistest.Patience):
			require.FailNow(t, "a free worker is idle")
		}
	}
}

// A task whose handler has returned is renewed until Redis has recorded that.
// Guarantees: D3.
func TestServe_TheLeaseLastsUntilTheEndIsRecorded(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	d := &redistest.FaultDialer{}
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = d.Dial, redistest.Patience })
	other, name := redistest.Shared(t).Client(t), redistest.Name(t)
	c := newClient(t, rdb)
	q := c.Queue(name, delay.WithLease(redistest.SafeLease))
	begun, end := make(chan struct{}), make(chan struct{})
	serve(t, q, 1, func(context.Context, *delay.Task) error {
		close(begun)
		<-end
		return nil
	})
	require.NoError(t, q.Schedule(t.Context(), "a", 0, nil))
	<-begun
	lost := d.LoseCall(scripts.DelayWork.SHA(), 1)
	ends := func() float64 { return other.ZScore(t.Context(), "{"+name+"}:delay:running", "a").Val() }
	close(end)
	<-lost
	first := ends()
	redistest.Poll(t, func() bool { return ends() != first })
	require.Greater(t, ends(), first, "the lease is renewed")
	d.Reset()
	redistest.Poll(t, func() bool { return ends() == 0 })
	require.Zero(t, c.Stats().Renewal.Lost+c.Stats().Lost)
}

// A task that has lost its lease twice runs alone among the tasks of its Client, also those of other queues.
// Guarantees: D22.
func TestServe_ATaskWithTwoLossesRunsAlone(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	for i := range 2 {
		p.begin(2*i+2, p.claim(2*i+1))
		p.loseLease("a")
	}
	c, other := newClient(t, p.rdb, delay.WithPoll(time.Hour)), redistest.Name(t)
	begun, end := make(chan string, 100), make(chan struct{})
	handle := func(_ context.Context, task *delay.Task) error {
		begun <- task.ID
		<-end
		return nil
	}
	serve(t, c.Queue(other), 4, handle)
	require.NoError(t, c.Queue(other).Schedule(t.Context(), "x", 0, nil))
	require.Equal(t, "x", <-begun)
	serve(t, c.Queue(p.name), 4, handle)
	running := func(name, id string) bool {
		return p.rdb.ZScore(t.Context(), scripts.DelayKey(name, "running"), id).Val() > 1e9
	}
	redistest.Poll(t, func() bool { return p.phase("a") == "claimed" && running(p.name, "a") && c.Stats().Overdue > 0 }) // it waits
	require.NoError(t, c.Queue(p.name).Schedule(t.Context(), "b", 0, nil))
	require.NoError(t, c.Queue(other).Schedule(t.Context(), "y", 0, nil))
	end <- struct{}{}
	require.Equal(t, "a", <-begun, "when the other has ended")
	require.Equal(t, []string{"pending", "1"}, []string{p.phase("b"), fmt.Sprint(c.Stats().Running)})
	require.Zero(t, int64(p.rdb.ZScore(t.Context(), p.key("running"), "a").Val()*2)%2, "Redis knows that it has begun")
	end <- struct{}{}
	last := []string{<-begun, <-begun}
	slices.Sort(last)
	require.Equal(t, []string{"b", "y"}, last)
	close(end)
}

// afterCalls is a hook that is called after each call for a queue that has succeeded.
type afterCalls struct {
	name string
	do   func()
}

func (h afterCalls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h afterCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		h.after(cmd)
		return err
	}
}

func (h afterCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		h.after(cmds...)
		return err
	}
}

func (h afterCalls) after(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if cmd.Err() == nil && strings.Contains(cmd.String(), h.name) {
			h.do()
		}
	}
}

// A task with two losses is claimed while another runs. Redis learns that it begins before it does, and not a second time
// by the calls that follow while it runs.
func TestServe_ATaskThatRunsAloneBeginsOnce(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	for i := range 2 {
		p.begin(2*i+2, p.claim(2*i+1))
		p.loseLease("a")
	}
	var calls atomic.Int64
	rdb := redistest.Shared(t).Client(t)
	rdb.AddHook(afterCalls{p.name, func() { calls.Add(1) }})
	w, err := wheel.New(wheel.WithClock(clocktest.Fast(10))) // the process asks once in 5 s
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = w.Stop(context.Background()) })
	c, other := newClient(t, rdb, delay.WithPoll(time.Hour), delay.WithWheel(w)), redistest.Name(t)
	begun, end := make(chan string, 100), make(chan struct{})
	defer close(end)
	handle := func(_ context.Context, task *delay.Task) error {
		begun <- task.ID
		<-end
		return nil
	}
	serve(t, c.Queue(other), 1, handle)
	require.NoError(t, c.Queue(other).Schedule(t.Context(), "x", 0, nil))
	require.Equal(t, "x", <-begun)
	serve(t, c.Queue(p.name), 2, handle)
	redistest.Poll(t, func() bool { return p.phase("a") == "claimed" })
	end <- struct{}{}
	require.Equal(t, "a", <-begun)
	before := calls.Load()
	redistest.Poll(t, func() bool { return calls.Load() >= before+3 })
	require.Empty(t, begun)
}

// A call has claimed a task of another queue before one begins alone, and is answered after that: its task is handed
// back.
func TestServe_ATaskWithTwoLossesRunsBesideNoneOfALateClaim(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.edit(1, schedule("a", 0, "p")...)
	for i := range 2 {
		p.begin(2*i+2, p.claim(2*i+1))
		p.loseLease("a")
	}
	other := redistest.Name(t)
	require.NoError(t, newClient(t, p.rdb).Queue(other).Schedule(t.Context(), "late", 0, nil))
	executed, release := make(chan struct{}), make(chan struct{})
	hold := sync.OnceFunc(func() { // the reply to the first call
		close(executed)
		<-release
	})
	rdb := redistest.Shared(t).Client(t)
	rdb.AddHook(afterCalls{other, hold})
	events := make(chan string, 100)
	c := newClient(t, rdb, delay.WithPoll(time.Hour), delay.WithHooks(delay.Hooks{
		Ended: func(e delay.Event) { events <- e.ID + " " + string(e.Outcome) },
	}))
	end := make(chan struct{})
	finish := sync.OnceFunc(func() { close(end) })
	defer finish()
	handle := func(_ context.Context, task *delay.Task) error {
		events <- task.ID
		<-end
		return nil
	}
	serve(t, c.Queue(other), 4, handle)
	<-executed
	serve(t, c.Queue(p.name), 4, handle)
	require.Equal(t, "a", <-events)
	close(release)
	require.Equal(t, "late "+string(delay.OutcomeHandedBack), <-events)
	finish()
	ended := []string{<-events, <-events, <-events}
	require.ElementsMatch(t, []string{"a " + string(delay.OutcomeDone), "late", "late " + string(delay.OutcomeDone)}, ended)
}

// Incidents are counted, logged and given to the hook.
// Guarantees: D13, D21.
func TestIncidents_AreReported(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	ctx := t.Context()
	incidents := make(chan delay.Incident, 100)
	c := newClient(t, p.rdb, delay.WithHooks(delay.Hooks{
		Incident: func(i delay.Incident) { incidents <- i },
	}))
	q := c.Queue(p.name, delay.WithMaxFailed(2), delay.WithRetry(1, delay.Backoff(time.Second, time.Second)))
	next := func() delay.Incident {
		select {
		case i := <-incidents:
			return i
		case <-time.After(redistest.Patience):
			require.FailNow(t, "no incident")
			return delay.Incident{}
		}
	}

	// Redis has lost the payload.
	require.NoError(t, q.Schedule(ctx, "evicted", 0, []byte("p")))
	require.NoError(t, p.rdb.Del(ctx, p.key("tasks")).Err())
	stop := serve(t, q, 1, func(_ context.Context, task *delay.Task) error {
		if len(task.Payload) == 0 {
			t.Error("a handler sees a task without its payload")
		}
		return errors.New("no")
	})
	require.Equal(t, delay.Incident{Queue: p.name, ID: "evicted", Kind: delay.IncidentNoPayload}, next())

	// Too many tasks have failed.
	for i := range 3 {
		require.NoError(t, q.Schedule(ctx, fmt.Sprint("failed-", i), 0, []byte("p")))
		redistest.Poll(t, func() bool { return c.Stats().Exhausted == int64(i+1) })
	}
	require.Equal(t, delay.Incident{Queue: p.name, ID: "failed-0", Kind: delay.IncidentDeleted}, next())
	stop()

	// A task has lost its lease too often.
	require.NoError(t, q.Schedule(ctx, "lost", 0, []byte("p")))
	p.begin(2, p.claim(1))
	require.NoError(t, p.rdb.HSet(ctx, p.key("attempts"), "lost", strings.Replace(
		p.rdb.HGet(ctx, p.key("attempts"), "lost").Val(), "0:0:", "0:24:", 1)).Err())
	p.endLease("lost")
	serve(t, q, 1, func(context.Context, *delay.Task) error { return nil })
	require.Equal(t, delay.Incident{Queue: p.name, ID: "lost", Kind: delay.IncidentLostTooOften}, next())
	s := c.Stats()
	require.Equal(t, []int64{1, 1}, []int64{s.NoPayload, s.LostTooOften})
	require.Positive(t, s.Deleted)
}

// The last attempts of tasks are logged, those of a call in one line.
func TestServe_TasksWhoseAttemptsAreUsedUpAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer // written under the lock of its handler
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	c := newClient(t, rdb, delay.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	q := c.Queue(name, delay.WithRetry(2, delay.Backoff(time.Millisecond, time.Millisecond)))
	for _, id := range []string{"a", "b", "c"} {
		require.NoError(t, q.Schedule(t.Context(), id, 0, nil))
	}
	stop := serve(t, q, 3, func(_ context.Context, task *delay.Task) error {
		if task.ID == "c" {
			return nil
		}
		return errors.New("no stock")
	})
	redistest.Poll(t, func() bool { return c.Stats().Exhausted == 2 })
	stop()
	require.NoError(t, c.Close(t.Context()))
	logged := regexp.MustCompile(`level=WARN msg="delay: tasks have failed, and no attempt follows" queue=`+name+
		` tasks=(\d) ids="?\[(.*)\]"? error="no stock"\n`).FindAllStringSubmatch(log.String(), -1)
	require.Len(t, logged, strings.Count(log.String(), "\n"))
	var ids []string
	for _, line := range logged {
		of := strings.Fields(line[2])
		require.Equal(t, line[1], strconv.Itoa(len(of)))
		ids = append(ids, of...)
	}
	require.ElementsMatch(t, []string{"a", "b"}, ids, log.String())
}

// A copy of a call whose reply was lost reports the same incidents.
// Guarantees: D13.
func TestIncidents_OfALostReply(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	p.lost = 1
	id := "a:1 \x00\n%\xff"
	p.edit(1, schedule(id, 0, "p")...)
	p.claim(1)
	p.endLease(id)
	p.work(2, 0)
	require.Equal(t, fmt.Sprint("L", len(id), ":", id), p.reports)
	p.work(2, 0)
	require.Equal(t, fmt.Sprint("L", len(id), ":", id), p.reports)
	p.work(3, 0)
	require.Empty(t, p.reports)
}

// By default a task is attempted for about a day.
func TestBackoff_TheDefaultLastsForADay(t *testing.T) {
	t.Parallel()
	sum := time.Duration(0)
	for failures := 1; failures < delay.DefaultAttempts; failures++ {
		sum += delay.Backoff(time.Second, time.Hour)(failures, nil)
	}
	require.InDelta(t, 24*time.Hour, sum, float64(time.Hour))
	q := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t))
	require.Equal(t, delay.DefaultAttempts, q.Attempts())
}
