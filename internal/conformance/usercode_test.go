package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// userCode has a function of the user that does not return, and what calls it.
type userCode struct {
	*testing.T
	rdb    *redis.Client
	wheel  *wheel.Wheel
	name   string
	exits  bool // by runtime.Goexit; otherwise it panics
	called atomic.Int64
	log    logText
}

// fail is the function of the user, or is called by it.
func (u *userCode) fail() {
	u.called.Add(1)
	if u.exits {
		runtime.Goexit()
	}
	panic("by the test")
}

// logText collects log records. It is safe for concurrent use.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		n := 0
		for _, word := range words {
			if strings.Contains(line, word) {
				n++
			}
		}
		if n == len(words) {
			return true
		}
	}
	return false
}

func (u *userCode) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&u.log, nil)) }

// on returns fail as a function of an event if set is true, else nil.
func on[E any](u *userCode, set bool) func(E) {
	if !set {
		return nil
	}
	return func(E) { u.fail() }
}

// A function of the user that panics, or ends its goroutine as FailNow of package testing does, has failed: the log has
// that, and nobody else notices. See CONTRIBUTING.md.
//
// Guarantees: L52, A3.
func TestUserCode(t *testing.T) {
	t.Parallel()
	type row struct {
		what   string
		logged string // the message, if the log has one
		run    func(*userCode)
		bubble bool // it needs no server
	}
	var rows []row
	for _, hook := range []string{"Acquired", "Contended", "Failed", "Renewed", "Lost", "Released"} {
		rows = append(rows, row{
			what: "Hooks of redislock/" + hook, logged: "redislock: a hook or callback panicked",
			run: func(u *userCode) { lockHooks(u, hook) },
		})
		for kind := range semaphores {
			if hook != "Lost" && hook != "Renewed" || kind != "CountingSemaphore" {
				rows = append(rows, row{
					what: "Hooks of semaphore, " + kind + "/" + hook, logged: "semaphore: a hook or callback panicked",
					run: func(u *userCode) { semaphoreHooks(u, kind, hook) },
				})
			}
		}
	}
	for _, hook := range []string{"Headers", "Context", "Ended", "Incident", "backoff"} {
		rows = append(rows, row{
			what: "Hooks of delay/" + hook, logged: "delay: a hook or backoff panicked",
			run: func(u *userCode) { delayHooks(u, hook) },
		})
	}
	for _, hook := range []string{"Allowed", "Denied", "Failed"} {
		rows = append(rows, row{
			what: "Hooks of ratelimit, on its goroutines/" + hook, logged: "ratelimit: callback panicked",
			run: func(u *userCode) { limitHooks(u, hook) },
		})
	}
	for _, hook := range []string{"Renewed", "Lost", "Failed", "OnLost"} {
		rows = append(rows, row{
			what: "Hooks of renewal/" + hook, logged: "renewal: a hook or OnLost panicked",
			run: func(u *userCode) { renewalHooks(u, hook) }, bubble: true,
		})
	}
	rows = append(rows, []row{
		{what: "Hooks of a Quorum", logged: "redislock: a hook or callback panicked", run: quorumHooks},
		{what: "Hooks of ratelimit/Down and Up", logged: "ratelimit: callback panicked", run: outageHooks},
		{what: "callback/LockFunc", logged: "redislock: a hook or callback panicked", run: lockFuncs},
		{what: "callback/AcquireFunc", logged: "semaphore: a hook or callback panicked", run: acquireFuncs},
		{what: "callback/WaitFunc", logged: "ratelimit: callback panicked", run: waitFuncs},
		{what: "handler of delay", logged: "delay: a handler panicked", run: handler},
		{what: "Backend of renewal", logged: "renewal: the backend panicked", run: backendFails, bubble: true},
		{what: "function of Do", run: does},
		{what: "Hooks of ratelimit, on the goroutine of a caller", run: limitHooksOfCallers},
		{what: "hook of the redis client", run: redisHooks},
	}...)
	for how, exits := range map[string]bool{"panics": false, "ends its goroutine": true} {
		for _, r := range rows {
			t.Run(r.what+" "+how, func(t *testing.T) {
				t.Parallel()
				if strings.HasSuffix(r.what, "/Renewed") && !r.bubble {
					redistest.SkipIfShort(t)
				}
				u := &userCode{name: redistest.Name(t), exits: exits}
				if r.bubble {
					synctest.Test(t, func(t *testing.T) { u.check(t, r.run, r.logged) })
				} else {
					u.rdb = redistest.Shared(t).Client(t)
					u.check(t, r.run, r.logged)
				}
			})
		}
	}
}

