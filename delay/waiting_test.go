package delay_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// crew is a queue that several processes serve. Their polls are an hour apart or so: tasks run only because messages,
// timers and guards work.
type crew struct {
	t    *testing.T
	rdb  *redis.Client
	name string
	ran  chan string // ids of tasks
}

func newCrew(t *testing.T, rdb *redis.Client) *crew {
	t.Helper()
	return &crew{t, rdb, redistest.Name(t), make(chan string, 10_000)}
}

func (f *crew) queue(rdb redis.UniversalClient) *delay.Queue {
	f.t.Helper()
	return newClient(f.t, rdb, delay.WithPoll(time.Hour)).Queue(f.name)
}

// join adds a process, and waits until it is in the waiting list.
func (f *crew) join(rdb redis.UniversalClient) (stop func()) {
	f.t.Helper()
	before := f.waiting()
	stop = serve(f.t, f.queue(rdb), 1, f.handle)
	f.await(before + 1)
	return stop
}

func (f *crew) handle(_ context.Context, task *delay.Task) error {
	f.ran <- task.ID
	return nil
}

func (f *crew) key(part string) string { return scripts.DelayKey(f.name, part) }

func (f *crew) waiting() int64 { return f.rdb.ZCard(f.t.Context(), f.key("waiting")).Val() }

// await waits until a number of processes is in the list.
func (f *crew) await(n int64) {
	f.t.Helper()
	redistest.Poll(f.t, func() bool { return f.waiting() == n })
}

// runs schedules a task for now, and waits until it has run.
func (f *crew) runs(id string) {
	f.t.Helper()
	f.runsIn(id, 0)
}

func (f *crew) runsIn(id string, in time.Duration) {
	f.t.Helper()
	require.NoError(f.t, f.queue(f.rdb).Schedule(f.t.Context(), id, in, nil))
	f.awaitRun(id)
}

func (f *crew) awaitRun(id string) {
	f.t.Helper()
	select {
	case ran := <-f.ran:
		require.Equal(f.t, id, ran)
	case <-time.After(redistest.Patience):
		require.Fail(f.t, "the task has not run", id)
	}
}

// scriptsOf returns how many scripts a server has executed.
func scriptsOf(t *testing.T, rdb *redis.Client) (n int) {
	t.Helper()
	for line := range strings.Lines(rdb.Info(t.Context(), "commandstats").Val()) {
		if _, calls, found := strings.Cut(line, "cmdstat_evalsha:calls="); found {
			calls, _, _ = strings.Cut(calls, ",")
			count, err := strconv.Atoi(calls)
			require.NoError(t, err)
			n += count
		}
	}
	return n
}

