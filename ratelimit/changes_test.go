package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Waiters that would wait for an hour see what another process changes, within about a second.
// Guarantees: Q11.
func TestWait_SeesWhatOthersChange(t *testing.T) {
	t.Parallel()
	limit := perSeconds(5, 3600)
	setup := func(t *testing.T) (ours, theirs *ratelimit.Client, rdb *redis.Client, name string) {
		rdb = redistest.Shared(t).Client(t)
		return newClient(t, rdb), newClient(t, rdb), rdb, redistest.Name(t)
	}
	// soon requires that a waiter is told soon, which has been there for a while.
	soon := func(t *testing.T, wait func(f func(error)), change func()) error {
		t.Helper()
		done := make(chan error, 1)
		wait(func(err error) { done <- err })
		require.NoError(t, newWheel(t).Sleep(t.Context(), 300*time.Millisecond))
		require.Empty(t, done)
		change()
		began := time.Now()
		err := answer(t, done)
		require.Less(t, time.Since(began), 10*time.Second)
		return err
	}

	for what, algorithm := range kinds {
		for how, change := range map[string]func(t *testing.T, k *ratelimit.Limiter, rdb *redis.Client, name string){
			"Reset": func(t *testing.T, k *ratelimit.Limiter, _ *redis.Client, name string) {
				require.NoError(t, k.Reset(t.Context(), name))
			},
			"DEL": func(t *testing.T, _ *ratelimit.Limiter, rdb *redis.Client, name string) {
				require.NoError(t, rdb.Del(t.Context(), "k:{"+name+"}", "k:{"+name+"}:window", "k:{"+name+"}:sliding").Err())
			},
		} {
			t.Run(what+", "+how, func(t *testing.T) {
				t.Parallel()
				ours, theirs, rdb, name := setup(t)
				k := ours.Limiter("k", limit, ratelimit.WithAlgorithm(algorithm))
				_, err := k.AllowN(t.Context(), name, 5)
				require.NoError(t, err)
				wait := func(f func(error)) { k.WaitFunc(t.Context(), name, 5, f) }
				require.NoError(t, soon(t, wait, func() { change(t, theirs.Limiter("k", limit, ratelimit.WithAlgorithm(algorithm)), rdb, name) }))
			})
		}
	}

	t.Run("a reservation cancelled", func(t *testing.T) {
		t.Parallel()
		ours, theirs, _, name := setup(t)
		k, other := ours.Limiter("k", perSeconds(1, 6)), theirs.Limiter("k", perSeconds(1, 6))
		_, err := k.Allow(t.Context(), name)
		require.NoError(t, err)
		reserved, err := other.Reserve(t.Context(), name, 1)
		require.NoError(t, err)
		began := time.Now()
		wait := func(f func(error)) { k.WaitFunc(t.Context(), name, 1, f) }
		done := make(chan error, 1)
		wait(func(err error) { done <- err })
		given, err := reserved.Cancel(t.Context())
		require.True(t, err == nil && given)
		select {
		case err = <-done:
		case <-within(t, 10*time.Second).Done():
			t.Fatal("it waited for the reservation that was cancelled")
		}
		require.NoError(t, err)
		require.Less(t, time.Since(began), 10*time.Second, "not for the reservation as well")
	})

	for how, change := range map[string]func(ctx context.Context, l *ratelimit.StoredLimiter, granted ratelimit.Result) error{
		"SetRate": func(ctx context.Context, l *ratelimit.StoredLimiter, _ ratelimit.Result) error {
			return l.SetRate(ctx, perSeconds(10, 3600))
		},
		"UpdateRate": func(ctx context.Context, l *ratelimit.StoredLimiter, _ ratelimit.Result) error {
			_, err := l.UpdateRate(ctx, perSeconds(10, 3600), ratelimit.WithState())
			return err
		},
		"Return": func(ctx context.Context, l *ratelimit.StoredLimiter, granted ratelimit.Result) error {
			_, err := l.Return(ctx, granted)
			return err
		},
		"Delete": func(ctx context.Context, l *ratelimit.StoredLimiter, _ ratelimit.Result) error {
			_, err := l.Delete(ctx)
			return err
		},
	} {
		t.Run("a log, "+how, func(t *testing.T) {
			t.Parallel()
			ours, theirs, _, name := setup(t)
			l, other := ours.StoredLimiter(name), theirs.StoredLimiter(name)
			require.NoError(t, other.SetRate(t.Context(), limit))
			granted, err := other.AllowN(t.Context(), 5)
			require.True(t, err == nil && granted.Allowed)
			wait := func(f func(error)) { l.WaitFunc(t.Context(), 5, f) }
			err = soon(t, wait, func() { require.NoError(t, change(t.Context(), other, granted)) })
			if how == "Delete" {
				require.ErrorIs(t, err, ratelimit.ErrNotSet)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// A denial that is on its way while this process gives permits back says nothing any more.
// Guarantees: Q11.
func TestChanges_ADenialOnItsWayIsNotBelieved(t *testing.T) {
	t.Parallel()
	ask := func(t *testing.T, replies *replies, allow func(context.Context) (ratelimit.Result, error), change func()) {
		executed, release := replies.hold()
		denied := make(chan bool, 1)
		go func() {
			r, err := allow(t.Context())
			denied <- err == nil && !r.Allowed
		}()
		<-executed
		change()
		release()
		require.True(t, <-denied)
		r, err := allow(t.Context())
		require.NoError(t, err)
		require.True(t, r.Allowed, "%+v", r)
	}
	for what, algorithm := range kinds {
		t.Run("Reset, "+what, func(t *testing.T) {
			t.Parallel()
			c, rdb, replies := held(t)
			k, name := c.Limiter("k", ratelimit.PerHour(5), ratelimit.WithAlgorithm(algorithm)), redistest.Name(t)
			_, err := newClient(t, rdb).Limiter("k", ratelimit.PerHour(5), ratelimit.WithAlgorithm(algorithm)).AllowN(t.Context(), name, 5)
			require.NoError(t, err)
			ask(t, replies, func(ctx context.Context) (ratelimit.Result, error) { return k.Allow(ctx, name) },
				func() { require.NoError(t, k.Reset(t.Context(), name)) })
		})
	}
	t.Run("Cancel", func(t *testing.T) {
		t.Parallel()
		c, _, replies := held(t)
		k, name := c.Limiter("k", ratelimit.PerMinute(60).WithBurst(10)), redistest.Name(t)
		_, err := k.AllowN(t.Context(), name, 8)
		require.NoError(t, err)
		reserved, err := k.Reserve(t.Context(), name, 10)
		require.NoError(t, err)
		require.NoError(t, newWheel(t).Sleep(t.Context(), 1100*time.Millisecond)) // by then Redis is asked again
		ask(t, replies, func(ctx context.Context) (ratelimit.Result, error) { return k.Allow(ctx, name) }, func() {
			given, err := reserved.Cancel(t.Context())
			require.True(t, err == nil && given)
		})
	})
	t.Run("Return", func(t *testing.T) {
		t.Parallel()
		c, _, replies := held(t)
		l := newStoredLimiter(t, c, perSeconds(5, 3600), ratelimit.Overall)
		granted := take(t, l, 5, true)
		ask(t, replies, l.Allow, func() {
			given, err := l.Return(t.Context(), granted)
			require.True(t, err == nil && given)
		})
	})
	t.Run("SetRate", func(t *testing.T) {
		t.Parallel()
		c, _, replies := held(t)
		l := newStoredLimiter(t, c, perSeconds(5, 3600), ratelimit.Overall)
		take(t, l, 5, true)
		ask(t, replies, l.Allow, func() {
			require.NoError(t, l.SetRate(t.Context(), perSeconds(6, 3600)))
		})
	})
}
