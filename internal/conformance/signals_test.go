package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// ledger checks the events of one client against the rules that hold in every package.
type ledger struct {
	mu       sync.Mutex
	counts   map[string]int64
	outcomes map[string]int  // events that end a call, by call and name
	holds    map[string]bool // those that have not ended: call and id, which a lock that is handed over keeps
	ended    map[string]bool
	closed   bool
	broken   []string
}

func newLedger() *ledger {
	return &ledger{
		counts: map[string]int64{}, outcomes: map[string]int{}, holds: map[string]bool{}, ended: map[string]bool{},
	}
}

// event has the common fields of the events of all packages.
type event struct {
	what, name, id string
	ctx            context.Context
	took           time.Duration
	err            error
}

type callKey struct{}

func (l *ledger) note(e event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[e.what]++
	breaks := func(rule string) {
		l.broken = append(l.broken, fmt.Sprintf("%s: %s of %s %q", rule, e.what, e.name, e.id))
	}
	var call any
	if e.ctx != nil {
		call = e.ctx.Value(callKey{})
	}
	if call == nil {
		breaks("no value of the caller's context")
	}
	if l.closed {
		breaks("after Close")
	}
	if e.took < 0 || e.name == "" {
		breaks("no name, or a negative time")
	}
	if (e.err != nil) != (e.what == "failed" || e.what == "lost") {
		breaks("an error where none belongs, or none")
	}
	hold := fmt.Sprint(call, " ", e.id)
	switch e.what {
	case "acquired", "failed", "allowed", "denied":
		l.outcomes[fmt.Sprint(call, e.name)]++
	}
	switch e.what {
	case "acquired":
		if e.id != "" {
			if l.holds[hold] || l.ended[hold] {
				breaks("acquired twice")
			}
			l.holds[hold] = true
		}
	case "lost", "released", "renewed":
		if e.id == "" {
			return
		}
		if !l.holds[hold] {
			breaks("not held by the call whose context it has")
		}
		if e.what != "renewed" {
			if l.ended[hold] {
				breaks("ended twice")
			}
			delete(l.holds, hold)
			l.ended[hold] = true
		}
	}
}

// check returns the broken rules. It is called after Close.
func (l *ledger) check() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	broken := slices.Clone(l.broken)
	for call, n := range l.outcomes {
		if n != 1 {
			broken = append(broken, fmt.Sprintf("call %s has %d outcomes", call, n))
		}
	}
	for id := range maps.Keys(l.holds) {
		broken = append(broken, "never ended: "+id)
	}
	return broken
}

func (l *ledger) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

func (l *ledger) locks() redislock.Hooks {
	on := func(what string) func(redislock.Event) {
		return func(e redislock.Event) { l.note(event{what, e.Name, e.ID, e.Context, e.Took, e.Err}) }
	}
	return redislock.Hooks{
		Acquired: on("acquired"), Contended: on("contended"), Failed: on("failed"),
		Renewed: on("renewed"), Lost: on("lost"), Released: on("released"),
	}
}

func (l *ledger) permits() semaphore.Hooks {
	on := func(what string) func(semaphore.Event) {
		return func(e semaphore.Event) {
			what := what
			if e.Kind == semaphore.KindCounting && (what == "acquired" || what == "released") {
				l.mu.Lock()
				l.counts[what+" permits"] += e.Permits
				l.counts[what]-- // of a grant
				l.counts["counting "+what]++
				l.mu.Unlock()
			}
			l.note(event{what, e.Name, strings.Join(e.IDs, ""), e.Context, e.Took, e.Err})
		}
	}
	return semaphore.Hooks{
		Acquired: on("acquired"), Contended: on("contended"), Failed: on("failed"),
		Renewed: on("renewed"), Lost: on("lost"), Released: on("released"),
	}
}

func (l *ledger) limits() ratelimit.Hooks {
	on := func(what string) func(ratelimit.Event) {
		return func(e ratelimit.Event) { l.note(event{what, e.Name, "", e.Context, e.Took, e.Err}) }
	}
	return ratelimit.Hooks{Allowed: on("allowed"), Denied: on("denied"), Failed: on("failed")}
}

// load makes calls from several goroutines at a time, while replies are lost and keys vanish. Each call has a context
// that may end soon.
type load struct {
	*ledger
	rdb    *redis.Client
	faults *redistest.FaultDialer
	name   string
	calls  atomic.Int64
}

