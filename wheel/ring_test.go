package wheel_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

const ms = int64(time.Millisecond)

// fireInstant adds one entry at now and returns when following Next alone brings it out.
func fireInstant(t *testing.T, r *wheel.Ring, now, deadline int64) int64 {
	t.Helper()
	r.Add(now, deadline)
	for steps := 0; ; steps++ {
		require.Less(t, steps, 1000, "the ring keeps waking its driver for one entry")
		next := r.Next()
		require.GreaterOrEqual(t, next, now, "Next went back")
		now = next
		if due, _ := r.Advance(now); len(due) > 0 {
			return now
		}
	}
}

func TestRing_AnEntryFiresExactlyAtItsDeadline(t *testing.T) {
	t.Parallel()
	const span = 64 * 512 * ms // what near holds
	starts := []int64{0, 1, ms - 1, ms, 511 * ms, 512 * ms, span - 1, span, 3*span/2 + 7}
	delays := []int64{
		0, 1, ms - 1, ms, ms + 1, 511 * ms, 512*ms - 1, 512 * ms, 512*ms + 1, 1024 * ms,
		span - ms, span - 1, span, span + 1, span + ms, 2 * span, 31 * span, 32*span - 1, 32 * span, 32*span + 1,
		33 * span, 64 * span, 1000 * span, int64(24 * time.Hour), int64(365 * 24 * time.Hour), math.MaxInt64/2 - 4*span,
	}
	for _, start := range starts {
		for _, delay := range delays {
			r := wheel.NewRing(time.Millisecond, 512)
			r.Advance(start)
			require.Equal(t, start+delay, fireInstant(t, r, start, start+delay), "start %d delay %d", start, delay)
			require.Zero(t, r.Live())
			require.Equal(t, wheel.Never, r.Next())
		}
	}
}

func TestRing_EverySmallDelayFromStartsAroundEachBoundary(t *testing.T) {
	t.Parallel()
	// One bucket of 1 µs: near reaches 64 ticks ahead and far 2048, so 2200 ticks cross every boundary.
	const tick = int64(time.Microsecond)
	for _, start := range []int64{0, 1, 30, 31, 32, 33, 63, 64, 65} {
		for delay := range int64(2200) {
			r := wheel.NewRing(time.Microsecond, 1)
			r.Advance(start * tick)
			require.Equal(t, (start+delay)*tick, fireInstant(t, r, start*tick, (start+delay)*tick), "start %d delay %d", start, delay)
		}
	}
}

func TestRing_ACrowdedBucketAsksForOneWakeUpWhenItsTickEnds(t *testing.T) {
	t.Parallel()
	r := wheel.NewRing(time.Millisecond, 512)
	for k := range int64(100) {
		r.Add(0, 10*ms+k)
	}
	r.Settle(0)
	require.Equal(t, 11*ms-1, r.Next(), "the last instant of the tick")
	due, _ := r.Advance(11*ms - 1)
	require.Len(t, due, 100)
}

func TestRing_ACrowdedBucketGivesWhatIsDueToAWorkerThatIsAwake(t *testing.T) {
	t.Parallel()
	r := wheel.NewRing(time.Millisecond, 512)
	for k := range int64(600) { // more than one batch
		r.Add(0, 10*ms+k*1000)
	}
	due, calls := r.Advance(10*ms + 299*1000)
	require.Len(t, due, 300, "those whose deadline has come, and none that is early")
	require.LessOrEqual(t, calls, 3)
	require.NoError(t, r.Check())
	require.Equal(t, 11*ms-1, r.Next())
	due, _ = r.Advance(11 * ms)
	require.Len(t, due, 300)
	require.Equal(t, wheel.Never, r.Next())
}

