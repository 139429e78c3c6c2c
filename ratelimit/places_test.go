package ratelimit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// places is a key of a limit, at instants that the test chooses.
type places struct {
	*virtualServer

	k   ratelimit.Asked
	key string
	now int64 // us
}

// newPlaces returns a key. replaced are pairs of what is broken in the script, for controls.
func newPlaces(t *testing.T, limit ratelimit.Limit, replaced ...string) *places {
	t.Helper()
	s := newVirtualServer(t, scripts.RateGCRA, replaced...)
	return &places{s, newClient(t, s.rdb).Limiter("k", limit), redistest.Name(t), 1e15}
}

// ask sends a script, and returns the answer.
func (p *places) ask(q *ratelimit.Asking) ratelimit.Settled {
	p.t.Helper()
	got, err := q.Settled(p.execute(q.Call(p.key), p.now))
	require.NoError(p.t, err)
	return got
}

// reserve returns a place for n permits, and in how many ms they can be used; -1 is not within a minute.
func (p *places) reserve(n int64) (ratelimit.Charge, int64) {
	p.t.Helper()
	got := p.ask(ratelimit.Reserving(p.k, n, time.Minute))
	if len(got.Charges) == 0 {
		return ratelimit.Charge{}, -1
	}
	return got.Charges[0], got.Charges[0].Delay().Milliseconds()
}

// allow reports whether n permits are there.
func (p *places) allow(n int64) bool {
	p.t.Helper()
	results, _, err := ratelimit.AskOf(p.k, false, n).Results(p.execute(ratelimit.AskOf(p.k, false, n).Call(p.key), p.now))
	require.NoError(p.t, err)
	return results[0].Allowed
}

func (p *places) giveBack(c ratelimit.Charge, n int64) bool {
	p.t.Helper()
	return p.ask(ratelimit.GivingBack(p.k, c, n)).Given
}

func (p *places) pass(ms int64) { p.now += ms * 1000 }

// A place that is given back is a hole, and the next request that it has room for takes it.
// Guarantees: Q9.
func TestPlaces_AHoleIsTaken(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, ratelimit.PerSecond(10).WithBurst(1))
	var all []ratelimit.Charge
	for i := range int64(5) {
		c, delay := p.reserve(1)
		require.Equal(t, 100*i, delay)
		all = append(all, c)
	}
	require.True(t, p.giveBack(all[1], 1))
	require.True(t, p.giveBack(all[3], 1))
	for _, want := range []int64{100, 300, 500} {
		_, delay := p.reserve(1)
		require.Equal(t, want, delay)
	}
	require.False(t, p.allow(1))
}

// What is given back before other charges moves them forward: of those, less can be given back then.
// Guarantees: Q22.
func TestPlaces_WhatHasMovedForwardReturnsSooner(t *testing.T) {
	t.Parallel()
	for _, broken := range [][]string{nil, {"ARGV[at + 1] + ends_us, s.returned - ARGV[at + 1]", "ARGV[at + 1] + ends_us, 0"}} {
		p := newPlaces(t, ratelimit.PerSecond(1).WithBurst(10), broken...)
		a, _ := p.reserve(5)
		b, _ := p.reserve(5)
		require.True(t, p.giveBack(a, 5))
		_, delay := p.reserve(5)
		require.Zero(t, delay)
		p.pass(4000)
		require.True(t, p.giveBack(b, 5), "one of them has not returned by itself")
		require.True(t, p.allow(5))
		require.Equal(t, broken != nil, p.allow(1))
	}
}

// What is given back before places is there at once, but for what these need; the places stay.
// Guarantees: Q22.
func TestPlaces_WhatIsOwed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		burst, free int64 // at once, of 5 that are given back before a place for one; the rest is a hole where it was
	}{"a burst of ten": {10, 5}, "a burst of five": {5, 4}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlaces(t, ratelimit.PerSecond(1).WithBurst(c.burst))
			require.True(t, p.allow(c.burst-5) || c.burst == 5)
			first, _ := p.reserve(5)
			place, delay := p.reserve(1)
			require.EqualValues(t, 1000, delay)
			require.True(t, p.giveBack(first, 5))
			require.False(t, p.allow(c.free+1))
			require.True(t, p.allow(c.free))
			require.True(t, c.free == 5 || p.allow(5-c.free))
			require.False(t, p.allow(1))
			p.pass(1000)
			require.False(t, p.allow(1))
			require.True(t, p.giveBack(place, 1))
			require.True(t, p.allow(1))
		})
	}
}

