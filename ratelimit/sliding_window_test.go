package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

var byWindows, bySliding = ratelimit.WithAlgorithm(ratelimit.FixedWindow), ratelimit.WithAlgorithm(ratelimit.SlidingWindow)

// The replays in this file run the script at instants that the test chooses, so that thousands of windows pass in seconds and
// every decision is compared with the definition exactly.

// slidingServer is a key of a sliding window on a server whose clock the test sets.
type slidingServer struct {
	*virtualServer

	key string
	now int64 // ms
}

// someWindow is when a second, a minute, an hour and a day begin.
const someWindow = int64(20_000) * 24 * 3600 * 1000

// newSlidingServer starts at someWindow. replaced are pairs of what is broken in the script, for controls.
func newSlidingServer(t *testing.T, replaced ...string) *slidingServer {
	t.Helper()
	return &slidingServer{newVirtualServer(t, scripts.RateSliding, replaced...), redistest.Name(t), someWindow}
}

// asks sends requests in one script.
func (s *slidingServer) asks(k *ratelimit.Limiter, inOrder bool, requests ...int64) ([]ratelimit.Result, ratelimit.Known) {
	s.t.Helper()
	require.NoError(s.t, k.Err())
	q := ratelimit.AskOf(k, inOrder, requests...)
	call := q.Call(s.key)
	results, known, err := q.Results(s.execute(call))
	require.NoError(s.t, err)
	return results, known
}

// execute executes a call at the present instant.
func (s *slidingServer) execute(call scripts.Call) []int64 {
	s.t.Helper()
	return s.virtualServer.execute(call, s.now*1000+s.now%7*100)
}

// settle reserves, gives a part of a charge back, or books a debt.
func (s *slidingServer) settle(q *ratelimit.Asking) ratelimit.Settled {
	s.t.Helper()
	got, err := q.Settled(s.execute(q.Call(s.key)))
	require.NoError(s.t, err)
	return got
}

// ask sends one request.
func (s *slidingServer) ask(k *ratelimit.Limiter, n int64) (ratelimit.Result, ratelimit.Known) {
	s.t.Helper()
	results, known := s.asks(k, false, n)
	return results[0], known
}

// slidingDefinition compares answers with what SlidingWindow promises. Instants are in ms.
type slidingDefinition struct {
	definition oracle.SlidingWindow
	limit      oracle.Limit
	ms         []oracle.Grant // all grants; Call and Return are the same instant
	debts      int64
}

const ms = int64(time.Millisecond)

func (d *slidingDefinition) grant(at, n int64) {
	d.definition.Grant(at*ms, n, d.limit)
	d.ms = append(d.ms, oracle.Grant{Call: at, Return: at, N: n})
}

// left returns how many permits are free.
func (d *slidingDefinition) left(at int64) int64 { return max(0, d.definition.Left(at*ms, d.limit)) }

func (d *slidingDefinition) fits(at, n int64) bool {
	return d.definition.Free(at*ms, n, d.limit) == at*ms
}

// book charges a debt.
func (d *slidingDefinition) book(at, n int64) {
	d.definition.Book(at*ms, n, d.limit)
	d.debts += n
}

// giveBack gives n permits of a grant back.
func (d *slidingDefinition) giveBack(at int64, charge int, n int64) {
	d.definition.GiveBack(at*ms, d.ms[charge].Call*ms, n, d.limit)
	d.ms[charge].N -= n
}

// longRun returns which part of the rate was granted.
func (d *slidingDefinition) longRun() float64 {
	total := d.debts
	for _, g := range d.ms {
		total += g.N
	}
	windows := float64((d.ms[len(d.ms)-1].Call-d.ms[0].Call)*ms)/float64(d.limit.Per) + 2
	return float64(total) / float64(d.limit.Rate) / windows
}

// grants returns the grants with instants in ns.
func (d *slidingDefinition) grants() []oracle.Grant {
	all := make([]oracle.Grant, len(d.ms))
	for i, g := range d.ms {
		all[i] = oracle.Grant{Call: g.Call * ms, Return: g.Return * ms, N: g.N}
	}
	return all
}

