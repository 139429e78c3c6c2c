package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// library is one client of each package, all on one server.
type library struct {
	rdb        *redis.Client
	wheel      *wheel.Wheel
	locks      *redislock.Client
	limits     *ratelimit.Client
	semaphores *semaphore.Client
	leases     *renewal.Destination
	name       string
}

func newLibrary(t *testing.T) *library {
	t.Helper()
	return newLibraryOn(t, redistest.Shared(t).Client(t))
}

func newLibraryOn(t *testing.T, rdb *redis.Client, opts ...wheel.Option) *library {
	t.Helper()
	l := &library{rdb: rdb, wheel: redistest.Wheel(t, opts...), name: redistest.Name(t)}
	var err error
	l.locks, err = redislock.New(l.rdb, redislock.WithWheel(l.wheel))
	require.NoError(t, err)
	redistest.CloseWith(t, l.locks.Close)
	l.limits, err = ratelimit.New(l.rdb, ratelimit.WithWheel(l.wheel), ratelimit.WithTimeout(redistest.Patience/3))
	require.NoError(t, err)
	redistest.CloseWith(t, l.limits.Close)
	l.semaphores, err = semaphore.New(l.rdb, semaphore.WithWheel(l.wheel))
	require.NoError(t, err)
	redistest.CloseWith(t, l.semaphores.Close)
	renewer, err := renewal.New(l.wheel)
	require.NoError(t, err)
	redistest.CloseWith(t, renewer.Close)
	l.leases, err = renewer.Destination(backend{})
	require.NoError(t, err)
	return l
}

// semaphore returns a Semaphore with three permits.
func (l *library) semaphore(t *testing.T) *semaphore.Semaphore {
	t.Helper()
	s := l.semaphores.Semaphore(l.name+":plain", 0)
	require.NoError(t, s.SetPermits(t.Context(), 3))
	return s
}

func (l *library) limiter() *ratelimit.Limiter {
	return l.limits.Limiter("limit", ratelimit.PerHour(10))
}

type backend struct{}

func (backend) Renew(context.Context, *renewal.Batch) error { return nil }

// hold has the common methods of a Lock, a Grant and a Lease.
type hold interface {
	Done() <-chan struct{}
	Err() error
	Valid() bool
	Deadline() time.Time
	Context(parent context.Context) context.Context
}

// CONTRIBUTING.md states the rules that are checked here.
func TestConventions(t *testing.T) {
	t.Parallel()
	for what, f := range map[string]func(*testing.T, *library){
		"a bad argument is an InvalidError of one type":     badArguments,
		"a nil context is refused":                          nilContexts,
		"a nil function is refused":                         nilFunctions,
		"the last of two equal options counts":              optionsGivenTwice,
		"an ended context returns its error and cause":      endedContexts,
		"a request for 0 permits succeeds at once":          zeroPermits,
		"Extend never shortens":                             extend,
		"a second release is ErrNotHeld":                    secondRelease,
		"a refused Try returns an error":                    refusedTries,
		"cancel ends a Func with context.Canceled":          cancelledFuncs,
		"Err reports a bad name before the first call":      errBeforeTheFirstCall,
		"Delete reports whether it existed":                 deletes,
		"Close ends all holds and may be called twice":      closes,
		"a nil or zero hold is not held":                    nilHolds,
		"a Lock, a Grant and a Lease have the same methods": holds,
		"a lease is ten ticks of the wheel to 365 days":     leases,
		"a poll is 10 ms to an hour":                        polls,
		"a client without a ReadTimeout is refused":         clientsWithoutReadTimeout,
		"an error is one line that begins with its package": errorTexts,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f(t, newLibrary(t))
		})
	}
}

func requireInvalid(t *testing.T, err error, pkg string) {
	t.Helper()
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	invalid, ok := errors.AsType[*cogwheel.InvalidError](err)
	require.True(t, ok, "%T", err)
	require.Equal(t, pkg, invalid.Package)
	require.NotEmpty(t, invalid.Field)
	require.NotEmpty(t, invalid.Reason)
	require.Regexp(t, "^"+pkg+": [^\n]+$", err.Error())
}

func second[T any](_ T, err error) error { return err }

