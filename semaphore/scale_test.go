package semaphore_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// These tests do not run in parallel with others: they count the goroutines of the process.

// aFew is how many goroutines may come for calls in flight, and for the pool of the wheel, which grows for seconds
// after the machine has stood still, as callbacks that do not run look blocked.
const aFew = 100

// sampleGoroutines counts goroutines for a while. usual is the median; most is the maximum, with its profile.
func sampleGoroutines(t *testing.T, d time.Duration) (usual, most int, profile string) {
	t.Helper()
	w := newWheel(t)
	var text strings.Builder
	var looks []int
	for began := time.Now(); time.Since(began) < d || len(looks) < 40; {
		n := runtime.NumGoroutine()
		looks = append(looks, n)
		if n > most {
			most = n
			text.Reset()
			require.NoError(t, pprof.Lookup("goroutine").WriteTo(&text, 1))
		}
		require.NoError(t, w.Sleep(t.Context(), 5*time.Millisecond))
	}
	slices.Sort(looks)
	return looks[len(looks)/2], most, text.String()
}

// Guarantees: S3, S15.
func TestScale_TenThousandPermitsAreHeld(t *testing.T) {
	redistest.SkipIfShort(t)
	const permits = 10_000
	lease := testsize.Of(6*time.Second, 20*time.Second) // Close has as long to release all, under the race detector
	server := redistest.Start(t)
	rdb := server.Client(t)
	c, err := semaphore.New(rdb, semaphore.WithWheel(newWheel(t)))
	require.NoError(t, err)
	l := c.Semaphore("permits", 0, semaphore.WithLease(lease))
	mustSetPermits(t, l, permits)
	first := mustAcquire(t, l, 1)
	deadline := first.Deadline()
	poll(t, func() bool { return first.Deadline().After(deadline) }) // renewals have started their goroutines
	one, _, _ := sampleGoroutines(t, 300*time.Millisecond)

	before := scriptCalls(t, rdb)
	got := make(chan *semaphore.Grant, permits)
	for range permits - 1 {
		l.AcquireFunc(t.Context(), 1, func(g *semaphore.Grant, err error) {
			if err != nil {
				t.Error(err)
			}
			got <- g
		})
	}
	held := []*semaphore.Grant{first}
	for range permits - 1 {
		held = append(held, <-got)
	}
	acquired := scriptCalls(t, rdb) - before
	require.Zero(t, available(t, l))

	before = scriptCalls(t, rdb)
	began := time.Now()
	usual, most, profile := sampleGoroutines(t, lease)
	renewed, took := scriptCalls(t, rdb)-before, time.Since(began)
	for _, g := range held {
		require.NoError(t, g.Err(), "none was lost")
		require.True(t, g.Valid())
	}
	t.Logf("acquired by %d scripts; goroutines: %d with 1 permit, %d and at most %d with %d; %d scripts renewed them for %v",
		acquired, one, usual, most, permits, renewed, took)
	require.LessOrEqual(t, usual, one+aFew, "a few calls in flight, nothing per permit: %s", profile)
	require.GreaterOrEqual(t, renewed, permits/500, "at least once per lease, 500 grants in a script")
	require.LessOrEqual(t, renewed, 3*permits/50, "one script renews all grants that fall due within a hundredth of the lease")

	before = scriptCalls(t, rdb)
	require.NoError(t, c.Close(within(t, testTimeout)))
	require.LessOrEqual(t, scriptCalls(t, rdb)-before, permits/10, "releases share scripts")
	other := newClient(t, server.Client(t)).Semaphore("permits", 0)
	require.EqualValues(t, permits, available(t, other))
}

// Guarantees: S15.
func TestScale_WaitersCostNoGoroutine(t *testing.T) {
	redistest.SkipIfShort(t)
	const waiters = 1000
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			server := redistest.Start(t)
			c := newClient(t, server.Client(t), semaphore.WithPoll(300*time.Millisecond))
			s := k.newAny(c, "permits")
			s.setPermits(t, 1)
			release, err := s.acquire(t.Context(), 1)
			require.NoError(t, err)
			ended := make(chan error, waiters)
			take := func() func() { return s.acquireFunc(t.Context(), 1, func(_ releaseFunc, err error) { ended <- err }) }
			cancels := []func(){take()}
			k.awaitWaiting(t, server.Client(t), "permits", 1)
			one, _, _ := sampleGoroutines(t, 300*time.Millisecond)
			for range waiters - 1 {
				cancels = append(cancels, take())
			}
			usual, _, profile := sampleGoroutines(t, 700*time.Millisecond)
			require.LessOrEqual(t, usual, one+aFew, profile)
			for _, cancel := range cancels {
				cancel()
				require.ErrorIs(t, <-ended, context.Canceled)
			}
			require.NoError(t, release(t.Context()))
			poll(t, func() bool { return available(t, s) == 1 })
		})
	}
}