// disagrees asks for n permits, and returns how the answer differs from the definition, or "".
func (d *slidingDefinition) disagrees(s *slidingServer, k *ratelimit.Limiter, n int64) (r ratelimit.Result, found string) {
	s.t.Helper()
	fits, now := d.fits(s.now, n), s.now
	r, known := s.ask(k, n)
	if r.Allowed {
		d.grant(now, n)
	}
	switch left := d.left(now); {
	case r.Allowed != fits:
		return r, fmt.Sprintf("%d permits granted: %t, by the definition: %t", n, r.Allowed, fits)
	case r.Remaining != left:
		return r, fmt.Sprintf("%d remain instead of %d", r.Remaining, left)
	case r.Allowed:
		return r, ""
	}
	retry := r.RetryAfter.Milliseconds()
	switch {
	case !d.fits(now+retry, n) && d.debts == 0:
		return r, fmt.Sprintf("%d permits do not fit after %v", n, r.RetryAfter)
	case retry < 1 || d.fits(now+retry-1, n):
		return r, fmt.Sprintf("%d permits fit before %v", n, r.RetryAfter)
	case known.Denies(n, r.RetryAfter-time.Millisecond):
		return r, "a denial from memory lasts too long"
	case d.debts > 0: // the times are lower bounds
	case retry > 2 && !known.Denies(n, r.RetryAfter-2*time.Millisecond):
		return r, "a denial from memory is forgotten too soon"
	case !d.fits(now+r.ResetAfter.Milliseconds(), k.Limit().Rate):
		return r, fmt.Sprintf("not reset after %v", r.ResetAfter)
	}
	return r, ""
}

// arrival returns how long to wait, and how many permits to ask for then.
type arrival func(rng *rand.Rand, limit ratelimit.Limit, now int64, last ratelimit.Result) (wait, n int64)

// slidingArrivals are ways to ask.
var slidingArrivals = map[string]arrival{
	"at random, for twice the rate": func(rng *rand.Rand, limit ratelimit.Limit, _ int64, _ ratelimit.Result) (wait, n int64) {
		return int64(rng.ExpFloat64() * float64(limit.Per.Milliseconds()) / float64(limit.Rate)), 1 + rng.Int64N(3)
	},
	"one after the other, at the rate": func(_ *rand.Rand, limit ratelimit.Limit, _ int64, _ ratelimit.Result) (wait, n int64) {
		return limit.Per.Milliseconds() / limit.Rate, 1
	},
	"as soon as possible": func(_ *rand.Rand, _ ratelimit.Limit, _ int64, last ratelimit.Result) (wait, n int64) {
		return last.RetryAfter.Milliseconds(), 1
	},
	"in the last ms of a window, and then as soon as possible": func(_ *rand.Rand, limit ratelimit.Limit, now int64, last ratelimit.Result) (wait, n int64) {
		per := limit.Per.Milliseconds()
		if now/per%4 == 0 && now%per < per-1 { // one window in four is for the count to return
			return per - 1 - now%per, limit.Rate
		}
		return max(last.RetryAfter.Milliseconds(), 0), 1
	},
	"in bursts at random": func(rng *rand.Rand, limit ratelimit.Limit, _ int64, _ ratelimit.Result) (wait, n int64) {
		if rng.IntN(10) == 0 {
			return rng.Int64N(2 * limit.Per.Milliseconds()), 1 + rng.Int64N(limit.Rate)
		}
		return 0, 1 + rng.Int64N(5)
	},
}

// run asks so many times, and returns the definition with all grants, and how the answers differ from it.
func (ask arrival) run(s *slidingServer, limit ratelimit.Limit, times int, seed uint64) (d *slidingDefinition, found string) {
	s.t.Helper()
	d = &slidingDefinition{limit: oracle.Limit(limit)}
	rng := rand.New(rand.NewPCG(seed, 1))
	k := newClient(s.t, s.rdb).Limiter("k", limit, bySliding)
	var last ratelimit.Result
	for range times {
		wait, n := ask(rng, limit, s.now, last)
		s.now += wait
		r, wrong := d.disagrees(s, k, min(n, limit.Rate))
		if last = r; found == "" {
			found = wrong
		}
	}
	return d, found
}

// aboveLog returns by which part of the rate the worst interval of a Per holds more than a sliding log would grant.
func (d *slidingDefinition) aboveLog() float64 {
	return max(0, oracle.ExcessWithin(d.limit.Per-1, d.grants(), d.limit.LogBound())) / float64(d.limit.Rate)
}

