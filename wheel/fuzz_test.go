package wheel_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// entryKind is what an entry of the differential test is.
type entryKind byte

const (
	afterFunc entryKind = iota
	newTimeoutKind
	typedKind
	contextKind
	sleepKind
	everyKind
	scheduleKind
	entryKinds
)

// callback is how the callback of an entry behaves.
type callback byte

const (
	returns callback = iota
	panics
	blocks
	exits
	callbacks
)

// modelEntry is what the test knows of one entry: its deadline, and what became of it.
type modelEntry struct {
	kind     entryKind
	does     callback
	period   time.Duration
	began    time.Duration // when it was scheduled, since the start
	deadline time.Duration // of the next firing
	timer    wheel.Timer
	timeout  *wheel.Timeout
	ctx      context.Context
	cancel   context.CancelFunc

	ended string          // "", or how it ended, as the model has it
	fired []time.Duration // guarded by wheelModel.mu
	woken error           // of Sleep
	awake bool
}

// subject is the wheel under test; a broken one stands for it in the controls.
type subject interface {
	AfterFunc(d time.Duration, f func()) (wheel.Timer, error)
	NewTimeout(task wheel.TimerTask, d time.Duration) (*wheel.Timeout, error)
	Every(period time.Duration, f func(), opts ...wheel.RepeatOption) (wheel.Timer, error)
	Schedule(s wheel.Schedule, f func(time.Time), opts ...wheel.RepeatOption) (wheel.Timer, error)
	WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc)
	Sleep(ctx context.Context, d time.Duration) error
	Len() int
	Stop(ctx context.Context) ([]wheel.Unprocessed, error)
	StopTimer(t wheel.Timer) bool
}

type realSubject struct{ *wheel.Wheel }

func (realSubject) StopTimer(t wheel.Timer) bool { return t.Stop() }

// wheelModel runs a wheel beside a list of deadlines.
type wheelModel struct {
	w       subject
	typed   *wheel.Typed[int]
	tick    time.Duration
	start   time.Time
	release chan struct{} // closed at the end: callbacks that block return

	mu      sync.Mutex
	entries []*modelEntry
	err     error
}

func (m *wheelModel) now() time.Duration { return time.Since(m.start) }

func (m *wheelModel) fail(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
}

// fire notes a firing and behaves as the entry's callback.
func (m *wheelModel) fire(n int) {
	m.mu.Lock()
	e := m.entries[n]
	e.fired = append(e.fired, m.now())
	m.mu.Unlock()
	switch e.does {
	case panics:
		panic("fuzz")
	case exits:
		runtime.Goexit()
	case blocks:
		<-m.release
	}
}

// add schedules an entry.
func (m *wheelModel) add(kind entryKind, does callback, d time.Duration) {
	if d <= 0 && (kind == everyKind || kind == scheduleKind) {
		d = 1
	}
	e := &modelEntry{kind: kind, does: does, period: d, began: m.now(), deadline: m.now() + max(0, d)}
	n := len(m.entries)
	m.mu.Lock()
	m.entries = append(m.entries, e)
	m.mu.Unlock()
	f := func() { m.fire(n) }
	var err error
	switch kind {
	case afterFunc:
		e.timer, err = m.w.AfterFunc(d, f)
	case newTimeoutKind:
		e.timeout, err = m.w.NewTimeout(wheel.TimerTaskFunc(func(*wheel.Timeout) { f() }), d)
	case typedKind:
		e.timer, err = m.typed.Add(n, d)
	case everyKind:
		e.timer, err = m.w.Every(d, f)
	case scheduleKind:
		e.timer, err = m.w.Schedule(wheel.ScheduleFunc(func(prev time.Time) time.Time { return prev.Add(d) }), func(time.Time) { f() })
	case contextKind:
		e.ctx, e.cancel = m.w.WithTimeout(context.Background(), d)
		context.AfterFunc(e.ctx, func() {
			m.mu.Lock()
			e.fired = append(e.fired, m.now())
			m.mu.Unlock()
		})
	case sleepKind:
		e.ctx, e.cancel = context.WithCancel(context.Background())
		go func() {
			err := m.w.Sleep(e.ctx, d)
			m.mu.Lock()
			defer m.mu.Unlock()
			e.fired, e.woken, e.awake = append(e.fired, m.now()), err, true
		}()
		synctest.Wait() // it has begun to sleep
	}
	if err != nil {
		m.fail("entry %d was refused: %v", n, err)
	}
}