// Each caller has a semaphore of its own, which it acquires or releases under a context that may end. Redis hangs.
// Guarantees: S15.
func TestScale_CallsInFlightCostNoGoroutineBeyondTheirCallers(t *testing.T) {
	redistest.SkipIfShort(t)
	const callers = 200
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			server := redistest.Start(t)
			c := newClient(t, server.Client(t, func(o *redis.Options) { o.ReadTimeout = testTimeout }))
			var calls []func(context.Context) error
			for i := range callers / 2 {
				s := k.newAny(c, fmt.Sprint("permits:", i))
				s.setPermits(t, 2)
				release, err := s.acquire(t.Context(), 1)
				require.NoError(t, err)
				calls = append(calls, release, func(ctx context.Context) error {
					_, err := s.acquire(ctx, 1)
					return err
				})
			}
			ctx, giveUp := context.WithCancel(within(t, testTimeout))
			ended := make(chan error, callers)
			server.Pause()
			before := runtime.NumGoroutine()
			for _, call := range calls {
				go func() { ended <- call(ctx) }()
			}
			usual, _, profile := sampleGoroutines(t, 700*time.Millisecond)
			t.Logf("goroutines: %d before, %d with %d callers", before, usual, callers)
			require.Empty(t, ended)
			require.LessOrEqual(t, usual, before+callers+aFew, profile)
			giveUp()
			for range callers {
				require.ErrorIs(t, <-ended, context.Canceled)
			}
			server.Resume()
		})
	}
}

// Guarantees: S4.
func TestScale_ManyGrantsAreLostTogether(t *testing.T) {
	redistest.SkipIfShort(t)
	grants := testsize.WhenAlone(1000, 30_000)
	lease := testsize.WhenAlone(4*time.Second, semaphore.DefaultLease) // their ends are awaited
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := newClient(t, rdb)
	l := c.Semaphore(redistest.Name(t), 0, semaphore.WithLease(lease))
	mustSetPermits(t, l, int64(grants))
	held := make([]*semaphore.Grant, grants)
	redistest.Each(t, grants, func(i int) (err error) {
		held[i], err = l.Acquire(t.Context(), 1)
		return err
	})
	server.Pause()
	var told time.Duration // the longest time after a deadline
	for _, g := range held {
		<-g.Done()
		require.ErrorIs(t, g.Err(), semaphore.ErrLost)
		told = max(told, time.Since(g.Deadline()))
	}
	t.Logf("%d grants lost, the last told %v after its deadline", grants, told)
	if testsize.Alone() {
		require.Less(t, told, lease/100+50*time.Millisecond, "before Redis can grant it again")
	}
	server.Resume()
	poll(t, func() bool { return available(t, l) == int64(grants) })
}

// Guarantees: S3.
func TestScale_TenThousandExpiredPermitsAreReclaimed(t *testing.T) {
	t.Parallel()
	const n = 10_000
	c, rdb, name := newSharedClient(t)
	l := c.Semaphore(name, 0)
	fill := func() {
		require.NoError(t, rdb.Set(t.Context(), name, 0, 0).Err())
		members := make([]redis.Z, n)
		for i := range members {
			members[i] = redis.Z{Score: float64(time.Now().UnixMilli() - 1), Member: string(binaryID(i))}
		}
		require.NoError(t, rdb.ZAdd(t.Context(), leasesKey(name), members...).Err())
	}
	fill()
	require.EqualValues(t, n, available(t, l))
	fill()
	began := time.Now()
	g := mustAcquire(t, l, n)
	t.Logf("%d expired permits reclaimed and acquired in %v", n, time.Since(began))
	require.NoError(t, g.Release(t.Context()))
	require.EqualValues(t, n, available(t, l))
	fill()
	require.ErrorIs(t, l.ReleaseIDs(t.Context(), hex.EncodeToString(binaryID(1))), semaphore.ErrNotHeld)
	require.EqualValues(t, n, available(t, l), "the failed release reclaimed them")
}

func binaryID(i int) []byte {
	id := make([]byte, 16)
	id[0], id[1], id[2] = byte(i), byte(i>>8), byte(i>>16)
	return id
}
