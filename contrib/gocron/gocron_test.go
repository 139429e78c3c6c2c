package gocron_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	cogwheelgocron "github.com/cogwheel-go/cogwheel/contrib/gocron"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// newLocks returns a client, as another process would have it.
func newLocks(t *testing.T, rdb redis.UniversalClient) *redislock.Client {
	t.Helper()
	c, err := redislock.New(rdb, redislock.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

// schedule runs a job every few milliseconds.
func schedule(t *testing.T, opt gocron.SchedulerOption, name string, job func()) {
	t.Helper()
	s, err := gocron.NewScheduler(opt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Shutdown()) })
	_, err = s.NewJob(gocron.DurationJob(5*time.Millisecond), gocron.NewTask(job), gocron.WithName(name),
		gocron.WithSingletonMode(gocron.LimitModeReschedule))
	require.NoError(t, err)
	s.Start()
}

func receive[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-redistest.Within(t, redistest.Patience).Done():
		require.FailNow(t, "nothing came")
	}
	return v
}

func TestLocker_TwoRunsOfAJobDoNotOverlap(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	var running, most, runs atomic.Int64
	done := make(chan bool)
	for range 3 {
		schedule(t, gocron.WithDistributedLocker(cogwheelgocron.Locker(newLocks(t, rdb))), name, func() {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			if runs.Add(1) == 20 {
				close(done)
			}
		})
	}
	receive(t, done)
	require.EqualValues(t, 1, most.Load())
}

func TestLocker_SkipsAJobThatRunsElsewhere(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	here, there := cogwheelgocron.Locker(newLocks(t, rdb)), cogwheelgocron.Locker(newLocks(t, rdb))
	held, err := there.Lock(t.Context(), name)
	require.NoError(t, err)
	lock, err := here.Lock(t.Context(), name)
	require.ErrorIs(t, err, redislock.ErrLocked)
	require.Nil(t, lock)
	require.NoError(t, held.Unlock(t.Context()))
	lock, err = here.Lock(t.Context(), name)
	require.NoError(t, err)

	_, err = newLocks(t, rdb).Mutex(name).ForceUnlock(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, lock.Unlock(t.Context()), redislock.ErrLost)
	_, err = here.Lock(t.Context(), "")
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
}

// The process that leads loses the lead while a job runs: the job ends as it will, no other begins there, and
// the jobs run in the next leader.
func TestElector_LosesTheLeadWhileAJobRuns(t *testing.T) {
	t.Parallel()
	server, name := redistest.Shared(t), redistest.Name(t)
	leader := cogwheelgocron.NewElector(newLocks(t, server.Client(t)), name)
	defer leader.Close()
	began, finish, again := make(chan bool), make(chan bool), make(chan bool, 1)
	once := sync.OnceFunc(func() { close(finish) })
	schedule(t, gocron.WithDistributedElector(leader), "job", func() {
		select {
		case began <- true:
			<-finish
		case again <- true:
		default:
		}
	})
	t.Cleanup(once)
	receive(t, began)
	select {
	case <-again: // of a run before began was read
	default:
	}
	require.NoError(t, leader.IsLeader(t.Context()))

	second := newLocks(t, server.Client(t))
	follower, ran := cogwheelgocron.NewElector(second, name), make(chan bool, 1)
	defer follower.Close()
	schedule(t, gocron.WithDistributedElector(follower), "job", func() {
		select {
		case ran <- true:
		default:
		}
	})
	redistest.Poll(t, func() bool { return second.Stats().Waiting == 1 })
	require.ErrorIs(t, follower.IsLeader(t.Context()), cogwheelgocron.ErrNotLeader)
	require.Empty(t, ran)

	_, err := second.Mutex(name).ForceUnlock(t.Context())
	require.NoError(t, err)
	receive(t, ran)
	require.NoError(t, follower.IsLeader(t.Context()))
	redistest.Poll(t, func() bool { return leader.IsLeader(context.Background()) != nil })
	once() // the job that ran ends after the lead was lost
	require.Empty(t, again, "no job begins where the lead was lost")
}

func TestElector_CloseLetsAnotherLead(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	first := cogwheelgocron.NewElector(newLocks(t, rdb), name)
	redistest.Poll(t, func() bool { return first.IsLeader(context.Background()) == nil })
	second := cogwheelgocron.NewElector(newLocks(t, rdb), name)
	defer second.Close()
	require.ErrorIs(t, second.IsLeader(t.Context()), cogwheelgocron.ErrNotLeader)
	first.Close()
	require.ErrorIs(t, first.IsLeader(t.Context()), cogwheelgocron.ErrNotLeader)
	redistest.Poll(t, func() bool { return second.IsLeader(context.Background()) == nil })
	first.Close() // again, without effect

	require.Panics(t, func() { cogwheelgocron.NewElector(newLocks(t, rdb), "") })
	require.Panics(t, func() { cogwheelgocron.NewElector(nil, name) })
	require.Panics(t, func() { cogwheelgocron.Locker(nil) })
}

// gocron logs no error of a Locker: with a bad option, no job would ever run, and nothing would say so.
func TestLocker_PanicsWithAnInvalidOption(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	for _, o := range []redislock.LockOption{nil, redislock.WithMinHold(0), redislock.WithLease(-1)} {
		require.Panics(t, func() { cogwheelgocron.Locker(newLocks(t, rdb), o) })
	}
	require.NotPanics(t, func() { cogwheelgocron.Locker(newLocks(t, rdb), redislock.WithMinHold(time.Minute)) })
}

