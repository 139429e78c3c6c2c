package ratelimit_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
)

// rational is GCRA as it is written in the books, in rationals of unlimited size. It finds drifts, which oracle.Bucket
// has itself: that counts whole nanoseconds.
type rational struct {
	step, full, tat *big.Rat
}

func newRational(l ratelimit.Limit) *rational {
	step := new(big.Rat).SetFrac(big.NewInt(int64(l.Per)), new(big.Int).Mul(big.NewInt(l.Rate), big.NewInt(1000)))
	return &rational{step, new(big.Rat).Mul(step, new(big.Rat).SetInt64(l.Burst)), new(big.Rat)}
}

func (r *rational) take(now, n int64) bool {
	at := new(big.Rat).SetInt64(now)
	from := r.tat
	if from.Cmp(at) < 0 {
		from = at
	}
	to := new(big.Rat).Add(from, new(big.Rat).Mul(r.step, new(big.Rat).SetInt64(n)))
	if to.Cmp(new(big.Rat).Add(at, r.full)) > 0 {
		return false
	}
	r.tat = to
	return true
}

// drift is the difference between both states in microseconds.
func (r *rational) drift(p algo.GCRAParams, m algo.GCRATime) *big.Rat {
	have := new(big.Rat).Add(new(big.Rat).SetInt64(m.Micros), new(big.Rat).SetFrac64(m.Num, p.Den))
	return have.Sub(have, r.tat)
}

var gcraLimits = []ratelimit.Limit{
	{Rate: 1_000_000, Per: time.Second, Burst: 1_000_000},
	{Rate: 1_000_000, Per: time.Second, Burst: 1},
	{Rate: 999_983, Per: time.Second, Burst: 100},
	{Rate: 3, Per: time.Second, Burst: 3},
	{Rate: 7, Per: time.Minute, Burst: 1},
	{Rate: 1, Per: 10 * time.Second, Burst: 5},
	{Rate: 999_983, Per: 24 * time.Hour, Burst: 1000},
	{Rate: 1, Per: 24 * time.Hour, Burst: 1},
	{Rate: 1, Per: 24 * time.Hour, Burst: 365},
	{Rate: ratelimit.MaxRate, Per: time.Second, Burst: ratelimit.MaxRate},
}

// walk makes steps of about the limit's own rhythm.
func walk(l ratelimit.Limit, steps int, step func(now, n int64)) {
	rng := rand.New(rand.NewPCG(1, uint64(l.Rate)))
	now := time.Now().UnixMicro()
	gap := max(1, 2*l.Per.Microseconds()/l.Rate)
	most := min(l.Burst, 5)
	for range steps {
		now += rng.Int64N(gap + 1)
		step(now, 1+rng.Int64N(most))
	}
}

// Guarantees: Q1.
func TestGCRAParams_AgreesWithRationalsForEver(t *testing.T) {
	t.Parallel()
	steps := testsize.WhenAlone(20_000, 1_000_000) // for each of ten limits
	for _, l := range gcraLimits {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			p, model := algo.NewGCRAParams(algo.Limit(l)), newRational(l)
			var tat algo.GCRATime
			granted := 0
			walk(l, steps, func(now, n int64) {
				var ok bool
				tat, ok = p.Take(tat, now, n)
				if want := model.take(now, n); ok != want {
					t.Fatalf("at %d, %d permits: %v, want %v", now, n, ok, want)
				}
				if ok {
					granted++
				}
			})
			require.Positive(t, granted)
			if tat.Micros > 0 {
				require.Zero(t, model.drift(p, tat).Sign(), "drift")
			}
		})
	}

	t.Run("and a pace off by a thousandth does not (control)", func(t *testing.T) {
		t.Parallel()
		l := ratelimit.Limit{Rate: 3, Per: time.Second, Burst: 3}
		off := ratelimit.Limit{Rate: 3, Per: time.Second - time.Millisecond, Burst: 3}
		p, model, differ := algo.NewGCRAParams(algo.Limit(off)), newRational(l), false
		var tat algo.GCRATime
		walk(l, 100_000, func(now, n int64) {
			var ok bool
			tat, ok = p.Take(tat, now, n)
			differ = differ || ok != model.take(now, n)
		})
		require.True(t, differ)
	})
}

// Guarantees: Q30.
func TestGCRAParams_DelayIsTheFirstMicrosecondThatGrants(t *testing.T) {
	t.Parallel()
	for _, l := range gcraLimits {
		p := algo.NewGCRAParams(algo.Limit(l))
		var tat algo.GCRATime
		walk(l, 10_000, func(now, n int64) {
			next, ok := p.Take(tat, now, n)
			d := p.Delay(tat, now, n).Microseconds()
			if ok != (d == 0) {
				t.Fatalf("%v: granted %v with a delay of %d", l, ok, d)
			}
			if !ok {
				_, early := p.Take(tat, now+d-1, n)
				_, due := p.Take(tat, now+d, n)
				if early || !due {
					t.Fatalf("%v: after %d µs %v, one before %v", l, d, due, early)
				}
			}
			left := p.Remaining(next, now)
			_, all := p.Take(next, now, left)
			_, more := p.Take(next, now, left+1)
			if left > 0 && !all || more {
				t.Fatalf("%v: remaining is %d, of which %v, one more %v", l, left, all, more)
			}
			tat = next
		})
	}
}

// The script against the same arithmetic, fed with the server's own times.
// Guarantees: Q1.
func TestRateGCRA_AgreesWithRationals(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	for _, l := range gcraLimits {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			p, model, key := algo.NewGCRAParams(algo.Limit(l)), newRational(l), redistest.Name(t)
			var tat algo.GCRATime
			rng := rand.New(rand.NewPCG(2, 2))
			for range 500 {
				n := 1 + rng.Int64N(min(l.Burst, 5))
				cost, full := costs(l, n), costs(l, l.Burst)
				reply, err := scripts.RateGCRA.Run(t.Context(), rdb, []string{key},
					p.Den, full[0], full[1], full[0]/1e6+2, 1, cost[0], cost[1], 1).Int64Slice()
				require.NoError(t, err)
				var ok bool
				tat, ok = p.Take(tat, reply[0], n)
				require.Equal(t, ok, model.take(reply[0], n))
				require.Equal(t, ok, reply[4] == 1)
				if ok {
					require.Equal(t, []int64{tat.Micros, tat.Num}, reply[1:3])
				}
			}
		})
	}
}

// costs is what n permits are worth, in whole microseconds and parts of the denominator.
func costs(l ratelimit.Limit, n int64) [2]int64 {
	p := algo.NewGCRAParams(algo.Limit{Rate: l.Rate, Per: l.Per, Burst: n})
	tat, _ := p.Take(algo.GCRATime{}, 0, n)
	return [2]int64{tat.Micros, tat.Num}
}

func TestRateScripts_StayWithinExactIntegers(t *testing.T) {
	t.Parallel()
	const exact = 1 << 53
	for _, l := range gcraLimits {
		full := costs(l, l.Burst)
		require.Less(t, time.Now().UnixMicro()+2*full[0], int64(exact), fmt.Sprint(l))
		require.Less(t, 2*algo.NewGCRAParams(algo.Limit(l)).Den, int64(exact), fmt.Sprint(l))
	}
}
