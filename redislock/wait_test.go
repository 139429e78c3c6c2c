package redislock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestMutex_ServesEveryWaiterOfAProcess(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	m := c.Mutex(name)
	const waiters = 30
	ctx := within(t, patience)
	inside, total := 0, 0
	errs := make([]error, waiters)
	var running sync.WaitGroup
	for i := range waiters {
		running.Go(func() {
			errs[i] = m.Do(ctx, func(context.Context) error {
				// The lock guards these variables; the race detector checks it.
				inside++
				total++
				if inside != 1 {
					return errors.New("another caller is inside")
				}
				inside--
				return nil
			})
		})
	}
	running.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, waiters, total)
	requireFree(t, rdb, name)
}

func TestMutex_WaiterReportsWrongKind(t *testing.T) {
	t.Parallel()
	lut := newLockUnderTest(t, singleServer(t), "plain")
	lut.writeHold(t, time.Minute)
	waiting := lut.newWaiter(t, lut.mutex).startWaiting(t, within(t, patience))
	require.NoError(t, lut.rdb.Set(t.Context(), lut.name, "not a lock", time.Minute).Err())
	require.NoError(t, lut.rdb.Publish(t.Context(), scripts.LockChannel(lut.name), "0").Err())
	<-waiting.done
	require.ErrorIs(t, waiting.err, redislock.ErrWrongKind)
	require.NotErrorIs(t, waiting.err, redislock.ErrLocked)
}

// A waiter that receives no message tries again within the interval of WithPoll.
func TestNew_WithPoll(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	name := redistest.Name(t)
	writeHold(t, rdb, name, 0) // without an expiry, so that only a poll ends the wait
	c := newClient(t, rdb, redislock.WithPoll(100*time.Millisecond))
	got := make(chan error, 1)
	c.Mutex(name).LockFunc(within(t, patience), func(l *redislock.Lock, err error) {
		if err == nil {
			err = l.Unlock(t.Context())
		}
		got <- err
	})
	awaitSubscription(t, rdb, name)
	stalled, began := stalls(t), time.Now()
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	require.NoError(t, <-got)
	require.Less(t, time.Since(began)-stalled(), redislock.DefaultPoll/5)
}