func badArguments(t *testing.T, l *library) {
	require.ErrorIs(t, cogwheel.ErrInvalid, cogwheel.ErrInvalid)
	ctx := t.Context()
	for _, err := range []error{
		second(redislock.New(nil)), second(redislock.New((*redis.Client)(nil))), second(redislock.New(l.rdb, nil)),
		second(l.locks.Check(ctx, nil)), second(l.locks.Check(ctx, (*redislock.Mutex)(nil))),
		second(l.locks.Check(ctx, l.locks.RWMutex("a{"))),
		second(l.locks.Mutex("").Lock(ctx)), second(l.locks.Mutex("a", redislock.WithLease(0)).TryLock(ctx)),
	} {
		requireInvalid(t, err, "redislock")
	}
	for _, err := range []error{
		second(semaphore.New(nil)), second(semaphore.New((*redis.Client)(nil))), second(semaphore.New(l.rdb, nil)),
		l.semaphores.CountingSemaphore("").Acquire(ctx, 1), l.semaphores.CountingSemaphore("a").Acquire(ctx, -1),
		second(l.semaphores.Semaphore("a{", 0).Acquire(ctx, 1)), second(l.semaphores.Check(ctx, l.semaphores.Semaphore("", 0))),
	} {
		requireInvalid(t, err, "semaphore")
	}
	for _, err := range []error{
		second(ratelimit.New(nil)), second(ratelimit.New((*redis.Client)(nil))), second(ratelimit.New(l.rdb, nil)),
		second(l.limits.Limiter("p", ratelimit.Limit{}).Allow(ctx, "k")), second(l.limiter().AllowN(ctx, "k", -1)),
		second(l.limits.Check(ctx, l.limits.Limiter("", ratelimit.PerHour(1)))),
	} {
		requireInvalid(t, err, "ratelimit")
	}
	for _, err := range []error{
		second(renewal.New(nil)), second(renewal.New(l.wheel, nil)), second(l.leases.Add(renewal.Spec{})),
	} {
		requireInvalid(t, err, "renewal")
	}
	for _, err := range []error{
		second(wheel.New(nil)), second(wheel.New(wheel.WithTickDuration(-1))), second(l.wheel.Every(0, func() {})),
	} {
		requireInvalid(t, err, "wheel")
	}
}

func nilContexts(t *testing.T, l *library) {
	var none context.Context
	requireInvalid(t, second(l.locks.Mutex("a").Lock(none)), "redislock")
	requireInvalid(t, second(l.locks.MultiMutex([]string{"a", "b"}).TryLock(none)), "redislock")
	requireInvalid(t, second(l.locks.Mutex("a").State(none)), "redislock")
	requireInvalid(t, l.semaphores.CountingSemaphore("a").Acquire(none, 1), "semaphore")
	requireInvalid(t, l.semaphores.CountingSemaphore("a").Release(none, 1), "semaphore")
	requireInvalid(t, second(l.semaphores.Semaphore("a", 0).Available(none)), "semaphore")
	requireInvalid(t, second(l.limiter().Allow(none, "k")), "ratelimit")
	requireInvalid(t, l.limiter().Wait(none, "k"), "ratelimit")
	requireInvalid(t, second(l.limits.StoredLimiter("a").Allow(none)), "ratelimit")
	requireInvalid(t, l.wheel.Sleep(none, time.Second), "wheel")

	requireInvalid(t, second(l.locks.Check(none)), "redislock")
	requireInvalid(t, second(l.semaphores.Check(none)), "semaphore")
	requireInvalid(t, second(l.limits.Check(none)), "ratelimit")

	requireInvalid(t, l.locks.Close(none), "redislock")
	requireInvalid(t, l.semaphores.Close(none), "semaphore")
	requireInvalid(t, l.limits.Close(none), "ratelimit")
	_, err := l.locks.Mutex(l.name).TryLock(t.Context())
	require.NoError(t, err, "nothing was closed")
}

func nilFunctions(t *testing.T, l *library) {
	ctx := t.Context()
	requireInvalid(t, l.locks.Mutex("a").Do(ctx, nil), "redislock")
	requireInvalid(t, l.semaphores.Semaphore("a", 0).Do(ctx, 1, nil), "semaphore")
	requireInvalid(t, second(l.wheel.AfterFunc(time.Second, nil)), "wheel")
	requireInvalid(t, second(l.wheel.Every(time.Second, nil)), "wheel")
	for pkg, f := range map[string]func(){
		"redislock": func() { l.locks.Mutex("a").LockFunc(ctx, nil) },
		"semaphore": func() { l.semaphores.Semaphore("a", 0).AcquireFunc(ctx, 1, nil) },
		"ratelimit": func() { l.limiter().WaitFunc(ctx, "k", 1, nil) },
	} {
		func() {
			defer func() {
				err, ok := recover().(error)
				require.True(t, ok, pkg)
				requireInvalid(t, err, pkg)
			}()
			f()
		}()
	}
}

