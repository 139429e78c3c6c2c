package renewal_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestRenewer_BatchesWhatIsDueTogether(t *testing.T) {
	const leases = 10_000
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
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
		// About 15 rounds of 10 000 in batches of up to 500: at least 300 calls, and not many more.
		require.GreaterOrEqual(t, renewals, 14*leases)
		require.Less(t, len(calls), 3200)
		require.LessOrEqual(t, b.most, 4)
		t.Logf("%d leases, %d renewals in %d calls", leases, renewals, len(calls))

		// Leases taken at one instant do not stay in lockstep: the load is spread over the windows of a third
		// of the lease.
		peak := map[int64]int{}
		for _, c := range calls {
			if age := c.at.Sub(calls[0].at); age > 2*ttl {
				peak[int64(age/renewal.Window(ttl))] += c.size
			}
		}
		for _, n := range peak {
			require.Less(t, n, leases/12)
		}
	})
}

func TestRenewer_LeasesOfOneWindowShareAWakeUpOfTheWheel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const leases, ttl = 3000, 30 * time.Second
		minutes := testsize.Of(2, 10)
		w, err := wheel.New()
		require.NoError(t, err)
		r, err := renewal.New(w)
		require.NoError(t, err)
		b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
		for k := range leases {
			add(t, r, b, renewal.Spec{Key: fmt.Sprint(k), ID: "1", TTL: ttl})
		}
		time.Sleep(time.Minute)
		before, renewed := w.Stats().Wakeups, b.renewals()
		time.Sleep(time.Duration(minutes) * time.Minute)
		woken, renewals := w.Stats().Wakeups-before, b.renewals()-renewed
		require.GreaterOrEqual(t, renewals, leases*minutes*6, "a renewal of each every ten seconds")
		require.LessOrEqual(t, renewals, leases*minutes*7)
		// For each window the wheel wakes to collect and to send.
		windows := int64(minutes) * int64(time.Minute/renewal.Window(ttl))
		require.GreaterOrEqual(t, woken, windows)
		require.LessOrEqual(t, woken, 5*windows)
		require.NoError(t, r.Close(t.Context()))
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
	})
}

// Leases of as many lengths as there are leases, on a backend that answers after 10 ms.
// Guarantees: L13.
func TestRenewer_LeasesOfDifferentLengthsTravelTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, r *renewal.Renewer) {
		const count = 3000
		b := &fakeBackend{}
		calls := 0
		b.answer = func(ctx context.Context, n int, batch *renewal.Batch) error {
			b.mu.Lock()
			calls++
			b.mu.Unlock()
			for _, ref := range batch.Leases {
				if ref.Key != ref.TTL.String() {
					return fmt.Errorf("a lease of %s with a TTL of %s", ref.Key, ref.TTL)
				}
			}
			time.Sleep(10 * time.Millisecond)
			return all(renewal.OutcomeExtended)(ctx, n, batch)
		}
		d, err := r.Destination(b)
		require.NoError(t, err)
		var leases []*renewal.Lease
		for i := range count {
			ttl := 5*time.Second + time.Duration(i)*time.Millisecond
			leases = append(leases, addTo(t, d, renewal.Spec{Key: ttl.String(), ID: fmt.Sprint(i), TTL: ttl}))
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		for _, l := range leases {
			require.NoError(t, l.Err())
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Less(t, calls, 10*count/4, "renewals share calls")
		require.Greater(t, calls, count/500)
	})
}

func TestOutcome_String(t *testing.T) {
	require.Equal(t, "unknown extended gone", fmt.Sprint(renewal.OutcomeUnknown, " ", renewal.OutcomeExtended, " ", renewal.OutcomeGone))
	require.Equal(t, "Outcome(3)", renewal.Outcome(3).String())
}