// A hole before a wide place ends where the permits of the place, and what is owed, need the time.
// Guarantees: Q22.
func TestPlaces_AHoleIsNotAddedToWhatIsOwed(t *testing.T) {
	t.Parallel()
	for _, broken := range [][]string{nil, {"  gcra_raise(s)\n", ""}} {
		p := newPlaces(t, ratelimit.PerSecond(1).WithBurst(10), broken...)
		require.True(t, p.allow(4))
		six, _ := p.reserve(6)
		_, delay := p.reserve(5)
		require.EqualValues(t, 5000, delay)
		require.True(t, p.giveBack(six, 6))
		p.pass(4999)
		require.True(t, p.allow(5))
		require.Equal(t, broken != nil, p.allow(1), "the place is used 1 ms later")
	}
}

// What is given back before a place that is as wide as the burst is there when that place is given back.
// Guarantees: Q22.
func TestPlaces_WhatHasNoRoomBesideAPlaceComesBackWithIt(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, ratelimit.PerSecond(1).WithBurst(10))
	var used []ratelimit.Charge
	for range 4 {
		c, _ := p.reserve(1)
		used = append(used, c)
	}
	place, delay := p.reserve(10)
	require.EqualValues(t, 4000, delay)
	for _, c := range used[:3] {
		require.True(t, p.giveBack(c, 1))
	}
	require.True(t, p.giveBack(place, 10))
	_, delay = p.reserve(10)
	require.EqualValues(t, 1000, delay)
}

// A request that has no room in a hole comes after all places, and is told when.
// Guarantees: Q30.
func TestPlaces_ADenialBesidePieces(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, ratelimit.PerSecond(1).WithBurst(4))
	require.True(t, p.allow(4))
	hole, _ := p.reserve(1)
	_, delay := p.reserve(4)
	require.EqualValues(t, 5000, delay)
	require.True(t, p.giveBack(hole, 1))
	p.pass(1000)
	q := ratelimit.AskOf(p.k, false, 2)
	results, known, err := q.Results(p.execute(q.Call(p.key), p.now))
	require.NoError(t, err)
	require.False(t, results[0].Allowed)
	require.Equal(t, 6*time.Second, results[0].RetryAfter.Round(time.Millisecond), "after the four")
	require.False(t, known.Denies(1, 0), "there is one in the hole")
	require.True(t, p.allow(1))
}

// Places are void when the state has begun anew.
// Guarantees: Q3.
func TestPlaces_EndWithTheirPeriod(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, ratelimit.PerSecond(1).WithBurst(1))
	require.True(t, p.allow(1))
	place, _ := p.reserve(1)
	require.NoError(t, p.rdb.Del(t.Context(), p.key).Err())
	p.pass(1)
	require.True(t, p.allow(1))
	other, delay := p.reserve(1)
	require.EqualValues(t, 1000, delay)
	require.False(t, p.giveBack(place, 1))
	require.True(t, p.giveBack(other, 1))
}

// Close gives the places of its waiters back.
// Guarantees: Q15.
func TestClose_GivesPlacesBack(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	limit := ratelimit.Limit{Rate: 1, Per: 20 * time.Second, Burst: 1}
	other := newClient(t, rdb).Limiter("k", limit)
	c, err := ratelimit.New(rdb)
	require.NoError(t, err)
	r, err := other.Reserve(t.Context(), name, 1)
	require.NoError(t, err)
	require.Zero(t, r.Delay())
	waited := make(chan error, 1)
	go func() { waited <- c.Limiter("k", limit).Wait(t.Context(), name) }()
	redistest.Poll(t, func() bool {
		peek, err := other.Peek(t.Context(), name)
		require.NoError(t, err)
		return peek.ResetAfter > 30*time.Second // it has its place
	})
	require.NoError(t, c.Close(t.Context()))
	require.ErrorIs(t, <-waited, ratelimit.ErrClosed)
	r, err = other.Reserve(t.Context(), name, 1)
	require.NoError(t, err)
	require.LessOrEqual(t, r.Delay(), 20*time.Second)
}

// A hole for several permits serves as many requests.
func TestPlaces_AHoleServesSeveral(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, ratelimit.PerSecond(10).WithBurst(2))
	require.True(t, p.allow(2))
	two, delay := p.reserve(2)
	require.EqualValues(t, 200, delay)
	_, delay = p.reserve(1)
	require.EqualValues(t, 300, delay)
	require.True(t, p.giveBack(two, 2))
	for _, want := range []int64{100, 200, 400} {
		_, delay := p.reserve(1)
		require.Equal(t, want, delay)
	}
}

