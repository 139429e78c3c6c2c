package semaphore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Err returns what Acquire would return. It sends nothing.
func TestErr_ReportsBadNamesAndOptions(t *testing.T) {
	t.Parallel()
	dialer := &redistest.FaultDialer{}
	c := newClient(t, redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = dialer.Dial }))
	for field, err := range map[string]error{
		"name":      c.CountingSemaphore("a{b").Err(),
		"WithMax":   c.CountingSemaphore("name", semaphore.WithMax(0)).Err(),
		"WithLease": c.Semaphore("name", 0, semaphore.WithLease(0)).Err(),
		"option":    c.FairSemaphore("name", 0, nil).Err(),
	} {
		requireInvalid(t, err, field)
	}
	for _, err := range []error{c.CountingSemaphore("name").Err(), c.Semaphore("name", 0).Err(), c.FairSemaphore("name", 0).Err()} {
		require.NoError(t, err)
	}
	require.Zero(t, dialer.Conns())
}

// If an option is given twice, the last one counts.
func TestOptions_TheLastCounts(t *testing.T) {
	t.Parallel()
	c, _, name := newSharedClient(t)
	s := c.CountingSemaphore(name, semaphore.WithMax(1), semaphore.WithMax(5))
	_, err := s.TrySetPermits(t.Context(), 5)
	require.NoError(t, err)
	require.NoError(t, s.Acquire(t.Context(), 5))
	l := c.Semaphore(name+":plain", 0, semaphore.WithLease(time.Hour), semaphore.WithLease(time.Minute))
	mustSetPermits(t, l, 1)
	g := mustAcquire(t, l, 1)
	require.WithinDuration(t, time.Now().Add(time.Minute), g.Deadline(), 10*time.Second)
	require.NoError(t, g.Release(t.Context()))
}

// client has an unexported name, so that New does not find it inside a client of an unknown type.
type client redis.UniversalClient

type unknownClient struct{ client }

type wrapper struct{ redis.UniversalClient }

func TestNew_WrappedClients(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		wrap func(redis.UniversalClient) redis.UniversalClient
		warn bool
	}{
		"in a struct":        {func(rdb redis.UniversalClient) redis.UniversalClient { return wrapper{rdb} }, false},
		"of an unknown type": {func(rdb redis.UniversalClient) redis.UniversalClient { return unknownClient{rdb} }, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			c := newClient(t, tt.wrap(redistest.Shared(t).Client(t)), semaphore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			require.Equal(t, tt.warn, strings.Contains(log.String(), "nodes are not known"), log.String())
			l := c.Semaphore(redistest.Name(t), 0, semaphore.WithLease(safeLease))
			mustSetPermits(t, l, 1)
			g := mustAcquire(t, l, 1)
			first := g.Deadline()
			poll(t, func() bool { return g.Deadline().After(first) })
			require.NoError(t, g.Release(t.Context()))
		})
	}
}

func TestNew_RefusesAClientWithoutAReadTimeout(t *testing.T) {
	t.Parallel()
	endless := redis.NewClient(&redis.Options{ReadTimeout: -1})
	defer endless.Close()
	_, err := semaphore.New(endless)
	requireInvalid(t, err, "client")
}

// Guarantees: A6.
func TestErrors_AreOneLineAndNameTheirObjectOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }))
	ctx, rdb := t.Context(), server.Client(t)
	long := strings.Repeat("long", 10_000)
	require.NoError(t, rdb.Set(ctx, "words", "x", 0).Err())
	l := c.Semaphore("plain", 0)
	mustSetPermits(t, l, 1)
	lost := mustAcquire(t, l, 1)
	all := map[string]error{
		"words":    c.CountingSemaphore("words").Acquire(ctx, 1),
		"not set":  c.CountingSemaphore(long).Acquire(ctx, 1),
		"later":    errorOf(l.Acquire(within(t, 20*time.Millisecond), 1)),
		"too many": errorOf(l.Acquire(ctx, 2)),
		"bad name": c.CountingSemaphore(long+"{").Acquire(ctx, 1),
	}
	require.NoError(t, rdb.Del(ctx, leasesKey("plain")).Err())
	all["lost"] = lost.Release(ctx)
	require.NoError(t, rdb.ReplicaOf(ctx, "127.0.0.1", "1").Err())
	all["read only"] = errorOf(c.CountingSemaphore(long).Drain(ctx))
	require.NoError(t, rdb.ReplicaOf(ctx, "NO", "ONE").Err())
	for what, err := range all {
		require.Error(t, err, what)
		text := err.Error()
		require.NotContains(t, text, "\n", what)
		require.NotRegexp(t, `[0-9a-f]{40}|user_script`, text, what)
		require.Less(t, len(text), 400, what)
		require.Equal(t, 1, strings.Count(text, "semaphore: "), "%s: %s", what, text)
	}
}

