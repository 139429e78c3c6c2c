package recipes_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/examples/recipes"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) {
	// The default wheel is never stopped.
	redistest.Main(m, goleak.IgnoreAnyFunction("github.com/cogwheel-go/cogwheel/wheel.(*scheduler).work"))
}

// newLocks returns a client, as another process would have it.
func newLocks(t *testing.T, rdb redis.UniversalClient) *redislock.Client {
	t.Helper()
	locks, err := redislock.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locks.Close(context.Background())) })
	return locks
}

// The clocks of three processes differ, and the job is shorter than that.
func TestCron_RunsEachInstantInOneProcess(t *testing.T) {
	t.Parallel()
	const instants = 5
	for what, of := range map[string]struct {
		apart time.Duration
		runs  int64
	}{
		"in one": {500 * time.Millisecond, instants},
		"control: in each, if the clocks differ by more": {time.Millisecond, 3 * instants},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := cogwheeltest.Start(t)
				w := server.Wheel()
				ctx, sigterm := context.WithCancel(t.Context())
				var ran atomic.Int64
				ended := make(chan error, 3)
				time.Sleep(500 * time.Millisecond) // between two instants, by each of the clocks
				for _, late := range []time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond} {
					locks, err := redislock.New(server.NewClient(), redislock.WithWheel(w))
					require.NoError(t, err)
					defer func() { require.NoError(t, locks.Close(context.Background())) }()
					rule := wheel.ScheduleFunc(func(prev time.Time) time.Time {
						return prev.Add(-late).Truncate(time.Second).Add(time.Second + late)
					})
					go func() {
						ended <- recipes.Cron(ctx, w, locks, "report", rule, of.apart, func(context.Context) error {
							ran.Add(1)
							return nil
						})
					}()
				}
				time.Sleep(instants * time.Second)
				sigterm()
				for range 3 {
					require.NoError(t, <-ended)
				}
				require.Equal(t, of.runs, ran.Load())
			})
		})
	}
}

// minutely has its instants a whole number of minutes after the start of a bubble.
var minutely = wheel.ScheduleFunc(func(prev time.Time) time.Time { return prev.Truncate(time.Minute).Add(time.Minute) })

// SIGTERM comes while a job runs: it ends as if none had come, and with its lock, before the process closes its client.
func TestCron_WaitsAfterSIGTERMForTheRunInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		locks, began := newLocks(t, server.NewClient()), time.Now()
		ctx, sigterm := context.WithCancel(t.Context())
		w, err := wheel.New()
		require.NoError(t, err)
		err = recipes.Cron(ctx, w, locks, "report", minutely, time.Second, func(ctx context.Context) error {
			sigterm()
			time.Sleep(5 * time.Minute)
			_, err := server.Locks().Mutex("cron:report").TryLock(t.Context())
			require.ErrorIs(t, err, redislock.ErrLocked)
			require.NoError(t, ctx.Err())
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 6*time.Minute, time.Since(began))
		require.Zero(t, w.Len(), "no run follows")
	})
}

func TestWork_RunsAsManyAsThereArePermits(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	permits, err := semaphore.New(rdb)
	require.NoError(t, err)
	defer permits.Close(context.Background())
	exports := permits.Semaphore("exports", 3)
	var running, most, ran atomic.Int64
	jobs := make(chan func(context.Context))
	go func() {
		defer close(jobs)
		for range 30 {
			jobs <- func(context.Context) {
				if n := running.Add(1); n > most.Load() {
					most.Store(n)
				}
				ran.Add(1)
				running.Add(-1)
			}
		}
	}()
	require.NoError(t, recipes.Work(t.Context(), wheel.Default(), exports, jobs, nil))
	require.EqualValues(t, 30, ran.Load())
	require.LessOrEqual(t, most.Load(), int64(3))
	free, err := exports.Available(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, free)
}

// Five jobs run and a sixth waits for a permit when the process is told to stop: those that run may end, with
// their permits, and the sixth goes back.
func TestWorker_StopsGracefully(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	ctx, stop := context.WithCancel(t.Context())
	var ran, aborted, gaveBack atomic.Int64
	began, finish := make(chan struct{}), make(chan struct{})
	jobs, back, ended := make(chan func(context.Context)), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- recipes.Worker(ctx, rdb, jobs, func(func(context.Context)) { gaveBack.Add(1); close(back) })
	}()
	for range 6 {
		jobs <- func(ctx context.Context) {
			began <- struct{}{}
			<-finish
			if ctx.Err() != nil {
				aborted.Add(1)
			}
			ran.Add(1)
		}
	}
	for range 5 {
		<-began
	}
	stop()
	<-back
	held, err := rdb.ZCard(t.Context(), "{exports}:timeout").Result()
	require.NoError(t, err)
	require.EqualValues(t, 5, held, "the jobs that run keep their permits")
	close(finish)
	require.NoError(t, <-ended)
	require.EqualValues(t, 5, ran.Load())
	require.Zero(t, aborted.Load())
	require.EqualValues(t, 1, gaveBack.Load())
	require.Equal(t, "5", rdb.Get(t.Context(), "exports").Val(), "all are free")
}