// check runs a test of the function, and looks for the message that the log must have.
func (u *userCode) check(t *testing.T, run func(*userCode), logged string) {
	t.Helper()
	u.T, u.wheel = t, redistest.Wheel(t)
	run(u)
	require.Positive(t, u.called.Load(), "it was called")
	if logged != "" {
		value := "by the test"
		if u.exits {
			value = "runtime.Goexit was called"
		}
		redistest.Poll(t, func() bool { return u.log.has("level=ERROR", logged, value, "stack=") })
	}
}

// receive returns the next value, and fails the test if none comes.
func receive[T any](u *userCode, c <-chan T) (v T) {
	u.Helper()
	select {
	case v = <-c:
	case <-redistest.Within(u, redistest.Patience).Done():
		require.FailNow(u, "nothing came")
	}
	return v
}

// must fails the test if err is not nil. Other goroutines than that of the test may use it.
func (u *userCode) must(err error) {
	u.Helper()
	if err != nil {
		u.Error(err)
	}
}

// closes closes a Client, for which nothing that the user's function did is an error.
func (u *userCode) closes(closing func(context.Context) error) {
	u.Helper()
	require.NoError(u, closing(redistest.Within(u, redistest.Patience)))
}

// lockHooksOf returns hooks of which one fails, or all if hook is "".
func lockHooksOf(u *userCode, hook string) redislock.Option {
	of := func(name string) func(redislock.Event) { return on[redislock.Event](u, hook == name || hook == "") }
	return redislock.WithHooks(redislock.Hooks{
		Acquired: of("Acquired"), Contended: of("Contended"), Failed: of("Failed"),
		Renewed: of("Renewed"), Lost: of("Lost"), Released: of("Released"),
	})
}

func lockHooks(u *userCode, hook string) {
	c, err := redislock.New(u.rdb, redislock.WithWheel(u.wheel), redislock.WithLogger(u.logger()),
		redislock.WithPoll(time.Minute), lockHooksOf(u, hook))
	require.NoError(u, err)
	m := c.Mutex(u.name, redislock.WithLease(lease))
	locks(u, m, func() bool {
		s := c.Stats()
		return s.Waiting == waiters && (hook != "Renewed" || u.called.Load() > 0)
	})
	lost, err := m.Lock(u.Context())
	require.NoError(u, err)
	require.NoError(u, u.rdb.Del(u.Context(), u.name).Err())
	require.ErrorIs(u, lost.Extend(u.Context(), time.Minute), redislock.ErrLost)
	u.closes(c.Close)
	s := c.Stats()
	require.Equal(u, []int64{waiters + 2, 1, waiters + 1}, []int64{s.Acquired, s.Lost, s.Released})
}

func quorumHooks(u *userCode) {
	clients := []redis.UniversalClient{}
	for range 3 {
		clients = append(clients, redistest.Start(u).Client(u))
	}
	q, err := redislock.NewQuorum(clients, redislock.WithWheel(u.wheel), redislock.WithLogger(u.logger()),
		redislock.WithPoll(time.Second), lockHooksOf(u, ""))
	require.NoError(u, err)
	m := q.Mutex(u.name, redislock.WithLease(lease))
	locks(u, m, func() bool { return q.Stats().Waiting == waiters })
	lost, err := m.Lock(u.Context())
	require.NoError(u, err)
	for _, c := range clients {
		require.NoError(u, c.Del(u.Context(), u.name).Err())
	}
	require.ErrorIs(u, lost.Extend(u.Context(), time.Minute), redislock.ErrLost)
	receive(u, lost.Done())
	u.closes(q.Close)
	s := q.Stats()
	require.Equal(u, []int64{waiters + 2, 1, waiters + 1}, []int64{s.Acquired, s.Lost, s.Released})
}

// waiters wait for what another holds.
const waiters = 4

