package renewal_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cogwheel-go/cogwheel/renewal"
)

func drawTTL(t *rapid.T) time.Duration {
	// Uniform in the exponent: short leases are as likely as long ones.
	const shortest = 10 * renewal.Tick
	e := rapid.Float64Range(math.Log(float64(shortest)), math.Log(float64(renewal.MaxTTL))).Draw(t, "ln ttl")
	return min(max(time.Duration(math.Exp(e)), shortest), renewal.MaxTTL)
}

// Guarantees: L2, D9.
func TestDeadline_LiesBeforeTheServersExpiry(t *testing.T) {
	t.Run("for every split of the round trip and clocks up to one percent apart", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			ttl := drawTTL(t)
			sentAt := time.Now()
			toServer := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "to server"))
			// The server's clock may run up to 1% fast against ours.
			rate := rapid.Float64Range(1, 1.01).Draw(t, "server rate")
			serverExpiry := sentAt.Add(toServer + time.Duration(float64(ttl)/rate))

			require.True(t, renewal.Deadline(sentAt, ttl).Before(serverExpiry))
		})
	})

	t.Run("and leaves room for a late announcement", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			ttl := drawTTL(t)
			room := ttl - renewal.Lifetime(ttl)
			require.GreaterOrEqual(t, room, min(ttl/10, 50*time.Millisecond)+renewal.Tick)
			require.LessOrEqual(t, room, ttl*12/100+renewal.Tick+1)
			require.Greater(t, renewal.Lifetime(ttl), ttl*3/4)
		})
	})

	t.Run("but a deadline counted from the reply does not (control)", func(t *testing.T) {
		sentAt, ttl := time.Now(), time.Second
		reply := sentAt.Add(200 * time.Millisecond) // the request arrived at once, its reply took 200 ms
		require.False(t, renewal.Deadline(reply, ttl).Before(sentAt.Add(ttl)))
	})
}

func TestRenewalTimes_KeepTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ttl := drawTTL(t)
		u := rapid.Float64Range(0, 0.9999999).Draw(t, "u")
		slack := time.Duration(2) // rounding

		first, next := renewal.FirstRenewal(ttl, u), renewal.NextRenewal(ttl, u)
		require.GreaterOrEqual(t, first+slack, ttl/6)
		require.LessOrEqual(t, first, ttl/3)
		require.GreaterOrEqual(t, next+slack, ttl*3/10)
		require.LessOrEqual(t, next, ttl/3)

		retry := renewal.RetryAfter(ttl, u)
		require.GreaterOrEqual(t, retry+slack, ttl/20*3/4)
		require.LessOrEqual(t, retry, ttl/20*5/4+slack)

		require.LessOrEqual(t, renewal.Window(ttl), 300*time.Millisecond)
		// The last try of a row that began on time still starts before the deadline.
		require.Less(t, next+renewal.Window(ttl)+renewal.CallTimeout(ttl)+renewal.RetryAfter(ttl, 0.999)+renewal.Window(ttl),
			renewal.Lifetime(ttl)+renewal.Tick+ttl/20)
		if ttl >= 2*time.Second {
			require.Less(t, next+2*(renewal.Window(ttl)+renewal.CallTimeout(ttl)+renewal.RetryAfter(ttl, 0.999)),
				renewal.Lifetime(ttl), "two lost calls leave time for a third")
		}
	})
}
