package conformance_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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

// onAWheel is a library whose wheel the test stops. Callers have to wait for its objects, because another library holds
// them.
type onAWheel struct {
	*library
	waiting  func() int // calls that wait
	mutex    *redislock.Mutex
	fair     *redislock.Mutex
	rw       *redislock.RWMutex
	multi    *redislock.MultiMutex
	quorum   *redislock.Quorum
	majority *redislock.QuorumMutex
	count    *semaphore.CountingSemaphore
	plain    *semaphore.Semaphore
	fairly   *semaphore.Semaphore
	limiter  *ratelimit.Limiter
	stored   *ratelimit.StoredLimiter
	all      *ratelimit.All
	delays   *delay.Client
	stop     func()
}

// newOnAWheel returns a library on a separate wheel.
func newOnAWheel(t *testing.T) *onAWheel {
	t.Helper()
	return newOnAWheelOf(t, redistest.Shared(t).Client(t))
}

func newOnAWheelOf(t *testing.T, rdb *redis.Client, opts ...wheel.Option) *onAWheel {
	t.Helper()
	l := &onAWheel{library: newLibraryOn(t, rdb, opts...)}
	l.stop = func() {
		_, err := l.wheel.Stop(redistest.Within(t, redistest.Patience))
		require.NoError(t, err)
	}
	l.mutex, l.fair = l.locks.Mutex(l.name+":mutex"), l.locks.FairMutex(l.name+":fair")
	l.rw = l.locks.RWMutex(l.name + ":rw")
	l.multi = l.locks.MultiMutex([]string{l.name + ":0", l.name + ":mutex"})
	var servers []redis.UniversalClient
	for range 3 {
		o := *rdb.Options()
		o.DB = len(servers) + 1
		server := redis.NewClient(&o)
		t.Cleanup(func() { require.NoError(t, server.Close()) })
		servers = append(servers, server)
	}
	var err error
	l.quorum, err = redislock.NewQuorum(servers, redislock.WithWheel(l.wheel))
	require.NoError(t, err)
	redistest.CloseWith(t, l.quorum.Close)
	l.majority = l.quorum.Mutex(l.name + ":quorum")
	l.count, l.plain = l.semaphores.CountingSemaphore(l.name+":count"), l.semaphores.Semaphore(l.name+":plain", 0)
	l.fairly = l.semaphores.FairSemaphore(l.name+":fairly", 0)
	l.limiter, l.stored = l.limits.Limiter(l.name, ratelimit.PerHour(1)), l.limits.StoredLimiter(l.name+":limiter")
	l.all = l.limits.All(l.limits.Limiter(l.name+":all", ratelimit.PerHour(1)).Part("k"))
	l.delays, err = delay.New(rdb, delay.WithWheel(l.wheel))
	require.NoError(t, err)
	redistest.CloseWith(t, l.delays.Close)
	l.waiting = func() int {
		return l.delays.Stats().Serving + l.locks.Stats().Waiting + l.quorum.Stats().Waiting + l.semaphores.Stats().Waiting + l.limits.Stats().Waiting
	}
	return l
}

// occupy makes another library hold everything for which a caller of l can wait.
func (l *onAWheel) occupy(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	other := newOnAWheelOf(t, l.rdb)
	for _, m := range []*redislock.Mutex{
		other.locks.Mutex(l.mutex.Name()), other.locks.FairMutex(l.fair.Name()), other.locks.RWMutex(l.rw.Name()).Writer(),
	} {
		require.NoError(t, second(m.TryLock(ctx)))
	}
	require.NoError(t, second(other.quorum.Mutex(l.majority.Name()).TryLock(ctx)))
	require.NoError(t, second(l.count.TrySetPermits(ctx, 1)))
	require.NoError(t, l.count.TryAcquire(ctx, 1))
	for _, s := range []*semaphore.Semaphore{
		other.semaphores.Semaphore(l.plain.Name(), 0), other.semaphores.FairSemaphore(l.fairly.Name(), 0),
	} {
		require.NoError(t, s.SetPermits(ctx, 1))
		require.NoError(t, second(s.TryAcquire(ctx, 1)))
	}
	require.NoError(t, second(l.stored.TrySetRate(ctx, ratelimit.PerHour(1))))
	require.NoError(t, second(l.stored.Allow(ctx)))
	require.NoError(t, second(l.limiter.Allow(ctx, "k")))
	require.NoError(t, second(l.all.Allow(ctx)))
}

