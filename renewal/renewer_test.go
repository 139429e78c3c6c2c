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
	"github.com/cogwheel-go/cogwheel/wheel"
)

const ttl = 30 * time.Second

func TestRenewer_KeepsALeaseAlive(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		b := &fakeBackend{answer: all(renewal.Extended)}
		start := time.Now()
		l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl})

		time.Sleep(10 * ttl)
		synctest.Wait()
		require.NoError(t, l.Err())
		require.True(t, l.Valid())
		require.False(t, isClosed(l.Done()))
		require.Equal(t, map[renewal.Ref]int{{Key: "k", ID: "1"}: b.count()}, b.seen)

		calls := b.history()
		require.GreaterOrEqual(t, len(calls), 29, "one renewal per third of the lease")
		require.LessOrEqual(t, len(calls), 36)
		require.GreaterOrEqual(t, calls[0].at.Sub(start), ttl/6)
		for i := 1; i < len(calls); i++ {
			gap := calls[i].at.Sub(calls[i-1].at)
			require.GreaterOrEqual(t, gap, ttl*3/10)
			require.LessOrEqual(t, gap, ttl/3+200*time.Millisecond, "window and tick included")
		}
		last := calls[len(calls)-1].at
		require.Equal(t, renewal.Deadline(last, ttl), l.Deadline())
		require.True(t, l.Close(nil))
	})
}

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
			all(renewal.Gone), renewal.ErrGone,
			[2]time.Duration{ttl / 6, ttl/3 + 200*time.Millisecond},
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
				l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl, Lost: errMine, OnLost: func(err error) { told <- err }})
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

func TestRenewer_SurvivesFailuresShorterThanTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		start := time.Now()
		b := &fakeBackend{answer: func(ctx context.Context, n int, b *renewal.Batch) error {
			if d := time.Since(start); d > 5*time.Second && d < 25*time.Second {
				return errDown
			}
			return all(renewal.Extended)(ctx, n, b)
		}}
		l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl})
		time.Sleep(3 * ttl)
		require.NoError(t, l.Err())
		require.True(t, l.Valid())
		l.Close(nil)
	})
}

func TestRenewer_NeverRevivesALostLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		// The answer comes after the deadline and says that the lease was extended.
		b := &fakeBackend{answer: func(_ context.Context, _ int, b *renewal.Batch) error {
			time.Sleep(ttl)
			return all(renewal.Extended)(context.Background(), 0, b)
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
			return all(renewal.Extended)(ctx, n, b)
		}}
		l = add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl})
		// Somebody's callback keeps the worker busy while the deadline passes.
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
			return all(renewal.Extended)(context.Background(), n, b)
		}}
		l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl})
		<-l.Done()
		require.GreaterOrEqual(t, time.Since(sentAt), renewal.Lifetime(ttl))
		require.Less(t, time.Since(sentAt), renewal.Lifetime(ttl)+2*time.Millisecond)
	})
}

func TestRenewer_OneHangingDestinationDelaysNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		stuck := make(chan struct{})
		hung := &fakeBackend{answer: func(context.Context, int, *renewal.Batch) error { <-stuck; return errDown }} // ignores its context
		sound := &fakeBackend{answer: all(renewal.Extended)}
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

func TestLease_Close(t *testing.T) {
	t.Run("stops the renewals and names the reason", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			b := &fakeBackend{answer: all(renewal.Extended)}
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
			require.False(t, told, "the holder knows what he did")
		})
	})

	t.Run("keeps a queued lease out of the batch that is about to be sent", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			// One lease keeps the only place busy, the other falls due meanwhile.
			release := make(chan struct{})
			b := &fakeBackend{answer: func(ctx context.Context, n int, b *renewal.Batch) error {
				<-release
				return all(renewal.Extended)(ctx, n, b)
			}}
			d, err := r.Destination(b)
			require.NoError(t, err)
			first := addTo(t, d, renewal.Spec{Key: "first", TTL: ttl})
			for b.count() == 0 {
				time.Sleep(100 * time.Millisecond)
			}
			second := addTo(t, d, renewal.Spec{Key: "second", TTL: ttl})
			time.Sleep(ttl / 2) // second is due and waits for its batch
			require.True(t, second.Close(nil))
			close(release)
			time.Sleep(ttl / 10)
			synctest.Wait()
			require.NotContains(t, b.seen, renewal.Ref{Key: "second"})
			first.Close(nil)
		}, renewal.WithMaxCalls(1))
	})

	for _, answer := range []renewal.Outcome{renewal.Extended, renewal.Gone, renewal.Unknown} {
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
		require.Zero(t, r.Len())
	})
}

func TestRenewer_BatchesWhatIsDueTogether(t *testing.T) {
	const leases = 10_000
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		b := &fakeBackend{answer: all(renewal.Extended)}
		d, err := r.Destination(b)
		require.NoError(t, err)
		addTo(t, d, renewal.Spec{Key: "one", TTL: ttl})
		synctest.Wait()
		before := runtime.NumGoroutine()
		for i := range leases - 1 {
			addTo(t, d, renewal.Spec{Key: "k", ID: fmt.Sprint(i), TTL: ttl})
		}
		synctest.Wait()
		require.LessOrEqual(t, runtime.NumGoroutine(), before+2, "no goroutine per lease")

		time.Sleep(5 * ttl)
		synctest.Wait()
		require.Equal(t, leases, r.Len(), "none lost")
		calls := b.history()
		renewals := 0
		for _, c := range calls {
			renewals += c.size
		}
		// About 15 rounds of 10 000 in batches of up to 100: at least 1500 calls, and not many more.
		require.GreaterOrEqual(t, renewals, 14*leases)
		require.Less(t, len(calls), 3200)
		require.LessOrEqual(t, b.most, 4)
		t.Logf("%d leases, %d renewals in %d calls", leases, renewals, len(calls))

		// Leases taken at one instant do not stay in lockstep: no tenth of a second carries more than a few per cent.
		peak := map[int64]int{}
		for _, c := range calls {
			if age := c.at.Sub(calls[0].at); age > 2*ttl {
				peak[int64(age/(100*time.Millisecond))] += c.size
			}
		}
		for _, n := range peak {
			require.Less(t, n, leases/20)
		}
	})
}

