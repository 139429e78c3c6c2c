package recipes_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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

func TestLead_OneLeadsAtATimeAndIsSucceeded(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	var leading, most atomic.Int64
	led := make(chan int)
	ended := make(chan error, 3)
	ctx, cancel := context.WithCancel(t.Context())
	for process := range 3 {
		locks := newLocks(t, rdb)
		go func() {
			ended <- recipes.Lead(ctx, locks, func(ctx context.Context) error {
				most.Store(max(most.Load(), leading.Add(1)))
				defer leading.Add(-1)
				select {
				case led <- process:
				case <-ctx.Done():
				}
				return errors.New("the work of this term is done")
			})
		}()
	}
	leaders := map[int]bool{}
	for len(leaders) < 3 {
		leaders[<-led] = true
	}
	cancel()
	for range 3 {
		require.ErrorIs(t, <-ended, context.Canceled)
	}
	require.EqualValues(t, 1, most.Load())
}

func TestOnce_RunsUntilItSucceeds(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	one, other := newLocks(t, rdb), newLocks(t, rdb)
	ran := 0
	require.Error(t, recipes.Once(t.Context(), one, rdb, "7", func(context.Context) error { ran++; return errors.New("failed") }))
	for range 2 {
		for _, locks := range []*redislock.Client{one, other} {
			require.NoError(t, recipes.Once(t.Context(), locks, rdb, "7", func(context.Context) error { ran++; return nil }))
		}
	}
	require.Equal(t, 2, ran)
}

func TestCron_RunsEachInstantInOneProcess(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	w, err := wheel.New()
	require.NoError(t, err)
	begin := time.Now().Truncate(100 * time.Millisecond)
	rule := wheel.ScheduleFunc(func(prev time.Time) time.Time {
		return begin.Add(prev.Sub(begin).Truncate(100*time.Millisecond) + 100*time.Millisecond)
	})
	ran := make(chan time.Time, 100)
	for range 3 {
		_, err := recipes.Cron(w, newLocks(t, rdb), rdb, "report", rule, func(context.Context) error {
			ran <- time.Now()
			return nil
		})
		require.NoError(t, err)
	}
	for range 5 {
		<-ran
	}
	_, err = w.Stop(t.Context())
	require.NoError(t, err)
	done, err := rdb.Keys(t.Context(), "job-done:report:*").Result()
	require.NoError(t, err)
	require.Len(t, done, 5+len(ran), "as many runs as instants")
}

func TestTerm_GivesWorkAToken(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	leader := newLocks(t, rdb).Mutex("orders:leader", redislock.WithFencing())
	var tokens []int64
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		err := recipes.Term(ctx, leader, func(ctx context.Context, l *redislock.Lock) error {
			require.True(t, l.Valid())
			tokens = append(tokens, l.Token())
			cancel() // the lock is released all the same
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, redislock.ErrLost)
	}
	require.Greater(t, tokens[1], tokens[0])

	err := recipes.Term(t.Context(), leader, func(ctx context.Context, l *redislock.Lock) error {
		_, err := leader.ForceUnlock(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, l.Extend(ctx, time.Minute), redislock.ErrLost)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	require.ErrorIs(t, err, redislock.ErrLost)
}

func TestWork_RunsAsManyAsThereArePermits(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	permits, err := semaphore.New(rdb)
	require.NoError(t, err)
	defer permits.Close(context.Background())
	exports := permits.Semaphore("exports")
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
	require.NoError(t, recipes.Work(t.Context(), exports, 3, jobs, nil))
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
	require.ErrorIs(t, <-ended, context.Canceled)
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
	go func() { ended <- recipes.Work(t.Context(), permits.Semaphore("exports"), 3, jobs, nil) }()
	for range 2 {
		jobs <- func(context.Context) { ran <- struct{}{} }
		<-ran
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
	}
	close(jobs)
	require.NoError(t, <-ended)
}

func TestMail_IsLimitedByUserAndByService(t *testing.T) {
	t.Parallel()
	limits, err := ratelimit.New(redistest.Start(t).Client(t))
	require.NoError(t, err)
	defer limits.Close(context.Background())
	sent := 0
	mail := func(user string, size int64) error {
		return recipes.Mail(t.Context(), limits, user, size, func(context.Context) error { sent++; return nil })
	}
	require.NoError(t, mail("ada", 10))
	require.Error(t, mail("ada", 1000), "the service has less than that left")
	require.NoError(t, mail("bob", 10))
	require.Equal(t, 2, sent)
}

func TestOrders_CloseUnlessPaid(t *testing.T) {
	t.Parallel()
	w, err := wheel.New()
	require.NoError(t, err)
	defer w.Stop(context.Background())
	closed := make(chan string, 2)
	o := recipes.NewOrders(w, func(id string) { closed <- id })
	require.NoError(t, o.Place("paid", time.Hour))
	require.NoError(t, o.Place("unpaid", time.Millisecond))
	require.Equal(t, "unpaid", <-closed)
	require.False(t, o.Pay("unpaid"), "too late")
	require.True(t, o.Pay("paid"))
	require.False(t, o.Pay("paid"))
	require.Zero(t, w.Len())
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