// called calls a Func method and returns the error of its callback.
func called[T any](begin func(f func(T, error)) (cancel func())) error {
	got := make(chan error, 1)
	begin(func(_ T, err error) { got <- err })
	return <-got
}

func calledBack(begin func(f func(error)) (cancel func())) error {
	got := make(chan error, 1)
	begin(func(err error) { got <- err })
	return <-got
}

func doNothing(context.Context) error { return nil }

// waits calls every exported function that waits, for an object that it does not get.
var waits = map[string]func(ctx context.Context, l *onAWheel) error{
	"wheel.Wheel.Sleep": func(ctx context.Context, l *onAWheel) error { return l.wheel.Sleep(ctx, time.Hour) },

	"redislock.Mutex.Lead": func(ctx context.Context, l *onAWheel) error { return l.mutex.Lead(ctx, doNothing) },
	"redislock.Mutex.Lock": func(ctx context.Context, l *onAWheel) error { return second(l.mutex.Lock(ctx)) },
	"redislock.Mutex.Lock of an Owner": func(ctx context.Context, l *onAWheel) error {
		return second(l.mutex.Lock(redislock.ContextWithOwner(ctx, &redislock.Owner{})))
	},
	"redislock.Mutex.Lock of a FairMutex": func(ctx context.Context, l *onAWheel) error { return second(l.fair.Lock(ctx)) },
	"redislock.Mutex.LockFunc": func(ctx context.Context, l *onAWheel) error {
		return called(func(f func(*redislock.Lock, error)) func() { return l.mutex.LockFunc(ctx, f) })
	},
	"redislock.Mutex.LockFunc of a FairMutex": func(ctx context.Context, l *onAWheel) error {
		return called(func(f func(*redislock.Lock, error)) func() { return l.fair.LockFunc(ctx, f) })
	},
	"redislock.Mutex.Do":      func(ctx context.Context, l *onAWheel) error { return l.mutex.Do(ctx, doNothing) },
	"redislock.RWMutex.Lock":  func(ctx context.Context, l *onAWheel) error { return second(l.rw.Lock(ctx)) },
	"redislock.RWMutex.RLock": func(ctx context.Context, l *onAWheel) error { return second(l.rw.RLock(ctx)) },
	"redislock.Mutex.LockFunc of a reader": func(ctx context.Context, l *onAWheel) error {
		return called(func(f func(*redislock.Lock, error)) func() { return l.rw.Reader().LockFunc(ctx, f) })
	},
	"redislock.MultiMutex.Lock": func(ctx context.Context, l *onAWheel) error { return second(l.multi.Lock(ctx)) },
	"redislock.MultiMutex.LockFunc": func(ctx context.Context, l *onAWheel) error {
		return called(func(f func(*redislock.Lock, error)) func() { return l.multi.LockFunc(ctx, f) })
	},
	"redislock.MultiMutex.Do":    func(ctx context.Context, l *onAWheel) error { return l.multi.Do(ctx, doNothing) },
	"redislock.QuorumMutex.Lock": func(ctx context.Context, l *onAWheel) error { return second(l.majority.Lock(ctx)) },
	"redislock.QuorumMutex.LockFunc": func(ctx context.Context, l *onAWheel) error {
		return called(func(f func(*redislock.Lock, error)) func() { return l.majority.LockFunc(ctx, f) })
	},
	"redislock.QuorumMutex.Do": func(ctx context.Context, l *onAWheel) error { return l.majority.Do(ctx, doNothing) },

	"semaphore.CountingSemaphore.Acquire": func(ctx context.Context, l *onAWheel) error { return l.count.Acquire(ctx, 1) },
	"semaphore.CountingSemaphore.AcquireFunc": func(ctx context.Context, l *onAWheel) error {
		return calledBack(func(f func(error)) func() { return l.count.AcquireFunc(ctx, 1, f) })
	},
	"semaphore.Semaphore.Acquire": func(ctx context.Context, l *onAWheel) error { return second(l.plain.Acquire(ctx, 1)) },
	"semaphore.Semaphore.Acquire of a FairSemaphore": func(ctx context.Context, l *onAWheel) error {
		return second(l.fairly.Acquire(ctx, 1))
	},
	"semaphore.Semaphore.Do": func(ctx context.Context, l *onAWheel) error { return l.plain.Do(ctx, 1, doNothing) },
	"semaphore.Semaphore.Do of a FairSemaphore": func(ctx context.Context, l *onAWheel) error {
		return l.fairly.Do(ctx, 1, doNothing)
	},
	"semaphore.Semaphore.AcquireFunc": func(ctx context.Context, l *onAWheel) error {
		return called(func(f func(*semaphore.Grant, error)) func() { return l.plain.AcquireFunc(ctx, 1, f) })
	},
	"semaphore.Semaphore.AcquireFunc of a FairSemaphore": func(ctx context.Context, l *onAWheel) error {
		return called(func(f func(*semaphore.Grant, error)) func() { return l.fairly.AcquireFunc(ctx, 1, f) })
	},

	"delay.Queue.Serve": func(ctx context.Context, l *onAWheel) error {
		return l.delays.Queue(l.name+":delay").Serve(ctx, 1, func(context.Context, *delay.Task) error { return nil })
	},

	"ratelimit.Limiter.Wait":  func(ctx context.Context, l *onAWheel) error { return l.limiter.Wait(ctx, "k") },
	"ratelimit.Limiter.WaitN": func(ctx context.Context, l *onAWheel) error { return l.limiter.WaitN(ctx, "k", 1) },
	"ratelimit.Limiter.WaitFunc": func(ctx context.Context, l *onAWheel) error {
		return calledBack(func(f func(error)) func() { return l.limiter.WaitFunc(ctx, "k", 1, f) })
	},
	"ratelimit.StoredLimiter.Wait":  func(ctx context.Context, l *onAWheel) error { return l.stored.Wait(ctx) },
	"ratelimit.StoredLimiter.WaitN": func(ctx context.Context, l *onAWheel) error { return l.stored.WaitN(ctx, 1) },
	"ratelimit.StoredLimiter.WaitFunc": func(ctx context.Context, l *onAWheel) error {
		return calledBack(func(f func(error)) func() { return l.stored.WaitFunc(ctx, 1, f) })
	},
	"ratelimit.All.Wait":  func(ctx context.Context, l *onAWheel) error { return l.all.Wait(ctx) },
	"ratelimit.All.WaitN": func(ctx context.Context, l *onAWheel) error { return l.all.WaitN(ctx, 1) },
	"ratelimit.All.WaitFunc": func(ctx context.Context, l *onAWheel) error {
		return calledBack(func(f func(error)) func() { return l.all.WaitFunc(ctx, 1, f) })
	},
	"ratelimit.Reservation.Wait": func(ctx context.Context, l *onAWheel) error {
		k := l.limits.Limiter(l.name+":reserved", ratelimit.PerMinute(2), ratelimit.WithAlgorithm(ratelimit.GCRA))
		if _, err := k.AllowN(ctx, "k", 2); err != nil {
			return err
		}
		r, err := k.Reserve(ctx, "k", 1)
		if err != nil {
			return err
		}
		return r.Wait(ctx)
	},
}