// locks has callers of one process lock a mutex, by each kind of call. The first unlocks it when wait returns true.
func locks(u *userCode, m interface {
	Lock(ctx context.Context) (*redislock.Lock, error)
	TryLock(ctx context.Context) (*redislock.Lock, error)
	LockFunc(ctx context.Context, f func(*redislock.Lock, error)) (cancel func())
}, wait func() bool,
) {
	held, err := m.Lock(u.Context())
	require.NoError(u, err)
	require.ErrorIs(u, second(m.TryLock(u.Context())), redislock.ErrLocked)
	got := make(chan *redislock.Lock, waiters)
	take := func(l *redislock.Lock, err error) {
		u.must(err)
		got <- l
	}
	m.LockFunc(u.Context(), take)
	m.LockFunc(u.Context(), take)
	go func() { take(m.Lock(u.Context())) }()
	go func() { take(m.Lock(context.Background())) }()
	m.LockFunc(u.Context(), func(_ *redislock.Lock, err error) {
		if !errors.Is(err, context.Canceled) {
			u.Error(err)
		}
	})()
	redistest.Poll(u, wait)
	require.NoError(u, held.Unlock(u.Context()))
	for range waiters {
		require.NoError(u, receive(u, got).Unlock(u.Context()))
	}
}

// semaphores are the kinds of semaphores, with the permits of one call.
var semaphores = map[string]func(u *userCode, c *semaphore.Client) permits{
	"CountingSemaphore": func(u *userCode, c *semaphore.Client) permits {
		s := c.CountingSemaphore(u.name)
		require.NoError(u, second(s.TrySetPermits(u.Context(), 1)))
		release := func(ctx context.Context) error { return s.Release(ctx, 1) }
		return permits{
			acquire: func(ctx context.Context) (releaseFunc, error) { return release, s.Acquire(ctx, 1) },
			try:     func(ctx context.Context) error { return s.TryAcquire(ctx, 1) },
			start: func(ctx context.Context, n int64, f func(releaseFunc, error)) func() {
				return s.AcquireFunc(ctx, n, func(err error) { f(release, err) })
			},
			available: s.Available,
		}
	},
	"Semaphore":     func(u *userCode, c *semaphore.Client) permits { return permitsOf(u, c.Semaphore) },
	"FairSemaphore": func(u *userCode, c *semaphore.Client) permits { return permitsOf(u, c.FairSemaphore) },
}

type releaseFunc func(context.Context) error

// permits are calls for the one permit of a semaphore.
type permits struct {
	acquire   func(ctx context.Context) (releaseFunc, error)
	try       func(ctx context.Context) error
	start     func(ctx context.Context, n int64, f func(releaseFunc, error)) (cancel func())
	available func(ctx context.Context) (int64, error)
	lose      func()
}

func permitsOf(u *userCode, of func(string, int64, ...semaphore.SemaphoreOption) *semaphore.Semaphore) permits {
	s := of(u.name, 0, semaphore.WithLease(lease))
	require.NoError(u, s.SetPermits(u.Context(), 1))
	return permits{
		acquire: func(ctx context.Context) (releaseFunc, error) {
			g, err := s.Acquire(ctx, 1)
			return g.Release, err
		},
		try: func(ctx context.Context) error { return second(s.TryAcquire(ctx, 1)) },
		start: func(ctx context.Context, n int64, f func(releaseFunc, error)) func() {
			return s.AcquireFunc(ctx, n, func(g *semaphore.Grant, err error) { f(g.Release, err) })
		},
		available: s.Available,
		lose: func() {
			g, err := s.Acquire(u.Context(), 1)
			require.NoError(u, err)
			require.NoError(u, s.ReleaseIDs(u.Context(), g.IDs()...))
			require.ErrorIs(u, g.Extend(u.Context(), time.Minute), semaphore.ErrLost)
		},
	}
}

func (u *userCode) semaphores(opts ...semaphore.Option) *semaphore.Client {
	u.Helper()
	c, err := semaphore.New(u.rdb, append(opts, semaphore.WithWheel(u.wheel), semaphore.WithLogger(u.logger()),
		semaphore.WithPoll(time.Minute))...)
	require.NoError(u, err)
	return c
}

