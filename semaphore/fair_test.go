package semaphore_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

func TestFair_ServesProcessesInOrderOfArrival(t *testing.T) {
	t.Parallel()
	const processes = 5
	server, name := redistest.Shared(t), redistest.Name(t)
	rdb := server.Client(t)
	holder := newClient(t, rdb).FairSemaphore(name)
	mustSetPermits(t, holder, 2)
	g := mustAcquire(t, holder, 2)
	queue := scripts.SuffixName(name, "fair:queue")
	order, began := make(chan int, 2*processes), time.Now()
	var all sync.WaitGroup
	var counts []*scriptCounter
	for i := range 2 * processes {
		count := &scriptCounter{}
		if i < processes {
			counts = append(counts, count)
		}
		own := server.Client(t)
		own.AddHook(count)
		l := newClient(t, own).FairSemaphore(name)
		n := int64(1)
		if i%3 == 0 {
			n = 2 // requests for one do not overtake it
		}
		all.Go(func() {
			g, err := l.Acquire(t.Context(), n)
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			if err := g.Release(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
		poll(t, func() bool { return rdb.ZCard(t.Context(), queue).Val() == int64(i+1) })
	}
	_, err := holder.TryAcquire(t.Context(), 1)
	require.ErrorIs(t, err, semaphore.ErrNoPermits, "TryAcquire does not overtake waiters")
	require.NoError(t, g.Release(t.Context()))
	all.Wait()
	close(order)
	var got []int
	for i := range order {
		got = append(got, i)
	}
	// Two requests for one permit may be granted together; either may report first.
	for at, i := range got {
		require.InDelta(t, at, i, 1, "%v", got)
	}
	require.EqualValues(t, 2, available(t, holder))
	require.Zero(t, rdb.ZCard(t.Context(), queue).Val())
	for _, count := range counts {
		polls := int(time.Since(began) / semaphore.DefaultPoll)
		require.LessOrEqual(t, count.scripts(), 6+polls, "queue, subscribe, claim, release and a poll: no thundering herd")
	}
}

// The first process in the queue has died. Redis skips it when its last look was too long ago, or when it
// does not claim what it was assigned.
func TestFair_SkipsDeadProcesses(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for how, x := range map[string]struct{ lastHeard, poll time.Duration }{
		"alive at its turn: skipped after it has not claimed": {0, 200 * time.Millisecond},
		"last look too long ago: skipped at once":             {time.Hour, time.Hour}, // its claim would expire after three hours
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server, name := redistest.Shared(t), redistest.Name(t)
			rdb := server.Client(t)
			interval := semaphore.WithPoll(x.poll)
			holder := newClient(t, rdb, interval).FairSemaphore(name)
			mustSetPermits(t, holder, 1)
			g := mustAcquire(t, holder, 1)

			dead := strings.Repeat("d", 16)
			part := func(s string) string { return scripts.SuffixName(name, "fair:"+s) }
			alive := float64(time.Now().Add(time.Hour).UnixMilli()) // until after the next request
			// In one transaction: an assignment in flight since TrySetPermits would drop a request without
			// needs.
			_, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
				p.ZAdd(t.Context(), part("queue"), redis.Z{Score: 1, Member: dead})
				p.ZAdd(t.Context(), part("alive"), redis.Z{Score: alive, Member: dead})
				p.HSet(t.Context(), part("needs"), dead, strings.Repeat("0", 32)+dead)
				return nil
			})
			require.NoError(t, err)
			l := newClient(t, server.Client(t), interval).FairSemaphore(name)
			var next *semaphore.Grant
			w := startCall(func() (err error) { next, err = l.Acquire(within(t, testTimeout), 1); return err })
			poll(t, func() bool { return rdb.ZCard(t.Context(), part("queue")).Val() == 2 })
			require.False(t, w.ended())
			if x.lastHeard > 0 {
				require.NoError(t, rdb.ZIncrBy(t.Context(), part("alive"), -2*float64(x.lastHeard.Milliseconds()), dead).Err())
			}
			require.NoError(t, g.Release(t.Context()))
			require.NoError(t, w.wait(t))
			require.NoError(t, next.Release(t.Context()))
			require.EqualValues(t, 1, available(t, holder))
			require.Zero(t, rdb.HLen(t.Context(), part("needs")).Val())
			require.Zero(t, rdb.ZCard(t.Context(), part("alive")).Val())
		})
	}
}

// Small requests of other processes do not starve a large one.
func TestFair_LargeRequestsAreNotStarved(t *testing.T) {
	t.Parallel()
	server, name := redistest.Shared(t), redistest.Name(t)
	large := newClient(t, server.Client(t)).FairSemaphore(name)
	mustSetPermits(t, large, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for range 6 {
		l := newClient(t, server.Client(t)).FairSemaphore(name)
		all.Go(func() {
			for {
				g, err := l.Acquire(ctx, 1)
				if err != nil {
					return
				}
				if err := g.Release(context.WithoutCancel(ctx)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5 {
		g := mustAcquire(t, large, 3)
		require.NoError(t, g.Release(t.Context()))
	}
	cancel()
	all.Wait()
	poll(t, func() bool { return available(t, large) == 3 })
}

// A cancelled request leaves the queue in Redis before later requests of its process are queued.
func TestFair_CancelledAcquireLeavesTheQueue(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	name := redistest.Name(t)
	other, l := newClient(t, rdb).FairSemaphore(name), newClient(t, rdb).FairSemaphore(name)
	mustSetPermits(t, l, 2)
	held := mustAcquire(t, other, 1)
	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		waiting := startCall(func() error { _, err := l.Acquire(ctx, 2); return err })
		poll(t, func() bool { return rdb.ZCard(t.Context(), scripts.SuffixName(name, "fair:queue")).Val() == 1 })
		cancel()
		require.ErrorIs(t, waiting.wait(t), context.Canceled)
		g, err := l.TryAcquire(t.Context(), 1)
		require.NoError(t, err)
		require.NoError(t, g.Release(t.Context()))
	}
	require.NoError(t, held.Release(t.Context()))
}