func (e *modelEntry) recurs() bool { return e.kind == everyKind || e.kind == scheduleKind }

// due reports whether the model knows that an entry that fires once has fired, or may have.
func (e *modelEntry) due(now, tick time.Duration) (must, may bool) {
	return e.deadline+tick <= now, e.deadline <= now
}

// stop ends an entry and compares what that says.
func (m *wheelModel) stop(n int) {
	synctest.Wait()
	e := m.entries[n]
	m.mu.Lock()
	fired := len(e.fired)
	m.mu.Unlock()
	var stopped bool
	switch e.kind {
	case newTimeoutKind:
		stopped = e.timeout.Cancel()
	case contextKind, sleepKind:
		stopped = e.ended == "" && fired == 0
		e.cancel()
		synctest.Wait()
	default:
		stopped = m.w.StopTimer(e.timer)
	}
	switch {
	case stopped && e.ended != "":
		m.fail("entry %d was stopped although it had ended: %s", n, e.ended)
	case stopped && fired > 0 && !e.recurs():
		m.fail("entry %d was stopped after it had fired", n)
	case !stopped && e.ended == "" && fired == 0:
		m.fail("entry %d could not be stopped although it had not fired", n)
	case !stopped && e.ended == "" && e.recurs():
		m.fail("entry %d of Every or Schedule could not be stopped", n)
	}
	if e.ended == "" {
		e.ended = "fired"
		if stopped {
			e.ended = "stopped"
		}
	}
}

// reschedule moves an entry. Entries without a Timer are left alone, and so are those of Every and Schedule, whose
// instants after a Reschedule are a test of their own.
func (m *wheelModel) reschedule(n int, d time.Duration) {
	synctest.Wait()
	e := m.entries[n]
	if e.kind != afterFunc && e.kind != typedKind {
		return
	}
	m.mu.Lock()
	fired := len(e.fired)
	m.mu.Unlock()
	moved := e.timer.Reschedule(d)
	if want := e.ended == "" && fired == 0; moved != want {
		m.fail("entry %d: Reschedule returned %v, want %v", n, moved, want)
	}
	if moved {
		e.deadline = m.now() + max(0, d)
	}
}

// pass lets time pass and compares what has fired.
func (m *wheelModel) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	m.check()
}

func (m *wheelModel) check() {
	now, pending := m.now(), 0
	m.mu.Lock()
	typed, err := 0, m.err
	for n, e := range m.entries {
		if err == nil {
			err = m.checkEntry(n, e, now)
		}
		if e.ended == "" && (e.recurs() || len(e.fired) == 0) {
			if e.kind == typedKind {
				typed++
			} else {
				pending++
			}
		}
	}
	m.err = err
	m.mu.Unlock()
	if got := m.w.Len(); got != pending {
		m.fail("Len is %d, want %d", got, pending)
	}
	if got := m.typed.Len(); got != typed {
		m.fail("Len of the Typed is %d, want %d", got, typed)
	}
}

// checkEntry compares the firings of an entry with its deadlines.
func (m *wheelModel) checkEntry(n int, e *modelEntry, now time.Duration) error {
	if e.recurs() {
		last := int64(-1)
		for _, at := range e.fired {
			instant := int64((at - e.began) / e.period) // the number of the last one by then
			switch {
			case instant < 1:
				return fmt.Errorf("entry %d fired early, at %v", n, at)
			case instant == last:
				return fmt.Errorf("entry %d fired twice between two instants of its period %v", n, e.period)
			case (at-e.began)%e.period > m.tick && e.period > m.tick:
				return fmt.Errorf("entry %d fired late, at %v with a period of %v", n, at, e.period)
			}
			last = instant
		}
		if e.ended == "" && e.does != blocks && e.period > 2*m.tick {
			if want := int((now - e.began - m.tick) / e.period); len(e.fired) < want {
				return fmt.Errorf("entry %d fired %d times, want %d", n, len(e.fired), want)
			}
		}
		return nil
	}
	must, may := e.due(now, m.tick)
	switch {
	case len(e.fired) > 1:
		return fmt.Errorf("entry %d fired %d times", n, len(e.fired))
	case e.kind == contextKind || e.kind == sleepKind:
		// They end when they are cancelled, too.
	case e.ended == "stopped" && len(e.fired) > 0:
		return fmt.Errorf("entry %d fired although it was stopped", n)
	}
	if e.ended == "stopped" || e.ended == "returned" {
		return nil
	}
	switch {
	case len(e.fired) == 1 && e.fired[0] < e.deadline:
		return fmt.Errorf("entry %d fired early: at %v, its deadline is %v", n, e.fired[0], e.deadline)
	case len(e.fired) == 1 && e.fired[0] > e.deadline+m.tick:
		return fmt.Errorf("entry %d fired late: at %v, its deadline is %v", n, e.fired[0], e.deadline)
	case len(e.fired) == 1 && !may:
		return fmt.Errorf("entry %d fired before the model says so", n)
	case len(e.fired) == 0 && must:
		return fmt.Errorf("entry %d has not fired by %v, its deadline is %v", n, now, e.deadline)
	}
	return nil
}