func optionsGivenTwice(t *testing.T, l *library) {
	ctx := t.Context()
	lock, err := l.locks.Mutex(l.name, redislock.WithLease(time.Hour), redislock.WithLease(time.Minute)).TryLock(ctx)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Minute), lock.Deadline(), 10*time.Second)
	s := l.semaphore(t)
	twice := l.semaphores.Semaphore(s.Name(), 0, semaphore.WithLease(time.Hour), semaphore.WithLease(time.Minute))
	require.Equal(t, s.Name(), twice.Name())
	grant, err := twice.Acquire(ctx, 1)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Minute), grant.Deadline(), 10*time.Second)
	w, err := wheel.New(wheel.WithTickDuration(time.Second), wheel.WithTickDuration(time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, time.Millisecond, w.TickDuration())
	require.NoError(t, second(w.Stop(ctx)))
	_, err = renewal.New(l.wheel, renewal.WithHooks(renewal.Hooks{}), renewal.WithHooks(renewal.Hooks{}))
	require.NoError(t, err)
	limits, err := ratelimit.New(l.rdb, ratelimit.WithWheel(l.wheel),
		ratelimit.WithPolicy(ratelimit.FailOpen()), ratelimit.WithPolicy(ratelimit.FailClosed()))
	require.NoError(t, err)
	require.NoError(t, limits.Close(ctx))
}

func endedContexts(t *testing.T, l *library) {
	why := errors.New("the cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for what, err := range map[string]error{
		"Lock":          second(l.locks.Mutex(l.name).Lock(ctx)),
		"TryLock":       second(l.locks.FairMutex(l.name).TryLock(ctx)),
		"State":         second(l.locks.Mutex(l.name).State(ctx)),
		"Multi":         second(l.locks.MultiMutex([]string{l.name, l.name + "2"}).Lock(ctx)),
		"Acquire":       second(l.semaphores.Semaphore(l.name, 0).Acquire(ctx, 1)),
		"nothing":       l.semaphores.CountingSemaphore(l.name).Acquire(ctx, 0),
		"Allow":         second(l.limiter().Allow(ctx, l.name)),
		"Wait":          l.limiter().Wait(ctx, l.name),
		"StoredLimiter": second(l.limits.StoredLimiter(l.name).Allow(ctx)),
		"UpToWait":      l.limits.StoredLimiter(l.name).Wait(ctx),
	} {
		require.ErrorIs(t, err, context.Canceled, what)
		require.ErrorIs(t, err, why, what)
	}
	require.Equal(t, context.Canceled, l.wheel.Sleep(ctx, time.Hour))
}

func zeroPermits(t *testing.T, l *library) {
	ctx := t.Context()
	never := l.semaphores.CountingSemaphore(l.name + ":never") // its permits were never set, so a call to Redis would fail
	require.NoError(t, never.Acquire(ctx, 0))
	require.NoError(t, never.Release(ctx, 0))
	grant, err := l.semaphores.Semaphore(l.name+":never", 0).Acquire(ctx, 0)
	require.NoError(t, err)
	require.True(t, grant.Valid())
	require.NoError(t, grant.Release(ctx))
	require.ErrorIs(t, grant.Release(ctx), semaphore.ErrNotHeld)
	r, err := l.limiter().AllowN(ctx, l.name, 0)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.EqualValues(t, 10, r.Remaining)
}

func extend(t *testing.T, l *library) {
	ctx := t.Context()
	lock, err := l.locks.Mutex(l.name).Lock(ctx)
	require.NoError(t, err)
	grant, err := l.semaphore(t).Acquire(ctx, 1)
	require.NoError(t, err)
	for _, held := range []interface {
		hold
		Extend(ctx context.Context, d time.Duration) error
	}{lock, grant} {
		before := held.Deadline()
		require.NoError(t, held.Extend(ctx, time.Second))
		require.False(t, held.Deadline().Before(before))
		require.NoError(t, held.Extend(ctx, time.Hour))
		require.WithinDuration(t, time.Now().Add(time.Hour), held.Deadline(), time.Minute)
		require.ErrorIs(t, held.Extend(ctx, 0), cogwheel.ErrInvalid)
	}
}

