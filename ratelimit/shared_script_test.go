package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// decidable matches the states without places.
var decidable = regexp.MustCompile(`^[^@]*(@\d+:\d+(:0:[\d,;]*)?)?$`)

// twins are keys of which each is there twice: one copy is decided by the script for one key, the other by the script for
// many. Two pairs have one limit, and are decided in one execution.
type twins struct {
	one, many *virtualServer

	limits  []ratelimit.Asked
	charges [][]ratelimit.Charge // of the first copies, some of which are given back
	name    string
	now     int64 // us
	shared  int   // decisions of the script for many
}

func newTwins(t *testing.T, replaced ...string) *twins {
	t.Helper()
	w := &twins{
		one: newVirtualServer(t, scripts.RateGCRA), many: newVirtualServer(t, scripts.RatesGCRA, replaced...),
		name: redistest.Name(t), now: 1e15,
	}
	c := newClient(t, w.one.rdb)
	for _, limit := range []ratelimit.Limit{
		ratelimit.PerSecond(1), ratelimit.PerSecond(7).WithBurst(3), ratelimit.PerSecond(1_000_000),
		ratelimit.PerMinute(11).WithBurst(200), ratelimit.PerHour(7), ratelimit.PerDay(1_000_003).WithBurst(2),
	} {
		k := c.Limiter("twin", limit)
		w.limits = append(w.limits, k, k) // two keys in one execution
	}
	w.charges = make([][]ratelimit.Charge, len(w.limits))
	return w
}

func (w *twins) key(copied string, i int) string { return fmt.Sprint(w.name, copied, i) }

// disturb does to the first copy what only the script for one key does.
func (w *twins) disturb(random *rand.Rand, i int) error {
	k, key := w.limits[i], w.key("one", i)
	ask := func(q *ratelimit.Asking) error {
		got, err := q.Settled(w.one.execute(q.Call(key), w.now))
		w.charges[i] = append(w.charges[i], got.Charges...)
		return err
	}
	switch all := w.charges[i]; random.IntN(12) {
	case 0:
		return ask(ratelimit.Reserving(k, 1, time.Second))
	case 1, 2:
		if n := len(all); n > 0 {
			last := all[n-1]
			w.charges[i] = all[:n-1]
			return ask(ratelimit.GivingBack(k, last, 1))
		}
	case 3:
		return w.one.rdb.Set(w.one.t.Context(), key, fmt.Sprint(w.now, ":of a later version"), time.Hour).Err()
	case 4: // of an earlier version
		return w.one.rdb.Set(w.one.t.Context(), key, fmt.Sprintf("%d@%d:3", w.now+1000, w.now-1000), time.Hour).Err()
	case 5:
		return w.one.rdb.Del(w.one.t.Context(), key, key+":last").Err()
	}
	return nil
}

