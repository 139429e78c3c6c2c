package ratelimit_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// eachFunction calls every function that takes permits, of both kinds of limiters.
func eachFunction(c *ratelimit.Client, name string, do func(what string, f func(ctx context.Context, n int64) error)) {
	limit := perSeconds(10, 3600)
	k, l := c.Limiter("k", limit), c.StoredLimiter(name)
	do("Limiter.AllowN", func(ctx context.Context, n int64) error { _, err := k.AllowN(ctx, name, n); return err })
	do("Limiter.AllowUpTo", func(ctx context.Context, n int64) error { _, err := k.AllowUpTo(ctx, name, n); return err })
	do("Limiter.WaitN", func(ctx context.Context, n int64) error { return k.WaitN(ctx, name, n) })
	do("Limiter.Reserve", func(ctx context.Context, n int64) error { _, err := k.Reserve(ctx, name, n); return err })
	do("Limiter.WaitFunc", func(ctx context.Context, n int64) error {
		done := make(chan error, 1)
		k.WaitFunc(ctx, name, n, func(err error) { done <- err })
		return <-done
	})
	do("StoredLimiter.AllowN", func(ctx context.Context, n int64) error { _, err := l.AllowN(ctx, n); return err })
	do("StoredLimiter.AllowUpTo", func(ctx context.Context, n int64) error { _, err := l.AllowUpTo(ctx, n); return err })
	do("StoredLimiter.WaitN", l.WaitN)
	do("StoredLimiter.Reserve", func(ctx context.Context, n int64) error { _, err := l.Reserve(ctx, n); return err })
	do("StoredLimiter.WaitFunc", func(ctx context.Context, n int64) error {
		done := make(chan error, 1)
		l.WaitFunc(ctx, n, func(err error) { done <- err })
		return <-done
	})
	all := c.All(k.Part(name), c.Limiter("also", limit).Part(name))
	do("All.AllowN", func(ctx context.Context, n int64) error { _, err := all.AllowN(ctx, n); return err })
	do("All.WaitN", all.WaitN)
	do("All.WaitFunc", func(ctx context.Context, n int64) error {
		done := make(chan error, 1)
		all.WaitFunc(ctx, n, func(err error) { done <- err })
		return <-done
	})
}

// A request for no permits is granted at once and takes nothing.
// Guarantees: Q21.
func TestArguments_NoPermits(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	ctx := t.Context()
	limit := perSeconds(10, 3600)
	require.NoError(t, c.StoredLimiter(name).SetRate(ctx, limit))
	for _, spent := range []bool{false, true} {
		eachFunction(c, name, func(what string, f func(context.Context, int64) error) { require.NoError(t, f(ctx, 0), what) })
		r, err := c.Limiter("k", limit).AllowN(ctx, name, 0)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{
			Allowed: true, Limit: 10, Remaining: r.Remaining, ResetAfter: r.ResetAfter,
		}, r)
		reserved, err := c.StoredLimiter(name).Reserve(ctx, 0)
		require.NoError(t, err)
		require.Zero(t, reserved.Delay())
		require.NoError(t, reserved.Wait(ctx))
		given, err := reserved.Cancel(ctx)
		require.NoError(t, err)
		require.False(t, given)
		if spent {
			break
		}
		require.Zero(t, rdb.Exists(ctx, "k:{"+name+"}").Val(), "nothing was taken")
		require.Zero(t, rdb.ZCard(ctx, ratelimit.LogKeys(name)[2]).Val())
		_, err = c.Limiter("k", limit).AllowN(ctx, name, 10)
		require.NoError(t, err)
		_, err = c.StoredLimiter(name).AllowN(ctx, 10)
		require.NoError(t, err)
		c.Limiter("k", limit).WaitFunc(ctx, name, 1, func(error) {}) // there is a line to pass by
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	eachFunction(c, name, func(what string, f func(context.Context, int64) error) {
		require.ErrorIs(t, f(ended, 0), context.Canceled, what)
	})
	require.NoError(t, c.Close(ctx))
	eachFunction(c, name, func(what string, f func(context.Context, int64) error) {
		require.ErrorIs(t, f(ctx, 0), ratelimit.ErrClosed, what)
	})
}

