package clock_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/clock"
)

// Replies take random times. An instant of the server's clock never seems to be earlier than it is, and seems to be
// later only by what the quick replies take. If NTP does not keep the clocks, it may seem to be earlier by the time
// that a request takes to the server.
//
// Guarantees: D1.
func TestServer(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	const way = ms // of a request, at most
	began := time.Unix(1_800_000_000, 0)
	for rate, early := range map[float64]time.Duration{0.99951: 0, 1: 0, 1.00049: 0, 0.99: way, 1.01: way} {
		random := rand.New(rand.NewPCG(1, 2))
		var c clock.Server
		server := func(local time.Time) time.Duration {
			return 5e8*time.Second + time.Duration(float64(local.Sub(began))*rate)
		}
		at, latest := began, time.Duration(0)
		for i := range 10_000 {
			sent := at.Add(time.Duration(random.Int64N(int64(10 * ms))))
			runs := sent.Add(time.Duration(random.Int64N(int64(way))))
			at = runs.Add(time.Duration(random.Int64N(int64(5 * ms))))
			c.Read(server(runs), sent, at)
			late := c.Local(server(runs)).Sub(runs)
			require.GreaterOrEqual(t, late, -early, "rate %v", rate)
			if i > 100 {
				latest = max(latest, late)
			}
		}
		if early == 0 {
			require.Less(t, latest, ms, "rate %v", rate)
		}
	}
}

func TestServer_WasSet(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_800_000_000, 0)
	for _, step := range []time.Duration{-time.Hour, -10 * time.Millisecond, 10 * time.Millisecond, time.Hour} {
		var c clock.Server
		c.Read(5e8*time.Second, began, began.Add(time.Millisecond))
		later, instant := began.Add(10*time.Millisecond), 5e8*time.Second+10*time.Millisecond+step
		c.Read(instant, later, later.Add(2*time.Millisecond))
		require.Equal(t, later.Add(2*time.Millisecond), c.Local(instant), step)
	}
}

func TestServer_WasSetBackDuringARequest(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	began, instant := time.Unix(1_800_000_000, 0), 5e8*time.Second
	var c clock.Server
	c.Read(instant, began, began)
	c.Read(instant+5*ms, began.Add(8*ms), began.Add(10*ms)) // it was set back by 4 ms, and the request took 1 ms
	require.Equal(t, began.Add(10*ms), c.Local(instant+5*ms), "it is noticed")
	c.Read(instant+7*ms, began.Add(10*ms), began.Add(14*ms)) // again by 1 ms, and the request took 2 ms
	require.Equal(t, began.Add(12*ms+2*time.Microsecond), c.Local(instant+7*ms), "it is not")
	c.Read(instant+8*ms, began.Add(14*ms), began.Add(14*ms))
	require.Equal(t, began.Add(14*ms), c.Local(instant+8*ms), "by a quicker request it is")
}