func refusedTries(t *testing.T, l *library) {
	ctx := t.Context()
	lock, err := l.locks.Mutex(l.name).Lock(ctx)
	require.NoError(t, err)
	require.ErrorIs(t, second(l.locks.Mutex(l.name).TryLock(ctx)), redislock.ErrLocked)
	require.NoError(t, lock.Unlock(ctx))
	require.ErrorIs(t, second(l.semaphore(t).TryAcquire(ctx, 4)), semaphore.ErrExceedsPermits)
	require.NoError(t, second(l.semaphore(t).Acquire(ctx, 3)))
	require.ErrorIs(t, second(l.semaphore(t).TryAcquire(ctx, 1)), semaphore.ErrNoPermits)
	counting := l.semaphores.CountingSemaphore(l.name + ":counting")
	require.NoError(t, second(counting.TrySetPermits(ctx, 3)))
	require.ErrorIs(t, counting.TryAcquire(ctx, 4), semaphore.ErrNoPermits)

	// TrySetPermits and TrySetRate find a value that is set. That is not an error.
	set, err := counting.TrySetPermits(ctx, 5)
	require.NoError(t, err)
	require.False(t, set)
}

func secondRelease(t *testing.T, l *library) {
	ctx := t.Context()
	lock, err := l.locks.Mutex(l.name).Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(ctx))
	require.ErrorIs(t, lock.Unlock(ctx), redislock.ErrNotHeld)
	s := l.semaphore(t)
	grant, err := s.Acquire(ctx, 1)
	require.NoError(t, err)
	require.NoError(t, grant.Release(ctx))
	require.ErrorIs(t, grant.Release(ctx), semaphore.ErrNotHeld)
	require.ErrorIs(t, s.ReleaseIDs(ctx, grant.IDs()...), semaphore.ErrNotHeld)
	lease, err := l.leases.Add(renewal.Spec{Key: "k", ID: "i", TTL: time.Minute, SentAt: time.Now()})
	require.NoError(t, err)
	require.True(t, lease.Close(nil))
	require.False(t, lease.Close(nil))
	timer, err := l.wheel.AfterFunc(time.Hour, func() {})
	require.NoError(t, err)
	require.True(t, timer.Stop())
	require.False(t, timer.Stop())
}

func cancelledFuncs(t *testing.T, l *library) {
	ctx := t.Context()
	lock, err := l.locks.Mutex(l.name).Lock(ctx)
	require.NoError(t, err)
	defer lock.Unlock(ctx)
	s := l.semaphore(t)
	grant, err := s.Acquire(ctx, 3)
	require.NoError(t, err)
	defer grant.Release(ctx)
	require.NoError(t, second(l.limiter().AllowN(ctx, l.name, 10)))
	got := make(chan error, 1)
	for what, begin := range map[string]func() (cancel func()){
		"LockFunc": func() func() {
			return l.locks.Mutex(l.name).LockFunc(ctx, func(_ *redislock.Lock, err error) { got <- err })
		},
		"AcquireFunc": func() func() { return s.AcquireFunc(ctx, 1, func(_ *semaphore.Grant, err error) { got <- err }) },
		"WaitFunc":    func() func() { return l.limiter().WaitFunc(ctx, l.name, 1, func(err error) { got <- err }) },
	} {
		cancel := begin()
		cancel()
		require.ErrorIs(t, <-got, context.Canceled, what)
		cancel() // further calls do nothing
	}
}

func errBeforeTheFirstCall(t *testing.T, l *library) {
	for pkg, errs := range map[string][2]error{
		"redislock": {l.locks.Mutex("{}").Err(), l.locks.Mutex("a").Err()},
		"semaphore": {l.semaphores.Semaphore("{}", 0).Err(), l.semaphores.Semaphore("a", 0).Err()},
		"ratelimit": {l.limits.Limiter("p", ratelimit.Limit{}).Err(), l.limiter().Err()},
	} {
		requireInvalid(t, errs[0], pkg)
		require.NoError(t, errs[1])
	}
}

