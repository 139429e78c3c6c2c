package semaphore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

func requireInvalid(t *testing.T, err error, field string) {
	t.Helper()
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	var invalid *cogwheel.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, field, invalid.Field)
	require.NotEmpty(t, invalid.Reason)
	require.ErrorContains(t, err, field)
}

// allMethods returns all methods that talk to Redis.
func allMethods(s *semaphore.CountingSemaphore, l *semaphore.Semaphore) map[string]func(ctx context.Context) error {
	const id = "0123456789abcdef0123456789abcdef"
	return map[string]func(ctx context.Context) error{
		"CountingSemaphore.Acquire":    func(ctx context.Context) error { return s.Acquire(ctx, 1) },
		"CountingSemaphore.TryAcquire": func(ctx context.Context) error { return s.TryAcquire(ctx, 1) },
		"CountingSemaphore.AcquireFunc": func(ctx context.Context) error {
			return callbackError(func(f func(error)) { s.AcquireFunc(ctx, 1, f) })
		},
		"CountingSemaphore.Release":         func(ctx context.Context) error { return s.Release(ctx, 1) },
		"CountingSemaphore.ReleaseIfExists": func(ctx context.Context) error { _, err := s.ReleaseIfExists(ctx, 1); return err },
		"CountingSemaphore.TrySetPermits":   func(ctx context.Context) error { _, err := s.TrySetPermits(ctx, 1); return err },
		"CountingSemaphore.AddPermits":      func(ctx context.Context) error { return s.AddPermits(ctx, 1) },
		"CountingSemaphore.Drain":           func(ctx context.Context) error { _, err := s.Drain(ctx); return err },
		"CountingSemaphore.Available":       func(ctx context.Context) error { _, err := s.Available(ctx); return err },
		"Semaphore.Acquire":                 func(ctx context.Context) error { _, err := l.Acquire(ctx, 1); return err },
		"Semaphore.TryAcquire":              func(ctx context.Context) error { _, err := l.TryAcquire(ctx, 1); return err },
		"Semaphore.AcquireFunc": func(ctx context.Context) error {
			return callbackError(func(f func(error)) { l.AcquireFunc(ctx, 1, func(_ *semaphore.Grant, err error) { f(err) }) })
		},
		"Semaphore.ReleaseIDs":    func(ctx context.Context) error { return l.ReleaseIDs(ctx, id) },
		"Semaphore.TrySetPermits": func(ctx context.Context) error { _, err := l.TrySetPermits(ctx, 1); return err },
		"Semaphore.SetPermits":    func(ctx context.Context) error { return l.SetPermits(ctx, 1) },
		"Semaphore.AddPermits":    func(ctx context.Context) error { return l.AddPermits(ctx, 1) },
		"Semaphore.Available":     func(ctx context.Context) error { _, err := l.Available(ctx); return err },
		"Semaphore.UpdateLease":   func(ctx context.Context) error { return l.UpdateLease(ctx, id, time.Second) },
	}
}

// callbackError returns the error that the callback gets.
func callbackError(begin func(f func(error))) error {
	got := make(chan error, 1)
	begin(func(err error) { got <- err })
	return <-got
}

