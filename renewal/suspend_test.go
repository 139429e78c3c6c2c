package renewal_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/clock/clocktest"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// onClock runs f in virtual time with a Renewer on a machine that f suspends and whose wall clock f sets.
func onClock(t *testing.T, f func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := new(clocktest.Clock)
		w, err := wheel.New(wheel.WithClock(m))
		require.NoError(t, err)
		r, err := renewal.New(w)
		require.NoError(t, err)
		r.UseClock(m.Read)
		f(t, r, m)
		require.NoError(t, r.Close(t.Context()))
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
	})
}

// Guarantees: C1.
func TestLease_AStepOfTheWallClock(t *testing.T) {
	for _, step := range []time.Duration{time.Minute, -time.Minute, 100 * time.Millisecond} {
		t.Run("by "+step.String()+" loses no lease", func(t *testing.T) {
			onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
				renewed := add(t, r, &fakeBackend{answer: all(renewal.OutcomeExtended)}, renewal.Spec{TTL: ttl, SentAt: m.Now()})
				watched, err := r.Watch(renewal.Spec{TTL: time.Hour, SentAt: m.Now()})
				require.NoError(t, err)
				for range 10 {
					time.Sleep(time.Minute)
					m.Step(step)
					require.True(t, renewed.Valid())
					require.True(t, watched.Valid())
				}
				time.Sleep(49 * time.Minute)
				require.True(t, renewed.Valid())
				require.True(t, watched.Valid())
				time.Sleep(time.Minute)
				require.NoError(t, renewed.Err())
				require.ErrorIs(t, watched.Err(), renewal.ErrExpired, "as without the step")
			})
		})
	}

	t.Run("ahead has all leases renewed at once, in batches, and once", func(t *testing.T) {
		onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
			const n = 10000
			b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
			d, err := r.Destination(b)
			require.NoError(t, err)
			leases := make([]*renewal.Lease, n)
			for i := range leases {
				leases[i] = addTo(t, d, renewal.Spec{TTL: ttl, SentAt: m.Now()})
			}
			m.Step(40 * time.Second)
			require.True(t, leases[0].Valid(), "which notices the step")
			time.Sleep(time.Second)
			require.Equal(t, n, b.renewals())
			require.Equal(t, n/500, b.count())
			time.Sleep(time.Second)
			require.Equal(t, n, b.renewals())
			require.Equal(t, n, r.Len())
		})
	})

	t.Run("is noticed when the next of all leases falls due", func(t *testing.T) {
		onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
			b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
			add(t, r, b, renewal.Spec{TTL: time.Hour, SentAt: m.Now()})
			add(t, r, b, renewal.Spec{TTL: time.Minute, SentAt: m.Now()})
			m.Step(2 * time.Hour)
			time.Sleep(21 * time.Second)
			b.mu.Lock()
			defer b.mu.Unlock()
			require.Equal(t, map[renewal.Ref]int{{TTL: time.Hour}: 1, {TTL: time.Minute}: 1}, b.seen)
		})
	})

	t.Run("by less than the margin, or back, makes no lease due", func(t *testing.T) {
		for _, step := range []time.Duration{300 * time.Millisecond, -time.Hour} {
			onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
				b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
				l := add(t, r, b, renewal.Spec{TTL: ttl, SentAt: m.Now()})
				m.Step(step)
				require.True(t, l.Valid())
				time.Sleep(4 * time.Second)
				require.Zero(t, b.count())
			})
		}
	})

	t.Run("ahead leaves the retries of a backend that is down at their pace", func(t *testing.T) {
		onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
			b := &fakeBackend{answer: down}
			l := add(t, r, b, renewal.Spec{TTL: ttl, SentAt: m.Now()})
			m.Step(time.Minute)
			require.True(t, l.Valid())
			time.Sleep(10 * time.Second)
			require.Greater(t, b.count(), 4)
			require.Less(t, b.count(), 12)
			time.Sleep(20 * time.Second)
			require.ErrorIs(t, l.Err(), renewal.ErrExpired)
		})
	})

	t.Run("ahead loses a lease that the backend does not know any more", func(t *testing.T) {
		onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
			l := add(t, r, &fakeBackend{answer: all(renewal.OutcomeGone)}, renewal.Spec{TTL: ttl, SentAt: m.Now()})
			m.Step(time.Minute)
			require.True(t, l.Valid())
			time.Sleep(time.Second)
			require.ErrorIs(t, l.Err(), renewal.ErrGone)
		})
	})

	t.Run("ahead has a term renewed at once that was requested before it", func(t *testing.T) {
		for name, request := range map[string]func(*renewal.Renewer, *clocktest.Clock, *fakeBackend){
			"by the holder": func(r *renewal.Renewer, m *clocktest.Clock, b *fakeBackend) {
				sentAt := m.Now()
				m.Step(time.Minute)
				add(t, r, b, renewal.Spec{TTL: ttl, SentAt: sentAt})
			},
			"to prolong it": func(r *renewal.Renewer, m *clocktest.Clock, b *fakeBackend) {
				l := add(t, r, b, renewal.Spec{TTL: ttl, SentAt: m.Now()})
				time.Sleep(time.Second)
				sentAt := m.Now()
				m.Step(time.Minute)
				require.True(t, l.Prolong(sentAt, 2*ttl))
			},
			"by a renewal": func(r *renewal.Renewer, m *clocktest.Clock, b *fakeBackend) {
				first := true
				b.answer = func(ctx context.Context, n int, batch *renewal.Batch) error {
					if first {
						first, b.calls = false, nil
						m.Step(time.Minute)
					}
					return all(renewal.OutcomeExtended)(ctx, n, batch)
				}
				add(t, r, b, renewal.Spec{TTL: ttl, SentAt: m.Now()})
				time.Sleep(11 * time.Second)
			},
		} {
			t.Run(name, func(t *testing.T) {
				onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
					b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
					request(r, m, b)
					time.Sleep(time.Second)
					require.Equal(t, 1, b.count())
				})
			})
		}
	})
}