func deletes(t *testing.T, l *library) {
	ctx := t.Context()
	count, plain, fair, limit := l.semaphores.CountingSemaphore(l.name), l.semaphores.Semaphore(l.name+":plain", 0),
		l.semaphores.FairSemaphore(l.name+":fair", 0), l.limits.StoredLimiter(l.name+":limit")
	set := map[string]func() (bool, error){
		"CountingSemaphore": func() (bool, error) { return count.TrySetPermits(ctx, 3) },
		"Semaphore":         func() (bool, error) { return plain.TrySetPermits(ctx, 3) },
		"FairSemaphore":     func() (bool, error) { return fair.TrySetPermits(ctx, 3) },
		"StoredLimiter":     func() (bool, error) { return limit.TrySetRate(ctx, ratelimit.PerHour(3)) },
	}
	for what, named := range map[string]interface {
		Delete(ctx context.Context) (bool, error)
	}{"CountingSemaphore": count, "Semaphore": plain, "FairSemaphore": fair, "StoredLimiter": limit} {
		for _, exists := range []bool{false, true} {
			if exists {
				require.NoError(t, second(set[what]()), what)
			}
			existed, err := named.Delete(ctx)
			require.NoError(t, err, what)
			require.Equal(t, exists, existed, what)
		}
	}
}

func closes(t *testing.T, l *library) {
	ctx := t.Context()
	lock, err := l.locks.Mutex(l.name).Lock(ctx)
	require.NoError(t, err)
	grant, err := l.semaphore(t).Acquire(ctx, 1)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, l.locks.Close(ctx))
		require.NoError(t, l.semaphores.Close(ctx))
		require.NoError(t, l.limits.Close(ctx))
	}
	require.ErrorIs(t, lock.Err(), redislock.ErrClosed)
	require.ErrorIs(t, lock.Unlock(ctx), redislock.ErrClosed)
	require.ErrorIs(t, grant.Err(), semaphore.ErrClosed)
	require.ErrorIs(t, grant.Release(ctx), semaphore.ErrClosed)
	require.ErrorIs(t, second(l.locks.Mutex(l.name).Lock(ctx)), redislock.ErrClosed)
	require.ErrorIs(t, l.semaphores.CountingSemaphore(l.name).Acquire(ctx, 1), semaphore.ErrClosed)
	require.ErrorIs(t, second(l.limiter().Allow(ctx, l.name)), ratelimit.ErrClosed)
	require.NoError(t, second(l.wheel.Stop(ctx)))
	require.NoError(t, second(l.wheel.Stop(ctx)))
	require.ErrorIs(t, second(l.locks.Check(ctx)), redislock.ErrClosed)
	require.ErrorIs(t, second(l.semaphores.Check(ctx)), semaphore.ErrClosed)
	require.ErrorIs(t, second(l.limits.Check(ctx)), ratelimit.ErrClosed)
	require.ErrorIs(t, second(l.wheel.AfterFunc(0, func() {})), wheel.ErrStopped)
}

func nilHolds(t *testing.T, _ *library) {
	ctx := t.Context()
	for _, held := range []hold{(*redislock.Lock)(nil), &redislock.Lock{}, (*semaphore.Grant)(nil), &semaphore.Grant{}} {
		require.False(t, held.Valid())
		require.Error(t, held.Err())
		require.Zero(t, held.Deadline())
		<-held.Done()
		<-held.Context(ctx).Done()
	}
	var lock *redislock.Lock
	require.ErrorIs(t, lock.Unlock(ctx), redislock.ErrNotHeld)
	var grant *semaphore.Grant
	require.ErrorIs(t, grant.Release(ctx), semaphore.ErrNotHeld)
	var timer wheel.Timer
	require.False(t, timer.Stop())
}

func holds(t *testing.T, l *library) {
	ctx := t.Context()
	lock, err := l.locks.Mutex(l.name).Lock(ctx)
	require.NoError(t, err)
	grant, err := l.semaphore(t).Acquire(ctx, 1)
	require.NoError(t, err)
	lease, err := l.leases.Add(renewal.Spec{Key: "k", ID: "i", TTL: 30 * time.Second, SentAt: time.Now()})
	require.NoError(t, err)
	ends := map[hold]func() error{
		lock: func() error { return lock.Unlock(ctx) }, grant: func() error { return grant.Release(ctx) },
		lease: func() error { lease.Close(nil); return nil },
	}
	for held, end := range ends {
		require.True(t, held.Valid())
		require.NoError(t, held.Err())
		require.WithinRange(t, held.Deadline(), time.Now().Add(25*time.Second), time.Now().Add(30*time.Second))
		within := held.Context(ctx)
		require.NoError(t, within.Err())
		require.NoError(t, end())
		<-held.Done()
		<-within.Done()
		require.False(t, held.Valid())
		require.Equal(t, held.Err(), context.Cause(within))
	}
}