// Guarantees: Q1, Q30.
func TestReplay_SlidingWindowIsItsDefinition(t *testing.T) {
	t.Parallel()
	for how, ask := range slidingArrivals {
		for _, limit := range []ratelimit.Limit{perSeconds(20, 60), perSeconds(7, 97), perSeconds(100, 3600), perSeconds(1, 60)} {
			t.Run(fmt.Sprint(limit, " ", how), func(t *testing.T) {
				t.Parallel()
				d, found := ask.run(newSlidingServer(t), limit, 1200, 1)
				require.Empty(t, found)
				require.NotEmpty(t, d.ms)
				like := limit // GCRA with a burst of Rate
				require.LessOrEqual(t, oracle.Excess(d.grants(), oracle.Limit(like).BucketBound()), 0.0)
				above := d.aboveLog()
				t.Logf("%d grants; the worst interval holds %.3f of the rate more than a sliding log grants", len(d.ms), above)
				require.LessOrEqual(t, above, 1-1/float64(limit.Rate), "less than twice the rate")
			})
		}
	}
}

// The bound of any interval of a Per is reached: 2*Rate - 1 permits.
// Guarantees: Q1.
func TestReplay_SlidingWindowReachesItsBound(t *testing.T) {
	t.Parallel()
	d, found := slidingArrivals["in the last ms of a window, and then as soon as possible"].run(newSlidingServer(t), perSeconds(20, 60), 300, 1)
	require.Empty(t, found)
	require.InDelta(t, 19.0/20, d.aboveLog(), 1e-9)
}

// The negative controls: a script that weighs the window before wrongly grants too much, or denies what it should grant.
func TestReplay_FindsASlidingWindowThatIsWrong(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		from, to string
		exceeds  bool
	}{
		"the window before does not count":      {"local share = s.previous\n", "s.previous = 0\n  local share = 0\n", true},
		"the window before counts half":         {"local overlap = s.previous * ", "local overlap = s.previous * 0.5 * ", true},
		"the window before counts as a whole":   {"s.length - math.max(0, s.elapsed)", "s.length", false},
		"the share is rounded down":             {"part > 0 and 1 or 0", "0", false},
		"windows begin a ms too late":           {"elapsed = now - index * lasts", "elapsed = now - index * lasts - 1", false},
		"the window before the last one counts": {"later == 1 and current or later == 2 and owed or 0", "current", false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			limit, worst, differs := perSeconds(20, 60), -1.0, ""
			for seed, ask := range []arrival{
				slidingArrivals["in the last ms of a window, and then as soon as possible"], slidingArrivals["in bursts at random"],
			} {
				d, found := ask.run(newSlidingServer(t, c.from, c.to), limit, 600, uint64(seed))
				worst, differs = max(worst, oracle.Excess(d.grants(), oracle.Limit(limit).BucketBound())), differs+found
			}
			require.NotEmpty(t, differs)
			if c.exceeds {
				require.Greater(t, worst, 0.0)
			}
		})
	}
}

// Requests that share a script are decided one after the other.
// Guarantees: Q1.
func TestSlidingWindow_RequestsOfOneScript(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{false, true} {
		s, rng, limit := newSlidingServer(t), rand.New(rand.NewPCG(1, 1)), perSeconds(30, 60)
		k, d := newClient(t, s.rdb).Limiter("k", limit, bySliding), &slidingDefinition{limit: oracle.Limit(limit)}
		for range 300 {
			s.now += rng.Int64N(20_000)
			requests := make([]int64, 1+rng.IntN(12))
			for i := range requests {
				requests[i] = rng.Int64N(6)
			}
			results, _ := s.asks(k, inOrder, requests...)
			all := true
			for i, n := range requests {
				fits := n > 0 && (all || !inOrder) && d.fits(s.now, n)
				if n > 0 {
					require.Equal(t, fits, results[i].Allowed, "%v: %+v", requests, results)
					all = all && fits
				}
				if fits {
					d.grant(s.now, n)
				}
				require.Equal(t, d.left(s.now), results[i].Remaining)
			}
		}
		require.Greater(t, len(d.ms), 400)
	}
}

// How long more than the whole rate takes is never overestimated: waiters are not sent away too soon.
// Guarantees: Q12.
func TestSlidingWindow_WaitIsALowerBound(t *testing.T) {
	t.Parallel()
	limit := perSeconds(20, 60)
	for seed := range uint64(4) {
		s, rng := newSlidingServer(t), rand.New(rand.NewPCG(seed, 1))
		d, _ := slidingArrivals["in bursts at random"].run(s, limit, 20, seed)
		k := newClient(t, s.rdb).Limiter("k", limit, bySliding)
		_, known := s.ask(k, limit.Rate)
		began, total := s.now, int64(0)
		for range 120 { // as soon as possible, one by one or in pieces
			n := 1 + rng.Int64N(3)
			for !d.fits(s.now, n) {
				s.now++
			}
			d.grant(s.now, n)
			total += n
			require.LessOrEqual(t, known.Wait(total), time.Duration(s.now-began)*time.Millisecond, total)
		}
	}
}

