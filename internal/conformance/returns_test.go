package conformance_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// longLease ends after every test: what is free before was released.
const longLease = 10 * time.Minute

// returns take what can be given back, and return how to give it back, which may fail, and whether it is free again.
var returns = map[string]func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool){
	"Mutex": func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool) {
		return ofLock(t, l.locks.Mutex(l.name, redislock.WithLease(longLease)))
	},
	"FairMutex": func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool) {
		return ofLock(t, l.locks.FairMutex(l.name, redislock.WithLease(longLease)))
	},
	"writer": func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool) {
		return ofLock(t, l.locks.RWMutex(l.name, redislock.WithLease(longLease)).Writer())
	},
	"reader": func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool) {
		return ofLock(t, l.locks.RWMutex(l.name, redislock.WithLease(longLease)).Reader())
	},
	"MultiMutex": func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool) {
		return ofLock(t, l.locks.MultiMutex([]string{l.name + ":a", l.name + ":b"}, redislock.WithLease(longLease)))
	},
	"QuorumMutex": func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool) {
		return ofLock(t, l.quorum.Mutex(l.name, redislock.WithLease(longLease)))
	},
	"Semaphore": func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool) {
		return ofSemaphore(t, l.semaphores.Semaphore(l.name, 0, semaphore.WithLease(longLease)))
	},
	"FairSemaphore": func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool) {
		return ofSemaphore(t, l.semaphores.FairSemaphore(l.name, 0, semaphore.WithLease(longLease)))
	},
	"CountingSemaphore": func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool) {
		require.NoError(t, second(l.count.TrySetPermits(t.Context(), 1)))
		require.NoError(t, l.count.TryAcquire(t.Context(), 1))
		return func(ctx context.Context) error { return l.count.Release(ctx, 1) }, func(ctx context.Context) bool {
			n, err := l.count.Available(ctx)
			require.LessOrEqual(t, n, int64(1), "released once")
			return err == nil && n == 1
		}
	},
	"task": func(t *testing.T, l *onAWheel) (release func(context.Context) error, free func(context.Context) bool) {
		q := l.delays.Queue(l.name)
		require.NoError(t, q.Schedule(t.Context(), "id", 0, nil))
		begun, ends := make(chan struct{}), make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() {
			served <- q.Serve(ctx, 1, func(context.Context, *delay.Task) error {
				close(begun)
				<-ends
				return nil
			})
		}()
		t.Cleanup(func() { stop(); require.NoError(t, <-served) })
		<-begun
		return func(context.Context) error { close(ends); return nil }, func(ctx context.Context) bool {
			state, err := q.State(ctx, "id")
			return err == nil && state.Phase == delay.PhaseUnknown
		}
	},
}

type locker interface {
	TryLock(ctx context.Context) (*redislock.Lock, error)
}

func ofLock(t *testing.T, m locker) (release func(context.Context) error, free func(context.Context) bool) {
	t.Helper()
	held, err := m.TryLock(t.Context())
	require.NoError(t, err)
	return held.Unlock, func(ctx context.Context) bool {
		l, err := m.TryLock(ctx)
		return err == nil && l.Unlock(ctx) == nil
	}
}

func ofSemaphore(t *testing.T, s *semaphore.Semaphore) (release func(context.Context) error, free func(context.Context) bool) {
	t.Helper()
	require.NoError(t, s.SetPermits(t.Context(), 1))
	g, err := s.TryAcquire(t.Context(), 1)
	require.NoError(t, err)
	return g.Release, func(ctx context.Context) bool {
		n, err := s.Available(ctx)
		require.LessOrEqual(t, n, int64(1), "released once")
		return err == nil && n == 1
	}
}

// What certainly was not given back is given back when Redis takes it again.
func TestReturns_AreMadeWhenRedisIsBack(t *testing.T) {
	t.Parallel()
	for fault, set := range map[string]func(t *testing.T, admin, rdb *redis.Client, d *redistest.FaultDialer, on bool){
		"connection refused": func(t *testing.T, _, rdb *redis.Client, d *redistest.FaultDialer, on bool) {
			if !on {
				d.Set(redistest.Pass)
				return
			}
			d.Set(redistest.Refuse)
			d.Reset()
			for !errors.Is(rdb.Ping(t.Context()).Err(), syscall.ECONNREFUSED) { // one of the connections that were cut
			}
		},
		"OOM": func(t *testing.T, admin, _ *redis.Client, _ *redistest.FaultDialer, on bool) {
			require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory", map[bool]string{true: "1", false: "0"}[on]).Err())
		},
		"READONLY": func(t *testing.T, admin, _ *redis.Client, _ *redistest.FaultDialer, on bool) {
			args := []any{"REPLICAOF", "NO", "ONE"}
			if on {
				args = []any{"REPLICAOF", "127.0.0.1", "1"}
			}
			require.NoError(t, admin.Do(t.Context(), args...).Err())
		},
	} {
		for what, take := range returns {
			t.Run(fault+", "+what, func(t *testing.T) {
				t.Parallel()
				server, d := redistest.Start(t), &redistest.FaultDialer{}
				admin := server.Client(t)
				rdb := server.Client(t, func(o *redis.Options) { o.Dialer, o.MaxRetries, o.DialerRetries, o.PoolSize = d.Dial, 1, 1, 1000 })
				release, free := take(t, newOnAWheelOf(t, rdb))
				set(t, admin, rdb, d, true)
				err := release(t.Context()) // Redis accepts some scripts without memory
				if before := d.Effects(); fault == "connection refused" {
					redistest.Poll(t, func() bool { return d.Effects() > before }) // the background has tried in vain
				}
				set(t, admin, rdb, d, false)
				if what != "task" && fault != "OOM" {
					require.Error(t, err)
				}
				redistest.Poll(t, func() bool { return free(t.Context()) })
			})
		}
	}
}