// A waiter whose place was lost with the data of Redis does not use it beside those of the new state.
func TestPlaces_OfALostStateAreVoid(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	limit := ratelimit.Limit{Rate: 1, Per: 1500 * time.Millisecond, Burst: 1}
	k, other := newClient(t, rdb).Limiter("k", limit), newClient(t, rdb).Limiter("k", limit)
	reserve := func() time.Duration {
		r, err := other.Reserve(t.Context(), name, 1)
		require.NoError(t, err)
		return r.Delay()
	}
	require.Zero(t, reserve())
	waited := make(chan time.Time, 1)
	go func() {
		if k.Wait(t.Context(), name) == nil {
			waited <- time.Now()
		}
	}()
	redistest.Poll(t, func() bool {
		peek, err := other.Peek(t.Context(), name)
		require.NoError(t, err)
		return peek.ResetAfter > limit.Per
	})
	require.NoError(t, rdb.Del(t.Context(), ratelimit.RedisKey("k", name, ratelimit.GCRA)).Err())
	began := time.Now()
	require.Zero(t, reserve())
	require.Positive(t, reserve())
	require.GreaterOrEqual(t, (<-waited).Sub(began), 2*limit.Per)
}

// A hole that nobody took before its time is lost, as far as the places after it need the room.
func TestPlaces_AHoleThatPassedIsLost(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, ratelimit.PerSecond(1).WithBurst(1))
	var all []ratelimit.Charge
	for range 3 {
		c, _ := p.reserve(1)
		all = append(all, c)
	}
	require.True(t, p.giveBack(all[1], 1))
	p.pass(2100)
	require.False(t, p.allow(1), "the third was used at 2 s")
	p.pass(900)
	require.True(t, p.allow(1))
}

// When the places are gone, what was owed is part of the state, and no more than that.
func TestPlaces_WhatIsOwedEndsWithThePlaces(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, ratelimit.PerSecond(1).WithBurst(10))
	ten, _ := p.reserve(10)
	var all []ratelimit.Charge
	for range 20 {
		c, _ := p.reserve(1)
		all = append(all, c)
	}
	for _, c := range slices.Backward(all) {
		require.True(t, p.giveBack(c, 1))
	}
	require.True(t, p.giveBack(ten, 10))
	p.pass(9000)
	require.True(t, p.allow(9))
	p.pass(1100)
	require.False(t, p.allow(3), "10 and one of each second")
	require.True(t, p.allow(2))
}

// A debt takes what is owed first.
func TestPlaces_ADebtTakesWhatIsOwed(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, ratelimit.PerSecond(1).WithBurst(10))
	five, _ := p.reserve(5)
	_, _ = p.reserve(5)
	for range 10 {
		_, _ = p.reserve(1)
	}
	require.True(t, p.giveBack(five, 4))
	require.EqualValues(t, 1, p.ask(ratelimit.Booking(p.k, 1, 10)).Booked)
	require.False(t, p.allow(4))
	require.True(t, p.allow(3))
	require.False(t, p.allow(1))
	_, delay := p.reserve(1)
	require.EqualValues(t, 11_000, delay, "the places stay")
	require.EqualValues(t, 10, p.ask(ratelimit.Booking(p.k, 30, 10)).Booked, "places do not count")
	require.Zero(t, p.ask(ratelimit.Booking(p.k, 30, 10)).Booked)
}

// A waiter that is refused for its deadline does not make the next one wait.
func TestPlaces_AWaiterAfterAHopelessOne(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	limit := ratelimit.Limit{Rate: 1, Per: 3 * time.Second, Burst: 1}
	r, err := newClient(t, rdb).Limiter("k", limit).Reserve(t.Context(), name, 1)
	require.NoError(t, err)
	require.Zero(t, r.Delay())
	k := newClient(t, rdb).Limiter("k", limit)
	require.ErrorIs(t, k.Wait(within(t, 2*time.Second), name), ratelimit.ErrWouldExceedDeadline)
	stalled, began := redistest.Stalls(t), time.Now()
	require.NoError(t, k.Wait(within(t, redistest.Patience), name))
	require.Less(t, time.Since(began)-stalled(), 5*time.Second, "not at the next look")
}