func semaphoreHooks(u *userCode, kind, hook string) {
	of := func(name string) func(semaphore.Event) { return on[semaphore.Event](u, hook == name) }
	c := u.semaphores(semaphore.WithHooks(semaphore.Hooks{
		Acquired: of("Acquired"), Contended: of("Contended"), Failed: of("Failed"),
		Renewed: of("Renewed"), Lost: of("Lost"), Released: of("Released"),
	}))
	s := semaphores[kind](u, c)
	held, err := s.acquire(u.Context())
	require.NoError(u, err)
	require.ErrorIs(u, s.try(u.Context()), semaphore.ErrNoPermits)
	got := make(chan releaseFunc, waiters)
	take := func(r releaseFunc, err error) {
		u.must(err)
		got <- r
	}
	s.start(u.Context(), 1, take)
	s.start(u.Context(), 1, take)
	go func() { take(s.acquire(u.Context())) }()
	go func() { take(s.acquire(context.Background())) }()
	s.start(u.Context(), 1, func(_ releaseFunc, err error) {
		if !errors.Is(err, context.Canceled) {
			u.Error(err)
		}
	})()
	redistest.Poll(u, func() bool {
		stats := c.Stats()
		return stats.Waiting == waiters && stats.Contended >= 2 && (hook != "Renewed" || u.called.Load() > 0)
	})
	require.NoError(u, held(u.Context()))
	for range waiters {
		require.NoError(u, receive(u, got)(u.Context()))
	}
	if s.lose != nil {
		s.lose()
	}
	free, err := s.available(u.Context())
	require.NoError(u, err)
	require.EqualValues(u, 1, free)
	u.closes(c.Close)
	require.Zero(u, c.Stats().Grants)
}

// delayHooks has two tasks fail and succeed, while the function of that name fails.
func delayHooks(u *userCode, name string) {
	at := func(where string) {
		if where == name {
			u.fail()
		}
	}
	var outcomes sync.Map
	ended := make(chan delay.Event, 100)
	c, err := delay.New(u.rdb, delay.WithWheel(u.wheel), delay.WithLogger(u.logger()), delay.WithHooks(delay.Hooks{
		Headers: func(context.Context) string {
			at("Headers")
			return "headers"
		},
		Context: func(ctx context.Context, _ delay.Event) context.Context {
			at("Context")
			return ctx
		},
		Ended: func(e delay.Event) {
			outcomes.Store(e.ID, e.Outcome)
			ended <- e
			at("Ended")
		},
		Incident: func(delay.Incident) { at("Incident") },
	}))
	require.NoError(u, err)
	q := c.Queue(u.name, delay.WithMaxFailed(1), delay.WithRetry(2, func(int, error) time.Duration {
		at("backoff")
		return time.Millisecond
	}))
	stop := serve(u, q, func(_ context.Context, task *delay.Task) error {
		if task.Failures == 0 || task.ID != "done" {
			return errors.New("by the test")
		}
		return nil
	})
	for _, id := range []string{"failed", "failed too", "done"} {
		require.NoError(u, q.Schedule(u.Context(), id, 0, nil))
		require.Equal(u, delay.OutcomeRetried, attempted(u, ended).Outcome)
		attempted(u, ended)
	}
	last, _ := outcomes.Load("done")
	require.Equal(u, delay.OutcomeDone, last)
	if name == "Incident" { // only the newest of the failed tasks is kept
		redistest.Poll(u, func() bool { return u.called.Load() > 0 })
	}
	stop()
	u.closes(c.Close)
	s := c.Stats()
	require.Equal(u, []int64{0, 3, 2, 1}, []int64{int64(s.Running), s.Retried, s.Exhausted, s.Done})
}

// serve serves a queue by one worker until stop is called.
func serve(u *userCode, q *delay.Queue, handle func(context.Context, *delay.Task) error) (stop func()) {
	ctx, cancel := context.WithCancel(u.Context())
	done := make(chan error, 1)
	go func() { done <- q.Serve(ctx, 1, handle) }()
	return func() {
		cancel()
		require.NoError(u, receive(u, done))
	}
}

// attempted returns the end of the next attempt that has begun. On a slow machine a task that waits for the worker is
// handed back.
func attempted(u *userCode, ended <-chan delay.Event) delay.Event {
	u.Helper()
	for {
		if e := receive(u, ended); e.Outcome != delay.OutcomeHandedBack {
			return e
		}
	}
}

