package semaphore_test

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// grantOf is a grant in a test of the order: the place of its request, and its token, which is greater for a later grant.
type grantOf struct {
	request int
	token   int64
}

// tell returns the function for AcquireFunc that releases the grant and tells of it.
func tell(t *testing.T, order chan grantOf, request int) func(*semaphore.Grant, error) {
	return func(g *semaphore.Grant, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		if err := g.Release(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		order <- grantOf{request, g.Token()}
	}
}

// inOrder waits for n grants, and returns their requests in the order of the tokens.
func inOrder(order chan grantOf, n int) (requests []int) {
	var grants []grantOf
	for range n {
		grants = append(grants, <-order)
	}
	slices.SortFunc(grants, func(a, b grantOf) int { return cmp.Compare(a.token, b.token) })
	for _, g := range grants {
		requests = append(requests, g.request)
	}
	return requests
}

// Guarantees: S7.
func TestFair_ServesProcessesInOrderOfArrival(t *testing.T) {
	t.Parallel()
	const processes = 5
	server, name := redistest.Shared(t), redistest.Name(t)
	rdb := server.Client(t)
	holder := newClient(t, rdb).FairSemaphore(name, 0)
	mustSetPermits(t, holder, 2)
	g := mustAcquire(t, holder, 2)
	order, began := make(chan grantOf, 2*processes), time.Now()
	var counts []*scriptCounter
	for i := range 2 * processes {
		count := &scriptCounter{}
		if i < processes {
			counts = append(counts, count)
		}
		own := server.Client(t)
		own.AddHook(count)
		l := newClient(t, own).FairSemaphore(name, 0)
		n := int64(1)
		if i%3 == 0 {
			n = 2 // requests for one do not overtake it
		}
		l.AcquireFunc(t.Context(), n, tell(t, order, i))
		fairKind.awaitLine(t, rdb, name, i+1)
		redistest.AwaitWaited(t, rdb, fairKind.key(name, "waiting"), 50*time.Millisecond)
	}
	_, err := holder.TryAcquire(t.Context(), 1)
	require.ErrorIs(t, err, semaphore.ErrNoPermits, "TryAcquire does not overtake waiters")
	stalled := redistest.Stalls(t)
	require.NoError(t, g.Release(t.Context()))
	got := inOrder(order, 2*processes)
	for at, i := range got { // two that want one permit each are woken together, and either may ask first
		if i < at-1 || i > at+1 {
			require.Greater(t, stalled(), 10*time.Millisecond, "%v: a process has 50 ms to take what is kept for it", got)
		}
	}
	require.EqualValues(t, 2, available(t, holder))
	require.Empty(t, fairKind.lineOf(t, rdb, name))
	for _, count := range counts {
		polls := int(time.Since(began) / semaphore.DefaultPoll)
		require.LessOrEqual(t, count.scripts(), 6+polls, "two asks until it listens, one when it is woken, a release, and a poll: no thundering herd")
	}
}

// A request that is granted more than what was kept for its process would overtake another that came before.
// Guarantees: S7.
func TestFair_TwoProcessesAlternate(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server, name := redistest.Shared(t), redistest.Name(t)
	rdb := server.Client(t)
	holder := newClient(t, rdb).FairSemaphore(name, 0)
	mustSetPermits(t, holder, 3)
	all := []*semaphore.Grant{mustAcquire(t, holder, 1), mustAcquire(t, holder, 1), mustAcquire(t, holder, 1)}
	processes := []*semaphore.Semaphore{
		newClient(t, rdb).FairSemaphore(name, 0), newClient(t, rdb).FairSemaphore(name, 0),
	}
	order := make(chan grantOf, 12)
	for i := range 12 {
		processes[i%2].AcquireFunc(t.Context(), 1, tell(t, order, i))
		fairKind.awaitLine(t, rdb, name, min(i+1, 2))
		at := rdb.Time(t.Context()).Val()
		poll(t, func() bool { return rdb.Time(t.Context()).Val().Sub(at) > 200*time.Millisecond })
	}
	stalled := redistest.Stalls(t)
	for _, g := range all {
		require.NoError(t, g.Release(t.Context()))
	}
	got := inOrder(order, 12)
	for at, i := range got { // two processes in which no other request waits are woken together
		if i < at-1 || i > at+1 || at < 8 && i != at {
			require.Greater(t, stalled(), 10*time.Millisecond, "%v: a process has 50 ms to take what is kept for it", got)
		}
	}
	require.Empty(t, fairKind.lineOf(t, rdb, name))
}

// The second request of a process, which came before those of another process, is granted before them.
// Guarantees: S7.
func TestFair_TheSecondRequestOfAProcessKeepsItsPlace(t *testing.T) {
	t.Parallel()
	server, name := redistest.Start(t), "permits"
	rdb := server.Client(t)
	holder := newClient(t, rdb, semaphore.WithPoll(time.Hour)).FairSemaphore(name, 0)
	mustSetPermits(t, holder, 2)
	both := mustAcquire(t, holder, 2)
	ctx, cancel := context.WithCancel(t.Context())
	order := make(chan string, 3)
	waits := func(process *semaphore.Semaphore, request string) {
		process.AcquireFunc(ctx, 1, func(g *semaphore.Grant, err error) {
			if err == nil {
				order <- request
			}
		})
	}
	one := newClient(t, rdb, semaphore.WithPoll(time.Hour)).FairSemaphore(name, 0)
	waits(one, "its first")
	fairKind.awaitLine(t, rdb, name, 1)
	before := scriptCalls(t, rdb)
	waits(one, "its second")
	poll(t, func() bool { return scriptCalls(t, rdb) > before }) // Redis has learned of it
	redistest.AwaitWaited(t, rdb, fairKind.key(name, "waiting"), 50*time.Millisecond)
	waits(newClient(t, rdb, semaphore.WithPoll(time.Hour)).FairSemaphore(name, 0), "the other's")
	fairKind.awaitLine(t, rdb, name, 2)
	stalled := redistest.Stalls(t)
	require.NoError(t, both.Release(t.Context()))
	if got := []string{<-order, <-order}; slices.Contains(got, "the other's") {
		require.Greater(t, stalled(), 10*time.Millisecond, "%v: a process has 50 ms to take what is kept for it", got)
	}
	cancel()
}

// Small requests of other processes do not starve a large one.
// Guarantees: S7.
func TestFair_LargeRequestsAreNotStarved(t *testing.T) {
	t.Parallel()
	server, name := redistest.Shared(t), redistest.Name(t)
	large := newClient(t, server.Client(t)).FairSemaphore(name, 0)
	mustSetPermits(t, large, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for range 6 {
		l := newClient(t, server.Client(t)).FairSemaphore(name, 0)
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

// A cancelled request leaves the line in Redis, and keeps nothing from others.
// Guarantees: S8.
func TestFair_CancelledAcquireLeavesTheQueue(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	name := redistest.Name(t)
	other, l := newClient(t, rdb).FairSemaphore(name, 0), newClient(t, rdb).FairSemaphore(name, 0)
	mustSetPermits(t, l, 2)
	held := mustAcquire(t, other, 1)
	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		waiting := startCall(func() error { _, err := l.Acquire(ctx, 2); return err })
		fairKind.awaitLine(t, rdb, name, 1)
		cancel()
		require.ErrorIs(t, waiting.wait(t), context.Canceled)
		fairKind.awaitLine(t, rdb, name, 0)
		g, err := l.TryAcquire(t.Context(), 1)
		require.NoError(t, err)
		require.NoError(t, g.Release(t.Context()))
	}
	require.NoError(t, held.Release(t.Context()))
}
