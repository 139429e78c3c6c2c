package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// withoutPlaces is where the script has to know whether there are places.
const withoutPlaces = "quiet = quiet and us < zone_us and not ARGV[debt + 1]"

// sameReplies makes random calls for two keys, of which the script always reads the places of the second. It returns
// what differs. replaced is what is broken for the first key.
func sameReplies(t *testing.T, limit ratelimit.Limit, seed uint64, replaced ...string) error {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	p := newPlaces(t, limit, replaced...)
	other := newPlaces(t, limit, withoutPlaces, "quiet = false")
	var charges []ratelimit.Charge
	for range 300 {
		p.now += []int64{0, 0, 10, 900, 40_000, 1_000_000, 30_000_000}[random.IntN(7)]
		n := 1 + random.Int64N(limit.Burst)
		var q *ratelimit.Asking
		switch random.IntN(9) {
		case 0:
			q = ratelimit.Reserving(p.k, n, time.Duration(random.IntN(2))*time.Minute)
		case 1:
			q = ratelimit.ChargingAhead(p.k, n, time.Duration(random.IntN(2))*time.Second)
		case 2:
			q = ratelimit.AskOf(p.k, true, 1, n, 1, 1)
		case 3:
			q = ratelimit.AskOf(p.k, false, 1, n)
		case 4:
			q = ratelimit.Booking(p.k, n, 2*limit.Burst)
		default:
			if len(charges) == 0 {
				continue
			}
			i := max(0, len(charges)-1-random.IntN(4))
			q = ratelimit.GivingBack(p.k, charges[i], 1+random.Int64N(charges[i].N))
			if random.IntN(2) == 0 {
				q = q.AndAsk(n)
			}
			charges = slices.Delete(charges, i, i+1)
		}
		call := q.Call(p.key)
		got, want := p.execute(call, p.now), other.execute(q.Call(other.key), p.now)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%v: %v, with places %v", call.Args, got, want)
		}
		settled, err := q.Settled(got)
		require.NoError(t, err)
		charges = append(charges, settled.Charges...)
	}
	return nil
}

var limitsWithoutPlaces = []ratelimit.Limit{
	ratelimit.PerSecond(1).WithBurst(4), ratelimit.PerSecond(7).WithBurst(30), ratelimit.PerMinute(11).WithBurst(20),
	ratelimit.PerSecond(1_000_000),
}

// The script decides in the same way whether it looks for places or knows that there are none.
func TestRateGCRA_DecidesWithoutPlacesAsWithThem(t *testing.T) {
	t.Parallel()
	for i, limit := range limitsWithoutPlaces {
		for seed := range uint64(4) {
			require.NoError(t, sameReplies(t, limit, seed), i)
		}
	}
}

func TestRateGCRA_DecidesWithoutPlacesAsWithThem_FindsWhatDiffers(t *testing.T) {
	t.Parallel()
	for what, broken := range map[string][]string{
		"beyond the zone":                {"all and to_us < zone_us)", "all)"},
		"a denied waiter":                {"(not in_order or all and", "(not in_order or"},
		"returns behind it count":        {"since = since - (r.place > place and r.us or 0)\n    end\n    local beyond, part_us", "end\n    local beyond, part_us"},
		"more is given back than exists": {"part_us >= beyond", "part_us >= 2 * beyond"},
		"returns are forgotten":          {"list == '' and list or ':0:' .. list", "''"},
		"the period is not kept":         {"ARGV[4], period, so_far, tail)", "ARGV[4], nil, nil, nil)"},
		"a debt is not charged":          {"and not ARGV[debt + 1]", ""},
		"the count of what follows":      {"places[n + 3] = to_us, to_num, granted", "places[n + 3] = to_us, to_num, 1"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, limit := range limitsWithoutPlaces {
				for seed := range uint64(4) {
					if sameReplies(t, limit, seed, broken...) != nil {
						return
					}
				}
			}
			t.Error("not found")
		})
	}
}