// The attempt has failed. The worker goes on with the task that waits, and with the next attempt.
func handler(u *userCode) {
	const tasks = 20
	ended := make(chan delay.Event, 10*tasks)
	c, err := delay.New(u.rdb, delay.WithWheel(u.wheel), delay.WithLogger(u.logger()),
		delay.WithHooks(delay.Hooks{Ended: func(e delay.Event) { ended <- e }}))
	require.NoError(u, err)
	q := c.Queue(u.name, delay.WithRetry(2, delay.Backoff(time.Millisecond, time.Millisecond)))
	for i := range tasks {
		require.NoError(u, q.Schedule(u.Context(), fmt.Sprint(i), 0, nil))
	}
	stop := serve(u, q, func(_ context.Context, task *delay.Task) error {
		if task.Failures == 0 {
			u.fail()
		}
		return nil
	})
	got := map[delay.Outcome]int{}
	for range 2 * tasks {
		e := attempted(u, ended)
		if got[e.Outcome]++; e.Outcome == delay.OutcomeRetried {
			require.ErrorContains(u, e.Err, "delay: the handler of "+fmt.Sprintf("%q", e.ID))
		}
	}
	require.Equal(u, map[delay.Outcome]int{delay.OutcomeRetried: tasks, delay.OutcomeDone: tasks}, got)
	stop()
	u.closes(c.Close)
	require.Zero(u, c.Stats().Running)
}

func (u *userCode) limits(rdb *redis.Client, opts ...ratelimit.Option) *ratelimit.Client {
	u.Helper()
	c, err := ratelimit.New(rdb, append(opts, ratelimit.WithWheel(u.wheel), ratelimit.WithLogger(u.logger()))...)
	require.NoError(u, err)
	return c
}

// limitHooks has WaitFunc report: on the goroutine of a caller a panic goes on to the caller.
func limitHooks(u *userCode, hook string) {
	c := u.limits(u.rdb, ratelimit.WithHooks(ratelimit.Hooks{
		Allowed: on[ratelimit.Event](u, hook == "Allowed"), Denied: on[ratelimit.Event](u, hook == "Denied"),
		Failed: on[ratelimit.Event](u, hook == "Failed"),
	}))
	told := make(chan error, 1)
	waitFunc := func(k *ratelimit.Limiter) error {
		k.WaitFunc(u.Context(), u.name, 1, func(err error) { told <- err })
		return receive(u, told)
	}
	switch hook {
	case "Allowed":
		require.NoError(u, waitFunc(c.Limiter("k", ratelimit.PerHour(1))))
	case "Denied":
		shadow := c.Limiter("k", ratelimit.PerHour(1), ratelimit.WithShadow())
		require.NoError(u, waitFunc(shadow))
		require.NoError(u, waitFunc(shadow))
	case "Failed":
		k := c.Limiter("k", ratelimit.PerHour(1))
		require.NoError(u, waitFunc(k))
		k.WaitFunc(u.Context(), u.name, 1, func(err error) { told <- err })()
		require.ErrorIs(u, receive(u, told), context.Canceled)
	}
	require.Zero(u, c.Stats().Waiting)
	u.closes(c.Close)
}

// limitHooksOfCallers has calls report that do not wait.
func limitHooksOfCallers(u *userCode) {
	f := on[ratelimit.Event](u, true)
	c := u.limits(u.rdb, ratelimit.WithHooks(ratelimit.Hooks{Allowed: f, Denied: f, Failed: f}))
	k := c.Limiter("k", ratelimit.PerHour(1))
	ended, cancel := context.WithCancel(u.Context())
	cancel()
	for what, call := range map[string]func(){
		"Allow":  func() { _, _ = k.Allow(u.Context(), u.name) },
		"Wait":   func() { _ = k.Wait(u.Context(), u.name+":waits") },
		"Failed": func() { _, _ = k.Allow(ended, u.name) },
	} {
		panicked, exited := u.ends(call)
		require.Equal(u, u.exits, exited, what)
		require.Equal(u, !u.exits, panicked == "by the test", what)
	}
	r, err := k.Peek(u.Context(), u.name)
	require.NoError(u, err)
	require.False(u, r.Allowed, "it was granted")
	u.closes(c.Close)
}

func outageHooks(u *userCode) {
	server := redistest.Start(u)
	rdb := server.Client(u, func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 200*time.Millisecond, -1 })
	c := u.limits(rdb, ratelimit.WithBreaker(1, 20*time.Millisecond), ratelimit.WithTimeout(200*time.Millisecond),
		ratelimit.WithHooks(ratelimit.Hooks{Down: on[ratelimit.Event](u, true), Up: on[ratelimit.Event](u, true)}))
	k := c.Limiter("k", ratelimit.PerHour(1000))
	redistest.Poll(u, func() bool { return second(k.Allow(u.Context(), u.name)) == nil })
	server.Pause()
	for range 3 {
		require.ErrorIs(u, second(k.Allow(u.Context(), u.name)), ratelimit.ErrUnavailable)
	}
	redistest.Poll(u, func() bool { return c.Stats().Down })
	server.Resume()
	redistest.Poll(u, func() bool { return second(k.Allow(u.Context(), u.name)) == nil })
	u.closes(c.Close)
	require.GreaterOrEqual(u, u.called.Load(), int64(2))
}