// doNotWait are the exported functions with a context that talk to Redis once, or not at all.
var doNotWait = map[string]string{
	"wheel.Keyed":           "Stop",
	"wheel.Typed":           "Stop",
	"wheel.Wheel":           "Stop WithTimeout", // see TestWithTimeout_KeepsItsDeadlineWhileTheWheelStops
	"renewal.Lease":         "Context",
	"renewal.Renewer":       "Close",
	"redislock":             "ContextWithOwner",
	"redislock.Client":      "Check Close",
	"redislock.Lock":        "Context Extend Unlock",
	"redislock.MultiMutex":  "FromContext TryLock",
	"redislock.Mutex":       "ForceUnlock ForceUnlockHolder FromContext State TryLock",
	"redislock.Quorum":      "Check Close",
	"redislock.QuorumMutex": "FromContext TryLock",
	"redislock.RWMutex":     "Downgrade TryLock TryRLock",
	"delay.Client":          "Check Close",
	"delay.Queue": "Cancel DeleteFailed FailedTasks Pause PendingTasks Reschedule Resume RetryFailed Schedule ScheduleAll " +
		"ScheduleAt State",
	"ratelimit":         "ContextWithReservation ReservationFromContext",
	"ratelimit.All":     "Allow AllowN Peek TryReserve",
	"ratelimit.Client":  "Check Close",
	"ratelimit.Limiter": "Allow AllowN AllowUpTo Peek Reserve Reset TryReserve",
	"ratelimit.StoredLimiter": "Allow AllowN AllowUpTo Config Delete Peek Reserve Return SetRate TryReserve TrySetRate " +
		"UpdateRate",
	"ratelimit.Reservation": "Cancel Settle",
	"semaphore.Client":      "Check Close",
	"semaphore.Grant":       "Context Extend Release",
	"semaphore.Semaphore": "AddPermits Available Delete FromContext ReleaseIDs SetPermits State TryAcquire " +
		"TrySetPermits UpdateLease",
	"semaphore.CountingSemaphore": "AddPermits Available Delete Drain Release ReleaseIfExists TryAcquire TrySetPermits",
}