// Two schedulers whose clocks differ by 50 ms start a job that is shorter than that.
func TestLocker_AShortJobRunsInOneScheduler(t *testing.T) {
	t.Parallel()
	for what, of := range map[string]struct {
		opts []redislock.LockOption
		runs int
	}{
		"with a minimum hold":               {[]redislock.LockOption{redislock.WithMinHold(time.Minute)}, 1},
		"control: without, it runs in each": {nil, 2},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
			runs := 0
			for range 2 { // the second begins when the first has unlocked, as with a clock that is late
				ended := make(chan error, 1)
				s, err := gocron.NewScheduler(gocron.WithDistributedLocker(cogwheelgocron.Locker(newLocks(t, rdb), of.opts...)))
				require.NoError(t, err)
				_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
					gocron.NewTask(func() {}), gocron.WithName(name), gocron.WithEventListeners(
						gocron.AfterJobRuns(func(uuid.UUID, string) { ended <- nil }),
						gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { ended <- err }),
					))
				require.NoError(t, err)
				s.Start()
				if err := receive(t, ended); err == nil {
					runs++
				} else {
					require.ErrorIs(t, err, redislock.ErrLocked)
				}
				require.NoError(t, s.Shutdown())
				if of.opts == nil {
					redistest.Poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
				}
			}
			require.Equal(t, of.runs, runs)
		})
	}
}

// A process that leads is killed, or cut off, which is the same to Redis: another leads when the lease is over, and the
// first does not believe any more that it leads.
func TestElector_ALeaderThatDiesIsFollowed(t *testing.T) {
	t.Parallel()
	server, name := redistest.Shared(t), redistest.Name(t)
	dialer := &redistest.FaultDialer{Timeout: 100 * time.Millisecond}
	rdb := server.Client(t, func(o *redis.Options) {
		o.Dialer, o.ReadTimeout, o.MaxRetries = dialer.Dial, 100*time.Millisecond, -1
	})
	lease := redislock.WithLease(redistest.SafeLease)
	leader := cogwheelgocron.NewElector(newLocks(t, rdb), name, lease)
	defer leader.Close()
	redistest.Poll(t, func() bool { return leader.IsLeader(context.Background()) == nil })
	second := newLocks(t, server.Client(t))
	follower := cogwheelgocron.NewElector(second, name, lease)
	defer follower.Close()
	redistest.Poll(t, func() bool { return second.Stats().Waiting == 1 })

	dialer.Set(redistest.BlackholeUp)
	defer dialer.Set(0)
	redistest.Poll(t, func() bool { return follower.IsLeader(context.Background()) == nil })
	require.ErrorIs(t, leader.IsLeader(t.Context()), cogwheelgocron.ErrNotLeader)
}

// decisions receives what each scheduler has done when its job was due.
type decisions chan gocron.JobStatus

func (d decisions) IncrementJob(_ uuid.UUID, _ string, _ []string, status gocron.JobStatus) {
	d <- status
}
func (d decisions) RecordJobTiming(time.Time, time.Time, uuid.UUID, string, []string) {}

// Three processes start a job with an interval of a minute, 20 s one after the other.
func TestElector_AnIntervalJobRunsOncePerInterval(t *testing.T) {
	t.Parallel()
	const intervals, schedulers = 6, 3
	for what, of := range map[string]struct {
		elect bool
		runs  [schedulers]int64
	}{
		"with an Elector, it runs in the leader":  {true, [schedulers]int64{intervals, 0, 0}},
		"control: with a Locker, it runs in each": {false, [schedulers]int64{intervals, intervals, intervals}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
			// One that the test leaves unread after a failure holds up no Shutdown.
			clock, decided := clockwork.NewFakeClock(), make(decisions, intervals*schedulers)
			var runs [schedulers]atomic.Int64
			for i := range schedulers {
				distributed := gocron.WithDistributedLocker(cogwheelgocron.Locker(newLocks(t, rdb)))
				if of.elect {
					elector := cogwheelgocron.NewElector(newLocks(t, rdb), name)
					t.Cleanup(elector.Close)
					distributed = gocron.WithDistributedElector(elector)
					if i == 0 {
						redistest.Poll(t, func() bool { return elector.IsLeader(context.Background()) == nil })
					}
				}
				s, err := gocron.NewScheduler(distributed, gocron.WithClock(clock), gocron.WithMonitor(decided))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, s.Shutdown()) })
				_, err = s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(func() { runs[i].Add(1) }),
					gocron.WithName(name+":job"))
				require.NoError(t, err)
				clock.Advance(20 * time.Second)
				s.Start()
				require.NoError(t, clock.BlockUntilContext(redistest.Within(t, redistest.Patience), i+1))
			}
			// A scheduler that handles the end of a run at the instant of the next one forgets that this is scheduled, and then
			// finds that it is due, again and again, until the clock moves. Later than that instant, it is not due again.
			clock.Advance(time.Second)
			for range intervals * schedulers {
				clock.Advance(20 * time.Second) // the job of one scheduler has become due
				receive(t, decided)
				require.NoError(t, clock.BlockUntilContext(redistest.Within(t, redistest.Patience), schedulers))
				redistest.Poll(t, func() bool { return rdb.Exists(t.Context(), name+":job").Val() == 0 }) // unlocked
			}
			for i := range schedulers {
				require.Equal(t, of.runs[i], runs[i].Load(), "of scheduler %d", i)
			}
		})
	}
}
