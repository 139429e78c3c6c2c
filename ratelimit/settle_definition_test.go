package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// A script is tried with settleSchedules random schedules, until settleFinds of them use too much.
const settleSchedules, settleFinds = 600, 5

// settleUses compares the decisions about a key with the definition of its algorithm.
type settleUses struct {
	oracle.Settling

	shows int64 // what the clock of the algorithm shows, in ns; windows follow one of whole ms
	limit oracle.Limit
	late  time.Duration // how much sooner than by the definition permits were granted, at worst
}

// at returns what the clock shows at an instant in us.
func (s *settleUses) at(micros int64) int64 { return micros * 1000 / s.shows * s.shows }

// grant notes n permits that may be used from an instant on.
func (s *settleUses) grant(at, n int64) {
	s.late = max(s.late, time.Duration(s.Free(s.at(at), n, s.limit)-s.at(at)))
	s.Grant(s.at(at), n, s.limit)
}

// settledAlgorithm is an algorithm with its definition and its negative controls.
type settledAlgorithm struct {
	script     *scripts.Script
	options    []ratelimit.LimiterOption // nil for a log
	definition func() oracle.Settling
	shows      time.Duration // the clock of the definition
	changes    []settleChange
}

// settleChange is a negative control: a change of the script that the schedules must find.
type settleChange struct{ what, from, to string }

// settleSchedule is a random sequence of requests, reservations, settlements and debts for one key. Its limit rises and falls.
type settleSchedule struct {
	*virtualServer

	rng    *rand.Rand
	key    string
	far    bool // permits may be reserved for long
	limit  ratelimit.Limit
	of     func(limit ratelimit.Limit) ratelimit.Asked
	now    int64 // us
	known  ratelimit.Known
	change func(limit ratelimit.Limit) // sets the limit of a log

	uses     settleUses
	reserved []settleCharge
	done     []string // for people
}

// settleCharge is a reservation: its permits may be used from an instant on.
type settleCharge struct {
	ratelimit.Charge
	at, n int64
	limit ratelimit.Limit
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
	if s.rng.IntN(8) == 0 {
		s.limit.Rate = 1 + some(7)
		s.limit.Burst = s.limit.Rate
		s.change(s.limit)
		s.note("the limit is %v", s.limit)
	}
	rate, full := s.limit.Rate, s.limit.Per.Microseconds()
	cost := full / rate
	s.now += []int64{0, 0, cost / 3, cost, full - s.now%full, some(2 * full)}[s.rng.IntN(6)]
	n, k := 1+some(rate-1), s.of(s.limit)
	s.uses.limit = oracle.Limit(s.limit)
	switch what := s.rng.IntN(12); {
	case what < 3:
		q := ratelimit.AskOf(k, false, n)
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
		ahead := some(full)
		if s.far && s.rng.IntN(3) == 0 {
			ahead = time.Minute.Microseconds()
		}
		got := s.settle(ask(k, n, time.Duration(ahead)*time.Microsecond))
		for _, charge := range got.Charges {
			at := s.now + charge.Delay().Microseconds()
			s.note("%d are granted for %dus, waits: %t", n, at, waits)
			s.uses.grant(at, n)
			if !waits {
				s.reserved = append(s.reserved, settleCharge{charge, at, n, s.limit})
			}
		}
	case len(s.reserved) > 0:
		i := s.rng.IntN(len(s.reserved))
		r := s.reserved[i]
		s.reserved = slices.Delete(s.reserved, i, i+1)
		k = s.of(r.limit)
		s.uses.limit = oracle.Limit(r.limit)
		if what == 7 {
			debt := 1 + some(2*rate)
			got := s.settle(ratelimit.Booking(k, debt, some(rate)))
			s.note("%d of a debt of %d are booked", got.Booked, debt)
			s.uses.Book(s.uses.at(s.now), got.Booked, s.uses.limit)
			return
		}
		used := int64(0)
		if s.now >= r.at {
			used = some(r.n - 1)
		}
		s.settle(ratelimit.GivingBack(k, r.Charge, r.n-used))
		s.note("%d of %d at %dus are given back", r.n-used, r.n, r.at)
		s.uses.GiveBack(s.uses.at(s.now), s.uses.at(r.at), r.n-used, s.uses.limit)
	}
}