func TestRenewer_LeasesOfOneWindowShareAWakeUpOfTheWheel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const leases, ttl, minutes = 3000, 30 * time.Second, 10
		w, err := wheel.New()
		require.NoError(t, err)
		r, err := renewal.New(w)
		require.NoError(t, err)
		b := &fakeBackend{answer: all(renewal.Extended)}
		for k := range leases {
			add(t, r, b, renewal.Spec{Key: fmt.Sprint(k), ID: "1", TTL: ttl})
		}
		time.Sleep(time.Minute)
		before, renewed := w.Stats().Wakeups, b.renewals()
		time.Sleep(minutes * time.Minute)
		woken, renewals := w.Stats().Wakeups-before, b.renewals()-renewed
		require.GreaterOrEqual(t, renewals, leases*minutes*6, "a renewal of each every ten seconds")
		require.LessOrEqual(t, renewals, leases*minutes*7)
		// Ten windows a second, for each of which the wheel wakes to collect and to send.
		require.LessOrEqual(t, woken, int64(minutes*60*10*5))
		require.NoError(t, r.Close(t.Context()))
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
	})
}

func TestRenewer_GivesEachBatchOneTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		b := &fakeBackend{}
		byTTL := map[time.Duration]int{}
		b.answer = func(ctx context.Context, n int, batch *renewal.Batch) error {
			b.mu.Lock()
			byTTL[batch.TTL] += len(batch.Leases)
			b.mu.Unlock()
			for _, ref := range batch.Leases {
				if ref.Key != batch.TTL.String() {
					return fmt.Errorf("lease of %s in a batch of %s", ref.Key, batch.TTL)
				}
			}
			return all(renewal.Extended)(ctx, n, batch)
		}
		d, err := r.Destination(b)
		require.NoError(t, err)
		var leases []*renewal.Lease
		for i := range 300 {
			ttl := time.Duration(1+i%3) * 10 * time.Second
			leases = append(leases, addTo(t, d, renewal.Spec{Key: ttl.String(), ID: fmt.Sprint(i), TTL: ttl}))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, byTTL, 3)
		for _, l := range leases {
			require.NoError(t, l.Err())
		}
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

func TestLease_Context(t *testing.T) {
	t.Run("ends with its parent", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			l := add(t, r, &fakeBackend{answer: all(renewal.Extended)}, renewal.Spec{Key: "k", TTL: ttl})
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
			l := add(t, r, &fakeBackend{answer: all(renewal.Extended)}, renewal.Spec{Key: "k", TTL: ttl})
			l.Close(nil)
			require.Equal(t, renewal.ErrReleased, context.Cause(l.Context(t.Context())))
		})
	})

	t.Run("costs no goroutine while both last", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			l := add(t, r, &fakeBackend{answer: all(renewal.Extended)}, renewal.Spec{Key: "k", TTL: ttl})
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

func TestRenewer_RefusesBadInput(t *testing.T) {
	w, err := wheel.New()
	require.NoError(t, err)
	defer func() {
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	}()
	r, err := renewal.New(w)
	require.NoError(t, err)
	b := &fakeBackend{answer: all(renewal.Extended)}

	watch := func(ttl time.Duration, sentAt time.Time) error {
		_, err := r.Watch(renewal.Spec{Key: "k", TTL: ttl, SentAt: sentAt})
		return err
	}
	construct := func(w *wheel.Wheel, opts ...renewal.Option) error {
		_, err := renewal.New(w, opts...)
		return err
	}
	_, errBackend := r.Destination(nil)
	for name, tt := range map[string]struct {
		err   error
		field string
	}{
		"no wheel":             {construct(nil), "wheel"},
		"no backend":           {errBackend, "backend"},
		"a nil option":         {construct(w, nil), "option"},
		"an option twice":      {construct(w, renewal.WithBatchSize(1), renewal.WithBatchSize(1)), "option"},
		"a nil logger":         {construct(w, renewal.WithLogger(nil)), "WithLogger"},
		"an empty batch":       {construct(w, renewal.WithBatchSize(0)), "WithBatchSize"},
		"a huge batch":         {construct(w, renewal.WithBatchSize(10_001)), "WithBatchSize"},
		"no calls":             {construct(w, renewal.WithMaxCalls(0)), "WithMaxCalls"},
		"many calls":           {construct(w, renewal.WithMaxCalls(65)), "WithMaxCalls"},
		"a TTL of zero":        {watch(0, time.Now()), "TTL"},
		"a negative TTL":       {watch(-ttl, time.Now()), "TTL"},
		"a TTL below 1 ms":     {watch(time.Millisecond-1, time.Now()), "TTL"},
		"a TTL above 365 days": {watch(renewal.MaxTTL+1, time.Now()), "TTL"},
		"no instant":           {watch(ttl, time.Time{}), "SentAt"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, tt.err, renewal.ErrInvalid)
			var invalid *renewal.InvalidError
			require.ErrorAs(t, tt.err, &invalid)
			require.Equal(t, tt.field, invalid.Field)
		})
	}
	require.Zero(t, r.Len())
	require.Zero(t, w.Len())
	require.Zero(t, b.count())
	require.NoError(t, r.Close(t.Context()))
}