// In a long tick, entries of a crowded slot are taken soon after their deadlines, not when the tick ends.
func TestRing_ACrowdedBucketOfALongTickIsNotLate(t *testing.T) {
	t.Parallel()
	const tick = 2 * int64(time.Second)
	for _, entries := range []int64{16, 17, 1000, 40_000} {
		r, deadlines := wheel.NewRing(time.Duration(tick), 512), make(map[uint32]int64)
		for k := range entries {
			at := tick + k*tick/entries
			deadlines[r.Add(0, at)] = at
		}
		most, calls := max(10*ms, entries*1000), int64(0)
		for ; r.Live() > 0; calls++ {
			now := r.Next()
			due, _ := r.Advance(now)
			for _, i := range due {
				require.LessOrEqual(t, deadlines[i], now)
				require.LessOrEqual(t, now-deadlines[i], most, "%d entries", entries)
			}
		}
		require.LessOrEqual(t, calls, tick/(10*ms)+1, "%d entries", entries)
	}
}

func TestRing_ABatchThatEndsWithinABucketLeavesTheRestLinked(t *testing.T) {
	t.Parallel()
	r := wheel.NewRing(time.Millisecond, 512)
	var all []uint32
	for range 600 {
		all = append(all, r.Add(0, 5*ms))
	}
	due, _ := r.AdvanceOnce(6*ms, 256)
	require.Equal(t, all[:256], due)
	require.NoError(t, r.Check())
	r.Remove(all[256]) // the first of the rest, and its last
	r.Remove(all[599])
	require.NoError(t, r.Check())
	due, _ = r.Advance(6 * ms)
	require.Equal(t, all[257:599], due)
	require.NoError(t, r.Check())
}

func TestRing_EntriesOfOneTickComeOutInTheOrderTheyWereAdded(t *testing.T) {
	t.Parallel()
	r := wheel.NewRing(time.Millisecond, 512)
	var want []uint32
	for range 1000 {
		want = append(want, r.Add(0, 5*ms))
	}
	due, _ := r.Advance(6 * ms)
	require.Equal(t, want, due)
}

func TestRing_OneBucketHoldsManyRoundsInsertedInDescendingOrder(t *testing.T) {
	t.Parallel()
	const rounds = 5000 // beyond near and far, so that some have remainingRounds left twice
	r := wheel.NewRing(time.Millisecond, 8)
	deadline := map[uint32]int64{}
	for k := int64(rounds); k > 0; k-- {
		at := k * 8 * ms
		deadline[r.Add(0, at)] = at
	}
	for k := int64(1); k <= rounds; k++ {
		due, _ := r.Advance(k*8*ms - 1)
		require.Empty(t, due, "round %d fired early", k)
		due, _ = r.Advance(k * 8 * ms)
		require.Len(t, due, 1, "round %d", k)
		require.Equal(t, k*8*ms, deadline[due[0]])
	}
}

// Guarantees: W12.
func TestRing_AStallIsCaughtUpInOccupiedBucketsNotInMissedTicks(t *testing.T) {
	t.Parallel()
	r := wheel.NewRing(time.Millisecond, 512)
	require.NoError(t, checkCatchUp(r.Add, r.Advance, 100*365*24*time.Hour)) // 3·10^12 ticks
}

func TestControl_ACatchUpTickByTickIsNoticed(t *testing.T) {
	t.Parallel()
	r := wheel.NewRing(time.Millisecond, 512)
	advanced := int64(0)
	tickByTick := func(to int64) (due []uint32, calls int) {
		for advanced < to {
			advanced += ms
			fired, n := r.Advance(advanced)
			due, calls = append(due, fired...), calls+max(n, 1)
		}
		return due, calls
	}
	require.ErrorContains(t, checkCatchUp(r.Add, tickByTick, 11*time.Second), "calls")
}

// checkCatchUp lets ten entries become due in a stall, and counts the calls that catch up.
func checkCatchUp(add func(now, deadline int64) uint32, advance func(int64) ([]uint32, int), stall time.Duration) error {
	for k := range int64(10) {
		add(0, int64(stall)/11*(k+1))
	}
	if due, calls := advance(int64(stall)); len(due) != 10 || calls > 10 {
		return fmt.Errorf("%d of 10 entries fired, in %d calls", len(due), calls)
	}
	return nil
}