// renewalHooks has one lease of a batch be lost, and the other one not.
func renewalHooks(u *userCode, hook string) {
	r, err := renewal.New(u.wheel, renewal.WithLogger(u.logger()), renewal.WithHooks(renewal.Hooks{
		Renewed: on[renewal.Event](u, hook == "Renewed"), Lost: on[renewal.Event](u, hook == "Lost"),
		Failed: on[renewal.Event](u, hook == "Failed"),
	}))
	require.NoError(u, err)
	gone := renewer(func(_ context.Context, b *renewal.Batch) error {
		for i, l := range b.Leases {
			b.Outcomes[i] = renewal.OutcomeExtended
			if l.ID == "gone" {
				b.Outcomes[i] = renewal.OutcomeGone
			}
		}
		return errors.New("by the test")
	})
	d, err := r.Destination(gone)
	require.NoError(u, err)
	told := make(chan error, 10)
	var lost, kept []*renewal.Lease
	for range 5 { // more than a Destination has calls
		for _, id := range []string{"gone", "kept"} {
			l, err := d.Add(renewal.Spec{
				Key: u.name, ID: id, TTL: lease, SentAt: u.wheel.Now(),
				OnLost: func(err error) {
					told <- err
					if hook == "OnLost" {
						u.fail()
					}
				},
			})
			require.NoError(u, err)
			if id == "gone" {
				lost = append(lost, l)
			} else {
				kept = append(kept, l)
			}
		}
	}
	for _, l := range lost {
		receive(u, l.Done())
		require.ErrorIs(u, receive(u, told), renewal.ErrGone)
	}
	before := r.Stats().Renewed
	redistest.Poll(u, func() bool { return r.Stats().Renewed >= before+3*int64(len(kept)) })
	for _, l := range kept {
		require.NoError(u, l.Err())
		require.True(u, l.Close(nil))
	}
	u.closes(r.Close)
	require.Empty(u, told, "each was told once")
}

type renewer func(context.Context, *renewal.Batch) error

func (r renewer) Renew(ctx context.Context, b *renewal.Batch) error { return r(ctx, b) }

// The call has failed, and is repeated.
func backendFails(u *userCode) {
	r, err := renewal.New(u.wheel, renewal.WithLogger(u.logger()))
	require.NoError(u, err)
	const failures = 8 // more than a Destination has calls
	d, err := r.Destination(renewer(func(_ context.Context, b *renewal.Batch) error {
		if u.called.Load() < failures {
			u.fail()
		}
		for i := range b.Outcomes {
			b.Outcomes[i] = renewal.OutcomeExtended
		}
		return nil
	}))
	require.NoError(u, err)
	l, err := d.Add(renewal.Spec{Key: u.name, ID: "a", TTL: lease, SentAt: u.wheel.Now()})
	require.NoError(u, err)
	redistest.Poll(u, func() bool { return r.Stats().Renewed > 0 })
	require.NoError(u, l.Err())
	require.EqualValues(u, failures, r.Stats().Failures)
	require.True(u, l.Close(nil))
	u.closes(r.Close)
}

// lockFuncs calls back with a lock, and with errors.
func lockFuncs(u *userCode) {
	c, err := redislock.New(u.rdb, redislock.WithWheel(u.wheel), redislock.WithLogger(u.logger()))
	require.NoError(u, err)
	got := make(chan *redislock.Lock, 1)
	back := func(l *redislock.Lock, _ error) {
		defer func() { got <- l }() // it has been counted
		u.fail()
	}
	m, all := c.Mutex(u.name), c.MultiMutex([]string{u.name, u.name + ":2"})
	for range 2 {
		m.LockFunc(u.Context(), back)
		held := receive(u, got)
		require.NotNil(u, held)
		m.LockFunc(u.Context(), back)()
		require.Nil(u, receive(u, got), "cancelled")
		all.LockFunc(u.Context(), back)()
		require.Nil(u, receive(u, got), "cancelled")
		c.Mutex("{}").LockFunc(u.Context(), back)
		require.Nil(u, receive(u, got), "refused")
		require.NoError(u, held.Unlock(u.Context()))
		all.LockFunc(u.Context(), back)
		require.NoError(u, receive(u, got).Unlock(u.Context()))
	}
	u.closes(c.Close)
	require.EqualValues(u, 10, u.called.Load())
}