// functionsWithContext returns the exported functions of docs/api.txt that have a context as an argument.
func functionsWithContext(t *testing.T) (names []string) {
	t.Helper()
	function := regexp.MustCompile(`^func (?:\(\w+ \*?(\w+)(?:\[[\w, ]+\])?\) )?(\w+)\( ?(?:\w+ )context\.Context`)
	pkg := ""
	for declaration := range strings.SplitSeq(read(t, "docs/api.txt"), "\n\n") {
		if name, ok := strings.CutPrefix(declaration, "package "); ok {
			pkg = name
			continue
		}
		if m := function.FindStringSubmatch(strings.Join(strings.Fields(declaration), " ")); m != nil {
			names = append(names, strings.ReplaceAll(pkg+"."+m[1]+"."+m[2], "..", "."))
		}
	}
	return names
}

// A new function has to be added to one of the two tables.
func TestStoppedWheel_KnowsEveryFunctionThatMayWait(t *testing.T) {
	t.Parallel()
	known := make(map[string]bool)
	for what := range waits {
		name, _, _ := strings.Cut(what, " of ")
		known[name] = true
	}
	for of, names := range doNotWait {
		for name := range strings.FieldsSeq(names) {
			known[of+"."+name] = true
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(known)), functionsWithContext(t))
}

// Guarantees: A4.
func TestStoppedWheel_EndsEveryWait(t *testing.T) {
	t.Parallel()
	for what, wait := range waits {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := newOnAWheel(t)
			l.occupy(t)
			ended := make(chan error, 1)
			go func() { ended <- wait(context.Background(), l) }()
			redistest.Poll(t, func() bool {
				select {
				case err := <-ended:
					require.FailNow(t, "it did not wait", err)
				default:
				}
				sleeps := strings.Contains(what, "Sleep") || strings.Contains(what, "Reservation")
				return l.wheel.Len() > 0 && (l.waiting() == 1 || sleeps)
			})
			l.stop()
			select {
			case err := <-ended:
				require.ErrorIs(t, err, wheel.ErrStopped)
			case <-redistest.Within(t, 5*time.Second).Done():
				require.FailNow(t, "it waits for ever")
			}
			require.Zero(t, l.waiting())
			again := make(chan error, 1)
			go func() { again <- wait(context.Background(), l) }()
			select {
			case err := <-again:
				require.ErrorIs(t, err, wheel.ErrStopped, "a wait that begins later")
			case <-redistest.Within(t, 5*time.Second).Done():
				require.FailNow(t, "a wait that begins later waits for ever")
			}
		})
	}
}

var errNeverLost = errors.New("it is not lost")

// lostBy waits for the end of a hold and returns its error.
func lostBy(t *testing.T, held hold) error {
	t.Helper()
	within := held.Context(context.Background())
	select {
	case <-within.Done():
	case <-redistest.Within(t, 5*time.Second).Done():
		return errNeverLost
	}
	<-held.Done()
	require.False(t, held.Valid())
	require.Equal(t, held.Err(), context.Cause(within))
	return held.Err()
}

