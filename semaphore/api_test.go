package semaphore_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// A nil or zero Grant is not held, and nothing about it panics or reaches Redis.
func TestGrant_NilAndZeroAreNotHeld(t *testing.T) {
	t.Parallel()
	var none *semaphore.Grant
	for what, g := range map[string]*semaphore.Grant{"nil": none, "zero": {}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			require.False(t, g.Valid())
			require.ErrorIs(t, g.Err(), semaphore.ErrNotHeld)
			require.Empty(t, g.IDs())
			require.Zero(t, g.Token())
			require.True(t, g.Deadline().IsZero())
			<-g.Done()
			ctx := g.Context(t.Context())
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), semaphore.ErrNotHeld)
			require.ErrorIs(t, g.Extend(t.Context(), time.Minute), semaphore.ErrNotHeld)
			require.ErrorIs(t, g.Release(t.Context()), semaphore.ErrNotHeld)
			require.ErrorIs(t, g.Release(nil), semaphore.ErrNotHeld) //nolint:staticcheck // on purpose
		})
	}
}

// Err tells what Acquire would return, before anything is sent.
func TestErr_TellsWhatCouldNotBeReportedByNew(t *testing.T) {
	t.Parallel()
	dialer := &redistest.FaultDialer{}
	c := newClient(t, redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = dialer.Dial }))
	for field, err := range map[string]error{
		"name":      c.Semaphore("a{b").Err(),
		"WithMax":   c.Semaphore("name", semaphore.WithMax(0)).Err(),
		"WithLease": c.Leased("name", semaphore.WithLease(0)).Err(),
		"option":    c.FairLeased("name", nil).Err(),
	} {
		requireInvalid(t, err, field)
	}
	for _, err := range []error{c.Semaphore("name").Err(), c.Leased("name").Err(), c.FairLeased("name").Err()} {
		require.NoError(t, err)
	}
	require.Zero(t, dialer.Conns())
}

// Of an option that is given twice the last counts.
func TestOptions_TheLastCounts(t *testing.T) {
	t.Parallel()
	c, _, name := shared(t)
	s := c.Semaphore(name, semaphore.WithMax(1), semaphore.WithMax(5))
	_, err := s.TrySetPermits(t.Context(), 5)
	require.NoError(t, err)
	require.NoError(t, s.Acquire(t.Context(), 5))
	l := c.Leased(name+":leased", semaphore.WithLease(time.Hour), semaphore.WithLease(time.Minute))
	setLeased(t, l, 1)
	g := mustAcquire(t, l, 1)
	require.WithinDuration(t, time.Now().Add(time.Minute), g.Deadline(), 10*time.Second)
	require.NoError(t, g.Release(t.Context()))
}

// client has an unexported name, so that New does not see it inside a client of another make.
type client redis.UniversalClient

type otherMake struct{ client }

type wrapper struct{ redis.UniversalClient }

func TestNew_AWrappedClientKeepsWhatItsNodesGive(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		wrap func(redis.UniversalClient) redis.UniversalClient
		warn bool
	}{
		"in a struct":     {func(rdb redis.UniversalClient) redis.UniversalClient { return wrapper{rdb} }, false},
		"of another make": {func(rdb redis.UniversalClient) redis.UniversalClient { return otherMake{rdb} }, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			c := newClient(t, tt.wrap(redistest.Shared(t).Client(t)), semaphore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			require.Equal(t, tt.warn, strings.Contains(log.String(), "nodes are not known"), log.String())
			l := c.Leased(redistest.Name(t), semaphore.WithLease(300*time.Millisecond))
			setLeased(t, l, 1)
			g := mustAcquire(t, l, 1)
			later := g.Deadline().Add(300 * time.Millisecond)
			poll(t, func() bool { return g.Deadline().After(later) })
			require.NoError(t, g.Release(t.Context()))
		})
	}
}

func TestNew_RefusesAClientWhoseCallsMayNeverEnd(t *testing.T) {
	t.Parallel()
	endless := redis.NewClient(&redis.Options{ReadTimeout: -1})
	defer endless.Close()
	_, err := semaphore.New(endless)
	requireInvalid(t, err, "client")
}

func TestErrors_AreOneLineAndNameTheirObjectOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }))
	ctx, rdb := t.Context(), server.Client(t)
	long := strings.Repeat("long", 10_000)
	require.NoError(t, rdb.Set(ctx, "words", "x", 0).Err())
	l := c.Leased("leased")
	setLeased(t, l, 1)
	lost := mustAcquire(t, l, 1)
	all := map[string]error{
		"words":    c.Semaphore("words").Acquire(ctx, 1),
		"not set":  c.Semaphore(long).Acquire(ctx, 1),
		"later":    second(l.Acquire(within(t, 20*time.Millisecond), 1)),
		"too many": second(l.Acquire(ctx, 2)),
		"bad name": c.Semaphore(long+"{").Acquire(ctx, 1),
	}
	require.NoError(t, rdb.Del(ctx, leases("leased")).Err())
	all["lost"] = lost.Release(ctx)
	require.NoError(t, rdb.ReplicaOf(ctx, "127.0.0.1", "1").Err())
	all["read only"] = second(c.Semaphore(long).Drain(ctx))
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