// Redis loses its data: the next job sets the permits again.
func TestWork_GoesOnWithoutTheData(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	permits, err := semaphore.New(rdb)
	require.NoError(t, err)
	defer permits.Close(context.Background())
	jobs, ran := make(chan func(context.Context)), make(chan struct{})
	ended := make(chan error, 1)
	exports := permits.Semaphore("exports", 3)
	go func() { ended <- recipes.Work(t.Context(), wheel.Default(), exports, jobs, nil) }()
	for range 2 {
		jobs <- func(context.Context) { ran <- struct{}{} }
		<-ran
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
	}
	close(jobs)
	require.NoError(t, <-ended)
}

// Redis is down for half a minute when a job comes.
func TestWork_GoesOnAfterAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		exports := server.Semaphores().Semaphore("exports", 3)
		jobs, ran, ended := make(chan func(context.Context)), false, make(chan error, 1)
		go func() { ended <- recipes.Work(t.Context(), server.Wheel(), exports, jobs, nil) }()
		server.Stop()
		jobs <- func(context.Context) { ran = true }
		close(jobs)
		time.Sleep(30 * time.Second)
		require.False(t, ran)
		server.Restart()
		require.NoError(t, <-ended)
		require.True(t, ran)
	})
}

func TestMail_IsLimitedByUserAndByService(t *testing.T) {
	t.Parallel()
	limits, err := ratelimit.New(redistest.Start(t).Client(t), ratelimit.WithTimeout(time.Minute)) // for slow machines
	require.NoError(t, err)
	defer limits.Close(context.Background())
	sent := 0
	mail := func(user string, size int64) error {
		return recipes.Mail(t.Context(), limits, user, size, func(context.Context) error { sent++; return nil })
	}
	require.NoError(t, mail("ada", 1000))
	require.Error(t, mail("ada", 1000), "the service has less than that left")
	redistest.Poll(t, func() bool { return mail("bob", 10) == nil })
	require.Equal(t, 2, sent)
}

func TestComplete_CountsTheTokensThatWereUsed(t *testing.T) {
	t.Parallel()
	limits, err := ratelimit.New(redistest.Start(t).Client(t), ratelimit.WithTimeout(time.Minute)) // for slow machines
	require.NoError(t, err)
	defer limits.Close(context.Background())
	tokens, calls := limits.Limiter("tokens", ratelimit.PerDay(1000)), limits.Limiter("calls", ratelimit.PerDay(10))
	complete := func(ctx context.Context, used int64) error {
		_, err := recipes.Complete(ctx, limits, tokens, calls, "ada", 600, func(context.Context, int64) (string, int64, error) { return "", used, nil })
		return err
	}
	require.NoError(t, complete(t.Context(), 100))
	require.NoError(t, complete(t.Context(), 300))
	ctx, cancel := context.WithCancel(t.Context())
	_, err = recipes.Complete(ctx, limits, tokens, calls, "ada", 600, func(context.Context, int64) (string, int64, error) {
		cancel() // the user goes away
		return "", 100, ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Error(t, complete(t.Context(), 0), "500 are left")
	r, err := tokens.Peek(t.Context(), "ada")
	require.NoError(t, err)
	require.EqualValues(t, 500, r.Remaining)
	r, err = calls.Peek(t.Context(), "ada")
	require.NoError(t, err)
	require.EqualValues(t, 7, r.Remaining)
}

func TestWrite_RefusesTheOlderHolder(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	m := newLocks(t, rdb).Mutex("stock", redislock.WithFencing())
	var holds [2]*redislock.Lock
	for i := range holds {
		l, err := m.Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, recipes.Write(t.Context(), rdb, l, "value", fmt.Sprint(i)))
		require.NoError(t, l.Unlock(t.Context()))
		holds[i] = l
	}
	require.ErrorIs(t, recipes.Write(t.Context(), rdb, holds[0], "value", "late"), recipes.ErrStale)
	require.Equal(t, "1", rdb.HGet(t.Context(), "value", "value").Val())
}

// The Mutex lacks WithFencing.
func TestWrite_RefusesAHolderWithoutAToken(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	l, err := newLocks(t, rdb).Mutex("stock").Lock(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, recipes.Write(t.Context(), rdb, l, "value", "1"), recipes.ErrStale)
	require.ErrorIs(t, recipes.Write(t.Context(), rdb, nil, "value", "1"), recipes.ErrStale, "FromContext of another name")
	require.Zero(t, rdb.Exists(t.Context(), "value").Val())
}
