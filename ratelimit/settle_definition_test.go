package ratelimit_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// settleSchedule is a random sequence of requests, reservations and settlements for one key, by the clock of a key.
type settleSchedule struct {
	t         *testing.T
	rdb       *redis.Client
	source    string // the script
	rng       *rand.Rand
	name      string
	now, full int64 // us
	cost      int64 // of a permit
	reserved  []settleCharge
	uses      []settleUse
}

// settleCharge is a reservation: its permits may be used from a time on, and it ends at an instant of the state.
type settleCharge struct{ at, n, end, period, returned int64 }

// settleUse is the use of permits that are worth so much time.
type settleUse struct{ at, worth int64 }

func (s *settleSchedule) run(ahead int64, args ...any) []int64 {
	s.t.Helper()
	ctx := s.t.Context()
	require.NoError(s.t, s.rdb.Set(ctx, s.name+":clock", s.now, 0).Err())
	args = append([]any{1, s.full + ahead, 0, s.full/1e6 + 1}, args...)
	reply, err := s.rdb.Eval(ctx, s.source, []string{s.name, s.name + ":clock"}, args...).Int64Slice()
	require.NoError(s.t, err)
	return reply
}

func (s *settleSchedule) step() {
	some := func(most int64) int64 { return s.rng.Int64N(most + 1) }
	s.now += []int64{0, 0, s.cost / 3, s.cost, some(2 * s.full)}[s.rng.IntN(5)]
	n := 1 + some(s.full/s.cost-1)
	switch s.rng.IntN(3) {
	case 0:
		if reply := s.run(0, 1, s.cost*n, 0, 1); reply[4] == 1 {
			s.uses = append(s.uses, settleUse{s.now, s.cost * n})
		}
	case 1:
		reply := s.run(some(min(s.full, 60e6)), 1, s.cost*n, 0, 1, 1, 0)
		if reply[4] == 1 {
			s.reserved = append(s.reserved, settleCharge{max(s.now, reply[1]-s.full), n, reply[1], reply[5], reply[6]})
		}
	default:
		if len(s.reserved) == 0 {
			return
		}
		i := s.rng.IntN(len(s.reserved))
		r := s.reserved[i]
		s.reserved = slices.Delete(s.reserved, i, i+1)
		used := int64(0)
		if s.now >= r.at {
			used = some(r.n)
			s.uses = append(s.uses, settleUse{r.at, used * s.cost})
		}
		if used < r.n {
			s.run(0, 0, 0, 1, r.period, r.returned, r.end, 0, (r.n-used)*s.cost, 0)
		}
	}
}

// excess returns by how much time more permits were used than the definition of GCRA allows.
func (s *settleSchedule) excess() (worst int64) {
	for _, r := range s.reserved {
		s.uses = append(s.uses, settleUse{r.at, r.n * s.cost})
	}
	slices.SortStableFunc(s.uses, func(a, b settleUse) int { return cmp.Compare(a.at, b.at) })
	state := int64(0)
	for _, u := range s.uses {
		state = max(state, u.at) + u.worth
		worst = max(worst, state-u.at-s.full)
	}
	return worst
}

// settleExcess runs schedules until one uses too much, and returns how many of them did.
func settleExcess(t *testing.T, schedules uint64, from, to string) (broken int) {
	t.Helper()
	const clock = "redis.call('TIME')"
	source := scripts.RateGCRA.Source()
	require.Contains(t, source, clock)
	require.Contains(t, source, from)
	source = strings.Replace(strings.Replace(source, clock, "{0, redis.call('GET', KEYS[2])}", 1), from, to, 1)
	rdb := redistest.Shared(t).Client(t)
	for seed := range schedules {
		rng := rand.New(rand.NewPCG(seed, 33))
		s := settleSchedule{t: t, rdb: rdb, source: source, rng: rng, name: redistest.Name(t), now: 1e12}
		s.cost = int64(10e6) * (1 + rng.Int64N(3)) // so long that no key expires by the clock of the server
		s.full = s.cost * (1 + rng.Int64N(8))
		for range 4 + rng.IntN(20) {
			s.step()
		}
		if s.excess() > 0 {
			broken++
		}
	}
	return broken
}

// Whatever is given back, and whenever, what was used stays within the definition of GCRA.
func TestSettle_GCRAKeepsItsDefinition(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	const schedules = 600
	for what, change := range map[string]struct {
		from, to string
		broken   bool
	}{
		"as it is": {},
		"control: gives back what has returned by itself": {
			"local beyond = ARGV[at + 2] - later - used", "local beyond = period and us - now or 0", true,
		},
		"control: gives back before charges that were made ahead": {
			"if us + later > cap_us and", "if false and", true,
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			broken := settleExcess(t, schedules, change.from, change.to)
			t.Logf("%d of %d schedules", broken, schedules)
			require.Equal(t, change.broken, broken > 0)
		})
	}
}
