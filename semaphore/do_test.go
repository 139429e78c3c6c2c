package semaphore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Guarantees: S27.
func TestSemaphore_Do(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		c, rdb, name := newSharedClient(t)
		l := k.newSemaphore(c, name, 3, semaphore.WithLease(safeLease))
		failed := errors.New("failed")

		t.Run("holds the permits while f runs, and returns the error of f", func(t *testing.T) {
			require.ErrorIs(t, l.Do(t.Context(), 2, func(ctx context.Context) error {
				requireTotal(t, l, 1, 2)
				require.Len(t, l.FromContext(ctx).IDs(), 2)
				require.Positive(t, l.FromContext(ctx).Token())
				require.Same(t, l.FromContext(ctx), k.newSemaphore(c, name, 0).FromContext(ctx), "the name decides")
				require.Nil(t, k.newSemaphore(c, "another", 0).FromContext(ctx))
				plain, fair := c.Semaphore(name, 0).FromContext(ctx), c.FairSemaphore(name, 0).FromContext(ctx)
				require.NotEqual(t, plain.Valid(), fair.Valid(), "they are two semaphores")
				return failed
			}), failed)
			requireTotal(t, l, 3, 0)
		})
		t.Run("releases them if ctx is cancelled", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			err := l.Do(ctx, 1, func(ctx context.Context) error {
				cancel()
				<-ctx.Done()
				return context.Cause(ctx)
			})
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, semaphore.ErrLost)
			requireTotal(t, l, 3, 0)
		})
		t.Run("a loss ends the context of f, and is an error of Do", func(t *testing.T) {
			for _, returned := range []error{nil, failed} {
				err := l.Do(t.Context(), 1, func(ctx context.Context) error {
					g := l.FromContext(ctx)
					require.NoError(t, l.ReleaseIDs(t.Context(), g.IDs()...))
					require.ErrorIs(t, g.Extend(ctx, time.Minute), semaphore.ErrLost)
					<-ctx.Done()
					require.ErrorIs(t, context.Cause(ctx), semaphore.ErrLost)
					require.False(t, l.FromContext(ctx).Valid())
					return returned
				})
				require.ErrorIs(t, err, semaphore.ErrLost)
				if returned != nil {
					require.ErrorIs(t, err, failed)
				}
			}
			requireTotal(t, l, 3, 0)
		})
		t.Run("f may release them", func(t *testing.T) {
			var log bytes.Buffer
			c := newClient(t, rdb, semaphore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			s := k.newSemaphore(c, name, 0)
			require.NoError(t, s.Do(t.Context(), 1, func(ctx context.Context) error {
				return s.FromContext(ctx).Release(ctx)
			}))
			require.Empty(t, log.String())
		})
		t.Run("a failure to acquire calls nothing", func(t *testing.T) {
			never := func(context.Context) error { panic("was called") }
			require.ErrorIs(t, l.Do(t.Context(), 4, never), semaphore.ErrExceedsPermits)
			require.ErrorIs(t, l.Do(t.Context(), -1, never), cogwheel.ErrInvalid)
			require.ErrorIs(t, l.Do(t.Context(), 1, nil), cogwheel.ErrInvalid)
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, l.Do(ended, 1, never), context.Canceled)
			requireTotal(t, l, 3, 0)
		})
		t.Run("no permits", func(t *testing.T) {
			require.NoError(t, l.Do(t.Context(), 0, func(ctx context.Context) error {
				require.True(t, l.FromContext(ctx).Valid())
				return nil
			}))
		})
		t.Run("the innermost grant of a name counts", func(t *testing.T) {
			require.NoError(t, l.Do(t.Context(), 1, func(ctx context.Context) error {
				outer := l.FromContext(ctx)
				return l.Do(ctx, 1, func(ctx context.Context) error {
					require.NotSame(t, outer, l.FromContext(ctx))
					require.True(t, outer.Valid())
					return nil
				})
			}))
		})
		t.Run("a Client that is closed meanwhile", func(t *testing.T) {
			c := newClient(t, rdb)
			require.ErrorIs(t, k.newSemaphore(c, name, 0).Do(t.Context(), 1, func(ctx context.Context) error {
				require.NoError(t, c.Close(t.Context()))
				<-ctx.Done()
				return nil
			}), semaphore.ErrClosed)
			requireTotal(t, l, 3, 0)
		})
		t.Run("a wheel that is stopped meanwhile", func(t *testing.T) {
			w, err := wheel.New()
			require.NoError(t, err)
			c := newClient(t, rdb, semaphore.WithWheel(w))
			err = k.newSemaphore(c, name, 0).Do(t.Context(), 1, func(ctx context.Context) error {
				_, err := w.Stop(t.Context())
				require.NoError(t, err)
				<-ctx.Done()
				return nil
			})
			require.ErrorIs(t, err, semaphore.ErrLost)
			require.ErrorIs(t, err, renewal.ErrUnwatched)
			requireTotal(t, l, 3, 0)
		})
	})
}

// A release without a reply is no error of Do. The background sends it again.
// Guarantees: S27.
func TestSemaphore_DoLogsAReleaseThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var log bytes.Buffer
	rdb := server.Client(t)
	c := newClient(t, rdb, semaphore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	l := c.Semaphore("exports", 1)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, l.Do(ctx, 1, func(context.Context) error {
		server.Pause()
		cancel()
		return nil
	}))
	server.Resume()
	require.Contains(t, log.String(), "a release failed and is retried in the background")
	poll(t, func() bool { return available(t, l) == 1 })
}

func TestFromContext_WithoutAGrant(t *testing.T) {
	t.Parallel()
	c, _, name := newSharedClient(t)
	none := c.Semaphore(name, 0).FromContext(t.Context())
	require.Nil(t, none)
	require.Zero(t, none.Token())
	require.ErrorIs(t, none.Err(), semaphore.ErrNotHeld)
}
