package semaphore_test

import (
	"context"
	"fmt"
	"runtime"
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

// holdUp is a hook that holds up scripts between the client and the server, and counts them.
type holdUp struct {
	mu       sync.Mutex
	open     chan struct{} // closed when scripts pass again; nil while they pass
	sent     int           // batches of scripts
	inFlight int           // of these
}

func (h *holdUp) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *holdUp) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer h.pass(cmd)()
		return next(ctx, cmd)
	}
}

func (h *holdUp) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer h.pass(cmds[0])()
		return next(ctx, cmds)
	}
}

// pass returns when a batch may be sent. The caller calls over when it has ended.
func (h *holdUp) pass(cmd redis.Cmder) (over func()) {
	if !strings.HasPrefix(cmd.Name(), "eval") {
		return func() {}
	}
	h.mu.Lock()
	open := h.open
	h.sent++
	h.inFlight++
	h.mu.Unlock()
	if open != nil {
		<-open
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.inFlight--
	}
}

func (h *holdUp) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = make(chan struct{})
}

func (h *holdUp) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.open)
	h.open = nil
}

// batches returns how many batches were sent.
func (h *holdUp) batches() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent
}

// idle reports whether no batch is in flight.
func (h *holdUp) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inFlight == 0
}

// occupy calls f until no further batch is sent, and returns how many calls that took. The last is in no batch.
func (h *holdUp) occupy(t *testing.T, f func(i int)) (n int) {
	t.Helper()
	w := newWheel(t)
	for ; ; n++ {
		before := h.batches()
		f(n)
		for began := time.Now(); ; {
			if h.batches() > before {
				break
			}
			if time.Since(began) > time.Second {
				return n + 1
			}
			require.NoError(t, w.Sleep(t.Context(), time.Millisecond))
		}
	}
}

// Each caller has a semaphore of its own. The calls of some are on their way to Redis, and those of others wait for
// room when all callers leave.
// Guarantees: S22.
func TestHang_CallersThatLeave(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		const queued = 50
		server := redistest.Start(t)
		admin, h := server.Client(t), &holdUp{}
		rdb := server.Client(t)
		c := newClient(t, rdb)
		watcher := newClient(t, admin)
		newAny := func(c *semaphore.Client, what string, i int) anySemaphore {
			return k.newAny(c, fmt.Sprintf("%s{%d}", what, i))
		}
		// Grants that are released while calls do not get through.
		var releases []releaseFunc
		for i := range 3 {
			s := newAny(c, "released", i)
			s.setPermits(t, 1)
			release, err := s.acquire(t.Context(), 1)
			require.NoError(t, err)
			releases = append(releases, release)
		}
		edited := watcher.CountingSemaphore("edited")
		mustSetPermits(t, edited, 5)
		for i := range 30 {
			newAny(watcher, "sent", i).setPermits(t, 1)
		}
		for i := range queued {
			newAny(watcher, "queued", i).setPermits(t, 1)
		}
		rdb.AddHook(h)
		h.begin()

		ctx, leave := context.WithCancel(t.Context())
		var all []*asyncCall
		acquire := func(what string, i int) {
			s := newAny(c, what, i)
			all = append(all, startCall(func() error { _, err := s.acquire(ctx, 1); return err }))
		}
		sent := h.occupy(t, func(i int) { acquire("sent", i) }) - 1
		require.Less(t, sent, 30, "a bounded number of batches is in flight")
		for i := range queued {
			acquire("queued", i)
		}
		all = append(all, startCall(func() error {
			return c.CountingSemaphore("edited").AddPermits(ctx, 3)
		}))
		var released []*asyncCall
		for _, release := range releases {
			released = append(released, startCall(func() error {
				ended, cancel := context.WithCancel(t.Context())
				cancel()
				return release(ended)
			}))
		}
		for _, r := range released {
			require.ErrorIs(t, r.wait(t), semaphore.ErrUnconfirmed)
		}
		leave()
		for _, one := range all {
			require.ErrorIs(t, one.wait(t), context.Canceled)
		}
		h.end()

		for i := range sent {
			s := newAny(watcher, "sent", i)
			poll(t, func() bool { return available(t, s) == 1 })
		}
		for i := range releases {
			s := newAny(watcher, "released", i)
			poll(t, func() bool { return available(t, s) == 1 })
		}
		require.NoError(t, c.Close(within(t, testTimeout)))
		require.EqualValues(t, 5, available(t, edited), "an edit that was not sent in time is never sent")
		for i := range queued {
			keys, err := admin.Keys(t.Context(), fmt.Sprintf("*queued{%d}*", i)).Result()
			require.NoError(t, err)
			for _, key := range keys {
				require.NotRegexp(t, ":(acquiring|leases|timeout|fence|queue)", key, "asked for nobody")
			}
			require.EqualValues(t, 1, available(t, newAny(watcher, "queued", i)))
		}
	})
}

