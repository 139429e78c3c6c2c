package ratelimit_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// ledger is a sliding log as it is defined: all that was ever entered and not given back.
type ledger struct {
	rate     int64
	interval time.Duration
	all      []charge
}

type charge struct {
	at time.Duration
	n  int64
}

// held is what the interval that ends with at holds, without its first instant, and what lies ahead of it.
func (l *ledger) held(at time.Duration) (sum int64) {
	for _, c := range l.all {
		if c.at > at-l.interval {
			sum += c.n
		}
	}
	return sum
}

// worst is the most that any interval ever held.
func (l *ledger) worst() (most int64) {
	for _, first := range l.all {
		var sum int64
		for _, c := range l.all {
			if c.at >= first.at && c.at < first.at+l.interval {
				sum += c.n
			}
		}
		most = max(most, sum)
	}
	return most
}

// walkLog has a log do as the ledger says, at random, and returns the ledger and whether they ever differed.
// The log may be another than the ledger's, as a control.
func walkLog(seed uint64, steps int, l *ledger, m *ratelimit.MemoryLog) (differ string) {
	type held struct {
		charge
		stamp ratelimit.Stamp
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	var now time.Duration
	var mine []held
	for range steps {
		now += time.Duration(rng.Int64N(int64(l.interval) / 2))
		n := 1 + rng.Int64N(l.rate)
		left := l.rate - l.held(now)
		if m.Left(now) != left {
			return "left"
		}
		// The delay is the first instant at which n fit.
		delay, fits := m.From(now, n)-now, func(at time.Duration) bool { return l.rate-l.held(at) >= n }
		if !fits(now+delay) || delay > 0 && fits(now+delay-1) {
			return "delay"
		}
		if m.Wait(now, n) > delay || m.Wait(now, n+5*l.rate) < 5*l.interval {
			return "wait"
		}
		var stamp ratelimit.Stamp
		var ok bool
		at := now
		switch what := rng.IntN(10); {
		case what < 6:
			if stamp, ok = m.Take(now, n); ok != (n <= left) {
				return "take"
			}
		case what < 8:
			if n > left {
				for _, c := range l.all {
					at = max(at, c.at)
				}
				at = max(at, now+delay)
			}
			ahead := time.Duration(rng.Int64N(int64(3 * l.interval)))
			if stamp, ok = m.Reserve(now, n, ahead); ok != (at-now <= ahead) {
				return "reserve"
			}
		case len(mine) > 0:
			i := rng.IntN(len(mine))
			there := mine[i].at > now-l.interval
			if m.GiveBack(now, mine[i].stamp) != there || m.GiveBack(now, mine[i].stamp) {
				return "give back"
			}
			if there {
				l.all = slices.Delete(l.all, slices.Index(l.all, mine[i].charge), slices.Index(l.all, mine[i].charge)+1)
			}
			mine = slices.Delete(mine, i, i+1)
		}
		if ok {
			mine = append(mine, held{charge{at, n}, stamp})
			l.all = append(l.all, charge{at, n})
		}
	}
	return ""
}

func TestLocalLog_IsASlidingLogByDefinition(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		l := &ledger{rate: 1 + int64(seed)%7, interval: time.Duration(10 + seed*13)}
		require.Empty(t, walkLog(seed, 500, l, ratelimit.NewMemoryLog(l.rate, l.interval)), "seed %d", seed)
		require.LessOrEqual(t, l.worst(), l.rate, "seed %d", seed)
		require.Greater(t, len(l.all), 50)
	}

	t.Run("and one that is off by the least there is, is not (control)", func(t *testing.T) {
		t.Parallel()
		for what, off := range map[string]struct {
			rate     int64
			interval time.Duration
		}{"interval shorter": {5, 99}, "interval longer": {5, 101}, "rate higher": {6, 100}, "rate lower": {4, 100}} {
			require.NotEmpty(t, walkLog(1, 5000, &ledger{rate: 5, interval: 100}, ratelimit.NewMemoryLog(off.rate, off.interval)), what)
		}
		l := &ledger{rate: 2, interval: 10, all: []charge{{0, 2}, {9, 1}}}
		require.Equal(t, int64(3), l.worst())
		l.all[1].at = 10
		require.Equal(t, int64(2), l.worst())
	})
}

func TestLocalLog_Timelines(t *testing.T) {
	t.Parallel()
	type step struct {
		at        time.Duration
		n         int64    // 0 sets the limit
		set       [2]int64 // to this rate and interval
		wantDelay time.Duration
		wantReset time.Duration
	}
	for what, c := range map[string]struct {
		rate     int64
		interval time.Duration
		steps    []step
	}{
		"what is as old as the interval has left": {2, 10, []step{
			{at: 0, n: 1, wantReset: 10},
			{at: 4, n: 1, wantReset: 10},
			{at: 9, n: 1, wantDelay: 1, wantReset: 5},
			{at: 10, n: 1, wantReset: 10},
			{at: 10, n: 1, wantDelay: 4, wantReset: 10},
			{at: 10, n: 2, wantDelay: 10, wantReset: 10},
		}},
		"a lower rate keeps the debt, a higher one what was used": {10, 100, []step{
			{at: 0, n: 4, wantReset: 100},
			{at: 50, n: 6, wantReset: 100},
			{at: 60, set: [2]int64{5, 100}, wantReset: 90},
			{at: 60, n: 1, wantDelay: 90, wantReset: 90},
			{at: 60, set: [2]int64{12, 100}, wantReset: 90},
			{at: 60, n: 2, wantReset: 100},
			{at: 60, set: [2]int64{12, 10}, wantReset: 10},
			{at: 60, n: 4, wantReset: 10},
			{at: 60, set: [2]int64{6, math.MaxInt64}, wantReset: 100 * 365 * 24 * time.Hour},
			{at: 60, n: 1, wantDelay: 100 * 365 * 24 * time.Hour, wantReset: 100 * 365 * 24 * time.Hour},
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m := ratelimit.NewMemoryLog(c.rate, c.interval)
			for i, s := range c.steps {
				if s.n == 0 {
					m.Set(s.set[0], time.Duration(s.set[1]))
				} else {
					require.Equal(t, s.wantDelay, m.From(s.at, s.n)-s.at, i)
					_, ok := m.Take(s.at, s.n)
					require.Equal(t, s.wantDelay == 0, ok, i)
				}
				require.Equal(t, s.wantReset, m.Reset(s.at), i)
			}
		})
	}
}

func TestLocalLog_ForgetsWhatHasLeft(t *testing.T) {
	t.Parallel()
	m := ratelimit.NewMemoryLog(math.MaxUint32, time.Second)
	for i := range 1_000_000 {
		_, ok := m.Take(time.Duration(i)*time.Millisecond, 1)
		require.True(t, ok)
	}
	require.LessOrEqual(t, m.Cap(), 10_000, "a thousand are within the interval")
	require.Equal(t, int64(math.MaxUint32), m.Left(time.Hour))
	require.Zero(t, m.Reset(time.Hour))
}
