package redislock_test

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
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Guarantees: A1.
func TestRedislock_RefusesBadInput(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	dialer := &redistest.FaultDialer{}
	rdb := server.Client(t, func(o *redis.Options) { o.Dialer = dialer.Dial })
	c := newClient(t, rdb)
	name := redistest.Name(t)
	nothing := func(context.Context) error { return nil }

	endless := redis.NewClient(&redis.Options{ReadTimeout: -1})
	defer endless.Close()
	construct := func(rdb redis.UniversalClient, opts ...redislock.Option) error {
		_, err := redislock.New(rdb, opts...)
		return err
	}
	for what, tt := range map[string]struct {
		err   error
		field string
		value any
	}{
		"no client":           {construct(nil), "client", "nil"},
		"a nil *redis.Client": {construct((*redis.Client)(nil)), "client", "nil"},
		"a nil option":        {construct(rdb, nil), "option", 0},
		"a nil wheel":         {construct(rdb, redislock.WithWheel(nil)), "WithWheel", "nil"},
		"a nil logger":        {construct(rdb, redislock.WithLogger(nil)), "WithLogger", "nil"},
		"a nil function":      {c.Mutex(name).Do(t.Context(), nil), "function", "nil"},
		//nolint:staticcheck // on purpose
		"a nil context": {c.Mutex(name).Do(nil, nothing), "context", "nil"},
		"a bad default": {construct(
			rdb, redislock.WithLockDefaults(redislock.WithLease(0)),
		), "WithLease", time.Duration(0)},
		"a nil default": {construct(rdb, redislock.WithLockDefaults(nil)), "option", 0},
		"a poll too short": {construct(
			rdb, redislock.WithPoll(time.Millisecond),
		), "WithPoll", time.Millisecond},
		"a client without timeout": {construct(endless), "client", "without a ReadTimeout"},
		"a nil lock option":        {c.Mutex(name, nil).Do(t.Context(), nothing), "option", 0},
		"no lease": {c.Mutex(
			name, redislock.WithLease(0),
		).Do(t.Context(), nothing), "WithLease", time.Duration(0)},
		"a negative lease": {c.Mutex(
			name, redislock.WithLease(-time.Second), // short: refused
		).Do(t.Context(), nothing), "WithLease", -time.Second},
		"a lease of a nanosecond": {c.Mutex(
			name, redislock.WithLease(1),
		).Do(t.Context(), nothing), "WithLease", time.Nanosecond},
		"a lease below 1 ms": {c.Mutex(
			name, redislock.WithLease(time.Millisecond-1), // short: refused
		).Do(t.Context(), nothing), "WithLease", time.Millisecond - 1},
		"a lease above 365 days": {c.Mutex(
			name, redislock.WithLease(365*24*time.Hour+1),
		).Do(t.Context(), nothing), "WithLease", 365*24*time.Hour + 1},
		"the longest duration": {c.Mutex(
			name, redislock.WithLease(1<<63-1),
		).Do(t.Context(), nothing), "WithLease", time.Duration(1<<63 - 1)},
		"an empty name": {c.Mutex("").Do(t.Context(), nothing), "name", `""`},
		"a name above 64 KiB": {c.Mutex(
			strings.Repeat("x", 64<<10+1),
		).Do(t.Context(), nothing), "name", `"` + strings.Repeat("x", 128) + `"...`},
		"a name with an open tag":  {c.Mutex("a{b").Do(t.Context(), nothing), "name", `"a{b"`},
		"a name with an empty tag": {c.Mutex("{}").Do(t.Context(), nothing), "name", `"{}"`},
	} {
		t.Run(what, func(t *testing.T) {
			require.ErrorIs(t, tt.err, cogwheel.ErrInvalid)
			var invalid *cogwheel.InvalidError
			require.ErrorAs(t, tt.err, &invalid)
			require.Equal(t, tt.field, invalid.Field)
			require.Equal(t, tt.value, invalid.Value)
		})
	}

	t.Run("by every method", func(t *testing.T) {
		bad := c.Mutex("")
		_, err := bad.Lock(t.Context())
		require.ErrorIs(t, err, cogwheel.ErrInvalid)
		_, err = bad.TryLock(t.Context())
		require.ErrorIs(t, err, cogwheel.ErrInvalid)
	})

	t.Run("an ended context", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		errWhy := errors.New("why")
		cancel(errWhy)
		_, err := c.Mutex(name).Lock(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errWhy)
		require.NotErrorIs(t, err, redislock.ErrLocked)
	})

	require.Zero(t, dialer.Conns(), "nothing was sent to Redis")
}