// broken runs schedules, and returns how many of them use too much, the shortest of these, and how many it has run.
func (a settledAlgorithm) broken(t *testing.T, replaced ...string) (broken int, shortest []string, tried int) {
	t.Helper()
	server := newVirtualServer(t, a.script, replaced...)
	set := newVirtualServer(t, scripts.RateSet)
	c := newClient(t, server.rdb)
	for ; tried < settleSchedules && broken < settleFinds; tried++ {
		rng := rand.New(rand.NewPCG(uint64(tried), 33))
		rate := 1 + rng.Int64N(8)
		per := time.Duration(rate*(1+rng.Int64N(3)))*time.Second + time.Duration(rng.Int64N(2)*rng.Int64N(1000))*time.Millisecond
		limit := ratelimit.Limit{Rate: rate, Per: per, Burst: rate}
		s := settleSchedule{virtualServer: server, rng: rng, key: redistest.Name(t), limit: limit, now: 1e15}
		s.far = a.script == scripts.RateGCRA
		s.uses = settleUses{Settling: a.definition(), shows: int64(a.shows)}
		s.of = func(limit ratelimit.Limit) ratelimit.Asked { return c.Limiter("k", limit, a.options...) }
		s.change = func(ratelimit.Limit) {}
		if a.options == nil {
			s.of = func(ratelimit.Limit) ratelimit.Asked { return ratelimit.Log }
			s.change = func(limit ratelimit.Limit) {
				keys := append(ratelimit.LogKeys(s.key), strconv.FormatInt(s.now, 10))
				done := set.script.Run(t.Context(), server.rdb, keys, "set", limit.Rate, limit.Per.Milliseconds(), 0, 0, 1)
				require.NoError(t, done.Err())
			}
		}
		s.change(limit)
		for range 20 + rng.IntN(20) {
			s.step()
			if s.uses.late >= time.Microsecond { // permits are granted less than 1 us before the state allows them
				broken++
				s.note("%v too early by %v", s.uses.late, s.limit)
				if shortest == nil || len(s.done) < len(shortest) {
					shortest = s.done
				}
				break
			}
		}
	}
	return broken, shortest, tried
}

var settledAlgorithms = map[string]settledAlgorithm{
	"GCRA": {
		scripts.RateGCRA,
		[]ratelimit.LimiterOption{ratelimit.WithAlgorithm(ratelimit.GCRA)},
		func() oracle.Settling { return new(oracle.Bucket) }, time.Microsecond,
		[]settleChange{
			{
				"gives back what has returned by itself",
				"local beyond = ends_us - since - now", "local beyond = s.period and s.us - now or 0",
			},
			{
				"gives back before places",
				"if s.last <= s.now then", "if true then",
			},
			{"gives back twice", "gcra_lower(s, part_us, part_num)", "gcra_lower(s, 2 * part_us, part_num)"},
			{"gives a place twice", "h.us, h.num = to_us, to_num\n    if", "if"},
			{
				"lets a place be used before its time",
				"gcra_free(s, from_us, from_num, ends_us, ends_num)", "gcra_lower(s, ends_us - from_us, 0)",
			},
			{"leaves a hole where others are", "left_us, left_num)\n      reply", "3 * left_us, left_num)\n      reply"},
			{"forgets a debt", "gcra_owe(s, debt_us, debt_num)", ""},
			{"forgets that a debt is used", "s.used, s.debts = s.us + 1,", "s.used, s.debts = 0,"},
			{"expires too soon", "(left - left % 1000) / 1000 + 1", "(left - left % 2000) / 2000"},
		},
	},
	"fixed windows": {
		scripts.RateWindow,
		[]ratelimit.LimiterOption{byWindows},
		func() oracle.Settling { return new(oracle.Windows) }, time.Millisecond,
		[]settleChange{
			{"gives back twice", "= used - part,", "= math.max(0, used - 2 * part),"},
			{
				"takes back what was charged to another",
				"if stamp == tonumber(ARGV[at]) and stamp > 0 then", "if stamp then",
			},
			{"forgets a debt", "used = used + settled\n", "\n"},
			{
				"forgets the debt of the next window",
				"begins, ends, stamp, begun = later, ends", "begins, ends, stamp, begun = 0, ends",
			},
			{"expires too soon", "state, 'PX', ends", "state, 'PX', math.ceil(ends / 2)"},
		},
	},
	"sliding windows": {
		scripts.RateSliding,
		[]ratelimit.LimiterOption{bySliding},
		func() oracle.Settling { return new(oracle.SlidingWindow) }, time.Millisecond,
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
		func() oracle.Settling { return new(oracle.SlidingLog) }, time.Microsecond,
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
			{
				"does not heed a lower limit",
				"local rate, interval_ms, keep_ms = tonumber(config[1])", "local rate, interval_ms, keep_ms = math.max(8, config[1])",
			},
		},
	},
}

// Whatever is given back or owed, and whenever, what was used stays within the definition of the algorithm.
// Guarantees: Q22.
func TestSettle_KeepsTheDefinition(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for what, a := range settledAlgorithms {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			broken, shortest, _ := a.broken(t)
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
				broken, _, tried := a.broken(t, change.from, change.to)
				t.Logf("%d of %d schedules", broken, tried)
				require.Positive(t, broken)
			})
		}
	}
}
