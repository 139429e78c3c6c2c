package wheel_test

// Races in real time, each over at least a million operations, 50 000 with -short, and each required to show
// both of its outcomes.

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// raceOps is how many operations a race takes.
func raceOps() int {
	if testing.Short() {
		return 50_000
	}
	return testsize.Of(200_000, 1_000_000)
}

// ledger records what became of each entry.
type ledger struct {
	ran     []atomic.Int32
	stopped []atomic.Bool
}

func newLedger(n int) *ledger {
	return &ledger{ran: make([]atomic.Int32, n), stopped: make([]atomic.Bool, n)}
}

func (l *ledger) fire(k uint32) { l.ran[k].Add(1) }

// awaitSome returns when a tenth of the n entries from the given one have run, so that both outcomes of a
// race occur however slow the machine is.
func (l *ledger) awaitSome(from, n int) {
	for ran := 0; ran < n/10; runtime.Gosched() {
		ran = 0
		for k := range n {
			ran += int(l.ran[from+k].Load())
		}
	}
}

// verdict counts the entries that ran and those that were stopped, and the ones of which neither or both is
// true.
func (l *ledger) verdict() (ran, stopped, wrong int) {
	for k := range l.ran {
		switch n, s := l.ran[k].Load(), l.stopped[k].Load(); {
		case n == 1 && !s:
			ran++
		case n == 0 && s:
			stopped++
		default:
			wrong++
		}
	}
	return ran, stopped, wrong
}

// drained waits until everything pending has fired and returns what Stop still found.
func drained(t *testing.T, w *wheel.Typed[uint32]) []wheel.UnprocessedValue[uint32] {
	t.Helper()
	for w.Len() > 0 {
		require.NoError(t, newWheel(t).Sleep(context.Background(), time.Millisecond))
	}
	rest, err := w.Stop(context.Background())
	require.NoError(t, err)
	return rest
}

// parallel runs f on several goroutines and waits for them.
func parallel(goroutines int, f func(g int)) {
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() { f(g) })
	}
	wg.Wait()
}

func schedule(t *testing.T, w *wheel.Typed[uint32], d time.Duration, v uint32) wheel.Timer {
	timer, err := w.Add(v, d)
	if err != nil {
		t.Error(err)
	}
	return timer
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// soonOrLater draws delays that mostly end while the race is on; some never do, so that both outcomes occur
// however slow the machine is.
func soonOrLater(r *rand.Rand) time.Duration {
	return upTo(r, []time.Duration{50 * time.Microsecond, 500 * time.Microsecond, 5 * time.Millisecond, time.Hour}[r.IntN(4)])
}

func testStopAgainstFire(t *testing.T, batch int, opts ...wheel.Option) {
	ops := raceOps()
	l := newLedger(ops)
	w, err := wheel.NewTyped(l.fire, opts...)
	require.NoError(t, err)
	const goroutines = 4
	parallel(goroutines, func(g int) {
		r := rand.New(rand.NewPCG(1, uint64(g)))
		timers := make([]wheel.Timer, batch)
		for from := g * ops / goroutines; from < (g+1)*ops/goroutines; from += batch {
			n := min(batch, (g+1)*ops/goroutines-from)
			for k := range n {
				timers[k] = schedule(t, w, soonOrLater(r), uint32(from+k))
			}
			l.awaitSome(from, n)
			for k := range n {
				l.stopped[from+k].Store(timers[k].Stop())
			}
		}
	})
	for _, u := range drained(t, w) { // due, and returned before its callback began: an end like any other
		l.fire(u.Value)
	}
	ran, stopped, wrong := l.verdict()
	t.Logf("%d entries: %d ran, %d stopped, %d wrong", ops, ran, stopped, wrong)
	require.Zero(t, wrong)
	require.Greater(t, ran, ops/20)
	require.Greater(t, stopped, ops/20)
	st := w.Stats()
	require.EqualValues(t, ran, st.Fired)
	require.EqualValues(t, stopped, st.Stopped)
}

// Guarantees: W1, W5.
func TestRace_StopAgainstFire(t *testing.T) {
	t.Parallel()
	testStopAgainstFire(t, 1000)
}

// Guarantees: W1.
func TestRace_StopAgainstTheMoveFromFarToNear(t *testing.T) {
	t.Parallel()
	// One bucket of 1 µs: what is more than 64 µs away waits in far and is moved before it fires.
	testStopAgainstFire(t, 1000, wheel.WithTickDuration(time.Microsecond), wheel.WithTicksPerWheel(1))
}

// Guarantees: W1.
func TestRace_RescheduleAgainstFire(t *testing.T) {
	t.Parallel()
	ops := raceOps()
	l := newLedger(ops)
	w, err := wheel.NewTyped(l.fire)
	require.NoError(t, err)
	const goroutines, batch = 4, 500
	var moved, late atomic.Int64
	parallel(goroutines, func(g int) {
		r := rand.New(rand.NewPCG(2, uint64(g)))
		timers := make([]wheel.Timer, batch)
		for from := g * ops / goroutines; from < (g+1)*ops/goroutines; from += batch {
			for k := range batch {
				timers[k] = schedule(t, w, soonOrLater(r), uint32(from+k))
			}
			l.awaitSome(from, batch)
			for k := range batch {
				if timers[k].Reschedule(upTo(r, 500*time.Microsecond)) {
					moved.Add(1)
				} else {
					late.Add(1)
				}
			}
		}
	})
	for _, u := range drained(t, w) {
		l.fire(u.Value)
	}
	ran, _, wrong := l.verdict()
	t.Logf("%d rescheduled while pending, %d too late", moved.Load(), late.Load())
	require.Zero(t, wrong)
	require.Equal(t, ops, ran)
	require.Greater(t, moved.Load(), int64(ops/20))
	require.Greater(t, late.Load(), int64(ops/20))
}

// Guarantees: W1, W10.
func TestRace_ScheduleAgainstTheWheelsStop(t *testing.T) {
	t.Parallel()
	ops := raceOps()
	for name, e := range executors() {
		t.Run(name, func(t *testing.T) {
			var sum stopRace
			for round := 0; sum.accepted < int64(ops)/4 || sum.rarest() < int64(ops)/2000; round++ {
				sum.add(t, raceAgainstStop(t, round, e)) // an outcome that does not occur ends this test by its timeout
			}
			t.Logf("%+v", sum)
		})
	}
}

// stopRace counts what became of entries.
type stopRace struct{ accepted, refused, fired, stopped, returned int64 }

// rarest is how often the rarest outcome occurred.
func (r *stopRace) rarest() int64 { return min(r.fired, r.stopped, r.returned, r.refused) }

func (r *stopRace) add(t *testing.T, o stopRace) {
	require.Equal(t, o.accepted, o.fired+o.stopped+o.returned, "each accepted entry has exactly one end")
	r.accepted, r.refused = r.accepted+o.accepted, r.refused+o.refused
	r.fired, r.stopped, r.returned = r.fired+o.fired, r.stopped+o.stopped, r.returned+o.returned
}

// raceAgainstStop lets goroutines schedule and stop while the wheel is stopped, every other time with a
// context that has ended.
func raceAgainstStop(t *testing.T, round int, e wheel.Executor) stopRace {
	w, err := wheel.New(wheel.WithMaxPendingTimeouts(1<<30), wheel.WithExecutor(e))
	require.NoError(t, err)
	var accepted, refused, fired, stopped, late atomic.Int64
	var over atomic.Bool
	enough := int64(10_000 + rand.IntN(10_000))
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(round), uint64(g)))
			for refusals := 0; refusals < 10; { // until the wheel refuses entries, however slow the machine is
				if accepted.Load() > enough {
					runtime.Gosched() // to the one that stops it
				}
				timer, err := w.AfterFunc(upTo(r, time.Millisecond), func() {
					if fired.Add(1); over.Load() {
						late.Add(1)
					}
				})
				if err != nil {
					refusals++
					refused.Add(1)
					continue
				}
				if accepted.Add(1); r.IntN(4) == 0 && timer.Stop() {
					stopped.Add(1)
				}
			}
		})
	}
	for accepted.Load() < enough || fired.Load() < 100 {
		runtime.Gosched()
	}
	ctx, cancel := context.WithCancel(context.Background())
	if round%2 == 1 {
		cancel()
	}
	rest, err := w.Stop(ctx)
	cancel()
	if err == nil { // every callback has returned
		over.Store(true)
	}
	wg.Wait()
	for err != nil && accepted.Load() != fired.Load()+stopped.Load()+int64(len(rest)) {
		runtime.Gosched() // those that had begun when Stop returned
	}
	require.Zero(t, late.Load(), "began after Stop had returned")
	require.Zero(t, w.Len())
	require.Zero(t, w.Reserved(), "the count of pending entries leaks")
	return stopRace{accepted.Load(), refused.Load(), fired.Load(), stopped.Load(), int64(len(rest))}
}