func TestRing_TimeGoingBackFiresNothingAndLosesNothing(t *testing.T) {
	t.Parallel()
	r := wheel.NewRing(time.Millisecond, 512)
	r.Advance(1000 * ms)
	r.Add(1000*ms, 1010*ms)
	due, _ := r.Advance(5 * ms)
	require.Empty(t, due)
	r.Add(5*ms, 15*ms) // by the clock that went back: overdue for the ring, due at its own deadline
	due, _ = r.Advance(14 * ms)
	require.Empty(t, due)
	due, _ = r.Advance(1010 * ms)
	require.Len(t, due, 2)
}

func TestRing_RescheduleLaterStaysPutAndFiresAtTheNewDeadline(t *testing.T) {
	t.Parallel()
	for _, delay := range []int64{1, ms, 100 * ms, 40_000 * ms, int64(10 * time.Hour)} {
		r := wheel.NewRing(time.Millisecond, 512)
		i := r.Add(0, 10*ms)
		r.Reschedule(i, 0, 10*ms+delay)
		due, _ := r.Advance(10*ms + delay - 1)
		require.Empty(t, due, "delay %d", delay)
		due, _ = r.Advance(10*ms + delay)
		require.Equal(t, []uint32{i}, due, "delay %d", delay)
	}
}

func TestRing_RescheduleEarlierFiresAtTheNewDeadline(t *testing.T) {
	t.Parallel()
	for _, from := range []int64{20 * ms, 40_000 * ms, int64(10 * time.Hour)} {
		r := wheel.NewRing(time.Millisecond, 512)
		i := r.Add(0, from)
		r.Reschedule(i, 0, 10*ms)
		require.Equal(t, 10*ms, r.Next())
		due, _ := r.Advance(10 * ms)
		require.Equal(t, []uint32{i}, due)
	}
}

func TestRing_AVisitToAHugeFarBucketIsSplitAndCompletes(t *testing.T) {
	t.Parallel()
	r := wheel.NewRing(time.Millisecond, 512)
	const at = int64(time.Hour)
	var all []uint32
	for range 10_000 {
		all = append(all, r.Add(0, at))
	}
	for k := 0; k < len(all); k += 2 {
		r.Remove(all[k])
	}
	due, calls := r.Advance(at - ms)
	require.Empty(t, due)
	require.Greater(t, calls, 10, "the move was not split")
	require.NoError(t, r.Check())
	due, _ = r.Advance(at + ms)
	require.Len(t, due, 5000)
}

// Guarantees: W16.
func TestRing_GivesChunksBackAfterASpike(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]func(all []uint32){
		"in no order":          func(all []uint32) { rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] }) },
		"the oldest first":     func([]uint32) {},
		"the youngest first":   slices.Reverse[[]uint32],
		"but for the youngest": func(all []uint32) { all[len(all)-1] = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := wheel.NewRing(time.Millisecond, 512)
			var all []uint32
			for range 100_000 {
				all = append(all, r.Add(0, rand.Int64N(int64(time.Hour))))
			}
			spike, last := r.Chunks(), all[len(all)-1]
			order(all)
			for _, i := range all {
				if i != 0 {
					r.Remove(i)
				}
			}
			require.NoError(t, r.Check())
			require.Greater(t, spike, 1500)
			require.LessOrEqual(t, r.Chunks(), 5, "as many nodes as a slab keeps free, and the one that lasts")
			if all[len(all)-1] == 0 {
				require.Equal(t, spike, r.Places(), "entries do not move")
				r.Remove(last)
				require.NoError(t, r.Check())
			}
			require.LessOrEqual(t, r.Places(), 16, "the tables of the chunks are given back too")
		})
	}
}

