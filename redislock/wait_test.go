package redislock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestMutex_Lock_IsToldWhyRedisRefusesMeanwhile(t *testing.T) {
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

func TestMutex_Lock_ServesEveryWaiterOfAProcess(t *testing.T) {
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
				// The lock guards these: the race detector is the checker.
				inside++
				total++
				if inside != 1 {
					return errors.New("not alone")
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