// Without WithLogger, a Client logs to slog.Default.
func TestConventions_DefaultLogger(t *testing.T) { // not parallel: it sets the default logger
	l := newLibrary(t)
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	for pkg, err := range map[string]error{
		"redislock": second(redislock.New(hidden{l.rdb}, redislock.WithWheel(l.wheel))),
		"semaphore": second(semaphore.New(hidden{l.rdb}, semaphore.WithWheel(l.wheel))),
	} {
		require.NoError(t, err)
		require.Contains(t, log.String(), pkg+": the client is of a type whose nodes are not known")
	}
}

type anyClient redis.UniversalClient

// hidden is a client whose type is not one of go-redis.
type hidden struct{ anyClient }

func leases(t *testing.T, _ *library) {
	ctx := t.Context()
	w, err := wheel.New(wheel.WithTickDuration(100 * time.Millisecond))
	require.NoError(t, err)
	defer w.Stop(ctx)
	rdb := redistest.Shared(t).Client(t)
	locks, err := redislock.New(rdb, redislock.WithWheel(w))
	require.NoError(t, err)
	defer locks.Close(ctx)
	semaphores, err := semaphore.New(rdb, semaphore.WithWheel(w))
	require.NoError(t, err)
	defer semaphores.Close(ctx)
	for lease, ok := range map[time.Duration]bool{
		0: false, time.Second - 1: false, time.Second: true, 365 * 24 * time.Hour: true, 365*24*time.Hour + 1: false,
	} {
		require.Equal(t, ok, locks.Mutex("a", redislock.WithLease(lease)).Err() == nil, lease)
		require.Equal(t, ok, semaphores.Semaphore("a", 0, semaphore.WithLease(lease)).Err() == nil, lease)
	}
}

func polls(t *testing.T, l *library) {
	for poll, ok := range map[time.Duration]bool{
		0: false, 10*time.Millisecond - 1: false, 10 * time.Millisecond: true, time.Hour: true, time.Hour + 1: false,
	} {
		locks, err := redislock.New(l.rdb, redislock.WithPoll(poll), redislock.WithWheel(l.wheel))
		require.Equal(t, ok, err == nil)
		semaphores, err := semaphore.New(l.rdb, semaphore.WithPoll(poll), semaphore.WithWheel(l.wheel))
		require.Equal(t, ok, err == nil)
		if ok {
			require.NoError(t, locks.Close(t.Context()))
			require.NoError(t, semaphores.Close(t.Context()))
		}
	}
	require.Equal(t, redislock.DefaultPoll, semaphore.DefaultPoll)
	require.Equal(t, redislock.DefaultLease, semaphore.DefaultLease)
}

func clientsWithoutReadTimeout(t *testing.T, _ *library) {
	rdb := redis.NewClient(&redis.Options{ReadTimeout: -1})
	defer rdb.Close()
	requireInvalid(t, second(redislock.New(rdb)), "redislock")
	requireInvalid(t, second(semaphore.New(rdb)), "semaphore")
	requireInvalid(t, second(ratelimit.New(rdb)), "ratelimit")
}

func errorTexts(t *testing.T, l *library) {
	ctx := t.Context()
	require.NoError(t, l.rdb.RPush(ctx, l.name, "x").Err())
	for pkg, err := range map[string]error{
		"redislock": second(l.locks.Mutex(l.name).Lock(ctx)),
		"semaphore": second(l.semaphores.Semaphore(l.name, 0).Acquire(ctx, 1)),
		"ratelimit": second(l.limits.StoredLimiter(l.name).Allow(ctx)),
	} {
		require.Error(t, err)
		require.Regexp(t, "^"+pkg+`: [^\n]*$`, err.Error())
		require.NotRegexp(t, `[0-9a-f]{40}|script`, err.Error())
	}
	require.Equal(t, reflect.TypeFor[cogwheel.InvalidError](), reflect.TypeFor[cogwheel.InvalidError]())
}