// Guarantees: A1.
func TestSemaphores_RefuseBadInput(t *testing.T) {
	t.Parallel()
	const tooMany = semaphore.MaxPermits + 1
	ctx := t.Context()
	rdb := redistest.Shared(t).Client(t)
	c, count := newCountedClient(t, rdb)
	name := redistest.Name(t)
	s, l := c.CountingSemaphore(name), c.Semaphore(name, 0)

	for _, bad := range []string{"", "a{b", "a{}b", strings.Repeat("x", 70_000)} {
		for _, f := range allMethods(c.CountingSemaphore(bad), c.Semaphore(bad, 0)) {
			requireInvalid(t, f(ctx), "name")
		}
	}
	for what, f := range allMethods(s, l) {
		requireInvalid(t, f(nil), "context")
		ended, cancel := context.WithCancelCause(ctx)
		cancel(errors.New("had enough"))
		if err := f(ended); !strings.HasPrefix(what, "CountingSemaphore.Release") { // Release ignores the end of its context
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorContains(t, err, "had enough")
		}
	}
	require.NoError(t, rdb.Del(ctx, name).Err()) // the releases have created it
	before := count.scripts()
	for field, errs := range map[string][]error{
		"n": {
			s.Acquire(ctx, -1), s.Acquire(ctx, tooMany), s.Release(ctx, -1), s.Release(ctx, tooMany),
			s.AddPermits(ctx, tooMany), s.AddPermits(ctx, -tooMany),
			l.SetPermits(ctx, -1), l.SetPermits(ctx, tooMany), l.AddPermits(ctx, tooMany), l.AddPermits(ctx, -tooMany),
			s.TryAcquire(ctx, -1), errorOf(s.ReleaseIfExists(ctx, -1)),
			errorOf(s.TrySetPermits(ctx, -1)), errorOf(l.TrySetPermits(ctx, -1)),
			errorOf(l.Acquire(ctx, -1)), errorOf(l.TryAcquire(ctx, semaphore.MaxGrant+1)),
		},
		"lease": {l.UpdateLease(ctx, "", 0), l.UpdateLease(ctx, "", 366*24*time.Hour)},
		"id": {
			l.ReleaseIDs(ctx, "x"), l.UpdateLease(ctx, "0123", time.Second),
			l.UpdateLease(ctx, strings.Repeat("g", 32), time.Second),
		},
		"WithMax": {
			c.CountingSemaphore(name, semaphore.WithMax(0)).Acquire(ctx, 1),
			c.CountingSemaphore(name, semaphore.WithMax(tooMany)).Acquire(ctx, 1),
		},
		"WithLease": {errorOf(c.Semaphore(name, 0, semaphore.WithLease(0)).Acquire(ctx, 1))},
		"option": {
			errorOf(c.Semaphore(name, 0, nil).Acquire(ctx, 1)), c.CountingSemaphore(name, nil).Release(ctx, 1),
		},
	} {
		for _, err := range errs {
			requireInvalid(t, err, field)
		}
	}
	require.ErrorIs(t, l.ReleaseIDs(ctx, "x"), semaphore.ErrNotHeld, "an invalid id is not held")
	require.Equal(t, before, count.scripts(), "nothing reached Redis")
	require.Zero(t, rdb.Exists(ctx, name).Val())
	require.Panics(t, func() { s.AcquireFunc(ctx, 1, nil) })
	require.Panics(t, func() { l.AcquireFunc(ctx, 1, nil) })
}

func errorOf[T any](_ T, err error) error { return err }

// Guarantees: S16.
func TestSemaphores_ZeroTooManyOrNeverSet(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb := redistest.Shared(t).Client(t)
		c, count := newCountedClient(t, rdb)
		name := redistest.Name(t)
		s := k.newAny(c, name)
		for _, ctx := range []context.Context{t.Context(), context.Background()} {
			b, err := s.acquire(ctx, 0)
			require.NoError(t, err)
			require.NoError(t, b(ctx))
			b, err = s.tryAcquire(ctx, 0)
			require.NoError(t, err)
			require.NoError(t, b(ctx))
		}
		require.NoError(t, callbackError(func(f func(error)) {
			s.acquireFunc(t.Context(), 0, func(_ releaseFunc, err error) { f(err) })
		}))
		require.Zero(t, count.scripts(), "a request for no permits sends nothing")

		_, err := s.acquire(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrNotSet)
		require.ErrorContains(t, err, name)
		_, err = s.tryAcquire(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrNotSet)
		require.Zero(t, available(t, s))

		s.setPermits(t, 2)
		if k.name != "counting" { // a counting semaphore does not know the total
			began := time.Now()
			_, err = s.acquire(t.Context(), 3)
			require.ErrorIs(t, err, semaphore.ErrExceedsPermits)
			_, err = s.tryAcquire(t.Context(), 3)
			require.ErrorIs(t, err, semaphore.ErrExceedsPermits)
			require.Less(t, time.Since(began), wakeLimit)
		}
		require.EqualValues(t, 2, available(t, s))
	})
}

// Guarantees: S16.
func TestSemaphore_InvalidReleasesAddNoPermits(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		c, _, name := newSharedClient(t)
		l := k.newSemaphore(c, name, 0)
		mustSetPermits(t, l, 3)
		stranger := k.newSemaphore(c, name+":other", 0)
		mustSetPermits(t, stranger, 1)
		foreign := mustAcquire(t, stranger, 1)

		g := mustAcquire(t, l, 1)
		require.NoError(t, g.Release(t.Context()))
		require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrNotHeld, "the second release does nothing")
		require.ErrorIs(t, l.ReleaseIDs(t.Context(), g.IDs()...), semaphore.ErrNotHeld)
		require.ErrorIs(t, l.ReleaseIDs(t.Context(), foreign.IDs()...), semaphore.ErrNotHeld)
		require.ErrorIs(t, l.UpdateLease(t.Context(), foreign.IDs()[0], time.Minute), semaphore.ErrNotHeld)
		require.Zero(t, leaseTime(t, l, foreign.IDs()[0]))

		short := k.newSemaphore(c, name, 0, semaphore.WithLease(time.Second), semaphore.WithoutRenewal())
		expired := mustAcquire(t, short, 2)
		<-expired.Done()
		require.ErrorIs(t, expired.Release(t.Context()), semaphore.ErrLost)
		poll(t, func() bool { return available(t, l) == 3 })
		require.ErrorIs(t, l.ReleaseIDs(t.Context(), expired.IDs()...), semaphore.ErrNotHeld)
		require.EqualValues(t, 3, available(t, l), "no permit was added")
		require.NoError(t, foreign.Err())
		require.EqualValues(t, 0, available(t, stranger))
	})
}

