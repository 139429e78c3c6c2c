package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// settledWindows is a random schedule of reservations and settlements, at instants that the test chooses.
type settledWindows struct {
	limit ratelimit.Limit
	debts bool // some use more than they reserved
	times int
	seed  uint64
}

// run returns what was used, and how the answers differ from the definition of what was used, and will be at most.
func (c settledWindows) run(s *slidingServer) (d *slidingDefinition, found string) {
	type reservation struct {
		charge ratelimit.Charge
		at     int // in d.ms
		n      int64
	}
	s.t.Helper()
	k := newClient(s.t, s.rdb).Limiter("k", c.limit, bySliding)
	rng, per := rand.New(rand.NewPCG(c.seed, 1)), c.limit.Per.Milliseconds()
	d = &slidingDefinition{limit: oracle.Limit(c.limit)}
	var open []reservation
	for range c.times {
		s.now += rng.Int64N(per / 4)
		if rng.IntN(50) == 0 {
			s.now += rng.Int64N(4 * per)
		}
		if len(open) > 0 && rng.IntN(3) == 0 {
			i := rng.IntN(len(open))
			r := open[i]
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
			if c.debts && rng.IntN(2) == 0 {
				debt := 1 + rng.Int64N(c.limit.Rate)
				d.book(s.now, s.settle(ratelimit.Booking(k, debt, c.limit.Rate)).Booked)
			} else {
				back := 1 + rng.Int64N(r.n)
				s.settle(ratelimit.GivingBack(k, r.charge, back))
				d.giveBack(s.now, r.at, back)
			}
		}
		n := 1 + rng.Int64N(max(1, c.limit.Rate/2))
		if rng.IntN(2) == 0 {
			fits := d.fits(s.now, n)
			got := s.settle(ratelimit.Reserving(k, n, 0))
			if fits != (len(got.Charges) > 0) && found == "" {
				found = fmt.Sprintf("a reservation of %d fits: %t", n, fits)
			}
			for _, charge := range got.Charges {
				d.grant(s.now, n)
				open = append(open, reservation{charge, len(d.ms) - 1, n})
			}
			continue
		}
		if _, wrong := d.disagrees(s, k, n); found == "" {
			found = wrong
		}
	}
	return d, found
}

// A return lowers the count of the window in which the permits were charged, while it counts. So every decision is by
// the definition, as if no more had been reserved than was used, or may be used yet.
// Guarantees: Q22.
func TestReplay_SettledSlidingWindowIsItsDefinition(t *testing.T) {
	t.Parallel()
	for _, limit := range []ratelimit.Limit{perSeconds(20, 60), perSeconds(7, 97), perSeconds(100, 3600), perSeconds(1, 60)} {
		for _, debts := range []bool{false, true} {
			t.Run(fmt.Sprint(limit, ", debts: ", debts), func(t *testing.T) {
				t.Parallel()
				c := settledWindows{limit, debts, 2000, 1}
				d, found := c.run(newSlidingServer(t))
				require.Empty(t, found)
				require.Less(t, 200, len(d.ms)+int(d.debts))
				if debts {
					require.LessOrEqual(t, d.longRun(), 1.1, "debts are paid")
				} else {
					require.LessOrEqual(t, oracle.Excess(d.grants(), oracle.Limit(limit).BucketBound()), 0.0)
				}
			})
		}
	}
}

func TestReplay_FindsASlidingWindowThatSettlesWrongly(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		from, to string
		debts    bool
	}{
		"gives back twice":                          {"= s.current - part,", "= math.max(0, s.current - 2 * part),", false},
		"gives back to the wrong window":            {"if later == 0 then", "if later then", false},
		"gives nothing back to the window before":   {"elseif later == 1 then", "elseif false then", false},
		"ends what was owed with the window":        {"later == 1 and owed or 0", "0", true},
		"forgets what was owed in an idle window":   {"or later == 2 and owed or 0", "or 0", true},
		"does not pay what is owed with what comes": {"math.max(0, s.owed - part)", "s.owed", true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			differs := ""
			for seed := range uint64(3) {
				_, found := settledWindows{perSeconds(20, 60), c.debts, 1000, seed}.run(newSlidingServer(t, c.from, c.to))
				differs += found
			}
			require.NotEmpty(t, differs)
		})
	}
}
