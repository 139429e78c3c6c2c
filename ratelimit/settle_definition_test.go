package ratelimit_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// settleSchedules is how many random schedules a script is tried with.
const settleSchedules = 300

// settleUse is the use of permits from an instant on, in us.
type settleUse struct {
	at, n int64
	debt  bool
}

// settleDefinition is the definition of an algorithm. It knows what is used: all permits of a grant, until some are given back.
type settleDefinition interface {
	// grant notes a grant, and returns its number.
	grant(at, n int64) int
	giveBack(now int64, grant int, n int64)
	book(now, n int64)
	// excess returns by how much more is used than the definition allows. A debt may exceed it; a grant after it may not.
	excess() int64
}

// settleUses are in the order of the decisions.
type settleUses struct {
	limit ratelimit.Limit
	all   []settleUse
}

func (s *settleUses) per() int64 { return s.limit.Per.Microseconds() }

func (s *settleUses) grant(at, n int64) int {
	s.all = append(s.all, settleUse{at, n, false})
	return len(s.all) - 1
}

func (s *settleUses) giveBack(_ int64, grant int, n int64) { s.all[grant].n -= n }

func (s *settleUses) book(now, n int64) { s.all = append(s.all, settleUse{now, n, true}) }

// worst returns the largest result for a grant, and for the uses that it had to leave room for: all but later debts.
func (s *settleUses) worst(of func(grant settleUse, uses []settleUse) int64) (worst int64) {
	for i, grant := range s.all {
		if grant.debt {
			continue
		}
		uses := slices.Clone(s.all[:i+1])
		for _, later := range s.all[i+1:] {
			if !later.debt {
				uses = append(uses, later)
			}
		}
		worst = max(worst, of(grant, uses))
	}
	return worst
}

// gcraUses is GCRA with a burst of Rate: permits need time, and the state is at most a whole burst ahead.
type gcraUses struct{ settleUses }

func (s *gcraUses) excess() int64 {
	return s.worst(func(grant settleUse, uses []settleUse) int64 {
		slices.SortStableFunc(uses, func(a, b settleUse) int { return cmp.Compare(a.at, b.at) })
		state, now := int64(0), func(u settleUse) int64 { return u.at * s.limit.Rate }
		for _, u := range uses {
			if u.at <= grant.at {
				state = max(state, now(u)) + u.n*s.per()
			}
		}
		return (state-now(grant))/s.limit.Rate - s.per() // uses begin less than 1 us after the state allows them
	})
}

// logUses is the sliding log: at most Rate in each interval of a Per.
type logUses struct{ settleUses }

func (s *logUses) excess() int64 {
	return s.worst(func(grant settleUse, uses []settleUse) int64 {
		held := int64(0)
		for _, u := range uses {
			if u.at > grant.at-s.per() && u.at <= grant.at {
				held += u.n
			}
		}
		return held - s.limit.Rate
	})
}

// windowUses are fixed windows: at most Rate in each. A window begins with the first use after the one before.
type windowUses struct {
	settleUses
	begins []int64 // ms
}

// window returns the number of the window in which permits are used, and opens it if none is there.
func (s *windowUses) window(at int64) int {
	at /= 1000
	for i, begins := range slices.Backward(s.begins) {
		if at >= begins && at < begins+s.limit.Per.Milliseconds() {
			return i
		}
	}
	s.begins = append(s.begins, at)
	return len(s.begins) - 1
}

func (s *windowUses) held(uses []settleUse, window int) (held int64) {
	for _, u := range uses {
		if s.window(u.at) == window {
			held += u.n
		}
	}
	return held
}

func (s *windowUses) grant(at, n int64) int {
	s.window(at)
	return s.settleUses.grant(at, n)
}

// book charges what does not fit to the next window, and all of it to a window that waiters have opened.
func (s *windowUses) book(now, n int64) {
	window := s.window(now)
	if last := len(s.begins) - 1; window < last {
		s.settleUses.book(s.begins[last]*1000, n)
		return
	}
	fits := min(n, max(0, s.limit.Rate-s.held(s.all, window)))
	s.settleUses.book(now, fits)
	if n > fits {
		next := s.begins[window]*1000 + s.per()
		s.window(next)
		s.settleUses.book(next, n-fits)
	}
}

func (s *windowUses) excess() int64 {
	return s.worst(func(grant settleUse, uses []settleUse) int64 {
		return s.held(uses, s.window(grant.at)) - s.limit.Rate
	})
}

// slidingUses are sliding windows. Nothing is granted ahead of its time, so each grant is checked when it is made.
type slidingUses struct {
	slidingDefinition
	worst int64
}