// A key of another kind is reported and not changed.
// Guarantees: A2.
func TestSemaphores_WrongKind(t *testing.T) {
	t.Parallel()
	words := func(c *redis.Client, key string) error { return c.Set(context.Background(), key, "words", 0).Err() }
	fraction := func(c *redis.Client, key string) error { return c.Set(context.Background(), key, "1.5", 0).Err() }
	hash := func(c *redis.Client, key string) error { return c.HSet(context.Background(), key, "a", 1).Err() }
	list := func(c *redis.Client, key string) error { return c.RPush(context.Background(), key, "a").Err() }
	same := func(name string) string { return name }
	fairly := func(part string) func(string) string {
		return func(name string) string { return scripts.SuffixName(name, "fair:"+part) }
	}
	for what, x := range map[string]struct {
		key  func(name string) string
		put  func(c *redis.Client, key string) error
		made func(*semaphore.Client, string, int64, ...semaphore.SemaphoreOption) *semaphore.Semaphore
		only string
	}{
		"words where permits are counted":          {same, words, (*semaphore.Client).Semaphore, ""},
		"a fraction where permits are counted":     {same, fraction, (*semaphore.Client).Semaphore, ""},
		"a hash where permits are counted":         {same, hash, (*semaphore.Client).Semaphore, ""},
		"a list where leases are":                  {leasesKey, list, (*semaphore.Client).Semaphore, "Semaphore"},
		"words where a fair one counts":            {fairly("permits"), words, (*semaphore.Client).FairSemaphore, "Semaphore"},
		"a list where the leases of fair ones are": {fairly("leases"), list, (*semaphore.Client).FairSemaphore, "Semaphore"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, rdb, name := newSharedClient(t)
			require.NoError(t, x.put(rdb, x.key(name)))
			before := rdb.Dump(t.Context(), x.key(name)).Val()
			for call, f := range allMethods(c.CountingSemaphore(name), x.made(c, name, 0)) {
				if !strings.HasPrefix(call, x.only) {
					continue
				}
				want := semaphore.ErrWrongKind
				if strings.Contains(what, "count") && call == "Semaphore.UpdateLease" {
					want = semaphore.ErrNotHeld // it does not read the number of permits
				}
				require.ErrorIs(t, f(within(t, testTimeout)), want, call)
			}
			require.Equal(t, before, rdb.Dump(t.Context(), x.key(name)).Val())
		})
	}
}

// A Semaphore and a FairSemaphore cannot share a name: the one that is set second is refused.
// Guarantees: A2.
func TestSemaphore_FairAndUnfairOfOneNameRefuseEachOther(t *testing.T) {
	t.Parallel()
	c, _, name := newSharedClient(t)
	plain, fair := c.Semaphore(name+":plain", 0), c.FairSemaphore(name+":fair", 0)
	mustSetPermits(t, plain, 1)
	mustSetPermits(t, fair, 1)
	for _, second := range []*semaphore.Semaphore{c.FairSemaphore(plain.Name(), 0), c.Semaphore(fair.Name(), 0)} {
		_, err := second.TrySetPermits(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrWrongKind)
		require.ErrorIs(t, second.SetPermits(t.Context(), 1), semaphore.ErrWrongKind)
		require.ErrorIs(t, second.AddPermits(t.Context(), 1), semaphore.ErrWrongKind)
		_, err = second.TryAcquire(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrNotSet)
	}
	_, err := c.CountingSemaphore(fair.Name()).TrySetPermits(t.Context(), 1)
	require.ErrorIs(t, err, semaphore.ErrWrongKind)
	require.EqualValues(t, 1, available(t, plain))
	require.EqualValues(t, 1, available(t, fair))
}

func TestGrant_ContextOfNilPanicsWithAnErrorOfThisPackage(t *testing.T) {
	t.Parallel()
	c, _, name := newSharedClient(t)
	s := c.Semaphore(name, 0)
	mustSetPermits(t, s, 1)
	held := mustAcquire(t, s, 1)
	for what, g := range map[string]*semaphore.Grant{"held": held, "zero": {}} {
		func() {
			defer func() {
				err, ok := recover().(error)
				require.True(t, ok, what)
				requireInvalid(t, err, "context")
			}()
			g.Context(nil) //nolint:staticcheck // what is tested
		}()
	}
	require.NoError(t, held.Release(t.Context()))
}