// While Redis hangs, a call without a caller that blocks costs no goroutine, and neither does one whose caller has
// left.
// Guarantees: S15.
func TestScale_CallsWithoutCallersCostNoGoroutine(t *testing.T) {
	redistest.SkipIfShort(t)
	const calls = 300
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			server := redistest.Start(t)
			c := newClient(t, server.Client(t, func(o *redis.Options) { o.ReadTimeout = testTimeout }))
			var releases []releaseFunc
			for i := range calls {
				s := k.newAny(c, fmt.Sprint("permits:", i))
				s.setPermits(t, 2)
				release, err := s.acquire(t.Context(), 1)
				require.NoError(t, err)
				releases = append(releases, release)
			}
			ctx, giveUp := context.WithCancel(t.Context())
			giveUp()
			ended := make(chan error, 2*calls)
			server.Pause()
			before := runtime.NumGoroutine()
			var cancels []func()
			for i, release := range releases {
				go func() { ended <- release(ctx) }()
				s := k.newAny(c, fmt.Sprint("permits:", i))
				cancels = append(cancels,
					s.acquireFunc(context.Background(), 1, func(_ releaseFunc, err error) { ended <- err }))
			}
			for range calls {
				require.ErrorIs(t, <-ended, semaphore.ErrUnconfirmed, "the callers of releases leave a second later")
			}
			usual, _, profile := sampleGoroutines(t, 700*time.Millisecond)
			t.Logf("goroutines: %d before, %d with %d calls", before, usual, 2*calls)
			require.LessOrEqual(t, usual, before+aFew, profile)
			for _, cancel := range cancels {
				cancel()
			}
			for range calls {
				require.ErrorIs(t, <-ended, context.Canceled)
			}
			server.Resume()
			for i := range calls {
				s := k.newAny(c, fmt.Sprint("permits:", i))
				poll(t, func() bool { return available(t, s) == 2 })
			}
		})
	}
}

// With the timeouts of go-redis, which are longer than the lease.
// Guarantees: S23.
func TestClient_CloseWhileRedisHangs(t *testing.T) {
	redistest.SkipIfShort(t)
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		const lease = 2 * time.Second // its end is awaited
		for _, inFlight := range []int{0, 1, 50} {
			t.Run(fmt.Sprintf("takes little longer than the lease, with %d calls in flight", inFlight), func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				h, rdb, w := &holdUp{}, server.Client(t), newWheel(t)
				rdb.AddHook(h)
				c, err := semaphore.New(rdb, semaphore.WithWheel(w), semaphore.WithPoll(100*time.Millisecond))
				require.NoError(t, err)
				newSemaphore := func(i int) *semaphore.Semaphore {
					return k.newSemaphore(c, fmt.Sprint("permits:", i), 0, semaphore.WithLease(lease))
				}
				for i := range max(inFlight, 1) {
					mustSetPermits(t, newSemaphore(i), 2)
				}
				g := mustAcquire(t, newSemaphore(0), 1)
				server.Pause()
				var all []*asyncCall
				for i := range inFlight {
					all = append(all, startCall(func() error { _, err := newSemaphore(i).Acquire(within(t, testTimeout), 1); return err }))
				}
				if inFlight > 0 {
					poll(t, func() bool { return h.batches() > 0 })
				}
				stalled := redistest.Stalls(t)
				began := time.Now()
				err = c.Close(context.Background())
				took := time.Since(began) - stalled()
				require.Error(t, err, "the release is not confirmed")
				require.Less(t, took, lease+2*time.Second)
				require.ErrorIs(t, g.Err(), semaphore.ErrClosed)
				for _, one := range all {
					require.ErrorIs(t, one.wait(t), semaphore.ErrClosed)
				}
				sent := h.batches()
				poll(t, h.idle) // by their timeouts
				require.Zero(t, w.Stats().Pending, "nothing is to be sent later")
				require.Equal(t, sent, h.batches(), "nothing is sent after Close")
				server.Resume()
			})
		}
	})
}

// The second Close comes in a pause of the first, in which nothing is in flight.
// Guarantees: S23.
func TestClient_CloseTwiceAtOnce(t *testing.T) {
	t.Parallel()
	d := &redistest.FaultDialer{}
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer, o.MaxRetries = d.Dial, -1 })
	c, err := semaphore.New(rdb, semaphore.WithWheel(newWheel(t)))
	require.NoError(t, err)
	name := redistest.Name(t)
	mustSetPermits(t, c.Semaphore(name, 0), 1)
	mustAcquire(t, c.Semaphore(name, 0), 1)
	d.Set(redistest.Refuse)
	d.Reset()
	before := d.Effects()
	began := time.Now()
	first := startCall(func() error { return c.Close(t.Context()) })
	poll(t, func() bool { return d.Effects() > before })
	between := time.Since(began)
	second := startCall(func() error { return c.Close(t.Context()) })
	require.ErrorIs(t, c.Close(within(t, time.Millisecond)), context.DeadlineExceeded)
	require.NoError(t, second.wait(t))
	require.Error(t, first.wait(t), "the release is not confirmed")
	require.Less(t, first.took-between-second.took, 200*time.Millisecond, "the first tries again, with pauses of 250 ms")
}

// Guarantees: S11.
func TestCountingSemaphore_AReleaseThatFailsIsSentLater(t *testing.T) {
	t.Parallel()
	d := &redistest.FaultDialer{}
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) {
		o.Dialer, o.ReadTimeout, o.MaxRetries = d.Dial, 300*time.Millisecond, -1
	})
	require.NoError(t, rdb.ScriptLoad(t.Context(), scripts.SemRelease.Source()).Err())
	name := redistest.Name(t)
	s := newClient(t, rdb).CountingSemaphore(name)
	mustSetPermits(t, s, 3)
	lost := d.LoseCall(scripts.SemRelease.SHA(), 1)
	require.ErrorIs(t, s.Release(context.Background(), 2), semaphore.ErrUnconfirmed)
	<-lost
	other := redistest.Shared(t).Client(t)
	poll(t, func() bool { return other.Get(t.Context(), name).Val() == "5" })
}