// step decides requests for all keys by both scripts, and returns what differs.
func (w *twins) step(random *rand.Rand) error {
	ctx, rdb := w.one.t.Context(), w.one.rdb
	w.now += []int64{0, 1, 900, 40_000, 1_000_000, 600_000_000}[random.IntN(6)]
	var calls []scripts.Call
	var all scripts.Call
	var replies []int64
	var n int64
	for i, k := range w.limits {
		if err := w.disturb(random, i); err != nil {
			return err
		}
		for _, end := range []string{"", ":last"} {
			from, to := w.key("one", i)+end, w.key("many", i)+end
			if err := rdb.Del(ctx, to).Err(); err != nil {
				return err
			}
			rdb.Copy(ctx, from, to, 0, true)
		}
		requests := make([]int64, 1+random.IntN(5)) // of one run
		if i%2 == 0 {
			n = int64(random.IntN(4))
		}
		for j := range requests {
			requests[j] = n
		}
		calls = append(calls, ratelimit.AskOf(k, false, requests...).Call(w.key("one", i)))
		count := len(calls[i].Args) - 1
		if i%2 == 0 {
			all = scripts.Call{Args: slices.Clone(calls[i].Args[:count])}
		}
		all.Keys, all.Args = append(all.Keys, w.key("many", i)), append(all.Args, calls[i].Args[count])
		if i%2 == 1 {
			replies = append(replies, w.many.execute(all, w.now)...)
		}
	}
	for i, call := range calls {
		key := w.key("one", i)
		reply, before, found := replies[5*i:5*i+5], rdb.Get(ctx, key).Val(), rdb.Get(ctx, w.key("many", i)).Val()
		if reply[0] == 2 {
			if found != before {
				return fmt.Errorf("%q was left as %q", before, found)
			}
			if !strings.HasSuffix(before, "later version") && decidable.MatchString(before) {
				return fmt.Errorf("%q was not decided", before)
			}
			w.one.execute(call, w.now)
			continue
		}
		w.shared++
		want := w.one.execute(call, w.now)
		for _, end := range []string{"", ":last"} {
			left, as := rdb.Get(ctx, w.key("many", i)+end).Val(), rdb.Get(ctx, key+end).Val()
			if left != as || fmt.Sprint(reply) != fmt.Sprint(want) {
				return fmt.Errorf("%v of %q: %v and %q, want %v and %q", call.Args, before, reply, left, want, as)
			}
		}
	}
	return nil
}

// The script for many keys decides each as the script for one key does, or leaves it as it was.
func TestRatesGCRA_DecidesAsRateGCRA(t *testing.T) {
	t.Parallel()
	w := newTwins(t)
	random := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		require.NoError(t, w.step(random))
	}
	require.Greater(t, w.shared, 1000)
}

func TestRatesGCRA_DecidesAsRateGCRA_FindsAScriptThatDoesNot(t *testing.T) {
	t.Parallel()
	for what, broken := range map[string][]string{
		"a burst longer":           {"now + ARGV[2]", "now + ARGV[2] + 100000"},
		"without the fraction":     {"ARGV[3] + 0", "0"},
		"places are not known":     {"(tail == nil or tail == '' or tail and", "(tail ~= false and true or tail and"},
		"a later version is none":  {"(tail == nil or tail == '' or", "(not tail or tail == '' or"},
		"returns are forgotten":    {"period, returned, tail)\n      value", "nil, nil, nil)\n      value"},
		"kept for a shorter time":  {"'PX', px)", "'PX', px - 1)"},
		"all is left to the other": {"if decided then\n    us", "decided = false\n  if decided then\n    us"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newTwins(t, broken...)
			random := rand.New(rand.NewPCG(1, 2))
			for range 400 {
				if w.step(random) != nil {
					return
				}
			}
			t.Error("not found")
		})
	}
}

// The script for many keys takes requests that nothing follows, whatever else has as many arguments.
func TestRatesGCRA_TakesSimpleRequestsOnly(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, ratelimit.PerSecond(10))
	simple := ratelimit.AskOf(p.k, false, 1, 1)
	require.True(t, simple.Call(p.key).Sharable())
	reserved, _ := p.reserve(1)
	p.reserve(10) // beyond the burst
	for what, q := range map[string]*ratelimit.Asking{
		"a look of waiters": ratelimit.AskOf(p.k, true), "waiters": ratelimit.AskOf(p.k, true, 1), "a reservation": ratelimit.Reserving(p.k, 1, 0),
		"a debt": ratelimit.Booking(p.k, 1, 1), "a return": ratelimit.GivingBack(p.k, reserved, 1), "a probe": ratelimit.AskOf(p.k, false),
		"two runs": ratelimit.AskOf(p.k, false, 1, 2),
	} {
		require.False(t, q.Call(p.key).Sharable(), what)
	}
	_, known, err := simple.Results(p.execute(simple.Call(p.key), p.now))
	require.NoError(t, err)
	require.False(t, simple.After(known).Call(p.key).Sharable(), "the state has places")
}