// acquireFuncs calls back with permits, and with errors.
func acquireFuncs(u *userCode) {
	c := u.semaphores()
	kinds := 0
	for _, of := range semaphores {
		u.name += ":next"
		s := of(u, c)
		got := make(chan error, 1)
		var release releaseFunc
		back := func(r releaseFunc, err error) {
			release = r
			defer func() { got <- err }() // it has been counted
			u.fail()
		}
		s.start(u.Context(), 1, back)
		require.NoError(u, receive(u, got))
		held := release
		s.start(u.Context(), 1, back)()
		require.ErrorIs(u, receive(u, got), context.Canceled)
		s.start(u.Context(), -1, back)
		require.Error(u, receive(u, got))
		s.start(u.Context(), 0, back)
		require.NoError(u, receive(u, got))
		require.NoError(u, held(u.Context()))
		require.NoError(u, s.try(u.Context()))
		kinds++
	}
	u.closes(c.Close)
	require.EqualValues(u, 4*kinds, u.called.Load())
}

// waitFuncs calls back with permits, and with errors.
func waitFuncs(u *userCode) {
	c := u.limits(u.rdb)
	k := c.Limiter("k", ratelimit.PerHour(1))
	shadow := c.Limiter("s", ratelimit.PerHour(1), ratelimit.WithShadow())
	got := make(chan error, 1)
	back := func(err error) {
		defer func() { got <- err }() // it has been counted
		u.fail()
	}
	k.WaitFunc(u.Context(), u.name, 1, back)
	require.NoError(u, receive(u, got))
	k.WaitFunc(u.Context(), u.name, 1, back)()
	require.ErrorIs(u, receive(u, got), context.Canceled)
	k.WaitFunc(u.Context(), u.name, -1, back)
	require.Error(u, receive(u, got))
	shadow.WaitFunc(u.Context(), u.name, 1, back)
	require.NoError(u, receive(u, got))
	u.closes(c.Close)
	require.EqualValues(u, 4, u.called.Load())
}

// ends calls f on a goroutine, and reports how it has ended.
func (u *userCode) ends(f func()) (panicked any, exited bool) {
	u.Helper()
	ended := make(chan struct{})
	exited = true
	go func() {
		defer close(ended)
		defer func() {
			if panicked = recover(); panicked != nil {
				exited = false
			}
		}()
		f()
		exited = false
	}()
	select {
	case <-ended:
	case <-redistest.Within(u, redistest.Patience).Done():
		require.FailNow(u, "the call has not ended")
	}
	return panicked, exited
}

// Do gives back what it holds. The failure goes on to the caller, for whom it has called the function.
func does(u *userCode) {
	l := newLibraryOn(u.T, u.rdb)
	s := l.semaphore(u.T)
	f := func(context.Context) error {
		u.fail()
		return nil
	}
	for what, do := range map[string]func(){
		"Mutex":      func() { _ = l.locks.Mutex(u.name).Do(u.Context(), f) },
		"MultiMutex": func() { _ = l.locks.MultiMutex([]string{u.name, u.name + ":2"}).Do(u.Context(), f) },
		"Lead":       func() { _ = l.locks.Mutex(u.name).Lead(u.Context(), f) },
		"Semaphore":  func() { _ = s.Do(u.Context(), 3, f) },
	} {
		panicked, exited := u.ends(do)
		require.Equal(u, u.exits, exited, what)
		require.Equal(u, !u.exits, panicked == "by the test", what)
	}
	require.NoError(u, second(l.locks.MultiMutex([]string{u.name, u.name + ":2"}).TryLock(u.Context())))
	require.NoError(u, second(s.TryAcquire(u.Context(), 3)))
}

// redisHook is a hook of go-redis that calls at for the scripts of this library.
type redisHook struct{ at atomic.Pointer[func()] }

func (*redisHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *redisHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.pass(cmd)
		return next(ctx, cmd)
	}
}

func (h *redisHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.pass(cmds...)
		return next(ctx, cmds)
	}
}

