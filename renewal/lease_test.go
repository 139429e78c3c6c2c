package renewal_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/renewal"
)

// Guarantees: L13.
func TestLease_Close(t *testing.T) {
	t.Run("stops the renewals and names the reason", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
			errDone := errors.New("done")
			told := false
			l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl, OnLost: func(error) { told = true }})
			ctx := l.Context(t.Context())
			time.Sleep(ttl)
			n := b.count()
			require.True(t, l.Close(errDone))
			require.True(t, isClosed(l.Done()))
			require.False(t, l.Close(nil), "the second Close ends nothing")
			require.Equal(t, errDone, l.Err())
			<-ctx.Done()
			require.Equal(t, errDone, context.Cause(ctx))
			time.Sleep(3 * ttl)
			require.Equal(t, n, b.count())
			synctest.Wait()
			require.False(t, told, "the holder closed it itself")
		})
	})

	t.Run("keeps a queued lease out of the batch that is about to be sent", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			// Four leases keep all places busy, the other falls due meanwhile.
			release := make(chan struct{})
			b := &fakeBackend{answer: func(ctx context.Context, n int, b *renewal.Batch) error {
				<-release
				return all(renewal.OutcomeExtended)(ctx, n, b)
			}}
			d, err := r.Destination(b)
			require.NoError(t, err)
			for i := range 4 {
				addTo(t, d, renewal.Spec{Key: "busy", TTL: ttl})
				for b.count() <= i {
					time.Sleep(100 * time.Millisecond)
				}
			}
			second := addTo(t, d, renewal.Spec{Key: "second", TTL: ttl})
			time.Sleep(ttl / 2) // second is due and waits for its batch
			require.True(t, second.Close(nil))
			close(release)
			time.Sleep(ttl / 10)
			synctest.Wait()
			require.NotContains(t, b.seen, renewal.Ref{Key: "second", TTL: ttl})
		})
	})

	for _, answer := range []renewal.Outcome{renewal.OutcomeExtended, renewal.OutcomeGone, renewal.OutcomeUnknown} {
		t.Run(fmt.Sprintf("ignores the answer %d of a renewal in flight", answer), func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *renewal.Renewer) {
				release := make(chan struct{})
				b := &fakeBackend{answer: func(ctx context.Context, n int, b *renewal.Batch) error {
					<-release
					return all(answer)(ctx, n, b)
				}}
				l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl, OnLost: func(error) { panic("not lost") }})
				for b.count() == 0 {
					time.Sleep(100 * time.Millisecond)
				}
				require.True(t, l.Close(nil))
				close(release)
				synctest.Wait()
				require.Equal(t, renewal.ErrReleased, l.Err())
				require.False(t, l.Valid())
				time.Sleep(3 * ttl)
				synctest.Wait()
				require.Equal(t, renewal.ErrReleased, l.Err())
				require.Equal(t, 1, b.count(), "not renewed again")
			})
		})
	}
}

func TestLease_Context(t *testing.T) {
	t.Run("ends with its parent", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			l := add(t, r, &fakeBackend{answer: all(renewal.OutcomeExtended)}, renewal.Spec{Key: "k", TTL: ttl})
			parent, cancel := context.WithCancelCause(t.Context())
			ctx := l.Context(parent)
			errWhy := errors.New("why")
			cancel(errWhy)
			<-ctx.Done()
			require.Equal(t, errWhy, context.Cause(ctx))
			require.NoError(t, l.Err())
			l.Close(nil)
		})
	})

	t.Run("is over from the start when the lease is", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			l := add(t, r, &fakeBackend{answer: all(renewal.OutcomeExtended)}, renewal.Spec{Key: "k", TTL: ttl})
			l.Close(nil)
			require.Equal(t, renewal.ErrReleased, context.Cause(l.Context(t.Context())))
		})
	})

	t.Run("costs no goroutine while both last", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			l := add(t, r, &fakeBackend{answer: all(renewal.OutcomeExtended)}, renewal.Spec{Key: "k", TTL: ttl})
			parent, cancel := context.WithCancel(t.Context())
			defer cancel()
			synctest.Wait()
			before := runtime.NumGoroutine()
			for range 100 {
				l.Context(parent)
			}
			require.LessOrEqual(t, runtime.NumGoroutine(), before+50, "100 contexts; other tests run beside this one")
			l.Close(nil)
		})
	})
}
