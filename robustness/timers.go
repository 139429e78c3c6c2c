package robustness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// TimerScenario is a process with many timers that is stopped and starved of processor time. Meanwhile its timers
// are stopped and rescheduled, and some of its callbacks block or panic.
type TimerScenario struct {
	Name    string
	Timers  int
	Everies int
	Length  time.Duration
	Seed    uint64
}

// FixedTimers is the scenario of each run of make robustness.
func FixedTimers(timers int, length time.Duration) *TimerScenario {
	return &TimerScenario{
		Name: "wheel: its process is stopped and starved", Timers: timers, Everies: 100, Length: length, Seed: 300,
	}
}

// timersEnv names the variable that makes the test binary the process of a TimerScenario.
const timersEnv = "ROBUSTNESS_TIMERS"

// TimerFigures are the figures of a run of the wheel.
type TimerFigures struct {
	Timers   int `json:"timers"`
	Fired    int `json:"fired"`
	Stopped  int `json:"stopped"`
	Returned int `json:"returned"` // by the wheel's Stop
	Resets   int `json:"resets"`
	Panics   int `json:"panics"`
	Blocked  int `json:"blocked"` // callbacks that blocked for a tenth of a second

	Lost       int `json:"lost"`  // neither fired, stopped nor returned
	Twice      int `json:"twice"` // more than one of these
	Early      int `json:"early"`
	EveryFired int `json:"everyFired"`
	EveryWrong int `json:"everyWrong"` // firings of an Every that were early, on top, or overlapped

	Late     Quantiles `json:"late"`     // outside of the faults
	LateStop Quantiles `json:"lateStop"` // during and right after them
}

func (f *TimerFigures) String() string {
	return fmt.Sprintf("%d timers: %d fired, %d stopped, %d returned, %d resets; lost %d, twice %d, early %d; "+
		"Every fired %d times, wrong %d; %d callbacks panicked, %d blocked; late: %v; with faults: %v",
		f.Timers, f.Fired, f.Stopped, f.Returned, f.Resets, f.Lost, f.Twice, f.Early,
		f.EveryFired, f.EveryWrong, f.Panics, f.Blocked, f.Late, f.LateStop)
}

// broken returns the promises that the figures break.
func (f *TimerFigures) broken() (faults []check.Fault) {
	for promise, n := range map[string]int{
		"no timer is lost": f.Lost, "each timer ends once": f.Twice, "no timer is early": f.Early,
		"an Every keeps its instants": f.EveryWrong,
	} {
		if n > 0 {
			faults = append(faults, check.Fault{Promise: promise, Object: "wheel", Detail: fmt.Sprint(n)})
		}
	}
	if min(f.Fired, f.Stopped, f.Returned, f.Resets, f.EveryFired, f.Panics, f.Blocked) == 0 {
		faults = append(faults, check.Fault{Promise: "everything takes place", Object: "wheel", Detail: f.String()})
	}
	return faults
}

// Do runs the scenario.
func (s *TimerScenario) Do(t *testing.T) *Result {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	text, err := json.Marshal(s)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), timersEnv+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := json.NewDecoder(stdout)
	var ready bool // all timers are scheduled
	require.NoError(t, said.Decode(&ready))

	rnd := rand.New(rand.NewPCG(s.Seed, 0))
	r := &Run{Scenario: &Scenario{Seed: s.Seed}, ctx: t.Context(), tb: t, rnd: rnd, effects: make(map[string]int)}
	for end := time.Now().Add(s.Length); time.Now().Before(end) || len(r.spans) == 0; {
		r.sleep(r.upTo(2 * time.Second))
		from, name := history.Now(), "process stopped"
		if rnd.IntN(2) == 0 {
			require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
			r.sleep(r.upTo(time.Second))
			require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
		} else {
			name = "processors busy"
			hog(r.upTo(time.Second))
		}
		r.effects[name]++
		r.spans = append(r.spans, check.Span{From: from, To: history.Now()})
	}
	require.NoError(t, json.NewEncoder(stdin).Encode(r.spans))
	require.NoError(t, stdin.Close())
	figures := &TimerFigures{}
	decoded := said.Decode(figures)
	require.NoError(t, cmd.Wait(), "%s", &stderr)
	require.NoError(t, decoded)
	res := &Result{
		Scenario: s.Name, Kind: "wheel", Seed: s.Seed, Length: s.Length, Environment: newEnvironment(""),
		Effects: r.effects, Timers: figures,
	}
	res.Calls, res.Granted = res.Timers.Timers, res.Timers.Fired
	res.Faults = res.Timers.broken()
	return res
}

// hog keeps all processors busy.
func hog(d time.Duration) {
	var all sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		all.Go(func() {
			for end := time.Now().Add(d); time.Now().Before(end); {
			}
		})
	}
	all.Wait()
}

// timerProcess is the process of a TimerScenario.
type timerProcess struct {
	TimerScenario
	wheel   *wheel.Wheel
	entries []entry
	over    atomic.Bool // the wheel has stopped: functions are called to learn which they are
	panics  atomic.Int64
	blocked atomic.Int64
	resets  atomic.Int64
	fired   atomic.Int64 // by an Every
	wrong   atomic.Int64
}

// entry is one timer. Its mutex is held while it is stopped or rescheduled, so that its callback sees the deadline.
type entry struct {
	mu       sync.Mutex
	timer    wheel.Timer
	deadline int64
	firedAt  int64
	fired    uint8
	stopped  uint8
	returned uint8
	early    bool
}