// Limits of one key with periods that are multiples of each other: in each window of a limit, its requests are granted no
// more than its Rate, in whatever order the limits are used.
// Guarantees: Q27.
func TestSlidingWindow_EachLimitOfAKeyHoldsInItsWindows(t *testing.T) {
	t.Parallel()
	limits := []ratelimit.Limit{perSeconds(5, 1), perSeconds(20, 60), perSeconds(8, 60), perSeconds(60, 3600)}
	for seed := range uint64(6) {
		s, rng := newSlidingServer(t), rand.New(rand.NewPCG(seed, 1))
		k := newClient(t, s.rdb).Limiter("k", limits[0], bySliding)
		used := map[string]int64{}
		granted := map[int]int{}
		for range 2000 {
			at, n := rng.IntN(len(limits)), 1+rng.Int64N(3)
			if rng.IntN(40) == 0 {
				s.now += rng.Int64N(20_000_000)
			} else {
				s.now += rng.Int64N(900)
			}
			limit := limits[at]
			if r, _ := s.ask(k.With(limit), n); r.Allowed {
				granted[at]++
				window := fmt.Sprint(at, s.now/limit.Per.Milliseconds())
				used[window] += n
				require.LessOrEqual(t, used[window], limit.Rate, limit)
			}
		}
		require.Len(t, granted, len(limits), "each is granted something")
	}
}

// A client that takes turns between two limits gets no more of each than its definition, in any time.
func TestSlidingWindow_ALimitHoldsWhileAnotherIsUsed(t *testing.T) {
	t.Parallel()
	long := perSeconds(10, 60)
	for _, short := range []ratelimit.Limit{perSeconds(3, 1), perSeconds(50, 6), perSeconds(9, 7)} {
		for seed := range uint64(4) {
			s, rng := newSlidingServer(t), rand.New(rand.NewPCG(seed, 1))
			k := newClient(t, s.rdb).Limiter("k", long, bySliding)
			granted := map[ratelimit.Limit][]oracle.Grant{}
			for range 300 {
				limit := []ratelimit.Limit{long, short}[rng.IntN(2)]
				for range 1 + rng.IntN(12) {
					if r, _ := s.ask(k.With(limit), 1); r.Allowed {
						now := s.now * int64(time.Millisecond)
						granted[limit] = append(granted[limit], oracle.Grant{Call: now, Return: now, N: 1})
					}
					s.now += rng.Int64N(100)
				}
				if s.now += rng.Int64N(20_000); rng.IntN(4) == 0 {
					s.now += rng.Int64N(180_000)
				}
			}
			for limit, grants := range granted {
				require.Greater(t, len(grants), 50, limit)
				require.LessOrEqual(t, oracle.Excess(grants, oracle.Limit(limit).BucketBound()), 0.0, "%v, seed %d", limit, seed)
			}
		}
	}
}

// A longer Per holds in the window in which it was used and in the next one. What was used under a shorter one counts.
// Guarantees: Q27.
func TestSlidingWindow_TheLongerPerHolds(t *testing.T) {
	t.Parallel()
	s := newSlidingServer(t)
	hour, minute := perSeconds(60, 3600), perSeconds(10, 60)
	k := newClient(t, s.rdb).Limiter("k", hour, bySliding)
	allowed := func(limit ratelimit.Limit, n int64) bool {
		r, _ := s.ask(k.With(limit), n)
		return r.Allowed
	}
	s.now += 10 * 60_000
	require.True(t, allowed(minute, 10))
	s.now += 30_000
	require.False(t, allowed(hour, 51), "ten are used")
	require.True(t, allowed(hour, 50))
	s.now += 10 * 60_000
	require.False(t, allowed(minute, 1), "for the hour")
	r, _ := s.ask(k.With(minute), 1)
	require.Equal(t, 3600*time.Second-20*time.Minute-30*time.Second, r.RetryAfter)
	s.now += r.RetryAfter.Milliseconds()
	require.False(t, allowed(minute, 1), "the share of sixty is above ten")
	s.now += 50 * 60_000
	require.False(t, allowed(minute, 1))
	s.now += 4 * 60_000
	require.True(t, allowed(minute, 4), "six of sixty are left")
	s.now += 5 * 60_000
	require.True(t, allowed(minute, 4))
	require.False(t, allowed(minute, 2), "the window is still an hour long")
	s.now += 2 * 60_000
	require.True(t, allowed(minute, 10), "and then a minute")
	s.now += 60_000
	require.False(t, allowed(minute, 10))
}

