package renewal_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/renewal"
)

// Guarantees: L15.
func TestLease_Prolong(t *testing.T) {
	t.Parallel()

	t.Run("moves the deadline, which renewals do not bring back", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			b := &fakeBackend{answer: all(renewal.OutcomeExtended)}
			start := time.Now()
			l := add(t, r, b, renewal.Spec{Key: "k", ID: "1", TTL: ttl})
			require.True(t, l.Prolong(start, 10*ttl))
			require.Equal(t, renewal.Deadline(start, 10*ttl), l.Deadline())
			time.Sleep(2 * ttl)
			synctest.Wait()
			require.GreaterOrEqual(t, b.count(), 5, "renewals go on")
			require.Equal(t, renewal.Deadline(start, 10*ttl), l.Deadline())
			time.Sleep(18 * ttl)
			synctest.Wait()
			require.NoError(t, l.Err(), "and carry it over the end of the longer term")
			l.Close(nil)
		})
	})

	t.Run("keeps a lease through failures up to its end", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			start := time.Now()
			l := add(t, r, &fakeBackend{answer: down}, renewal.Spec{Key: "k", ID: "1", TTL: ttl})
			require.True(t, l.Prolong(start, 3*ttl))
			require.True(t, l.Prolong(start, ttl/2), "a shorter term changes nothing")
			<-l.Done()
			took := time.Since(start)
			require.GreaterOrEqual(t, took, renewal.Lifetime(3*ttl))
			require.Less(t, took, 3*ttl)
			require.ErrorIs(t, l.Err(), renewal.ErrExpired)
			require.False(t, l.Prolong(time.Now(), ttl), "a loss is final")
		})
	})

	t.Run("too late it revives nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			start := time.Now()
			l, err := r.Watch(renewal.Spec{Key: "k", ID: "1", TTL: ttl, SentAt: start})
			require.NoError(t, err)
			time.Sleep(ttl)
			require.False(t, l.Prolong(start, 10*ttl))
			require.ErrorIs(t, l.Err(), renewal.ErrLost)
		})
	})

	t.Run("MarkLost ends the lease as lost, once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, r *renewal.Renewer) {
			told := 0
			l, err := r.Watch(renewal.Spec{Key: "k", ID: "1", TTL: ttl, SentAt: time.Now(), OnLost: func(error) { told++ }})
			require.NoError(t, err)
			require.True(t, l.MarkLost())
			require.False(t, l.MarkLost())
			require.ErrorIs(t, l.Err(), renewal.ErrGone)
			require.Equal(t, 1, told)
		})
	})
}
