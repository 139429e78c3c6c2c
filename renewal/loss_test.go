package renewal_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Guarantees: L2, D9.
func TestRenewer_AnnouncesALoss(t *testing.T) {
	// lateness is what the entry that announces may add: one tick.
	const lateness = 2 * time.Millisecond

	for _, tt := range []struct {
		name   string
		answer func(context.Context, int, *renewal.Batch) error
		cause  error
		after  [2]time.Duration // two-sided bound on the instant of the announcement
		calls  [2]int
	}{
		{
			"at once when the backend says the lease is gone",
			all(renewal.OutcomeGone), renewal.ErrGone,
			[2]time.Duration{ttl/6 - 300*time.Millisecond, ttl/3 + 200*time.Millisecond},
			[2]int{1, 1},
		},
		{
			"at the deadline when every renewal fails",
			down, errDown,
			[2]time.Duration{renewal.Lifetime(ttl), renewal.Lifetime(ttl) + lateness},
			[2]int{10, 30},
		},
		{
			"at the deadline when the backend hangs until its context ends",
			hang, context.DeadlineExceeded,
			[2]time.Duration{renewal.Lifetime(ttl), renewal.Lifetime(ttl) + lateness},
			[2]int{3, 5},
		},
		{
			"at the deadline when the backend answers without an outcome",
			func(context.Context, int, *renewal.Batch) error { return nil }, renewal.ErrExpired,
			[2]time.Duration{renewal.Lifetime(ttl), renewal.Lifetime(ttl) + lateness},
			[2]int{10, 30},
		},
		{
			"at the deadline when the backend panics",
			func(context.Context, int, *renewal.Batch) error { panic("boom") }, renewal.ErrExpired,
			[2]time.Duration{renewal.Lifetime(ttl), renewal.Lifetime(ttl) + lateness},
			[2]int{10, 30},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *renewal.Renewer) {
				b := &fakeBackend{answer: tt.answer}
				errMine := errors.New("mine: lost")
				told := make(chan error, 2)
				start := time.Now()
				onLost := func(err error) { told <- err }
				l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl, Lost: errMine, OnLost: onLost})
				ctx := l.Context(t.Context())

				<-l.Done()
				took := time.Since(start)
				require.GreaterOrEqual(t, took, tt.after[0])
				require.LessOrEqual(t, took, tt.after[1])
				require.Less(t, took, ttl, "the server may give the key away at the lease's end")
				require.False(t, l.Valid())

				synctest.Wait()
				err := l.Err()
				require.ErrorIs(t, err, renewal.ErrLost)
				require.ErrorIs(t, err, errMine)
				require.ErrorIs(t, err, tt.cause)
				require.ErrorContains(t, err, "mine: lost")
				var lost *renewal.LostError
				require.ErrorAs(t, err, &lost)
				require.Equal(t, "k", lost.Key)
				require.Equal(t, err, <-told)
				require.ErrorIs(t, context.Cause(ctx), errMine)
				require.Zero(t, r.Len())

				n := b.count()
				require.GreaterOrEqual(t, n, tt.calls[0])
				require.LessOrEqual(t, n, tt.calls[1])
				time.Sleep(2 * ttl)
				require.Equal(t, n, b.count(), "a lost lease is not renewed")
				require.Empty(t, told, "a loss is announced once")
				require.False(t, l.Close(nil))
				require.Equal(t, err, l.Err())
			})
		})
	}
}

// Guarantees: L13.
func TestRenewer_SurvivesFailuresShorterThanTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		start, failed := time.Now(), 0
		b := &fakeBackend{answer: func(ctx context.Context, n int, b *renewal.Batch) error {
			if d := time.Since(start); d > 5*time.Second && d < 25*time.Second {
				failed++
				return errDown
			}
			return all(renewal.OutcomeExtended)(ctx, n, b)
		}}
		l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl})
		time.Sleep(3 * ttl)
		require.NoError(t, l.Err())
		require.True(t, l.Valid())
		require.Greater(t, failed, 5, "they are repeated soon, not when the next renewal would be due")
		l.Close(nil)
	})
}