// The clock of the server steps.
// Guarantees: Q3.
func TestClock_SlidingWindow(t *testing.T) {
	t.Parallel()
	limit := perSeconds(10, 60)
	for step, more := range map[time.Duration]int{
		-time.Millisecond: 0, -time.Minute: 0, -119 * time.Second: 0, -3 * time.Minute: 10, -24 * time.Hour: 10, 24 * time.Hour: 10,
	} {
		s := newSlidingServer(t)
		k := newClient(t, s.rdb).Limiter("k", limit, bySliding)
		s.now += 100
		granted := func() (n int) {
			for range 15 {
				if r, _ := s.ask(k, 1); r.Allowed {
					n++
				}
			}
			return n
		}
		require.Equal(t, 10, granted())
		s.now += step.Milliseconds()
		require.Equal(t, more, granted(), step)
		require.Zero(t, granted())
		r, _ := s.ask(k, 1)
		require.LessOrEqual(t, r.RetryAfter, 4*time.Minute, "%v: for as long as the step, and two windows", step)
		s.now += r.RetryAfter.Milliseconds() - 1
		require.Zero(t, granted())
		s.now++
		require.Positive(t, granted())
	}
}

func TestSlidingWindow_Refuses(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	for limit, good := range map[ratelimit.Limit]bool{
		perSeconds(10, 60): true,
		{Rate: ratelimit.MaxRate, Per: time.Second, Burst: ratelimit.MaxRate}:      true,
		{Rate: 1, Per: ratelimit.MaxPer, Burst: 1}:                                 true,
		{Rate: 10, Per: time.Second, Burst: 5}:                                     false,
		{Rate: 10, Per: time.Microsecond, Burst: 10}:                               false,
		{Rate: ratelimit.MaxRate, Per: ratelimit.MaxPer, Burst: ratelimit.MaxRate}: false,
		{Rate: 1 << 21, Per: (1 << 32) * time.Millisecond, Burst: 1 << 21}:         false,
		{Rate: 1<<21 - 1, Per: (1<<32 + 1) * time.Millisecond, Burst: 1<<21 - 1}:   true,
	} {
		k := c.Limiter("k", limit, bySliding)
		require.NoError(t, redistest.CheckRefusal(k.Err(), good), limit)
		require.Equal(t, good, k.Err() == nil, limit)
	}
	k := c.Limiter("k", perSeconds(10, 60), bySliding)
	r, err := c.All(k.Part(name).Cost(11), k.Part(name+"2")).Peek(t.Context())
	require.NoError(t, err)
	require.False(t, r.Allowed, "eleven never fit")
	require.Positive(t, r.RetryAfter)
	require.Equal(t, "sliding window", ratelimit.SlidingWindow.String())
	require.Equal(t, "unknown", ratelimit.Algorithm(7).String())
}

// The largest counts and lengths stay exact.
// Guarantees: Q1.
func TestSlidingWindow_LargestLimits(t *testing.T) {
	t.Parallel()
	for _, limit := range []ratelimit.Limit{
		{Rate: 1<<21 - 1, Per: (1<<32 + 1) * time.Millisecond, Burst: 1<<21 - 1},
		{Rate: 28_000, Per: ratelimit.MaxPer, Burst: 28_000},
		{Rate: ratelimit.MaxRate, Per: 2_000_000 * time.Millisecond, Burst: ratelimit.MaxRate},
	} {
		s, rng, d := newSlidingServer(t), rand.New(rand.NewPCG(1, 1)), &slidingDefinition{limit: oracle.Limit(limit)}
		k := newClient(t, s.rdb).Limiter("k", limit, bySliding)
		s.now -= s.now % limit.Per.Milliseconds()
		for range 200 {
			s.now += rng.Int64N(limit.Per.Milliseconds() / 5)
			_, found := d.disagrees(s, k, 1+rng.Int64N(limit.Rate))
			require.Empty(t, found, limit)
		}
	}
}