// end stops the wheels and counts how each entry has ended.
func (m *wheelModel) end() error {
	synctest.Wait()
	m.check()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	unprocessed := 0
	rest, err := m.w.Stop(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		m.fail("Stop: %v", err)
	}
	unprocessed += len(rest)
	values, err := m.typed.Stop(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		m.fail("Stop of the Typed: %v", err)
	}
	for _, v := range values {
		if e := m.entries[v.Value]; e.ended != "" || len(e.fired) > 0 {
			m.fail("entry %d was returned although it had ended", v.Value)
		}
		m.entries[v.Value].ended = "returned"
	}
	want := 0
	for _, e := range m.entries {
		m.mu.Lock()
		pending := e.ended == "" && (e.recurs() || len(e.fired) == 0)
		m.mu.Unlock()
		if !pending {
			continue
		}
		switch e.kind {
		case contextKind, sleepKind: // are not returned
		default:
			if e.ended = "returned"; e.kind != typedKind {
				want++
			}
		}
	}
	if unprocessed != want {
		m.fail("Stop returned %d entries, want %d", unprocessed, want)
	}
	m.mu.Lock()
	before := make([]int, len(m.entries))
	for n, e := range m.entries {
		before[n] = len(e.fired)
	}
	m.mu.Unlock()
	close(m.release)
	time.Sleep(48 * time.Hour) // beyond every deadline
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, e := range m.entries {
		fired := len(e.fired)
		switch {
		case m.err != nil:
		case e.kind == contextKind && fired != 1:
			m.err = fmt.Errorf("context %d ended %d times", n, fired)
		case e.kind == sleepKind && !e.awake:
			m.err = fmt.Errorf("sleeper %d was not woken", n)
		case e.kind == contextKind || e.kind == sleepKind:
		case fired != before[n]:
			m.err = fmt.Errorf("entry %d fired after Stop", n)
		case !e.recurs() && fired == 0 && e.ended == "":
			m.err = fmt.Errorf("entry %d has not ended", n)
		}
		if e.cancel != nil {
			e.cancel()
		}
	}
	if m.w.Len() != 0 || m.typed.Len() != 0 {
		return errors.Join(m.err, errors.New("entries are left"))
	}
	return m.err
}

// span makes a time of two bytes: of less than a tick, of ticks, around a round, and of hours.
func span(a, b byte, tick time.Duration, buckets int) time.Duration {
	n, round := int64(b), int64(buckets)
	of := func(times int64, unit time.Duration) time.Duration { return unit * time.Duration(times) }
	switch a % 8 {
	case 0:
		return of(n, tick)/16 - tick
	case 1:
		return of(n, tick)
	case 2:
		return of(n, tick) + time.Duration(a/8) - 2
	case 3:
		return of(round*(n%4), tick) + of(n-128, 1)
	case 4:
		return of(64*round+n-128, tick)
	case 5:
		return of(n, time.Second)
	case 6:
		return of(7*n, time.Minute)
	}
	return of(n, tick) / 3
}