func (s *slidingUses) grant(at, n int64) int {
	s.slidingDefinition.grant(at/1000, n)
	left, per := s.left(at / 1000)
	s.worst = max(s.worst, (per-1-left)/per)
	return len(s.ms) - 1
}

func (s *slidingUses) giveBack(now int64, grant int, n int64) {
	s.slidingDefinition.giveBack(now/1000, grant, n)
}
func (s *slidingUses) book(now, n int64) { s.slidingDefinition.book(now/1000, n) }
func (s *slidingUses) excess() int64     { return s.worst }

// settledAlgorithm is an algorithm with its definition and its negative controls.
type settledAlgorithm struct {
	script     *scripts.Script
	options    []ratelimit.LimiterOption // nil for a log
	definition func(limit ratelimit.Limit) settleDefinition
	changes    []settleChange
}

// settleChange is a negative control: a change of the script that the schedules must find.
type settleChange struct{ what, from, to string }

// settleSchedule is a random sequence of requests, reservations, settlements and debts for one key.
type settleSchedule struct {
	*virtualServer

	rng   *rand.Rand
	key   string
	limit ratelimit.Limit
	k     ratelimit.Asked
	now   int64 // us
	known ratelimit.Known

	uses     settleDefinition
	reserved []settleCharge
	done     []string // for people
}

// settleCharge is a reservation: its permits may be used from an instant on.
type settleCharge struct {
	ratelimit.Charge
	at, n int64
	grant int
}

func (s *settleSchedule) ask(q *ratelimit.Asking) []int64 {
	s.t.Helper()
	return s.execute(q.After(s.known).Call(s.key), s.now)
}

func (s *settleSchedule) settle(q *ratelimit.Asking) ratelimit.Settled {
	s.t.Helper()
	got, err := q.Settled(s.ask(q))
	require.NoError(s.t, err)
	s.known = got.Known
	return got
}

func (s *settleSchedule) note(format string, args ...any) {
	s.done = append(s.done, fmt.Sprintf("%dus: ", s.now)+fmt.Sprintf(format, args...))
}

func (s *settleSchedule) step() {
	some := func(most int64) int64 { return s.rng.Int64N(most + 1) }
	rate, full := s.limit.Rate, s.limit.Per.Microseconds()
	cost := full / rate
	s.now += []int64{0, 0, cost / 3, cost, full - s.now%full, some(2 * full)}[s.rng.IntN(6)]
	n := 1 + some(rate-1)
	switch what := s.rng.IntN(12); {
	case what < 3:
		q := ratelimit.AskOf(s.k, false, n)
		results, known, err := q.Results(s.ask(q))
		require.NoError(s.t, err)
		s.known = known
		if results[0].Allowed {
			s.note("%d are granted", n)
			s.uses.grant(s.now, n)
		}
	case what < 7:
		ask, waits := ratelimit.Reserving, what == 3
		if waits {
			ask = ratelimit.ChargingAhead
		}
		got := s.settle(ask(s.k, n, time.Duration(some(full))*time.Microsecond))
		for _, charge := range got.Charges {
			at := s.now + charge.Delay().Microseconds()
			s.note("%d are granted for %dus, waits: %t", n, at, waits)
			grant := s.uses.grant(at, n)
			if !waits {
				s.reserved = append(s.reserved, settleCharge{charge, at, n, grant})
			}
		}
	case len(s.reserved) > 0:
		i := s.rng.IntN(len(s.reserved))
		r := s.reserved[i]
		s.reserved = slices.Delete(s.reserved, i, i+1)
		if what == 7 {
			debt := 1 + some(2*rate)
			got := s.settle(ratelimit.Booking(s.k, debt, some(rate)))
			s.note("%d of a debt of %d are booked", got.Booked, debt)
			s.uses.book(s.now, got.Booked)
			return
		}
		used := int64(0)
		if s.now >= r.at {
			used = some(r.n - 1)
		}
		s.settle(ratelimit.GivingBack(s.k, r.Charge, r.n-used))
		s.note("%d of %d at %dus are given back", r.n-used, r.n, r.at)
		s.uses.giveBack(s.now, r.grant, r.n-used)
	}
}