// Err returns the error that Lock would return, without a call to Redis.
func TestErr_ReportsInvalidNamesAndOptions(t *testing.T) {
	t.Parallel()
	dialer := &redistest.FaultDialer{}
	server := redistest.Shared(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) { o.Dialer = dialer.Dial }))
	q, err := redislock.NewQuorum([]redis.UniversalClient{server.Client(t), server.Client(t), server.Client(t)})
	require.NoError(t, err)
	redistest.CloseWith(t, q.Close)
	bad := redislock.WithLease(-1)
	for what, err := range map[string]error{
		"Mutex":     c.Mutex("name", bad).Err(),
		"FairMutex": c.FairMutex("a{b").Err(),
		"RWMutex":   c.RWMutex("", bad).Err(),
		"Multi":     c.MultiMutex([]string{"a", ""}).Err(),
		"none":      c.MultiMutex(nil).Err(),
		"twice":     c.MultiMutex([]string{"a", "b", "a"}).Err(),
		"Quorum":    q.Mutex("name", nil).Err(),
	} {
		var invalid *cogwheel.InvalidError
		require.ErrorAs(t, err, &invalid, what)
		require.Equal(t, "redislock", invalid.Package)
	}
	for _, err := range []error{
		c.Mutex("name").Err(), c.FairMutex("name").Err(), c.RWMutex("name").Err(),
		c.MultiMutex([]string{"a", "b"}).Err(), q.Mutex("name").Err(),
	} {
		require.NoError(t, err)
	}
	require.Zero(t, dialer.Conns())
}

// Guarantees: A6.
func TestErrors_AreOneLineWithOnePrefix(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }))
	ctx := t.Context()
	long := strings.Repeat("long", 10_000)
	rdb := server.Client(t)
	require.NoError(t, rdb.Set(ctx, "words", "x", 0).Err())
	held := mustLock(t, c.Mutex("held"))
	lost := mustLock(t, c.Mutex("lost"))
	require.NoError(t, rdb.Del(ctx, "lost").Err())
	all := map[string]error{
		"words":  errorOf(c.Mutex("words").TryLock(ctx)),
		"held":   errorOf(c.Mutex("held").TryLock(ctx)),
		"later":  errorOf(c.Mutex("held").Lock(within(t, 20*time.Millisecond))),
		"lost":   lost.Unlock(ctx),
		"closed": errorOf(c.Mutex(long + "{").TryLock(ctx)),
	}
	require.NoError(t, rdb.ConfigSet(ctx, "min-replicas-to-write", "1").Err())
	all["refused"] = errorOf(c.Mutex(long).TryLock(ctx))
	require.NoError(t, rdb.ConfigSet(ctx, "min-replicas-to-write", "0").Err())
	require.NoError(t, rdb.ReplicaOf(ctx, "127.0.0.1", "1").Err())
	all["read only"] = errorOf(c.Mutex("replica").TryLock(ctx))
	require.NoError(t, rdb.ReplicaOf(ctx, "NO", "ONE").Err())
	all["Do"] = c.Mutex("done").Do(ctx, func(ctx context.Context) error {
		require.NoError(t, rdb.Del(ctx, "done").Err())
		return nil
	})
	for what, err := range all {
		require.Error(t, err, what)
		text := err.Error()
		require.NotContains(t, text, "\n", what)
		require.NotRegexp(t, `[0-9a-f]{40}|user_script`, text, what)
		require.Less(t, len(text), 400, what)
		require.LessOrEqual(t, strings.Count(text, "redislock:"), 1, "%s: %s", what, text)
		require.Equal(t, 1, strings.Count(text, "redislock: "), "%s: %s", what, text)
	}
	mustUnlock(t, held)
}