// Each process that serves a queue asked for each task: 32 scripts for one of 32 processes.
// Guarantees: D24.
func TestWaiting_ScriptsATaskDoNotGrowWithTheProcesses(t *testing.T) {
	t.Parallel()
	const tasks = 200
	cost := map[int]float64{}
	for _, processes := range []int{4, 32} {
		server := redistest.Start(t)
		f := newCrew(t, server.Client(t))
		for range processes {
			f.join(server.Client(t))
		}
		q, at := f.queue(f.rdb), time.Now().Add(time.Second)
		var all sync.WaitGroup
		for i := range tasks {
			all.Go(func() {
				if err := q.ScheduleAt(t.Context(), strconv.Itoa(i), at.Add(time.Duration(i)*5*time.Millisecond), nil); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		before := scriptsOf(t, f.rdb)
		for range tasks {
			select {
			case <-f.ran:
			case <-time.After(redistest.Patience):
				require.Fail(t, "a task has not run")
			}
		}
		cost[processes] = float64(scriptsOf(t, f.rdb)-before) / tasks
	}
	require.Less(t, cost[4], 4.0)
	require.Less(t, cost[32], 4.0)
}

// countsWork is a hook that counts the calls of a process that serves.
type countsWork struct {
	redis.Hook
	n atomic.Int64
}

func (c *countsWork) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *countsWork) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *countsWork) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && args[1] == scripts.DelayWork.SHA() {
			c.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

// Guarantees: D24.
func TestWaiting_ABusyProcessAsksForNothing(t *testing.T) {
	t.Parallel()
	f := newCrew(t, redistest.Shared(t).Client(t))
	rdb, calls := redistest.Shared(t).Client(t), &countsWork{}
	rdb.AddHook(calls)
	begun, end := make(chan struct{}), make(chan struct{})
	serve(t, f.queue(rdb), 1, func(context.Context, *delay.Task) error {
		close(begun)
		<-end
		return nil
	})
	defer close(end)
	f.await(1)
	require.NoError(t, f.queue(f.rdb).Schedule(t.Context(), "long", 0, nil))
	<-begun
	f.await(0)
	f.join(redistest.Shared(t).Client(t))
	began, before := time.Now(), calls.n.Load()
	for i := range 50 {
		f.runs(strconv.Itoa(i))
	}
	asks := calls.n.Load() - before
	require.LessOrEqual(t, asks, 2+int64(time.Since(began)/(2*time.Second)), "it tells of the beginning, and polls")
}

// The process that claims the last task that it has room for wakes the next one, for a task that it leaves.
// Guarantees: D23.
func TestWaiting_TasksThatAProcessLeavesWakeOthers(t *testing.T) {
	t.Parallel()
	f := newCrew(t, redistest.Shared(t).Client(t))
	end := make(chan struct{})
	for n := range 5 {
		serve(t, f.queue(redistest.Shared(t).Client(t)), 1, func(_ context.Context, task *delay.Task) error {
			f.ran <- task.ID
			<-end
			return nil
		})
		f.await(int64(n + 1))
	}
	defer close(end)
	q, at := f.queue(f.rdb), time.Now().Add(300*time.Millisecond)
	for i := range 5 {
		require.NoError(t, q.ScheduleAt(t.Context(), strconv.Itoa(i), at, nil))
	}
	for range 5 { // each in another process
		select {
		case <-f.ran:
		case <-time.After(redistest.Patience):
			require.Fail(t, "a task has not run")
		}
	}
	f.await(0)
}

// Whatever becomes of the first process, a guard runs the task.
// Guarantees: D23.
func TestWaiting_AGuardTakesOver(t *testing.T) {
	t.Parallel()
	for what, fail := range map[string]func(*redistest.FaultDialer){
		"the first hears, but its calls are held": func(d *redistest.FaultDialer) { d.Set(redistest.BlackholeUp) },
		"the first is gone": func(d *redistest.FaultDialer) {
			d.Set(redistest.BlackholeUp)
			d.Reset()
		},
	} {
		for _, in := range []time.Duration{0, 300 * time.Millisecond} {
			t.Run(fmt.Sprint(what, ", in=", in), func(t *testing.T) {
				t.Parallel()
				f, d := newCrew(t, redistest.Shared(t).Client(t)), &redistest.FaultDialer{}
				stop := f.join(redistest.Shared(t).Client(t, func(o *redis.Options) {
					o.Dialer, o.ReadTimeout = d.Dial, 500*time.Millisecond
				}))
				for range 3 {
					f.join(redistest.Shared(t).Client(t))
				}
				q := f.queue(f.rdb)
				if in > 0 { // every process knows of the task
					require.NoError(t, q.Schedule(t.Context(), "a", in, nil))
					fail(d)
				} else {
					fail(d)
					require.NoError(t, q.Schedule(t.Context(), "a", in, nil))
				}
				f.awaitRun("a")
				f.runs("b")
				f.runsIn("c", 300*time.Millisecond)
				f.await(3) // the first has left the list
				d.Set(redistest.Pass)
				f.await(4)
				stop()
			})
		}
	}
}

// Guarantees: D23.
func TestWaiting_DeadEntriesLeave(t *testing.T) {
	t.Parallel()
	f := newCrew(t, redistest.Shared(t).Client(t))
	for i := range 40 { // of processes that were killed
		require.NoError(t, f.rdb.ZAdd(t.Context(), f.key("waiting"), redis.Z{Score: float64(i), Member: fmt.Sprint("dead", i)}).Err())
	}
	f.join(redistest.Shared(t).Client(t))
	f.runs("a")
	f.await(1)
}

// Guarantees: D24.
func TestWaiting_ALostListIsMadeAgain(t *testing.T) {
	t.Parallel()
	f := newCrew(t, redistest.Shared(t).Client(t))
	for range 3 {
		f.join(redistest.Shared(t).Client(t))
	}
	redistest.Poll(t, func() bool { // the first ones listen to the channel of the queue
		channel := scripts.DelayChannel(f.name)
		return f.rdb.PubSubNumSub(t.Context(), channel).Val()[channel] > 0
	})
	require.NoError(t, f.rdb.Del(t.Context(), f.key("waiting")).Err())
	f.runs("a")
	f.await(3)
}

// Guarantees: D23.
func TestWaiting_TheEntryLeavesWithServe(t *testing.T) {
	t.Parallel()
	f := newCrew(t, redistest.Shared(t).Client(t))
	var stops []func()
	for range 3 {
		stops = append(stops, f.join(redistest.Shared(t).Client(t)))
	}
	q := f.queue(f.rdb)
	require.NoError(t, q.Schedule(t.Context(), "a", 300*time.Millisecond, nil))
	stops[0]()
	require.EqualValues(t, 2, f.waiting())
	stops[1]()
	require.EqualValues(t, 1, f.waiting())
	f.awaitRun("a")
	stops[2]()
	require.Zero(t, f.waiting())
}

// Without a right, a process does as earlier versions did.
// Guarantees: D24.
func TestWaiting_WithoutARight(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(name string, rights []string) []string{
		"to the channels of processes": func(name string, rights []string) []string {
			return replaceRight(rights, "&cogwheel_delay:{app:*", "&cogwheel_delay:{"+name+"}")
		},
		"to publish": func(_ string, rights []string) []string { return replaceRight(rights, "+publish", "") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			f := newCrew(t, server.Client(t))
			f.name = "app:queue"
			user := server.User(t, "limited", change(f.name, redistest.DocumentedRights(t, "delay", "app:"))...)
			for range 2 {
				serve(t, f.queue(server.Client(t, user)), 1, f.handle)
			}
			redistest.Poll(t, func() bool {
				channel := scripts.DelayChannel(f.name)
				return f.rdb.PubSubNumSub(t.Context(), channel).Val()[channel] > 0
			})
			for i := range 5 {
				f.runs(fmt.Sprint(i))
				f.runsIn(fmt.Sprint("in", i), 50*time.Millisecond)
			}
		})
	}
}

// replaceRight returns rights with another one in the place of one of them.
func replaceRight(rights []string, old, other string) (changed []string) {
	for _, right := range rights {
		if right == old {
			right = other
		}
		if right != "" {
			changed = append(changed, right)
		}
	}
	return changed
}

// Processes of earlier versions know no waiting list: they publish on the channel of the queue alone.
// Guarantees: D23.
func TestWaiting_TasksOfEarlierVersionsRun(t *testing.T) {
	t.Parallel()
	f := newCrew(t, redistest.Shared(t).Client(t))
	for range 5 {
		f.join(redistest.Shared(t).Client(t))
	}
	channel := scripts.DelayChannel(f.name)
	redistest.Poll(t, func() bool { return f.rdb.PubSubNumSub(t.Context(), channel).Val()[channel] > 0 })
	for i := range 5 {
		id := strconv.Itoa(i)
		_, err := f.rdb.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
			pipe.HSet(t.Context(), f.key("tasks"), id, "::")
			pipe.ZAdd(t.Context(), f.key("due"), redis.Z{Score: float64(time.Now().Add(20 * time.Millisecond).UnixMicro()), Member: id})
			pipe.Publish(t.Context(), channel, "")
			return nil
		})
		require.NoError(t, err)
		f.awaitRun(id)
	}
}

// A Redis that does not answer does not keep a Serve that has claimed nothing.
func TestWaiting_ARedisThatHangsDoesNotKeepServe(t *testing.T) {
	t.Parallel()
	f, d := newCrew(t, redistest.Shared(t).Client(t)), &redistest.FaultDialer{}
	c := newClient(t, redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = d.Dial }), delay.WithPoll(time.Hour))
	stop := serve(t, c.Queue(f.name, delay.WithLease(time.Hour)), 1, f.handle)
	f.await(1)
	d.Set(redistest.BlackholeUp)
	stop() // long before the lease has ended
	d.Reset()
	d.Set(redistest.Pass)
	f.join(redistest.Shared(t).Client(t))
	f.runs("a")
	f.await(1)
}