// broken runs schedules until one uses too much, and returns how many of them did, and the shortest.
func (a settledAlgorithm) broken(t *testing.T, replaced ...string) (broken int, shortest []string) {
	t.Helper()
	server := newVirtualServer(t, a.script, replaced...)
	c := newClient(t, server.rdb)
	for seed := range uint64(settleSchedules) {
		rng := rand.New(rand.NewPCG(seed, 33))
		rate := 1 + rng.Int64N(8)
		per := time.Duration(rate*(1+rng.Int64N(3)))*time.Second + time.Duration(rng.Int64N(2)*rng.Int64N(1000))*time.Millisecond
		limit := ratelimit.Limit{Rate: rate, Per: per, Burst: rate}
		s := settleSchedule{virtualServer: server, rng: rng, key: redistest.Name(t), limit: limit, k: ratelimit.Log, now: 1e15}
		s.uses = a.definition(limit)
		if a.options != nil {
			s.k = c.Limiter("k", limit, a.options...)
		} else {
			config := map[string]any{"rate": rate, "interval": limit.Per.Milliseconds(), "type": 0}
			require.NoError(t, server.rdb.HSet(t.Context(), s.key, config).Err())
		}
		for range 20 + rng.IntN(20) {
			s.step()
			if excess := s.uses.excess(); excess > 0 {
				broken++
				s.note("%d too many of %v", excess, limit)
				if shortest == nil || len(s.done) < len(shortest) {
					shortest = s.done
				}
				break
			}
		}
	}
	return broken, shortest
}

var settledAlgorithms = map[string]settledAlgorithm{
	"GCRA": {
		scripts.RateGCRA,
		[]ratelimit.LimiterOption{ratelimit.WithAlgorithm(ratelimit.GCRA)},
		func(l ratelimit.Limit) settleDefinition { return &gcraUses{settleUses{limit: l}} },
		[]settleChange{
			{
				"gives back what has returned by itself",
				"local beyond = ARGV[at + 2] - later - used", "local beyond = period and us - now or 0",
			},
			{"gives back before charges that were made ahead", "if us + later > cap_us and", "if false and"},
			{
				"gives back twice",
				"= us - part_us, num - part_num", "= math.max(now, us - 2 * part_us), num - part_num",
			},
			{"forgets a debt", "us, num, changed = us + debt_us, num + debt_num, true", "changed = true"},
			{"expires too soon", "(left - left % 1000) / 1000 + 1", "left / 2000"},
		},
	},
	"fixed windows": {
		scripts.RateWindow,
		[]ratelimit.LimiterOption{byWindows},
		func(l ratelimit.Limit) settleDefinition { return &windowUses{settleUses: settleUses{limit: l}} },
		[]settleChange{
			{"gives back twice", "= used - part,", "= math.max(0, used - 2 * part),"},
			{
				"takes back what was charged to another",
				"if stamp == tonumber(ARGV[at]) and stamp > 0 then", "if stamp then",
			},
			{"forgets a debt", "used = used + settled\n", "\n"},
			{
				"forgets the debt of the next window",
				"= later, ends, ends + length", "= 0, ends, ends + length",
			},
			{"expires too soon", "state, 'PX', ends", "state, 'PX', math.ceil(ends / 2)"},
		},
	},
	"sliding windows": {
		scripts.RateSliding,
		[]ratelimit.LimiterOption{bySliding},
		func(l ratelimit.Limit) settleDefinition {
			return &slidingUses{slidingDefinition: slidingDefinition{limit: l}}
		},
		[]settleChange{
			{"gives back twice", "= s.current - part,", "= math.max(0, s.current - 2 * part),"},
			{"takes back what was charged to another", "if later == 0 then", "if later then"},
			{"forgets a debt", "s.current, changed = s.current + settled, true", "s.owed, changed = 0, true"},
			{
				"forgets the debt of the next window",
				"s.owed = s.owed + math.max(0, settled", "s.owed = s.owed + 0 * math.max(0, settled",
			},
			{"expires with a debt", "(s.owed > 0 and 3 or 2)", "2"},
		},
	},
	"a log": {
		scripts.RateLog, nil,
		func(l ratelimit.Limit) settleDefinition { return &logUses{settleUses{limit: l}} },
		[]settleChange{
			{
				"gives back what was used",
				"local member, staying = ARGV[i], tonumber(ARGV[i + 1])", "local member, staying = ARGV[i], 0",
			},
			{"gives back twice", "given + size(member) - staying", "given + 2 * (size(member) - staying)"},
			{
				"forgets a debt",
				"n <= left + rate then\n        enter(i, n, now)", "n <= left + rate then\n        answers[i] = 0",
			},
		},
	},
}

// Whatever is given back or owed, and whenever, what was used stays within the definition of the algorithm.
func TestSettle_KeepsTheDefinition(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for what, a := range settledAlgorithms {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			broken, shortest := a.broken(t)
			require.Zero(t, broken, strings.Join(shortest, "\n"))
		})
	}
}

// The negative controls.
func TestSettle_FindsAScriptThatBreaksTheDefinition(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for what, a := range settledAlgorithms {
		for _, change := range a.changes {
			t.Run(what+" "+change.what, func(t *testing.T) {
				t.Parallel()
				broken, _ := a.broken(t, change.from, change.to)
				t.Logf("%d of %d schedules", broken, settleSchedules)
				require.Positive(t, broken)
			})
		}
	}
}