// Guarantees: C2.
func TestLease_ASuspendedMachine(t *testing.T) {
	t.Run("has lost its leases when it wakes, and says so at once", func(t *testing.T) {
		for _, step := range []time.Duration{0, time.Hour, -time.Hour} { // of the wall clock meanwhile
			onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
				renewed := add(t, r, &fakeBackend{answer: all(renewal.OutcomeExtended)}, renewal.Spec{TTL: ttl, SentAt: m.Now()})
				watched, err := r.Watch(renewal.Spec{TTL: ttl, SentAt: m.Now()})
				require.NoError(t, err)
				time.Sleep(time.Second)
				m.Suspend(29 * time.Second)
				m.Step(step)
				require.False(t, renewed.Valid())
				require.False(t, watched.Valid())
				time.Sleep(100 * time.Millisecond)
				require.True(t, isClosed(renewed.Done()), "not when its renewal would have been due")
				require.ErrorIs(t, renewed.Err(), renewal.ErrExpired)
				require.ErrorIs(t, watched.Err(), renewal.ErrExpired)
			})
		}
	})

	t.Run("has lost a lease that was requested before it was suspended", func(t *testing.T) {
		onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
			sentAt := m.Now()
			m.Suspend(ttl)
			_, err := r.Watch(renewal.Spec{TTL: ttl, SentAt: sentAt})
			require.ErrorIs(t, err, renewal.ErrExpired)
			l, err := r.Watch(renewal.Spec{TTL: ttl, SentAt: m.Now()})
			require.NoError(t, err)
			m.Suspend(ttl)
			require.False(t, l.Prolong(m.Now(), ttl))
		})
	})

	t.Run("renews leases at once that became due meanwhile", func(t *testing.T) {
		onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
			b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
			l := add(t, r, b, renewal.Spec{TTL: ttl, SentAt: m.Now()})
			m.Suspend(25 * time.Second)
			require.True(t, l.Valid())
			time.Sleep(time.Second)
			require.Equal(t, 1, b.count())
			time.Sleep(8 * time.Second)
			require.Equal(t, 1, b.count(), "the new term counts from after the suspend")
			require.True(t, l.Valid())
		})
	})

	t.Run("renews a lease at the usual pace whose longer term was requested before", func(t *testing.T) {
		onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
			b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
			l := add(t, r, b, renewal.Spec{TTL: ttl, SentAt: m.Now()})
			require.True(t, l.Prolong(m.Now(), 3*ttl))
			time.Sleep(time.Second)
			m.Suspend(80 * time.Second)
			require.True(t, l.Valid())
			time.Sleep(time.Minute)
			require.True(t, l.Valid())
			require.Less(t, b.count(), 10)
		})
	})

	t.Run("does not lose the leases of later by a step of the wall clock", func(t *testing.T) {
		onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
			m.Suspend(time.Hour)
			l, err := r.Watch(renewal.Spec{TTL: ttl, SentAt: m.Now()})
			require.NoError(t, err)
			m.Step(time.Hour)
			require.True(t, l.Valid())
		})
	})

	t.Run("without a boot clock has lost its leases if the wall clock says so", func(t *testing.T) {
		onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
			r.UseClock(m.ReadWithoutBoot)
			l := add(t, r, &fakeBackend{answer: all(renewal.OutcomeExtended)}, renewal.Spec{TTL: ttl, SentAt: m.Now()})
			m.Step(-time.Hour)
			require.True(t, l.Valid())
			m.Step(ttl)
			require.False(t, l.Valid())
		})
	})
}

func TestRenewer_ReadsTheBootClockOnlyAfterAStep(t *testing.T) {
	onClock(t, func(t *testing.T, r *renewal.Renewer, m *clocktest.Clock) {
		l := add(t, r, &fakeBackend{answer: all(renewal.OutcomeExtended)}, renewal.Spec{TTL: ttl, SentAt: m.Now()})
		time.Sleep(time.Hour)
		require.True(t, l.Valid())
		require.Equal(t, 1, m.Reads())
		m.Step(time.Hour)
		require.True(t, l.Valid())
		time.Sleep(time.Hour)
		require.Equal(t, 2, m.Reads())
	})
}

// pastClock shows a time long ago, without a monotonic reading.
type pastClock struct{}

func (pastClock) Now() time.Time                         { return time.Now().AddDate(-20, 0, 0).Round(0) }
func (pastClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

func TestStats_CallsAreTimedByTheClockOfTheWheel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New(wheel.WithClock(pastClock{}))
		require.NoError(t, err)
		var took time.Duration
		r, err := renewal.New(w, renewal.WithHooks(renewal.Hooks{Renewed: func(e renewal.Event) { took = e.Took }}))
		require.NoError(t, err)
		slow := func(ctx context.Context, n int, b *renewal.Batch) error {
			time.Sleep(time.Second)
			return all(renewal.OutcomeExtended)(ctx, n, b)
		}
		add(t, r, &fakeBackend{answer: slow}, renewal.Spec{TTL: ttl, SentAt: w.Now()})
		time.Sleep(ttl)
		require.NoError(t, r.Close(t.Context()))
		require.Equal(t, time.Second, took)
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
	})
}
