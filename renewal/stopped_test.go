package renewal_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// A wheel that is stopped before the Renewer announces the end of every lease, in whatever state that is.
// Guarantees: A4.
func TestRenewer_LosesItsLeasesWhenTheWheelIsStopped(t *testing.T) {
	errOwn := errors.New("the error of a Spec")
	for name, at := range map[string]struct {
		renewed bool
		stop    time.Duration // the instant
		hangs   bool          // a call is in flight then
	}{
		"just added":             {renewed: true},
		"watched only":           {stop: time.Second},
		"waiting for a renewal":  {renewed: true, stop: ttl / 7},
		"renewed before":         {renewed: true, stop: 10 * ttl},
		"a renewal is in flight": {renewed: true, stop: ttl / 2, hangs: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, err := wheel.New()
				require.NoError(t, err)
				var log bytes.Buffer
				var reported, told []error
				r, err := renewal.New(w, renewal.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
					renewal.WithHooks(renewal.Hooks{Lost: func(e renewal.Event) { reported = append(reported, e.Err) }}))
				require.NoError(t, err)
				answered := make(chan struct{})
				b := &fakeBackend{answer: func(ctx context.Context, n int, b *renewal.Batch) error {
					if at.hangs {
						<-answered
					}
					return all(renewal.OutcomeExtended)(ctx, n, b)
				}}
				spec := renewal.Spec{
					Key: "k", ID: "\x01\xff", TTL: ttl, SentAt: time.Now(), Lost: errOwn,
					OnLost: func(err error) { told = append(told, err) },
				}
				var l *renewal.Lease
				if at.renewed {
					l = add(t, r, b, spec)
				} else {
					l, err = r.Watch(spec)
					require.NoError(t, err)
				}
				within := l.Context(context.Background())
				time.Sleep(at.stop)
				require.True(t, l.Valid())
				began, due, calls := time.Now(), l.Deadline(), b.count()
				rest, err := w.Stop(context.Background())
				require.NoError(t, err)
				require.Empty(t, rest)
				require.Equal(t, began, time.Now())

				require.False(t, l.Valid())
				require.ErrorIs(t, l.Err(), renewal.ErrLost)
				require.ErrorIs(t, l.Err(), renewal.ErrUnwatched)
				require.ErrorIs(t, l.Err(), wheel.ErrStopped)
				require.ErrorIs(t, l.Err(), errOwn)
				lost, ok := errors.AsType[*renewal.LostError](l.Err())
				require.True(t, ok)
				require.Equal(t, due, lost.Due)
				require.True(t, isClosed(l.Done()))
				synctest.Wait()
				require.Equal(t, l.Err(), context.Cause(within))
				require.Equal(t, []error{l.Err()}, told)
				require.Equal(t, []error{l.Err()}, reported)
				require.EqualValues(t, 1, r.Stats().Lost)
				require.Contains(t, log.String(), "renewal: lease lost")
				require.Contains(t, log.String(), "the wheel no longer watches the lease")
				require.Contains(t, log.String(), errOwn.Error(), "it says what was lost")
				require.Contains(t, log.String(), "id=01ff")

				close(answered) // a success that comes too late
				time.Sleep(2 * ttl)
				require.ErrorIs(t, l.Err(), renewal.ErrUnwatched)
				require.Equal(t, calls, b.count(), "nothing is sent any more")
				require.Zero(t, r.Len())
				require.NoError(t, r.Close(t.Context()))
			})
		})
	}
}