func TestRing_TickOfIsTheQuotient(t *testing.T) {
	t.Parallel()
	ticks := []time.Duration{time.Microsecond, 1<<10 - 1, 1 << 20, time.Millisecond, 3333333, time.Second, time.Hour}
	for _, tick := range ticks {
		r := wheel.NewRing(tick, 512)
		for range 10_000 {
			ns := rand.Int64N(math.MaxInt64 >> rand.IntN(50))
			require.Equal(t, ns/int64(tick), r.TickOf(ns), "%d / %d", ns, tick)
			whole := ns / int64(tick) * int64(tick)
			require.Equal(t, ns/int64(tick), r.TickOf(whole))
			if whole > 0 {
				require.Equal(t, ns/int64(tick)-1, r.TickOf(whole-1))
			}
		}
	}
}

func TestRing_HeldEntriesAreOutOfTimeUntilTheyAreMoved(t *testing.T) {
	t.Parallel()
	for _, called := range []bool{false, true} {
		r := wheel.NewRing(time.Millisecond, 512)
		for range 5 {
			r.Add(0, ms)
		}
		held := r.TakeAndHold(2*ms, called)
		require.Len(t, held, 5)
		require.NoError(t, r.Check())
		require.Equal(t, 5, r.Live())
		require.Equal(t, wheel.Never, r.Next())
		due, _ := r.Advance(int64(time.Hour))
		require.Empty(t, due)

		r.Remove(held[2]) // one in the middle, the first and the last of them
		r.Remove(held[0])
		r.Remove(held[4])
		require.NoError(t, r.Check())
		require.Equal(t, 2, r.Live())

		now := int64(time.Hour)
		r.Reschedule(held[1], now, now+ms)
		require.NoError(t, r.Check())
		if called { // it waits until its callback has ended
			require.Equal(t, wheel.Never, r.Next())
			r.Rearm(held[1], now, now+ms)
		}
		require.Equal(t, now+ms, r.Next())
		r.Rearm(held[3], now, now+2*ms)
		due, _ = r.Advance(now + 2*ms)
		require.Equal(t, []uint32{held[1], held[3]}, due)
		require.Zero(t, r.Live())
		require.NoError(t, r.Check())
	}
}

func TestRing_ARowThatFillsKeepsItsOrder(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 4, 8, 64, 512, 4096} {
		r := wheel.NewRing(time.Millisecond, slots)
		var want []uint32
		byTick := make([][]uint32, slots)
		for range 1000 { // in any order of ticks; those of one tick in the order they were added
			tick := rand.IntN(slots)
			byTick[tick] = append(byTick[tick], r.Add(0, int64(tick)*ms))
			require.NoError(t, r.Check())
		}
		for _, entries := range byTick {
			want = append(want, entries...)
		}
		due, _ := r.Advance(int64(slots+1) * ms)
		require.Equal(t, want, due, "%d slots", slots)
	}
}

func TestRing_AFarRowMayGrowWhileItIsMoved(t *testing.T) {
	t.Parallel()
	r := wheel.NewRing(time.Microsecond, 512)
	const period, periods = int64(512 * 32 * 1000), 64
	deadline := map[uint32]int64{}
	add := func(now, at int64) { deadline[r.Add(now, at)] = at }
	for k := range int64(30) { // few buckets; those of the next revolution stay when the row is moved
		add(0, 10*period+k*period/30)
		add(0, (10+periods)*period+k*period/30)
	}
	for now := int64(0); len(deadline) > 0; now += period / 7 {
		if now/period == 9 { // the period in which the row is moved
			for k := range int64(40) {
				add(now, (10+periods)*period+k*period/40)
			}
		}
		due, _ := r.AdvanceBy(now, 1)
		require.NoError(t, r.Check())
		for _, i := range due {
			require.LessOrEqual(t, deadline[i], now)
			require.Greater(t, deadline[i], now-period/7-1000)
			delete(deadline, i)
		}
	}
}