func newLoad(t *testing.T) *load {
	t.Helper()
	l := &load{ledger: newLedger(), faults: &redistest.FaultDialer{}, name: redistest.Name(t)}
	l.rdb = redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = l.faults.Dial })
	return l
}

// run calls one on 8 goroutines, 40 times each, with names chosen at random.
func (l *load) run(t *testing.T, one func(ctx context.Context, name string, i int)) {
	t.Helper()
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 40 {
				name := fmt.Sprintf("%s:%d", l.name, rand.N(4))
				switch rand.N(12) {
				case 0:
					l.faults.LoseReply("evalsha", 1, redistest.Cut)
				case 1:
					_ = l.rdb.Del(t.Context(), name).Err() // which may fail as well
				}
				ctx := context.WithValue(t.Context(), callKey{}, l.calls.Add(1))
				ctx, cancel := context.WithTimeout(ctx, rand.N(30*time.Millisecond))
				one(ctx, name, g+i)
				cancel()
			}
		})
	}
	all.Wait()
	l.faults.Reset()
}

// Whatever call fails, each call has one outcome, each hold has one end, Stats has the counts of the hooks, and gauges
// are zero after Close.
func TestSignals_BalanceUnderLoad(t *testing.T) {
	t.Parallel()
	pause := func() { time.Sleep(rand.N(2 * time.Millisecond)) } // the load's own pace; nothing waits for it

	t.Run("redislock", func(t *testing.T) {
		t.Parallel()
		l := newLoad(t)
		c, err := redislock.New(l.rdb, redislock.WithWheel(redistest.Wheel(t)), redislock.WithHooks(l.locks()))
		require.NoError(t, err)
		end := func(lock *redislock.Lock) {
			if pause(); rand.N(4) > 0 { // Close ends the others
				_ = lock.Unlock(t.Context())
			}
		}
		lease := redislock.WithLease(300 * time.Millisecond) // short: each end counts, whatever it is
		l.run(t, func(ctx context.Context, name string, i int) {
			var lock *redislock.Lock
			var err error
			switch i % 7 {
			case 0:
				lock, err = c.Mutex(name, lease).Lock(ctx)
			case 1:
				lock, err = c.Mutex(name, lease).TryLock(ctx)
			case 2:
				lock, err = c.FairMutex(name+"f", lease).Lock(ctx)
			case 3:
				lock, err = c.RWMutex(name+"rw", lease).RLock(ctx)
			case 4:
				rw := c.RWMutex(name+"rw", lease)
				if lock, err = rw.TryLock(ctx); err == nil && i%2 == 0 {
					down := context.WithValue(ctx, callKey{}, l.calls.Add(1))
					lock, err = rw.Downgrade(down, lock)
				}
			case 5:
				lock, err = c.MultiMutex([]string{name + "a", name + "b"}, lease).TryLock(ctx)
			default:
				done := make(chan struct{})
				cancel := c.Mutex(name, lease).LockFunc(ctx, func(got *redislock.Lock, failed error) {
					lock, err = got, failed
					close(done)
				})
				pause()
				cancel()
				<-done
			}
			if err == nil {
				end(lock)
			}
		})
		_ = c.Close(context.Background()) // connections that were cut may fail the last releases
		l.close()
		require.Empty(t, l.check())
		s := c.Stats()
		require.Zero(t, s.Held)
		require.Zero(t, s.Waiting)
		require.Zero(t, s.Renewal.Leases)
		l.requireCounts(t, map[string]int64{
			"acquired": s.Acquired, "contended": s.Contended, "failed": s.Failed, "lost": s.Lost, "released": s.Released,
		})
		require.Equal(t, s.Acquired, s.Lost+s.Released)
		require.EqualValues(t, s.Acquired, s.Wait.Count())
		require.EqualValues(t, s.Acquired, s.Hold.Count())
		require.GreaterOrEqual(t, s.Renewal.Renewed, l.counts["renewed"])
		for range c.Holds() {
			t.Error("a hold after Close")
		}
		t.Log(l.counts)
	})

	t.Run("a quorum", func(t *testing.T) {
		t.Parallel()
		l := newLoad(t)
		servers := []redis.UniversalClient{l.rdb}
		for db := range 2 {
			servers = append(servers, redistest.Shared(t).Client(t, func(o *redis.Options) { o.DB = db + 1 }))
		}
		q, err := redislock.NewQuorum(servers, redislock.WithWheel(redistest.Wheel(t)), redislock.WithHooks(l.locks()))
		require.NoError(t, err)
		l.run(t, func(ctx context.Context, name string, i int) {
			m := q.Mutex(name)
			var lock *redislock.Lock
			if i%2 == 0 {
				lock, _ = m.Lock(ctx)
			} else {
				lock, _ = m.TryLock(ctx)
			}
			if pause(); lock != nil && rand.N(4) > 0 {
				_ = lock.Unlock(t.Context())
			}
		})
		_ = q.Close(context.Background())
		l.close()
		// Each server reports the renewals of its part under an id of its own.
		require.Empty(t, slices.DeleteFunc(l.check(), func(s string) bool { return strings.Contains(s, "renewed") }))
		s := q.Stats()
		require.Zero(t, s.Held)
		require.Zero(t, s.Waiting)
		require.Zero(t, s.Renewal.Leases)
		l.requireCounts(t, map[string]int64{
			"acquired": s.Acquired, "contended": s.Contended, "failed": s.Failed, "lost": s.Lost, "released": s.Released,
		})
		require.Equal(t, s.Acquired, s.Lost+s.Released)
	})

	t.Run("semaphore", func(t *testing.T) {
		t.Parallel()
		l := newLoad(t)
		c, err := semaphore.New(l.rdb, semaphore.WithWheel(redistest.Wheel(t)), semaphore.WithHooks(l.permits()))
		require.NoError(t, err)
		var released atomic.Int64
		l.run(t, func(ctx context.Context, name string, i int) {
			counting := c.CountingSemaphore(name + "c")
			s := c.Semaphore(name, 0, semaphore.WithLease(300*time.Millisecond)) // short: each end counts, whatever it is
			if i%2 == 0 {
				s = c.FairSemaphore(name+"f", 0)
			}
			_, _ = counting.TrySetPermits(t.Context(), 3)
			_, _ = s.TrySetPermits(t.Context(), 3)
			n := 1 + rand.N[int64](2)
			switch i % 5 {
			case 0:
				if counting.Acquire(ctx, n) == nil {
					pause()
					called := context.WithValue(context.Background(), callKey{}, l.calls.Add(1))
					if err := counting.Release(called, n); err == nil || errors.Is(err, semaphore.ErrUnconfirmed) {
						released.Add(n)
					}
				}
				return
			case 1:
				_ = counting.TryAcquire(ctx, n)
				return
			}
			var grant *semaphore.Grant
			switch i % 3 {
			case 0:
				grant, _ = s.Acquire(ctx, n)
			case 1:
				grant, _ = s.TryAcquire(ctx, n)
			default:
				done := make(chan struct{})
				cancel := s.AcquireFunc(ctx, n, func(g *semaphore.Grant, _ error) {
					grant = g
					close(done)
				})
				pause()
				cancel()
				<-done
			}
			if pause(); grant != nil && rand.N(4) > 0 {
				_ = grant.Release(t.Context())
			}
		})
		_ = c.Close(context.Background()) // connections that were cut may fail the last releases
		l.close()
		require.Empty(t, l.check())
		s := c.Stats()
		require.Zero(t, s.Grants)
		require.Zero(t, s.Held)
		require.Zero(t, s.Waiting)
		require.Zero(t, s.Renewal.Leases)
		l.requireCounts(t, map[string]int64{
			"acquired": s.Acquired, "contended": s.Contended, "failed": s.Failed, "lost": s.Lost, "released": s.Released,
			"acquired permits": s.Taken, "released permits": s.Returned,
		})
		require.Equal(t, released.Load(), s.Returned)
		require.Equal(t, s.Acquired, s.Lost+s.Released)
		require.EqualValues(t, s.Acquired, s.Hold.Count())
		require.EqualValues(t, s.Acquired+l.counts["counting acquired"], s.Wait.Count())
		for range c.Holds() {
			t.Error("a hold after Close")
		}
		t.Log(l.counts)
	})

	t.Run("ratelimit", func(t *testing.T) {
		t.Parallel()
		l := newLoad(t)
		c, err := ratelimit.New(l.rdb, ratelimit.WithWheel(redistest.Wheel(t)), ratelimit.WithHooks(l.limits()),
			ratelimit.WithTimeout(redistest.Patience))
		require.NoError(t, err)
		require.NoError(t, c.StoredLimiter(l.name+"l").SetRate(t.Context(), ratelimit.PerSecond(50), ratelimit.WithScope(ratelimit.PerClient)))
		l.run(t, func(ctx context.Context, name string, i int) {
			k, lim := c.Limiter(name, ratelimit.PerSecond(200)), c.StoredLimiter(l.name+"l")
			switch i % 8 {
			case 0:
				_ = k.Wait(ctx, "k")
			case 1:
				_ = lim.Wait(ctx)
			case 2:
				_, _ = k.AllowUpTo(ctx, "k", 5)
			case 3:
				_, _ = k.Reserve(ctx, "k", 1)
			case 4:
				_, _ = lim.Allow(ctx)
			case 5:
				done := make(chan struct{})
				cancel := k.WaitFunc(ctx, "k", 3, func(error) { close(done) })
				pause()
				cancel()
				<-done
			default:
				_, _ = k.AllowN(ctx, "k", 1+rand.N[int64](300))
			}
		})
		redistest.Poll(t, func() bool { return !c.Stats().Down })
		once := c.Limiter(l.name, ratelimit.PerHour(1))
		redistest.Poll(t, func() bool { // connections that were cut may fail the first calls
			_, err := once.Allow(context.WithValue(t.Context(), callKey{}, l.calls.Add(1)), "last")
			return err == nil
		})
		redistest.Poll(t, func() bool { // on a busy machine, no wait may have ended well so far
			ctx := context.WithValue(t.Context(), callKey{}, l.calls.Add(1))
			return c.Limiter(l.name, ratelimit.PerSecond(1000)).Wait(ctx, "one more") == nil
		})
		waiting := make(chan error, 1)
		go func() {
			ctx := context.WithValue(context.Background(), callKey{}, l.calls.Add(1))
			waiting <- once.Wait(ctx, "last")
		}()
		redistest.Poll(t, func() bool { return c.Stats().Waiting == 1 && c.Stats().Keys > 0 })
		_ = c.Close(context.Background()) // connections that were cut may fail the last releases
		l.close()
		require.ErrorIs(t, <-waiting, ratelimit.ErrClosed)
		require.Empty(t, l.check())
		s := c.Stats()
		require.Zero(t, s.Waiting)
		require.Zero(t, s.Keys)
		require.False(t, s.Down)
		l.requireCounts(t, map[string]int64{"allowed": s.Allowed, "denied": s.Denied, "failed": s.Failed})
		require.Equal(t, l.calls.Load(), s.Allowed+s.Denied+s.Failed, "each call has one outcome")
		require.Positive(t, s.Took.Count())
		require.Positive(t, s.Wait.Count())
		t.Log(l.counts)
	})
}