// Guarantees: W23.
func TestRace_MaxPendingIsNeverExceeded(t *testing.T) {
	t.Parallel()
	const limit = 100
	for range 200 {
		w := newWheel(t, wheel.WithMaxPendingTimeouts(limit))
		var accepted atomic.Int64
		parallel(8, func(g int) {
			r := rand.New(rand.NewPCG(3, uint64(g)))
			for range 250 { // churn, beside entries of the library, then fill up
				if timer, err := w.AfterFunc(upTo(r, time.Millisecond), func() {}); err == nil && r.IntN(2) == 0 {
					timer.Stop()
				}
				if timer, err := wheelentry.AfterFunc(w, upTo(r, time.Millisecond), func(error) {}); err != nil {
					t.Error(err)
				} else if r.IntN(2) == 0 {
					timer.Stop()
				}
			}
			for range limit {
				if _, err := w.AfterFunc(time.Hour, func() {}); err == nil {
					accepted.Add(1)
				}
			}
		})
		require.LessOrEqual(t, accepted.Load(), int64(limit))
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Zero(t, w.Reserved(), "each end gives its place back")
	}
}

func TestRace_ScheduleAgainstRetirement(t *testing.T) {
	t.Parallel()
	// The clock's waits end at once, so an empty wheel retires whenever it gets the chance.
	w := newWheel(t, wheel.WithClock(hastyClock{}))
	ran := make(chan struct{})
	for k := 0; k < raceOps()/50 || w.Retirements() < 100; k++ { // an entry that is lost ends this test by its timeout
		after(t, w, 0, func() { ran <- struct{}{} })
		<-ran
		for range k % 4 {
			runtime.Gosched() // leave the worker time to retire, or not quite
		}
	}
}

// Guarantees: W10.
func TestRace_StopAgainstRetirement(t *testing.T) {
	t.Parallel()
	for range raceOps() / 50 { // a Stop that waits for a worker which has just retired ends this test by its timeout
		w, err := wheel.New(wheel.WithClock(hastyClock{}))
		require.NoError(t, err)
		ran := make(chan struct{})
		after(t, w, 0, func() { close(ran) })
		<-ran
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
	}
}

// hastyClock is the system clock with waits that are over as soon as others have had their turn.
type hastyClock struct{}

func (hastyClock) Now() time.Time { return time.Now() }
func (hastyClock) After(time.Duration) <-chan time.Time {
	runtime.Gosched()
	over := make(chan time.Time)
	close(over)
	return over
}
