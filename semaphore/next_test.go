package semaphore_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// tripCounter is a hook that counts the round trips with scripts.
type tripCounter struct{ n atomic.Int64 }

func (c *tripCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *tripCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.saw(cmd)
		return next(ctx, cmd)
	}
}

func (c *tripCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.saw(cmds[0])
		return next(ctx, cmds)
	}
}

func (c *tripCounter) saw(cmd redis.Cmder) {
	if name := cmd.Name(); name == "evalsha" || name == "eval" {
		c.n.Add(1)
	}
}

// What a process releases reaches its own waiter in one round trip, if no other process is ahead of it.
func TestRelease_TheOwnWaiterAsksInTheSameRoundTrip(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name, trips := redistest.Shared(t).Client(t), redistest.Name(t), new(tripCounter)
		s := k.newWoken(t, rdb, name)
		s.setPermits(t, 1)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		rdb.AddHook(trips)
		const turns = 20
		total := int64(0)
		for range turns {
			next, _ := startWaiting(t, s, 1)
			k.awaitLine(t, rdb, name, 1)
			before := trips.n.Load()
			require.NoError(t, release(t.Context()))
			release = <-next
			total += trips.n.Load() - before
		}
		t.Logf("%d round trips for %d hand-overs", total, turns)
		require.GreaterOrEqual(t, total, int64(turns))
		require.Less(t, total, int64(turns*3/2), "each took a second one")
		require.NoError(t, release(t.Context()))
		require.EqualValues(t, 1, available(t, s))
	})
}

// If the waiter has asked before the release was executed, because Redis did not know the script of the release, it asks
// again.
func TestRelease_OfAnUnknownScriptTellsTheOwnWaiter(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Start(t).Client(t), redistest.Name(t)
		s, other := k.newWoken(t, rdb, name), k.newWoken(t, rdb, name+"other")
		s.setPermits(t, 1)
		other.setPermits(t, 2)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		next, _ := startWaiting(t, s, 1)
		k.awaitLine(t, rdb, name, 1)
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		_, err = other.acquire(t.Context(), 1) // Redis knows this script again
		require.NoError(t, err)
		require.NoError(t, release(t.Context()))
		select {
		case release = <-next:
			require.NoError(t, release(t.Context()))
		case <-within(t, testTimeout).Done():
			require.Fail(t, "it was not told")
		}
	})
}