// LockedError.TTL is the remaining lease, not the time until the next poll.
func TestLockedError_ReportsTheRemainingLease(t *testing.T) {
	t.Parallel()
	c, _, name := onSharedServer(t)
	held := mustLock(t, c.Mutex(name))
	defer mustUnlock(t, held)
	_, err := c.Mutex(name).Lock(within(t, time.Second))
	var locked *redislock.LockedError
	require.ErrorAs(t, err, &locked)
	require.Greater(t, locked.TTL, 20*time.Second)
	require.LessOrEqual(t, locked.TTL, redislock.DefaultLease)
}

// TTL is capped for an expiry that does not fit in a time.Duration.
func TestLockedError_TTLBeyondTimeDuration(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	require.NoError(t, rdb.HSet(t.Context(), name, "java:1", 1).Err())
	for _, ms := range []int64{1 << 44, 1 << 50, 1 << 53} {
		require.NoError(t, rdb.Do(t.Context(), "PEXPIRE", name, ms).Err())
		_, err := c.Mutex(name).TryLock(t.Context())
		var locked *redislock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Greater(t, locked.TTL, 250*365*24*time.Hour)
	}
}

// A refusal that arrives for a waiter that has left is not reported to a later waiter. It may be out of date.
func TestMutex_WaiterDoesNotInheritALockedError(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	holder, _, name := onSharedServer(t)
	held := mustLock(t, holder.Mutex(name))
	dialer, contended := &redistest.FaultDialer{}, make(chan struct{}, 1)
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = dialer.Dial })
	c := newClient(t, rdb, redislock.WithHooks(redislock.Hooks{Contended: func(redislock.Event) {
		contended <- struct{}{}
	}}))
	require.NoError(t, rdb.Ping(t.Context()).Err()) // connects
	dialer.Delay(0, 2*time.Second)
	_, err := c.Mutex(name).Lock(within(t, time.Second))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	<-contended // after the waiter has left
	mustUnlock(t, held)
	dialer.Delay(0, 0)
	dialer.Set(redistest.BlackholeUp)
	_, err = c.Mutex(name).Lock(within(t, 20*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, redislock.ErrLocked)
	dialer.Set(redistest.Pass)
}

func TestLockedError_RoundsForPeople(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]string{
		29643 * time.Millisecond: ", for up to 29.6s",
		643 * time.Millisecond:   ", for up to 643ms",
		-1:                       ", without expiry",
		0:                        "",
	} {
		require.EqualError(t, &redislock.LockedError{Name: "n", TTL: ttl}, `redislock: locked by another: "n"`+want)
	}
}

func TestLock_ContextOfNilPanicsWithAnErrorOfThisPackage(t *testing.T) {
	t.Parallel()
	c := newClient(t, redistest.Shared(t).Client(t))
	held, released := mustLock(t, c.Mutex(redistest.Name(t)+":held")), mustLock(t, c.Mutex(redistest.Name(t)))
	require.NoError(t, released.Unlock(t.Context()))
	for what, l := range map[string]*redislock.Lock{"held": held, "released": released, "zero": {}, "nil": nil} {
		func() {
			defer func() {
				err, ok := recover().(error)
				require.True(t, ok, what)
				var invalid *cogwheel.InvalidError
				require.ErrorAs(t, err, &invalid, what)
				require.Equal(t, "redislock", invalid.Package, what)
			}()
			l.Context(nil) //nolint:staticcheck // what is tested
		}()
	}
	require.NoError(t, held.Unlock(t.Context()))
}