// requireCounts compares the counts of the hooks with those of Stats.
func (l *ledger) requireCounts(t *testing.T, stats map[string]int64) {
	t.Helper()
	for what, n := range stats {
		require.Equal(t, l.counts[what], n, what)
	}
}

// A ledger finds each kind of fault.
func TestSignals_TheLedgerFindsFaults(t *testing.T) {
	t.Parallel()
	call := func(n int) context.Context { return context.WithValue(t.Context(), callKey{}, n) }
	good := []event{{what: "acquired", name: "n", id: "1", ctx: call(1)}, {what: "released", name: "n", id: "1", ctx: call(1)}}
	for what, events := range map[string][]event{
		"no end":              good[:1],
		"two ends":            {good[0], good[1], good[1]},
		"an end alone":        good[1:],
		"another's context":   {good[0], {what: "released", name: "n", id: "1", ctx: call(2)}},
		"no context":          {good[0], {what: "released", name: "n", id: "1", ctx: t.Context()}},
		"two outcomes":        {good[0], good[1], {what: "failed", name: "n", ctx: call(1), err: errors.ErrUnsupported}},
		"a loss with no why":  {good[0], {what: "lost", name: "n", id: "1", ctx: call(1)}},
		"an error on success": {{what: "allowed", name: "n", ctx: call(1), err: errors.ErrUnsupported}},
		"no name":             {{what: "allowed", ctx: call(1)}},
	} {
		l := newLedger()
		for _, e := range events {
			l.note(e)
		}
		require.NotEmpty(t, l.check(), what)
	}
	l := newLedger()
	for _, e := range good {
		l.note(e)
	}
	require.Empty(t, l.check())
	l.close()
	l.note(event{what: "allowed", name: "n", ctx: call(3)})
	require.NotEmpty(t, l.check(), "after Close")
}