func (h *redisHook) pass(cmds ...redis.Cmder) {
	at := h.at.Load()
	for _, cmd := range cmds {
		if at != nil && strings.HasPrefix(cmd.Name(), "eval") {
			(*at)()
		}
	}
}

// The calls that a hook of the redis client did not let through have failed as by any failure. Under a context that
// cannot end, the goroutine of the caller may send its call: it ends, and nothing is held.
func redisHooks(u *userCode) {
	hook := &redisHook{}
	u.rdb.AddHook(hook)
	l := newLibraryOn(u.T, u.rdb)
	s := l.semaphore(u.T)
	k := l.limits.Limiter("k", ratelimit.PerHour(1000))
	counting := l.semaphores.CountingSemaphore(u.name + ":counting")
	require.NoError(u, second(counting.TrySetPermits(u.Context(), 1)))
	delays, err := delay.New(u.rdb, delay.WithWheel(u.wheel))
	require.NoError(u, err)
	q := delays.Queue(u.name + ":queue")
	nothing := func(context.Context) error { return nil }
	calls := map[string]func(context.Context) (releaseFunc, error){
		"TryLock": func(ctx context.Context) (releaseFunc, error) {
			held, err := l.locks.Mutex(u.name).TryLock(ctx)
			return held.Unlock, err
		},
		"Lock": func(ctx context.Context) (releaseFunc, error) {
			held, err := l.locks.Mutex(u.name).Lock(ctx)
			return held.Unlock, err
		},
		"Acquire": func(ctx context.Context) (releaseFunc, error) {
			g, err := s.Acquire(ctx, 3)
			return g.Release, err
		},
		"CountingSemaphore": func(ctx context.Context) (releaseFunc, error) {
			return func(ctx context.Context) error { return counting.Release(ctx, 1) }, counting.Acquire(ctx, 1)
		},
		"Allow":    func(ctx context.Context) (releaseFunc, error) { return nothing, second(k.Allow(ctx, u.name)) },
		"Schedule": func(ctx context.Context) (releaseFunc, error) { return nothing, q.Schedule(ctx, "id", time.Hour, nil) },
	}
	fail := u.fail
	for what, call := range calls {
		for _, ctx := range []context.Context{u.Context(), context.Background()} {
			fails := func(f func() error) { // while the hook does
				hook.at.Store(&fail)
				var err error
				_, exited := u.ends(func() { err = f() })
				hook.at.Store(nil)
				if exited {
					require.True(u, u.exits && ctx.Done() == nil, what)
				} else {
					require.ErrorContains(u, err, "a hook of the redis client", what)
				}
			}
			again := func() (release releaseFunc) {
				ctx, err := redistest.Within(u, redistest.SafeLease), error(nil)
				redistest.Poll(u, func() (ok bool) {
					release, err = call(ctx)
					return err == nil || ctx.Err() != nil
				})
				require.NoError(u, err, what)
				return release
			}
			fails(func() error { return second(call(ctx)) })
			release := again()
			if what != "Allow" && what != "Schedule" {
				fails(func() error { return release(ctx) })
				release = again()
			}
			require.NoError(u, release(u.Context()), what)
		}
	}
	require.Zero(u, l.locks.Stats().Held)
	require.Zero(u, l.semaphores.Stats().Grants)
	u.closes(delays.Close)
}

// A hook of the redis client that hangs holds up the calls that it has seen, and no others: their batches give way after
// 20 ms. The callers leave with their contexts, and what is granted to them later is given back.
func TestUserCode_AHookOfTheRedisClientThatHangs(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	hook := &redisHook{}
	rdb.AddHook(hook)
	l := newLibraryOn(t, rdb)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) }) // before the library is closed
	hangs := make(chan struct{}, 1)
	hang := func() {
		hangs <- struct{}{}
		<-release
	}
	hook.at.Store(&hang)
	ctx, cancel := context.WithCancel(t.Context())
	const hung = 4 // more than batches in flight
	left := make(chan error, hung)
	for i := range hung {
		go func() { left <- second(l.locks.Mutex(fmt.Sprint(name, i)).Lock(ctx)) }()
		<-hangs
	}
	hook.at.Store(nil)
	held, err := l.locks.Mutex(name).Lock(redistest.Within(t, redistest.Patience))
	require.NoError(t, err)
	require.NoError(t, held.Unlock(t.Context()))
	cancel()
	for range hung {
		require.ErrorIs(t, <-left, context.Canceled)
	}
}
