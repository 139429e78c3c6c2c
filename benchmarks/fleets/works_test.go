package fleets_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// take waits for a lock or permit and returns what gives it back.
type take func(ctx context.Context) (giveBack func() error, err error)

// works are what sections are made of. Only the plain lock has peers.
var works = map[string]struct {
	permits bool // it has permits, otherwise one holder
	impls   []string
}{
	"mutex":         {false, []string{"cogwheel", "bsm", "redsync"}},
	"rwmutex":       {false, []string{"cogwheel"}},
	"fairmutex":     {false, []string{"cogwheel"}},
	"semaphore":     {true, []string{"cogwheel"}},
	"counting":      {true, []string{"cogwheel"}},
	"fairsemaphore": {true, []string{"cogwheel"}},
}

const (
	peerLease = time.Minute // longer than any wait, as bsm/redislock gives up after one
	bsmRetry  = 20 * time.Millisecond
)

// newTake returns what a process of a load takes. Peers wait as in their documentation or by default: redsync for a
// random time of 50 to 250 ms. bsm/redislock has no default; it polls more often than its README does.
func newTake(l load, rdb *redis.Client) (take, error) {
	switch l.Impl {
	case "bsm":
		c := bsm.New(rdb)
		options := &bsm.Options{RetryStrategy: bsm.LinearBackoff(bsmRetry)}
		return func(ctx context.Context) (func() error, error) {
			held, err := c.Obtain(ctx, name, peerLease, options)
			if err != nil {
				return nil, err
			}
			return func() error { return held.Release(context.Background()) }, nil
		}, nil
	case "redsync":
		rs := redsync.New(goredis.NewPool(rdb))
		return func(ctx context.Context) (func() error, error) {
			m := rs.NewMutex(name, redsync.WithExpiry(peerLease), redsync.WithTries(1<<30))
			if err := m.LockContext(ctx); err != nil {
				return nil, err
			}
			return func() error { _, err := m.Unlock(); return err }, nil
		}, nil
	case "cogwheel":
		if works[l.Work].permits {
			return newAcquire(l.Work, rdb)
		}
		return newLock(l.Work, rdb)
	}
	return nil, fmt.Errorf("no implementation %q", l.Impl)
}

func newLock(work string, rdb *redis.Client) (take, error) {
	c, err := redislock.New(rdb)
	if err != nil {
		return nil, err
	}
	lock := c.Mutex(name).Lock
	switch work {
	case "rwmutex":
		lock = c.RWMutex(name).Lock
	case "fairmutex":
		lock = c.FairMutex(name).Lock
	}
	return func(ctx context.Context) (func() error, error) {
		held, err := lock(ctx)
		if err != nil {
			return nil, err
		}
		return func() error { return held.Unlock(context.Background()) }, nil
	}, nil
}

func newAcquire(work string, rdb *redis.Client) (take, error) {
	c, err := semaphore.New(rdb)
	if err != nil {
		return nil, err
	}
	if work == "counting" {
		s := c.CountingSemaphore(name)
		return func(ctx context.Context) (func() error, error) {
			if err := s.Acquire(ctx, 1); err != nil {
				return nil, err
			}
			return func() error { return s.Release(context.Background(), 1) }, nil
		}, nil
	}
	acquire := c.Semaphore(name, 0).Acquire
	if work == "fairsemaphore" {
		acquire = c.FairSemaphore(name, 0).Acquire
	}
	return func(ctx context.Context) (func() error, error) {
		g, err := acquire(ctx, 1)
		if err != nil {
			return nil, err
		}
		return func() error { return g.Release(context.Background()) }, nil
	}, nil
}

// prepare sets the permits of a semaphore.
func prepare(ctx context.Context, l load, rdb *redis.Client) (err error) {
	if !works[l.Work].permits {
		return nil
	}
	c, err := semaphore.New(rdb)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(context.Background())) }()
	switch l.Work {
	case "counting":
		_, err = c.CountingSemaphore(name).TrySetPermits(ctx, permits)
	case "fairsemaphore":
		_, err = c.FairSemaphore(name, 0).TrySetPermits(ctx, permits)
	default:
		_, err = c.Semaphore(name, 0).TrySetPermits(ctx, permits)
	}
	return err
}

// asynqCheck is the default interval in which asynq looks for due tasks.
const asynqCheck = 5 * time.Second

// serve runs tasks with one worker until ctx ends. Their payload is when they are due.
func serve(ctx context.Context, l load, rdb *redis.Client, begun func(due time.Time)) error {
	handle := func(payload []byte) error {
		micros, err := strconv.ParseInt(string(payload), 10, 64)
		begun(time.UnixMicro(micros))
		return err
	}
	if l.Impl == "cogwheel" {
		c, err := delay.New(rdb)
		if err != nil {
			return err
		}
		return c.Queue(name).Serve(ctx, 1, func(_ context.Context, t *delay.Task) error { return handle(t.Payload) })
	}
	config := asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel}
	if !full {
		config.TaskCheckInterval, config.DelayedTaskCheckInterval = 50*time.Millisecond, 50*time.Millisecond
	}
	s := asynq.NewServerFromRedisClient(rdb, config)
	err := s.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error { return handle(t.Payload()) }))
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// taskLead is how long before the first task is due its scheduling begins.
func taskLead(l load, d time.Duration) time.Duration {
	if !full {
		return 200 * time.Millisecond
	}
	return time.Second + time.Duration(float64(l.Rate)*d.Seconds())*200*time.Microsecond
}

// scheduleAll schedules the tasks that become due from t0 on for the time d. It fails if that takes until t0.
func scheduleAll(b *testing.B, l load, rdb *redis.Client, t0 time.Time, d time.Duration) {
	b.Helper()
	schedule, end, err := newSchedule(l.Impl, rdb)
	if err != nil {
		b.Fatal(err)
	}
	defer end()
	n := int64(float64(l.Rate) * d.Seconds())
	var last atomic.Int64
	var failure atomic.Pointer[error]
	var running sync.WaitGroup
	for range 64 {
		running.Go(func() {
			for i := last.Add(1) - 1; i < n && failure.Load() == nil; i = last.Add(1) - 1 {
				due := t0.Add(time.Duration(i) * time.Second / time.Duration(l.Rate))
				if err := schedule(b.Context(), due, strconv.FormatInt(due.UnixMicro(), 10)); err != nil {
					failure.Store(&err)
				}
			}
		})
	}
	running.Wait()
	if err := failure.Load(); err != nil {
		b.Fatal(*err)
	}
	if full && time.Now().After(t0) {
		b.Fatal("it took too long to schedule the tasks")
	}
}

// newSchedule returns what schedules a task, whose id is its payload.
func newSchedule(impl string, rdb *redis.Client) (f func(context.Context, time.Time, string) error, end func(), err error) {
	if impl == "asynq" {
		c := asynq.NewClientFromRedisClient(rdb)
		return func(ctx context.Context, due time.Time, id string) error {
			_, err := c.EnqueueContext(ctx, asynq.NewTask("hot", []byte(id)), asynq.TaskID(id), asynq.ProcessAt(due))
			return err
		}, func() {}, nil
	}
	c, err := delay.New(rdb)
	if err != nil {
		return nil, nil, err
	}
	q := c.Queue(name)
	return func(ctx context.Context, due time.Time, id string) error {
		return q.ScheduleAt(ctx, id, due, []byte(id))
	}, func() { _ = c.Close(context.Background()) }, nil
}