// Guarantees: L4.
func TestRenewer_NeverRevivesALostLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		// The answer comes after the deadline and says that the lease was extended.
		b := &fakeBackend{answer: func(_ context.Context, _ int, b *renewal.Batch) error {
			time.Sleep(ttl)
			return all(renewal.OutcomeExtended)(context.Background(), 0, b)
		}}
		l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl})
		<-l.Done()
		require.ErrorIs(t, l.Err(), renewal.ErrExpired)
		time.Sleep(ttl)
		require.ErrorIs(t, l.Err(), renewal.ErrExpired)
		require.False(t, l.Valid())
		require.Equal(t, 1, b.count())
	})
}

func TestRenewer_TheOldDeadlineDecidesWhenTheWheelIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New(wheel.WithExecutor(wheel.Inline()))
		require.NoError(t, err)
		r, err := renewal.New(w)
		require.NoError(t, err)

		var l *renewal.Lease
		b := &fakeBackend{answer: func(ctx context.Context, n int, b *renewal.Batch) error {
			time.Sleep(time.Until(l.Deadline()) + time.Millisecond)
			return all(renewal.OutcomeExtended)(ctx, n, b)
		}}
		l = add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl})
		// Another callback keeps the worker busy while the deadline passes.
		_, err = w.AfterFunc(time.Until(l.Deadline())-time.Second, func() { time.Sleep(10 * time.Second) })
		require.NoError(t, err)
		time.Sleep(time.Until(l.Deadline()) + time.Microsecond)
		require.False(t, l.Valid())
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, 1, b.count())
		require.ErrorIs(t, l.Err(), renewal.ErrExpired, "what was invalid once must not be valid again")
		require.NoError(t, r.Close(t.Context()))
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
	})
}

func TestRenewer_CountsTheNewDeadlineFromTheSending(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		const slow = 4 * time.Second
		var sentAt time.Time
		b := &fakeBackend{answer: func(_ context.Context, n int, b *renewal.Batch) error {
			if n > 1 {
				return errDown
			}
			sentAt = time.Now()
			time.Sleep(slow)
			return all(renewal.OutcomeExtended)(context.Background(), n, b)
		}}
		l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl})
		<-l.Done()
		require.GreaterOrEqual(t, time.Since(sentAt), renewal.Lifetime(ttl))
		require.Less(t, time.Since(sentAt), renewal.Lifetime(ttl)+2*time.Millisecond)
	})
}

// Guarantees: L2.
func TestRenewer_OneHangingDestinationDelaysNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		stuck := make(chan struct{})
		ignoresItsContext := func(context.Context, int, *renewal.Batch) error { <-stuck; return errDown }
		hung := &fakeBackend{answer: ignoresItsContext}
		sound := &fakeBackend{answer: all(renewal.OutcomeExtended)}
		dHung, err := r.Destination(hung)
		require.NoError(t, err)
		dSound, err := r.Destination(sound)
		require.NoError(t, err)
		var lost, kept []*renewal.Lease
		for i := range 1000 {
			lost = append(lost, addTo(t, dHung, renewal.Spec{Key: "hung", ID: fmt.Sprint(i), TTL: ttl}))
			kept = append(kept, addTo(t, dSound, renewal.Spec{Key: "sound", ID: fmt.Sprint(i), TTL: ttl}))
		}
		time.Sleep(renewal.Lifetime(ttl) + 10*time.Millisecond)
		synctest.Wait()
		for _, l := range lost {
			require.ErrorIs(t, l.Err(), renewal.ErrExpired)
		}
		time.Sleep(2 * ttl)
		for _, l := range kept {
			require.NoError(t, l.Err())
		}
		synctest.Wait()
		require.LessOrEqual(t, hung.most, 4)
		close(stuck)
	})
}
