package semaphore_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// argumentHook keeps the largest number of arguments of a command.
type argumentHook struct {
	scriptCounter
	words atomic.Int64
}

func (x *argumentHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if n := int64(len(cmd.Args())); n > x.words.Load() {
			x.words.Store(n)
		}
		return next(ctx, cmd)
	}
}

// Releases that an outage leaves unconfirmed are sent in batches: a script searches the sequence key for
// each of them.
// Guarantees: S11.
func TestCountingSemaphore_ReleasesOfAnOutageAreSentInParts(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	const releases, most = 350, 100
	d := &redistest.FaultDialer{}
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer, o.MaxRetries, o.PoolSize = d.Dial, -1, 1 })
	x := &argumentHook{}
	rdb.AddHook(x)
	name := redistest.Name(t)
	s := newClient(t, rdb).CountingSemaphore(name)
	mustSetPermits(t, s, 3)
	require.NoError(t, rdb.ScriptLoad(t.Context(), scripts.SemRelease.Source()).Err())
	d.Set(redistest.Refuse)
	d.Reset()
	var all []*asyncCall
	for range releases {
		all = append(all, startCall(func() error { return s.Release(context.Background(), 1) }))
	}
	for _, c := range all {
		require.ErrorIs(t, c.wait(t), semaphore.ErrUnconfirmed)
	}
	d.Set(redistest.Pass)
	other := redistest.Shared(t).Client(t)
	poll(t, func() bool { return other.Get(t.Context(), name).Val() == "353" })
	require.LessOrEqual(t, x.words.Load(), int64(3+2+5+4*most))
}

// A Release that has no room in the call with the backlog is sent at once after it, not with the next poll.
func TestCountingSemaphore_AReleaseBehindABacklogFollowsAtOnce(t *testing.T) {
	t.Parallel()
	const backlog = 350
	d := &redistest.FaultDialer{}
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer, o.MaxRetries = d.Dial, -1 })
	s := newClient(t, rdb, semaphore.WithPoll(time.Hour)).CountingSemaphore(redistest.Name(t))
	mustSetPermits(t, s, 0)
	d.Set(redistest.Refuse)
	d.Reset()
	var all []*asyncCall
	for range backlog {
		all = append(all, startCall(func() error { return s.Release(context.Background(), 1) }))
	}
	for _, c := range all {
		require.ErrorIs(t, c.wait(t), semaphore.ErrUnconfirmed)
	}
	d.Set(redistest.Pass)
	release := startCall(func() error { return s.Release(t.Context(), 1) })
	require.NoError(t, release.wait(t))
	poll(t, func() bool { return available(t, s) == backlog+1 })
}
