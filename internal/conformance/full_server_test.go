package conformance_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// While a server is at its memory limit, whatever has a lease keeps it, and is given back.
// Guarantees: L43.
func TestFullServer_EndsNoLeaseAndTakesWhatIsGivenBack(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	rdb := redistest.Start(t).Client(t)
	p, err := startProcess(t, rdb, redistest.Wheel(t), time.Second)
	require.NoError(t, err)
	ended, done, giveBack := make(chan string, 10), make(chan struct{}), map[string]func(context.Context) error{}
	watch := func(what string, lost <-chan struct{}) {
		go func() {
			select {
			case <-lost:
				ended <- what
			case <-done:
			}
		}()
	}
	for what, m := range map[string]*redislock.Mutex{
		"Mutex":         p.locks.Mutex("plain", redislock.WithLease(lease)),
		"WithStringKey": p.locks.Mutex("string", redislock.WithLease(lease), redislock.WithStringKey()),
		"FairMutex":     p.locks.FairMutex("fair", redislock.WithLease(lease)),
		"writer":        p.locks.RWMutex("written", redislock.WithLease(lease)).Writer(),
		"reader":        p.locks.RWMutex("read", redislock.WithLease(lease)).Reader(),
	} {
		l, err := m.Lock(t.Context())
		require.NoError(t, err, what)
		watch(what, l.Done())
		giveBack[what] = l.Unlock
	}
	permit, err := p.permits.Semaphore("permits", 1, semaphore.WithLease(lease)).Acquire(t.Context(), 1)
	require.NoError(t, err)
	watch("Semaphore", permit.Done())
	fair, err := p.permits.FairSemaphore("fair permits", 1, semaphore.WithLease(lease)).Acquire(t.Context(), 1)
	require.NoError(t, err)
	watch("FairSemaphore", fair.Done())
	giveBack["Semaphore"], giveBack["FairSemaphore"] = permit.Release, fair.Release
	q := p.delays.Queue("tasks", delay.WithLease(lease))
	require.NoError(t, q.Schedule(t.Context(), "task", 0, nil))
	require.NoError(t, q.Schedule(t.Context(), "waits for the worker", 0, nil))
	require.NoError(t, q.Schedule(t.Context(), "later", time.Hour, nil))
	counting := p.permits.CountingSemaphore("counted")
	require.NoError(t, second(counting.TrySetPermits(t.Context(), 1)))
	require.NoError(t, counting.Acquire(t.Context(), 1))
	ctx, stop := context.WithCancel(t.Context())
	var begin sync.Once
	begun, finish, served := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		served <- q.Serve(ctx, 1, func(ctx context.Context, _ *delay.Task) error {
			begin.Do(func() {
				watch("task", ctx.Done())
				close(begun)
			})
			<-finish
			return nil
		})
	}()
	<-begun

	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.True(t, redis.IsOOMError(rdb.Set(t.Context(), "other", 1, 0).Err()))
	select {
	case what := <-ended:
		require.Fail(t, "lost", what)
	case <-time.After(3 * lease):
	}
	close(done)
	for what, end := range giveBack {
		require.NoError(t, end(t.Context()), what)
	}
	close(finish)
	redistest.Poll(t, func() bool { return p.delays.Stats().Done == 2 })
	require.ErrorContains(t, q.Schedule(t.Context(), "another", 0, nil), "OOM")
	require.NoError(t, second(q.Cancel(t.Context(), "later")))
	stop()
	require.NoError(t, <-served)
	require.NoError(t, counting.Release(t.Context(), 1))
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err()) // for what the process has left to do
}
