package redislock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Close sends no releases of locks that have ended by themselves, however many there are and however slowly Redis fails.
func TestClient_ClosesWithinALeaseWhileRedisHangs(t *testing.T) {
	t.Parallel()
	const lease, locks = 3 * time.Second, 5000
	server, name := redistest.Start(t), redistest.Name(t)
	c, err := redislock.New(server.Client(t, func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond }), redislock.WithWheel(newWheel(t)))
	require.NoError(t, err)
	for i := range locks {
		_, err := c.Mutex(fmt.Sprintf("%s:%d", name, i), redislock.WithLease(lease)).TryLock(t.Context())
		require.NoError(t, err)
	}
	server.Pause()
	began := time.Now()
	require.Error(t, c.Close(context.Background()))
	require.Less(t, time.Since(began), lease+4*time.Second) // every hundredth call that fails takes 300 ms
	server.Resume()
}

// A copy of the writer's acquisition may still be under way when he becomes a reader: what it takes is given back.
func TestRWMutex_DowngradeInDoubt(t *testing.T) {
	t.Parallel()
	server, dialer, name := redistest.Start(t), &redistest.FaultDialer{}, redistest.Name(t)
	rdb := server.Client(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = dialer.Dial, 200*time.Millisecond }))
	rw := c.RWMutex(name, redislock.WithLease(time.Hour))
	writer, err := rw.Lock(t.Context())
	require.NoError(t, err)
	mustUnlock(t, writer) // the script is known
	lost := dialer.LoseReply("EVALSHA", 1, redistest.Swallow)
	writer, err = rw.Lock(t.Context())
	require.NoError(t, err)
	<-lost
	reader, err := rw.Downgrade(t.Context(), writer)
	require.NoError(t, err)
	before := serverCalls(t, rdb, "evalsha")
	poll(t, func() bool { return serverCalls(t, rdb, "evalsha") > before })
	require.NoError(t, reader.Err())
	mustUnlock(t, reader)
}

// A Mutex and a FairMutex of one name are one lock, to its Owner as well.
func TestOwner_EntersTheFairMutexOfAMutex(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	ctx := redislock.WithOwner(within(t, patience), &redislock.Owner{})
	for _, order := range [][2]*redislock.Mutex{{c.Mutex(name), c.FairMutex(name)}, {c.FairMutex(name), c.Mutex(name)}} {
		outer, err := order[0].Lock(ctx)
		require.NoError(t, err)
		again, cancel := context.WithTimeout(ctx, 3*time.Second)
		inner, err := order[1].Lock(again)
		cancel()
		require.NoError(t, err)
		mustUnlock(t, inner, outer)
		requireFree(t, rdb, name)
	}
}