// What is wrong with the arguments is an *InvalidError, which all packages share.
// Guarantees: A1.
func TestArguments_Refused(t *testing.T) {
	t.Parallel()
	c, rdb, trips, name := shared(t)
	ctx := t.Context()
	limit := perSeconds(10, 3600)
	check := func(what string, err error) {
		t.Helper()
		var refused *cogwheel.InvalidError
		require.ErrorAs(t, err, &refused, what)
		require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
		require.Equal(t, "ratelimit", refused.Package)
		require.True(t, strings.HasPrefix(err.Error(), "ratelimit: "), err)
		require.NotContains(t, err.Error(), "\n")
		require.Less(t, len(err.Error()), 400)
	}
	k, l := c.Limiter("k", limit), c.StoredLimiter(name)
	reserved, err := c.Limiter("r", limit).Reserve(ctx, name, 1)
	require.NoError(t, err)
	require.Zero(t, trips.trips(func() {
		var none context.Context
		eachFunction(c, name, func(what string, f func(context.Context, int64) error) {
			check(what+", nil context", f(none, 1))
			check(what+", nil context, no permits", f(none, 0))
			check(what+", n < 0", f(ctx, -1))
		})
		check("Limiter.Reset", k.Reset(none, name))
		_, err = k.Peek(none, name)
		check("Limiter.Peek", err)
		_, err = l.Peek(none)
		check("StoredLimiter.Peek", err)
		check("SetRate", l.SetRate(none, limit))
		check("SetRate, nil option", l.SetRate(ctx, limit, nil))
		_, err = l.Config(none)
		check("Config", err)
		_, err = l.Delete(none)
		check("Delete", err)
		_, err = l.Return(none, ratelimit.Result{})
		check("Return", err)
		_, err = reserved.Cancel(none)
		check("Cancel", err)
		check("Reservation.Wait", reserved.Wait(none))
		check("Close", c.Close(none))
		for what, f := range map[string]func(){
			"Limiter.WaitFunc":       func() { k.WaitFunc(ctx, name, 1, nil) },
			"StoredLimiter.WaitFunc": func() { l.WaitFunc(ctx, 1, nil) },
		} {
			func() {
				defer func() {
					refused, _ := recover().(error)
					check(what, refused)
				}()
				f()
			}()
		}

		check("Limiter.Err, nil option", c.Limiter("k", limit, nil).Err())
		check("Limiter.Err, a prefix of 1 MB", c.Limiter(strings.Repeat("x", 1<<20), limit).Err())
		check("WithAlgorithm", c.Limiter("k", limit, ratelimit.WithAlgorithm(7)).Err())
		long := c.StoredLimiter(strings.Repeat("x", 1<<20))
		check("StoredLimiter.Err, a name of 1 MB", long.Err())
		_, err = long.Allow(ctx)
		require.Equal(t, long.Err(), err)
		require.NoError(t, l.Err())
		require.NoError(t, k.Err())

		_, err = ratelimit.New((*redis.Client)(nil))
		check("a nil *redis.Client", err)
		for _, o := range []ratelimit.Option{ratelimit.WithTimeout(0), ratelimit.WithTimeout(-time.Second), ratelimit.WithLogger(nil)} {
			_, err = ratelimit.New(rdb, o)
			check("option", err)
		}
	}))
}

// Of options that are given twice the last counts.
func TestArguments_OptionsGivenTwice(t *testing.T) {
	t.Parallel()
	c, rdb, _, name := shared(t)
	ctx := t.Context()
	_, err := c.Limiter("k", perSeconds(10, 3600), ratelimit.WithAlgorithm(ratelimit.FixedWindow), ratelimit.WithAlgorithm(ratelimit.GCRA)).Allow(ctx, name)
	require.NoError(t, err)
	require.Equal(t, int64(1), rdb.Exists(ctx, "k:{"+name+"}").Val())
	l := c.StoredLimiter(name)
	require.NoError(t, l.SetRate(ctx, perSeconds(10, 60), ratelimit.WithKeepAlive(time.Hour), ratelimit.WithKeepAlive(2*time.Hour)))
	config, err := l.Config(ctx)
	require.NoError(t, err)
	require.Equal(t, 2*time.Hour, config.KeepAlive)
	open := newClient(t, server(t), ratelimit.WithPolicy(ratelimit.FailClosed()), ratelimit.WithPolicy(ratelimit.FailOpen()))
	r, err := open.Limiter("k", perSeconds(10, 3600)).Allow(ctx, name)
	require.NoError(t, err)
	require.Equal(t, ratelimit.SourceDegraded, r.Source)
}

// server returns a client of a Redis that is gone.
func server(t *testing.T) *redis.Client {
	s := redistest.Start(t)
	rdb := s.Client(t, impatient)
	s.Kill()
	return rdb
}

// wrapped is what a program may make of its redis client.
type wrapped struct{ *redis.Client }

// opaque is a client of a type whose nodes are not known.
type (
	universal = redis.UniversalClient
	opaque    struct{ universal }
)

func TestNew_ClientsOfOtherTypes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	limit := perSeconds(1000, 3600)
	rdb := redistest.Shared(t).Client(t)
	trips := &counter{}
	rdb.AddHook(trips)
	fill := func(c *ratelimit.Client) int64 {
		k, name := c.Limiter("k", limit), redistest.Name(t)
		return trips.trips(func() {
			redistest.Each(t, 100, func(i int) error {
				_, err := k.Allow(ctx, name+string(rune('a'+i)))
				return err
			})
		})
	}
	var log bytes.Buffer
	logger := ratelimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	require.Less(t, fill(newClient(t, wrapped{rdb}, logger)), int64(70), "keys of one node share pipelines")
	require.Empty(t, log.String())
	require.GreaterOrEqual(t, fill(newClient(t, &opaque{rdb}, logger)), int64(100))
	require.Contains(t, log.String(), "not known")

	for what, endless := range map[string]redis.UniversalClient{
		"client":  redis.NewClient(&redis.Options{ReadTimeout: -1}),
		"wrapped": wrapped{redis.NewClient(&redis.Options{ReadTimeout: -1})},
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{ReadTimeout: -1}),
		"ring":    redis.NewRing(&redis.RingOptions{ReadTimeout: -1}),
	} {
		_, err := ratelimit.New(endless)
		require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
		require.ErrorContains(t, err, "ReadTimeout", what)
		require.NoError(t, endless.Close())
	}
}

// A nil or zero Reservation is for no permits.
func TestReservation_NilAndZeroAreHarmless(t *testing.T) {
	t.Parallel()
	for _, r := range []*ratelimit.Reservation{nil, {}} {
		require.Zero(t, r.Delay())
		require.NoError(t, r.Wait(t.Context()))
		given, err := r.Cancel(t.Context())
		require.NoError(t, err)
		require.False(t, given)
	}
}
