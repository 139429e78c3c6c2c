package renewal_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// onWheel runs f in virtual time with a Renewer on a wheel of that tick.
func onWheel(t *testing.T, tick time.Duration, f func(t *testing.T, r *renewal.Renewer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New(wheel.WithTickDuration(tick))
		require.NoError(t, err)
		r, err := renewal.New(w)
		require.NoError(t, err)
		f(t, r)
		require.NoError(t, r.Close(t.Context()))
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
	})
}

// However long a tick is, a holder hears of the end of its lease before the backend can give the key to
// another.
// Guarantees: A1.
func TestRenewer_AnnouncesInTimeOnACoarseWheel(t *testing.T) {
	for _, tick := range []time.Duration{time.Millisecond, 17 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		for _, ticks := range []int{10, 11, 25, 100} {
			ttl := time.Duration(ticks) * tick
			t.Run(fmt.Sprintf("tick %v, lease %v", tick, ttl), func(t *testing.T) {
				onWheel(t, tick, func(t *testing.T, r *renewal.Renewer) {
					require.Equal(t, 10*tick, r.MinTTL())
					var told sync.WaitGroup
					for i := range 100 { // at any point of a tick
						time.Sleep(tick / 37)
						sentAt := time.Now()
						l, err := r.Watch(renewal.Spec{Key: "k", ID: fmt.Sprint(i), TTL: ttl, SentAt: sentAt})
						require.NoError(t, err)
						told.Go(func() {
							<-l.Done()
							held := time.Since(sentAt)
							if held > ttl*99/100 || held < ttl*3/4-tick {
								t.Errorf("told after %v of %v", held, ttl)
							}
						})
					}
					told.Wait()
				})
			})
		}
	}
}

// Leases as short as the wheel allows are kept on a backend that is well.
func TestRenewer_KeepsTheShortestLeasesOfACoarseWheel(t *testing.T) {
	const tick = 100 * time.Millisecond
	onWheel(t, tick, func(t *testing.T, r *renewal.Renewer) {
		b := &fakeBackend{}
		b.answer = func(ctx context.Context, n int, batch *renewal.Batch) error {
			time.Sleep(10 * time.Millisecond)
			return all(renewal.OutcomeExtended)(ctx, n, batch)
		}
		d, err := r.Destination(b)
		require.NoError(t, err)
		var leases []*renewal.Lease
		for i := range 200 {
			time.Sleep(3 * time.Millisecond)
			leases = append(leases, addTo(t, d, renewal.Spec{Key: "k", ID: fmt.Sprint(i), TTL: r.MinTTL()}))
		}
		time.Sleep(20 * r.MinTTL())
		synctest.Wait()
		for _, l := range leases {
			require.NoError(t, l.Err())
		}
	})
}

// Guarantees: A1.
func TestRenewer_RefusesLeasesTooShortForItsWheel(t *testing.T) {
	onWheel(t, 50*time.Millisecond, func(t *testing.T, r *renewal.Renewer) {
		_, err := r.Watch(renewal.Spec{Key: "k", ID: "1", TTL: 499 * time.Millisecond, SentAt: time.Now()})
		require.ErrorIs(t, err, cogwheel.ErrInvalid)
		require.ErrorContains(t, err, "500ms")
	})
}