// runTimers runs the process and writes its figures.
func runTimers(text string) error {
	p := &timerProcess{}
	if err := json.Unmarshal([]byte(text), &p.TimerScenario); err != nil {
		return err
	}
	var err error
	if p.wheel, err = wheel.New(wheel.WithPanicHandler(func(any, []byte) { p.panics.Add(1) })); err != nil {
		return err
	}
	p.entries = make([]entry, p.Timers)
	spans := make(chan []check.Span, 1)
	go func() {
		var s []check.Span
		_ = json.NewDecoder(os.Stdin).Decode(&s) // without spans, all count as outside
		spans <- s
	}()
	began := history.Now()
	if err := p.schedule(); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(true); err != nil {
		return err
	}
	faults := p.stir(spans)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	left, err := p.wheel.Stop(ctx)
	if err != nil {
		return err
	}
	p.over.Store(true)
	for _, u := range left {
		u.Func()
	}
	return out.Encode(p.figures(faults, began))
}

// schedule schedules the timers, two thirds of them within the length of the run.
func (p *timerProcess) schedule() error {
	rnd := rand.New(rand.NewPCG(p.Seed, 1))
	for i := range p.entries {
		d := time.Duration(rnd.Int64N(int64(p.Length) * 3 / 2))
		e := &p.entries[i]
		e.mu.Lock()
		e.deadline = history.Now() + int64(d)
		timer, err := p.wheel.AfterFunc(d, func() { p.fire(i) })
		e.timer = timer
		e.mu.Unlock()
		if err != nil {
			return err
		}
	}
	for i := range p.Everies {
		if err := p.every(time.Duration(5+i) * time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// fire is the callback of the i-th timer. One in a thousand panics, and one in ten thousand blocks.
func (p *timerProcess) fire(i int) {
	now := history.Now()
	e := &p.entries[i]
	e.mu.Lock()
	if p.over.Load() {
		e.returned++
	} else {
		e.fired++
		e.firedAt, e.early = now, now < e.deadline
	}
	e.mu.Unlock()
	switch {
	case p.over.Load():
	case i%1000 == 7:
		panic("a callback that panics")
	case i%10_000 == 3:
		p.blocked.Add(1)
		_ = p.wheel.Sleep(context.Background(), 100*time.Millisecond) // blocks, unless the wheel is stopped
	}
}

// every schedules an Every, which may have been called once for each period that has passed.
func (p *timerProcess) every(period time.Duration) error {
	var calls, running atomic.Int64
	began := history.Now()
	_, err := p.wheel.Every(period, func() {
		if p.over.Load() {
			return
		}
		overlaps := running.Add(1) > 1
		defer running.Add(-1)
		p.fired.Add(1)
		if n := calls.Add(1); overlaps || n*int64(period) > history.Now()-began {
			p.wrong.Add(1)
		}
	})
	return err
}

// stir stops and reschedules timers at random until the parent ends the run, and returns the spans of its faults.
func (p *timerProcess) stir(spans chan []check.Span) []check.Span {
	var all sync.WaitGroup
	var over atomic.Bool
	for g := range 4 {
		rnd := rand.New(rand.NewPCG(p.Seed, uint64(2+g)))
		all.Go(func() {
			for ended := false; !ended; {
				for range 100 {
					p.change(rnd)
				}
				_ = p.wheel.Sleep(context.Background(), 5*time.Millisecond) // the context does not end
				ended = over.Load()
			}
		})
	}
	faults := <-spans
	over.Store(true)
	all.Wait()
	return faults
}

// change stops or reschedules a timer.
func (p *timerProcess) change(rnd *rand.Rand) {
	e := &p.entries[rnd.IntN(len(p.entries))]
	d := time.Duration(rnd.Int64N(int64(p.Length)))
	e.mu.Lock()
	defer e.mu.Unlock()
	if rnd.IntN(2) == 0 {
		if e.timer.Stop() {
			e.stopped++
		}
	} else if deadline := history.Now() + int64(d); e.timer.Reschedule(d) {
		e.deadline = deadline
		p.resets.Add(1)
	}
}

// figures counts what became of the timers.
func (p *timerProcess) figures(faults []check.Span, began int64) *TimerFigures {
	f := &TimerFigures{
		Timers: len(p.entries), Resets: int(p.resets.Load()), Panics: int(p.panics.Load()),
		Blocked: int(p.blocked.Load()), EveryFired: int(p.fired.Load()), EveryWrong: int(p.wrong.Load()),
	}
	settled := began + int64(time.Second)
	var late, lateStop check.Waits
	for i := range p.entries {
		e := &p.entries[i]
		f.Fired += int(e.fired)
		f.Stopped += int(e.stopped)
		f.Returned += int(e.returned)
		switch ends := e.fired + e.stopped + e.returned; {
		case ends == 0:
			f.Lost++
		case ends > 1:
			f.Twice++
		}
		if e.early {
			f.Early++
		}
		if e.fired == 0 || e.deadline < settled {
			continue
		}
		if lateness := time.Duration(e.firedAt - e.deadline); disturbed(faults, e.deadline, e.firedAt) {
			lateStop = append(lateStop, lateness)
		} else {
			late = append(late, lateness)
		}
	}
	f.Late, f.LateStop = quantiles(late), quantiles(lateStop)
	return f
}

// disturbed reports whether a fault lasted during a time or ended up to half a second before it.
func disturbed(faults []check.Span, from, to int64) bool {
	for _, s := range faults {
		if s.From <= to && from <= s.To+int64(time.Second/2) {
			return true
		}
	}
	return false
}

// runTimersIfAsked reports whether the environment asks for that process.
func runTimersIfAsked() bool {
	text := os.Getenv(timersEnv)
	if text == "" {
		return false
	}
	if err := runTimers(text); err != nil {
		panic(err)
	}
	return true
}
