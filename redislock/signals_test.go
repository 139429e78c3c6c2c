package redislock_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// The parts of a MultiMutex are holds of their own: when one is lost, the others end with it, and that is
// reported.
func TestHooks_PartsOfALostMultiMutexAreReportedAsLost(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	var held atomic.Int64
	ended := make(chan redislock.Event, 3)
	end := func(e redislock.Event) { held.Add(-1); ended <- e }
	c := newClient(t, rdb, redislock.WithHooks(redislock.Hooks{
		Acquired: func(redislock.Event) { held.Add(1) }, Lost: end, Released: end,
	}))
	name := redistest.Name(t)
	names := []string{name + "a", name + "b", name + "c"}
	l, err := c.MultiMutex(names, redislock.WithLease(safeLease)).TryLock(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, held.Load())
	require.NoError(t, rdb.Del(t.Context(), names[1]).Err())
	<-l.Done()
	for range names {
		select {
		case e := <-ended:
			require.ErrorIs(t, e.Err, redislock.ErrLost)
		case <-within(t, patience).Done():
			require.FailNow(t, "a part has not ended")
		}
	}
	require.Zero(t, held.Load())
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
	require.EqualValues(t, 3, c.Stats().Lost)
	require.Empty(t, ended)
}

// A Quorum reports its locks as ended before Close returns.
func TestQuorum_CloseReportsAllHoldsAsEnded(t *testing.T) {
	t.Parallel()
	var servers []redis.UniversalClient
	for db := range 3 {
		servers = append(servers, redistest.Shared(t).Client(t, func(o *redis.Options) { o.DB = db }))
	}
	var held atomic.Int64
	q, err := redislock.NewQuorum(servers, redislock.WithWheel(newWheel(t)), redislock.WithHooks(redislock.Hooks{
		Acquired: func(redislock.Event) { held.Add(1) }, Released: func(redislock.Event) { held.Add(-1) },
	}))
	require.NoError(t, err)
	name := redistest.Name(t)
	for i := range 20 {
		mustTryLock(t, q.Mutex(fmt.Sprint(name, i), redislock.WithMetadata("job")))
	}
	require.EqualValues(t, 20, held.Load())
	require.Equal(t, 20, q.Stats().Held)
	seen := 0
	for h := range q.Holds() {
		require.Equal(t, redislock.KindQuorum, h.Kind)
		require.Equal(t, "job", h.Metadata)
		require.WithinDuration(t, time.Now().Add(30*time.Second), h.Deadline, 30*time.Second)
		seen++
	}
	require.Equal(t, 20, seen)
	require.NoError(t, q.Close(t.Context()))
	require.Zero(t, held.Load(), "at once")
	require.Zero(t, q.Stats().Held)
	require.Zero(t, q.Stats().Renewal.Leases)
}

func TestClient_HoldsAndWaits(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	c, other := newClient(t, rdb), newClient(t, rdb)
	name := redistest.Name(t)
	began := time.Now()
	l := mustTryLock(t, c.Mutex(name, redislock.WithFencing(), redislock.WithMetadata("host 7")))
	mustTryLock(t, c.RWMutex(name+":rw").Reader())
	mustTryLock(t, other.Mutex(name+":elsewhere"))
	ctx, cancel := context.WithCancel(t.Context())
	var waits sync.WaitGroup
	for _, m := range []*redislock.Mutex{c.Mutex(name), c.Mutex(name, redislock.WithLease(time.Minute)), c.Mutex(name + ":elsewhere")} {
		waits.Go(func() { _, _ = m.Lock(ctx) })
	}
	poll(t, func() bool { return c.Stats().Waiting == 3 })

	holds := map[string]redislock.Hold{}
	for h := range c.Holds() {
		require.NotContains(t, holds, h.Name)
		holds[h.Name] = h
	}
	require.Len(t, holds, 2)
	h := holds[name]
	require.Equal(t, redislock.KindMutex, h.Kind)
	require.Equal(t, "host 7", h.Metadata)
	require.Equal(t, l.Token(), h.Token)
	require.WithinRange(t, h.Since, began, time.Now())
	require.Equal(t, l.Deadline(), h.Deadline)
	state, err := c.Mutex(name).State(t.Context())
	require.NoError(t, err)
	require.Equal(t, state.Holders[0].ID, h.ID)
	require.Equal(t, redislock.KindRead, holds[name+":rw"].Kind)

	calls := map[redislock.Wait]bool{}
	for w := range c.Waits() {
		require.WithinRange(t, w.Since, holds[name].Since, time.Now(), "the waits began after the hold")
		w.Since = time.Time{}
		calls[w] = true
	}
	require.Equal(t, map[redislock.Wait]bool{
		{Kind: redislock.KindMutex, Name: name, Calls: 2}:                true,
		{Kind: redislock.KindMutex, Name: name + ":elsewhere", Calls: 1}: true,
	}, calls, "queues of one name are one, and a name that others hold is there too")
	for range c.Holds() {
		break // the caller may stop early
	}
	cancel()
	waits.Wait()
	require.Zero(t, c.Stats().Waiting)
}

// Holds may be read while thousands of locks come and go: those that stay are yielded once.
func TestClient_HoldsWhileLocksComeAndGo(t *testing.T) {
	t.Parallel()
	n := testsize.WhenAlone(1000, 100_000)
	rdb := redistest.Shared(t).Client(t)
	c := newClient(t, rdb)
	name := redistest.Name(t)
	redistest.Each(t, n, func(i int) error {
		_, err := c.Mutex(fmt.Sprintf("%s:%d", name, i), redislock.WithLease(time.Hour)).TryLock(t.Context())
		return err
	})
	stop := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if l, err := c.Mutex(fmt.Sprintf("%s:churn:%d", name, i%50)).TryLock(context.Background()); err == nil {
				_ = l.Unlock(context.Background())
			}
		}
	})
	for range 5 {
		seen := map[string]int{}
		for h := range c.Holds() {
			seen[h.Name]++
			if len(seen)%100 == 0 {
				runtime.Gosched()
			}
		}
		for i := range n {
			require.Equal(t, 1, seen[fmt.Sprintf("%s:%d", name, i)])
		}
	}
	close(stop)
	churn.Wait()
}