// Guarantees: A4.
func TestStoppedWheel_LosesEveryHold(t *testing.T) {
	t.Parallel()
	for what, take := range map[string]func(ctx context.Context, l *onAWheel) (hold, error){
		"a lease": func(_ context.Context, l *onAWheel) (hold, error) {
			return l.leases.Add(renewal.Spec{Key: "k", ID: "i", TTL: time.Minute, SentAt: time.Now()})
		},
		"a lock": func(ctx context.Context, l *onAWheel) (hold, error) { return l.mutex.Lock(ctx) },
		"a lock without renewal": func(ctx context.Context, l *onAWheel) (hold, error) {
			return l.locks.Mutex(l.mutex.Name(), redislock.WithoutRenewal()).Lock(ctx)
		},
		"a lock with a longest hold": func(ctx context.Context, l *onAWheel) (hold, error) {
			return l.locks.Mutex(l.mutex.Name(), redislock.WithMaxHold(time.Hour)).Lock(ctx)
		},
		"a fair lock": func(ctx context.Context, l *onAWheel) (hold, error) { return l.fair.Lock(ctx) },
		"a lock of an Owner": func(ctx context.Context, l *onAWheel) (hold, error) {
			return l.mutex.Lock(redislock.ContextWithOwner(ctx, &redislock.Owner{}))
		},
		"a reader":           func(ctx context.Context, l *onAWheel) (hold, error) { return l.rw.RLock(ctx) },
		"a writer":           func(ctx context.Context, l *onAWheel) (hold, error) { return l.rw.Lock(ctx) },
		"a lock of two":      func(ctx context.Context, l *onAWheel) (hold, error) { return l.multi.Lock(ctx) },
		"a lock of a quorum": func(ctx context.Context, l *onAWheel) (hold, error) { return l.majority.Lock(ctx) },
		"a grant": func(ctx context.Context, l *onAWheel) (hold, error) {
			if err := l.plain.SetPermits(ctx, 1); err != nil {
				return nil, err
			}
			return l.plain.Acquire(ctx, 1)
		},
		"a grant of a fair semaphore": func(ctx context.Context, l *onAWheel) (hold, error) {
			if err := l.fairly.SetPermits(ctx, 1); err != nil {
				return nil, err
			}
			return l.fairly.Acquire(ctx, 1)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			l := newOnAWheel(t)
			held, err := take(ctx, l)
			require.NoError(t, err)
			require.NoError(t, held.Err())
			l.stop()
			err = lostBy(t, held)
			require.ErrorIs(t, err, renewal.ErrUnwatched)
			require.ErrorIs(t, err, wheel.ErrStopped)
			lost, ok := errors.AsType[*renewal.LostError](err)
			require.True(t, ok, "%T", err)
			require.WithinDuration(t, time.Now().Add(30*time.Second), lost.Due, 31*time.Second)

			// The holder gives it back all the same.
			switch held := held.(type) {
			case *redislock.Lock:
				require.ErrorIs(t, held.Unlock(ctx), redislock.ErrLost)
			case *semaphore.Grant:
				require.ErrorIs(t, held.Release(ctx), semaphore.ErrLost)
			default:
				return
			}
			other := newOnAWheel(t)
			other.library.name = l.name
			for _, m := range []*redislock.Mutex{
				other.locks.Mutex(l.mutex.Name()), other.locks.FairMutex(l.fair.Name()),
				other.locks.Mutex(l.name + ":0"), other.locks.RWMutex(l.rw.Name()).Writer(),
			} {
				require.NoError(t, second(m.TryLock(ctx)), m.Name())
			}
			for _, s := range []*semaphore.Semaphore{
				other.semaphores.Semaphore(l.plain.Name(), 0), other.semaphores.FairSemaphore(l.fairly.Name(), 0),
			} {
				require.NoError(t, s.SetPermits(ctx, 1))
				require.NoError(t, second(s.TryAcquire(ctx, 1)))
			}
			redistest.Poll(t, func() bool { // the release that completes a majority does not wait for the others
				_, err := other.quorum.Mutex(l.majority.Name()).TryLock(ctx)
				return err == nil
			})
		})
	}
}