func TestClient_Close(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	name := redistest.Name(t)
	watcher := newClient(t, redistest.Shared(t).Client(t))
	c, err := semaphore.New(rdb, semaphore.WithWheel(newWheel(t)))
	require.NoError(t, err)
	s := c.CountingSemaphore(name + ":plain")
	mustSetPermits(t, s, 0)
	var grants []*semaphore.Grant
	var calls []*asyncCall
	calls = append(calls, startCall(func() error { return s.Acquire(t.Context(), 1) }))
	for _, l := range []*semaphore.Semaphore{c.Semaphore(name, 0), c.FairSemaphore(name+":fair", 0)} {
		mustSetPermits(t, l, 3)
		grants = append(grants, mustAcquire(t, l, 2))
		calls = append(calls, startCall(func() error { _, err := l.Acquire(t.Context(), 2); return err }))
	}
	awaitListeners(t, rdb, scripts.SemChannel(name), 1)
	awaitListeners(t, rdb, scripts.SemChannel(name+":plain"), 1)
	require.NoError(t, c.Close(within(t, testTimeout)))
	for _, w := range calls {
		require.ErrorIs(t, w.wait(t), semaphore.ErrClosed)
	}
	for _, g := range grants {
		require.ErrorIs(t, g.Err(), semaphore.ErrClosed)
		require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrClosed)
	}
	require.EqualValues(t, 3, available(t, watcher.Semaphore(name, 0)))
	require.EqualValues(t, 3, available(t, watcher.FairSemaphore(name+":fair", 0)))
	require.NoError(t, c.Close(t.Context()))

	l := c.Semaphore(name, 0)
	_, tried := l.TryAcquire(t.Context(), 1)
	_, waited := l.Acquire(t.Context(), 1)
	_, state := l.Available(t.Context())
	_, n := s.Available(t.Context())
	for _, err := range []error{
		tried, waited, state, n, s.TryAcquire(t.Context(), 1), s.Acquire(t.Context(), 0), s.Acquire(t.Context(), 1), s.Release(t.Context(), 1),
		s.AddPermits(t.Context(), 1), l.SetPermits(t.Context(), 1),
	} {
		require.ErrorIs(t, err, semaphore.ErrClosed)
	}
	got := make(chan error, 1)
	s.AcquireFunc(t.Context(), 1, func(err error) { got <- err })
	require.ErrorIs(t, <-got, semaphore.ErrClosed)
	require.NoError(t, errors.Join(rdb.Ping(t.Context()).Err()))
}

func TestClient_CloseReleasesAlthoughItsContextHasEnded(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		watcher := k.newSemaphore(newClient(t, redistest.Shared(t).Client(t)), name, 0)
		mustSetPermits(t, watcher, 3)
		c, err := semaphore.New(rdb, semaphore.WithWheel(newWheel(t)))
		require.NoError(t, err)
		g := mustAcquire(t, k.newSemaphore(c, name, 0), 2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, c.Close(ctx))
		require.ErrorIs(t, g.Err(), semaphore.ErrClosed)
		require.EqualValues(t, 3, available(t, watcher))
	})
}

func TestNew_RefusesBadOptions(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	for field, opts := range map[string][]semaphore.Option{
		"WithWheel":  {semaphore.WithWheel(nil)},
		"WithLogger": {semaphore.WithLogger(nil)},
		"WithPoll":   {semaphore.WithPoll(time.Millisecond)},
	} {
		_, err := semaphore.New(rdb, opts...)
		requireInvalid(t, err, field)
	}
	_, err := semaphore.New(rdb, nil)
	requireInvalid(t, err, "option")
	_, err = semaphore.New(nil)
	requireInvalid(t, err, "client")
	_, err = semaphore.New((*redis.Client)(nil))
	requireInvalid(t, err, "client")
}
