package renewal_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Guarantees: L13.
func TestRenewer_KeepsALeaseAlive(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
		start := time.Now()
		l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl})

		time.Sleep(10 * ttl)
		synctest.Wait()
		require.NoError(t, l.Err())
		require.True(t, l.Valid())
		require.False(t, isClosed(l.Done()))
		require.Equal(t, map[renewal.Ref]int{{Key: "k", ID: "1", TTL: ttl}: b.count()}, b.seen)

		calls := b.history()
		require.GreaterOrEqual(t, len(calls), 29, "one renewal per third of the lease")
		require.LessOrEqual(t, len(calls), 36)
		const window = 300 * time.Millisecond // within which a renewal may be early, to share a call
		require.GreaterOrEqual(t, calls[0].at.Sub(start), ttl/6-window)
		for i := 1; i < len(calls); i++ {
			gap := calls[i].at.Sub(calls[i-1].at)
			require.GreaterOrEqual(t, gap, ttl*3/10)
			require.LessOrEqual(t, gap, ttl/3+50*time.Millisecond, "batch delay and tick included")
		}
		last := calls[len(calls)-1].at
		require.Equal(t, renewal.Deadline(last, ttl), l.Deadline())
		require.True(t, l.Close(nil))
	})
}

// A wheel that is full of the user's timers has room for renewals.
// Guarantees: W23.
func TestRenewer_KeepsALeaseOnAFullWheel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New(wheel.WithMaxPendingTimeouts(1))
		require.NoError(t, err)
		_, err = w.AfterFunc(time.Hour, func() {})
		require.NoError(t, err)
		r, err := renewal.New(w)
		require.NoError(t, err)
		l := add(t, r, &fakeBackend{answer: all(renewal.OutcomeExtended)}, renewal.Spec{Key: "k", ID: "1", TTL: ttl})
		time.Sleep(3 * ttl)
		require.NoError(t, l.Err())
		require.NoError(t, r.Close(t.Context()))
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
	})
}

func TestRenewer_Watch(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		start := time.Now()
		l, err := r.Watch(renewal.Spec{Key: "k", TTL: ttl, SentAt: start})
		require.NoError(t, err)
		require.Equal(t, renewal.Deadline(start, ttl), l.Deadline())
		<-l.Done()
		require.Less(t, time.Since(start), ttl)
		require.GreaterOrEqual(t, time.Since(start), renewal.Lifetime(ttl))
		require.ErrorIs(t, l.Err(), renewal.ErrExpired)

		_, err = r.Watch(renewal.Spec{Key: "k", TTL: ttl, SentAt: start})
		require.ErrorIs(t, err, renewal.ErrLost, "a lease whose deadline has passed is never handed out")
		synctest.Wait() // until the first one is forgotten
		require.Zero(t, r.Len())
	})
}

func TestRenewer_Close(t *testing.T) {
	t.Run("ends the leases and waits for the calls in flight", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			b := &fakeBackend{answer: hang}
			var told error
			l := add(t, r, b, renewal.Spec{Key: "k", TTL: ttl, OnLost: func(err error) { told = err }})
			for b.count() == 0 {
				time.Sleep(100 * time.Millisecond)
			}
			require.NoError(t, r.Close(t.Context()))
			require.Zero(t, b.inFlight)
			require.True(t, isClosed(l.Done()))
			require.Equal(t, renewal.ErrClosed, l.Err())
			require.Equal(t, renewal.ErrClosed, told)

			d, err := r.Destination(b)
			require.NoError(t, err)
			_, err = d.Add(renewal.Spec{Key: "k", TTL: ttl, SentAt: time.Now()})
			require.ErrorIs(t, err, renewal.ErrClosed)
		})
	})

	t.Run("gives up waiting when its context ends", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			stuck := make(chan struct{})
			b := &fakeBackend{answer: func(context.Context, int, *renewal.Batch) error { <-stuck; return nil }}
			add(t, r, b, renewal.Spec{Key: "k", TTL: ttl})
			for b.count() == 0 {
				time.Sleep(100 * time.Millisecond)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.ErrorIs(t, r.Close(ctx), context.DeadlineExceeded)
			close(stuck)
		})
	})
}

func TestRenewer_TellsTheHolderWhenTheWheelStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		r, err := renewal.New(w)
		require.NoError(t, err)
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
		_, err = r.Watch(renewal.Spec{Key: "k", TTL: ttl, SentAt: time.Now()})
		require.ErrorIs(t, err, wheel.ErrStopped)
		require.Zero(t, r.Len())
		require.NoError(t, r.Close(t.Context()))
	})
}

// Guarantees: A1.
func TestRenewer_RefusesBadInput(t *testing.T) {
	w, err := wheel.New()
	require.NoError(t, err)
	defer func() {
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	}()
	r, err := renewal.New(w)
	require.NoError(t, err)
	b := &fakeBackend{answer: all(renewal.OutcomeExtended)}

	watch := func(ttl time.Duration, sentAt time.Time) error {
		_, err := r.Watch(renewal.Spec{Key: "k", TTL: ttl, SentAt: sentAt})
		return err
	}
	construct := func(w *wheel.Wheel, opts ...renewal.Option) error {
		_, err := renewal.New(w, opts...)
		return err
	}
	_, errBackend := r.Destination(nil)
	var none context.Context
	for name, tt := range map[string]struct {
		err   error
		field string
	}{
		"no wheel":             {construct(nil), "wheel"},
		"no backend":           {errBackend, "backend"},
		"a nil context":        {r.Close(none), "context"},
		"a nil option":         {construct(w, nil), "option"},
		"a nil logger":         {construct(w, renewal.WithLogger(nil)), "WithLogger"},
		"a TTL of zero":        {watch(0, time.Now()), "TTL"},
		"a negative TTL":       {watch(-ttl, time.Now()), "TTL"},
		"a TTL below 1 ms":     {watch(time.Millisecond-1, time.Now()), "TTL"},
		"a TTL above 365 days": {watch(renewal.MaxTTL+1, time.Now()), "TTL"},
		"no instant":           {watch(ttl, time.Time{}), "SentAt"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, tt.err, cogwheel.ErrInvalid)
			var invalid *cogwheel.InvalidError
			require.ErrorAs(t, tt.err, &invalid)
			require.Equal(t, tt.field, invalid.Field)
		})
	}
	require.Zero(t, r.Len())
	require.Zero(t, w.Len())
	require.Zero(t, b.count())
	require.NoError(t, watch(ttl, time.Now()), "a Close that was refused closes nothing")
	require.NoError(t, r.Close(t.Context()))
}