// runOperations decodes operations and runs them beside the model: the first byte chooses the wheel, and each
// operation takes four.
func runOperations(t *testing.T, ops []byte, broken func(*wheel.Wheel) subject) (err error) {
	if len(ops) == 0 {
		return nil
	}
	buckets := []int{1, 2, 8, 512}[ops[0]%4]
	tick := []time.Duration{time.Millisecond, 10 * time.Millisecond, 7 * time.Microsecond, time.Second}[ops[0]/4%4]
	ops = ops[1:]
	synctest.Test(t, func(t *testing.T) {
		m := &wheelModel{tick: tick, start: time.Now(), release: make(chan struct{})}
		opts := []wheel.Option{
			wheel.WithTickDuration(tick), wheel.WithTicksPerWheel(buckets), wheel.WithPanicHandler(func(any, []byte) {}),
		}
		w, newErr := wheel.New(opts...)
		require.NoError(t, newErr)
		m.w = broken(w)
		m.typed, newErr = wheel.NewTyped(m.fire, opts...)
		require.NoError(t, newErr)
		firings := 0
		for ; len(ops) >= 4 && len(m.entries) < 200; ops = ops[4:] {
			d := span(ops[2], ops[3], tick, buckets)
			switch op := ops[0] % 8; {
			case op < 3:
				kind := entryKind(ops[1] % byte(entryKinds))
				if (kind == everyKind || kind == scheduleKind) && d < 10*tick {
					d += 10 * tick // an hour of short periods takes long
				}
				m.add(kind, callback(ops[1]/byte(entryKinds)%byte(callbacks)), d)
			case op < 4 && len(m.entries) > 0:
				m.stop(int(ops[1]) % len(m.entries))
			case op < 5 && len(m.entries) > 0:
				m.reschedule(int(ops[1])%len(m.entries), d)
			default:
				for _, e := range m.entries {
					if e.recurs() && e.ended == "" {
						firings += int(max(0, d) / e.period)
					}
				}
				if firings < 20_000 {
					m.pass(max(0, d))
				}
			}
		}
		err = m.end()
	})
	return err
}

// FuzzWheel runs a wheel in virtual time beside a list of deadlines.
// Guarantees: W1, W2, W5.
func FuzzWheel(f *testing.F) {
	for _, seed := range wheelSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		if len(ops) > 800 {
			t.Skip("long")
		}
		require.NoError(t, runOperations(t, ops, func(w *wheel.Wheel) subject { return realSubject{w} }))
	})
}

// wheelSeeds reach each kind of entry and of callback, each operation, and the edges of ticks and rounds.
var wheelSeeds = []string{
	"\x03",
	"\x03\x00\x00\x01\x05\x06\x00\x01\x04\x06\x00\x01\x02",                                                 // one fires
	"\x03\x00\x00\x01\x05\x03\x00\x00\x00\x06\x00\x01\x09",                                                 // one is stopped
	"\x03\x00\x00\x01\x05\x04\x00\x01\x30\x06\x00\x01\x09\x06\x00\x01\x40",                                 // one is moved
	"\x01\x00\x00\x01\x05\x00\x01\x01\x05\x00\x02\x01\x05\x00\x03\x01\x05\x00\x04\x01\x05\x06\x00\x05\x01", // each kind
	"\x00\x00\x05\x01\x14\x00\x06\x01\x1e\x06\x00\x01\xff\x03\x00\x00\x00\x06\x00\x01\xff",                 // Every and Schedule
	"\x03\x00\x07\x01\x05\x00\x0e\x01\x05\x00\x00\x01\x05\x06\x00\x01\x09\x00\x0e\x01\x05\x06\x00\x05\x01", // panics, blocks
	"\x02\x00\x00\x04\x80\x00\x00\x04\x81\x00\x02\x03\x85\x06\x00\x05\x01\x06\x00\x06\x10",                 // rounds
	"\x0f\x00\x00\x06\x05\x00\x03\x06\x05\x00\x04\x06\x06\x06\x00\x06\x04",                                 // hours, and Stop of what is left
	"\x08\x00\x00\x00\x00\x00\x00\x00\x10\x00\x02\x00\x08\x00\x04\x00\x00\x06\x00\x00\x20",                 // no delay, and less than none
	"\x03\x01\x0c\x01\x14\x01\x13\x01\x14\x06\x00\x01\xff\x06\x00\x05\x02",                                 // recurring callbacks that panic and block
}
