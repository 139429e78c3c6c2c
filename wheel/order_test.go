package wheel_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// deadlines records when the callbacks that are called were due, in the order of their calls.
type deadlines struct {
	mu  sync.Mutex
	due []time.Duration
}

func (d *deadlines) add(due time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due = append(d.due, due)
}

// checkOrderOfTicks returns an error if one was called after another that was due in a later tick.
func checkOrderOfTicks(due []time.Duration, tick time.Duration) error {
	latest := time.Duration(0)
	for k, d := range due {
		if d/tick < latest/tick {
			return fmt.Errorf("call %d of %d was due at %v, after one due at %v", k, len(due), d, latest)
		}
		latest = max(latest, d)
	}
	return nil
}

func TestControl_TheOrderOfTicksIsChecked(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	require.NoError(t, checkOrderOfTicks([]time.Duration{ms + 5, ms + 2, 2 * ms, 7 * ms}, ms))
	require.Error(t, checkOrderOfTicks([]time.Duration{ms, 2 * ms, 2*ms - 1}, ms))
}

// deadlinesAfterAStall schedules entries of every sort from many goroutines, so that they lie in all shards,
// and lets the clock jump beyond all of them. It returns the deadlines in the order of the calls.
func deadlinesAfterAStall(t *testing.T, e wheel.Executor) []time.Duration {
	c := &steppedClock{wait: make(chan time.Time)}
	w := newWheel(t, wheel.WithClock(c), wheel.WithExecutor(e))
	start, calls := c.Now(), &deadlines{}
	const goroutines, each = 64, 200
	parallel(goroutines, func(g int) {
		r := rand.New(rand.NewPCG(5, uint64(g)))
		for k := range each {
			due := time.Duration(1 + r.Int64N(int64([]time.Duration{20 * time.Millisecond, 2 * time.Second, time.Hour}[k%3])))
			fire := func() { calls.add(due) }
			switch k % 4 {
			case 0:
				newTimeout(t, w, wheel.TimerTaskFunc(func(*wheel.Timeout) { fire() }), due)
			case 1:
				late := after(t, w, due/2, fire)
				require.True(t, late.Reschedule(due))
			default:
				after(t, w, due, fire)
			}
		}
	})
	pass(time.Second)
	require.Equal(t, start, c.Now())
	c.now.Add(int64(2 * time.Hour))
	c.wait <- time.Time{}
	pass(time.Second)
	require.Zero(t, w.Len())
	require.Len(t, calls.due, goroutines*each)
	return calls.due
}

// Guarantees: W4.
func TestWheel_AfterAStallCallbacksThatRunSideBySideKeepNearlyToTheOrderOfTicks(t *testing.T) {
	t.Parallel()
	for _, e := range []wheel.Executor{wheel.Goroutines(), wheel.Pool(4)} {
		t.Run(e.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				due := deadlinesAfterAStall(t, e)
				require.LessOrEqual(t, displaced(due), len(due)/10)
				slices.Reverse(due)
				require.Greater(t, displaced(due), len(due)/2, "control")
			})
		})
	}
}

// displaced counts the callbacks that are not where the order of ticks has them: by more than a tick, and more than a
// quarter of all. One callback that is far away does not count against the others.
func displaced(due []time.Duration) (n int) {
	sorted := slices.Sorted(slices.Values(due))
	for at, d := range due {
		first, _ := slices.BinarySearch(sorted, d-time.Millisecond)
		last, _ := slices.BinarySearch(sorted, d+time.Millisecond+1)
		if at < first-len(due)/4 || at > last+len(due)/4 {
			n++
		}
	}
	return n
}

// Guarantees: W4.
func TestWheel_AfterAStallEntriesFireInTheOrderOfTheirTicks(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]wheel.Executor{
		"Inline":             wheel.Inline(),
		"Pool(1)":            wheel.Pool(1),
		"ExecutorFunc(call)": wheel.ExecutorFunc(func(task func()) { task() }),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				require.NoError(t, checkOrderOfTicks(deadlinesAfterAStall(t, e), time.Millisecond))
			})
		})
	}
}