// A wheel may be stopped while Redis hangs: then calls are in flight, or pause before they try again.
// Guarantees: A4.
func TestStoppedWheel_EndsCallsWhileRedisHangs(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.ReadTimeout, o.DialTimeout = time.Second, time.Second })
	l := newOnAWheelOf(t, rdb)
	l.occupy(t)
	ctx := t.Context()
	lock, err := l.locks.Mutex(l.name + ":held").Lock(ctx)
	require.NoError(t, err)
	free := l.semaphores.Semaphore(l.name+":permits", 0)
	require.NoError(t, free.SetPermits(ctx, 1))
	grant, err := free.Acquire(ctx, 1)
	require.NoError(t, err)
	server.Pause()
	began := l.limits.Stats().Scripts
	calls := map[string]func() error{
		"Unlock":     func() error { return lock.Unlock(context.Background()) },
		"Release":    func() error { return grant.Release(context.Background()) },
		"TryLock":    func() error { return second(l.locks.Mutex(l.name + ":free").TryLock(context.Background())) },
		"TryAcquire": func() error { return l.count.TryAcquire(context.Background(), 1) },
	}
	for what, wait := range waits {
		if !strings.Contains(what, "Sleep") && !strings.Contains(what, "Reservation") {
			calls[what] = func() error { return wait(context.Background(), l) }
		}
	}
	type end struct {
		what string
		err  error
	}
	ended := make(chan end, len(calls))
	for what, call := range calls {
		go func() { ended <- end{what, call()} }()
	}
	redistest.Poll(t, func() bool { return l.limits.Stats().Scripts > began && l.waiting() > 0 })
	l.stop()
	for range calls {
		select {
		case end := <-ended:
			require.Error(t, end.err, end.what)
			delete(calls, end.what)
		case <-redistest.Within(t, redistest.Patience).Done():
			require.FailNow(t, "calls that do not end", slices.Sorted(maps.Keys(calls)))
		}
	}
	server.Resume()
}

// A Close after the stop of the wheel releases what it can and returns.
// Guarantees: A4.
func TestStoppedWheel_ClosesReturn(t *testing.T) {
	t.Parallel()
	l := newOnAWheel(t)
	ctx := redistest.Within(t, redistest.Patience)
	require.NoError(t, second(l.mutex.Lock(ctx)))
	require.NoError(t, second(l.majority.Lock(ctx)))
	require.NoError(t, l.plain.SetPermits(ctx, 1))
	require.NoError(t, second(l.plain.Acquire(ctx, 1)))
	l.stop()
	for what, closing := range map[string]func(context.Context) error{
		"redislock": l.locks.Close, "quorum": l.quorum.Close, "semaphore": l.semaphores.Close, "ratelimit": l.limits.Close,
	} {
		require.NoError(t, closing(ctx), what)
	}
	other := newOnAWheel(t)
	require.NoError(t, second(other.locks.Mutex(l.mutex.Name()).TryLock(ctx)))
	require.NoError(t, second(other.quorum.Mutex(l.majority.Name()).TryLock(ctx)))
	require.NoError(t, second(other.semaphores.Semaphore(l.plain.Name(), 0).TryAcquire(ctx, 1)))
}

// When the wheel stops, it drops the entries of Wheel.AfterFunc, and a caller that waits for such an entry waits for
// ever. When it is full, it refuses them, and calls of Wheel.Sleep. So the library uses neither.
func TestStoppedWheel_NotifiesEveryEntryOfTheLibrary(t *testing.T) {
	t.Parallel()
	entries := 0
	for _, folder := range []string{
		"renewal", "redislock", "ratelimit", "ratelimit/httplimit", "semaphore", "delay", "cmd/cogwheel",
		"contrib/grpclimit", "contrib/gocron", "contrib/cogwheelotel", "contrib/cogwheelprom", "contrib/statusz",
		"internal/check", "internal/cleanup", "internal/hold", "internal/gate", "internal/pubsub",
		"internal/redisconn", "internal/calls", "internal/waitqueue",
	} {
		files, err := filepath.Glob("../../" + folder + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files, folder)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				f, ok := n.(*ast.SelectorExpr)
				if !ok || !slices.Contains([]string{"AfterFunc", "Every", "Schedule", "NewTimeout", "Sleep"}, f.Sel.Name) {
					return true
				}
				of, _ := f.X.(*ast.Ident)
				if of == nil || !slices.Contains([]string{"wheelentry", "context", "time"}, of.Name) {
					require.Fail(t, "use package wheelentry", "%s: %s", name, f.Sel.Name)
				}
				entries++
				return true
			})
		}
	}
	require.Greater(t, entries, 20)
}
