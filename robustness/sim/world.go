package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// world is one run of a schedule, in a bubble of its own.
type world struct {
	*Schedule
	start  time.Time
	server *server
	net    *network

	sentinel *sentinel // of a schedule whose clients ask one
	admin    *process  // that no fault is about

	injecting, operating, shuts sync.WaitGroup

	mu      sync.Mutex
	started int // processes
	slots   []*process
	links   map[int]int // of each process of the history
	last    int64       // the last stamp
	history history.History
	ids     uint64
	active  map[*activity]struct{}
	held    map[*holding]struct{}
	unsent  []failedRelease
	asked   []*request // of limits
	limits  []change   // of limits
	spans   []span

	troubles []trouble

	planned   map[string]Op // of tasks, by payload
	taskCalls []*taskCall
	taskRuns  []*taskRun
	services  []*taskService      // calls of Serve
	refused   bool                // a Serve was: the leases of its tasks end
	failed    map[string][]string // ids of tasks that have failed, at the end, by queue

	faults []check.Fault
	met    map[string]int    // faults that took effect
	pairs  map[[2]string]int // operation and fault
	ops    int
	trace  []string
	calm   int64 // when all faults had ended
}

// span is a time in which a fault lasted.
type span struct {
	check.Span
	fault   *FaultKind
	process int // in the history, or -1
}

// activity is an operation under way.
type activity struct {
	process int // the slot
	object  int
	what    string
	since   int64
	ends    time.Time // when its caller leaves; zero for never
	by      *process
	began   time.Time
	behind  bool // it began while its process had another for the object
}

// holding is a hold that a client relies on.
type holding struct {
	process *process
	object  int
	id      uint64
	hold    robustness.Hold
	lost    bool  // its client was told before it released it
	n       int64 // permits
	shared  bool
	since   time.Time
}

// since returns the nanoseconds of the bubble.
func (w *world) since() int64 { return int64(time.Since(w.start)) }

// stampLocked returns the present instant. No two stamps are equal: what happened at one instant of the bubble
// keeps its order.
func (w *world) stampLocked() int64 {
	w.last = max(w.last+1, w.since())
	return w.last
}

// record adds an event of a process.
func (w *world) record(p *process, e history.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recordLocked(p, e)
}

func (w *world) recordLocked(p *process, e history.Event) {
	p.mu.Lock()
	dead := p.dead
	p.mu.Unlock()
	if dead {
		return
	}
	e.At = w.stampLocked()
	w.history.Add(e)
	w.traceLocked(e.At, fmt.Sprintf("process %d: %s %s", p.number, e.Step, describe(e)))
}

func describe(e history.Event) string {
	text := ""
	if e.ID > 0 {
		text += fmt.Sprintf("#%d", e.ID)
	}
	if e.Object != "" {
		text += " " + e.Object
	}
	if e.Note != "" {
		text += " (" + e.Note + ")"
	}
	return text
}

func (w *world) traceLocked(at int64, text string) {
	w.trace = append(w.trace, fmt.Sprintf("%-12v %s", time.Duration(at).Round(time.Microsecond), text))
}

// faultf adds a broken promise.
func (w *world) faultf(promise, object, format string, args ...any) {
	detail := fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, check.Fault{Promise: promise, Object: object, Detail: detail})
	w.traceLocked(w.stampLocked(), "BROKEN: "+promise+": "+object+": "+detail)
}

// slot returns the process that a fault is about.
func (w *world) slot(f Fault) *process { return w.at(f.Process) }

func (w *world) at(i int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.slots[i]
}

// onLink changes the network of a process.
func (w *world) onLink(f Fault, change func(*link)) {
	l := w.slot(f).link
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	change(l)
	w.net.wakeLocked()
}

// restart stops the server and starts it again.
func (w *world) restart(f Fault, empty bool, met func()) {
	w.net.mu.Lock()
	w.net.down = true
	for _, l := range w.net.links[1:] {
		l.resetLocked()
	}
	w.net.mu.Unlock()
	met()
	time.Sleep(f.For)
	w.server.forgetScripts()
	if empty {
		w.server.lose(w.since())
		w.prepare()
	}
	w.net.mu.Lock()
	w.net.down = false
	w.net.mu.Unlock()
}

// stops records that a process stands still.
func (w *world) stops(p *process, d time.Duration) {
	e := history.Event{Step: history.Stopped, Client: history.ClientID(p.number, 0)}
	w.record(p, e)
	time.AfterFunc(d, func() {
		e.Step = history.Resumed
		w.record(p, e)
	})
}

// kill ends a process: nothing that it does from now on is seen.
func (w *world) kill(p *process) {
	w.record(p, history.Event{Step: history.Killed, Client: history.ClientID(p.number, 0)})
	p.die()
	w.net.mu.Lock()
	p.link.dead = true
	p.link.resetLocked()
	w.net.mu.Unlock()
	w.mu.Lock()
	for h := range w.held {
		if h.process == p {
			delete(w.held, h)
		}
	}
	w.mu.Unlock()
	w.ending(func() {
		p.close()
		p.shut()
	})
}

// stopWheel stops the wheel of a process, and looks later whether everything on it has ended.
func (w *world) stopWheel(p *process) {
	began := time.Now()
	p.stopWheel()
	time.Sleep(w.Lease + w.slack() + w.outages())
	w.mu.Lock()
	var waiting, relying []string
	for a := range w.active {
		if a.by == p && a.began.Before(began) {
			waiting = append(waiting, w.Objects[a.object].Name)
		}
	}
	for h := range w.held {
		if h.process == p && h.since.Before(began) && h.hold.Told() != nil {
			relying = append(relying, w.Objects[h.object].Name)
		}
	}
	w.mu.Unlock()
	for _, name := range waiting {
		w.faultf("a stopped wheel ends everything on it", name, "a call has not returned")
	}
	for _, name := range relying {
		w.faultf("a stopped wheel ends everything on it", name, "a holder has not been told")
	}
}

// end closes the clients of a process in the midst of their calls.
func (w *world) end(p *process) {
	p.close()
	w.ending(p.shut)
}

// ending does something at the end of a process that nothing waits for but the end of the run.
func (w *world) ending(f func()) { w.shuts.Go(f) }

// replace ends a process by a fault, unless another one does so already, and starts another process in its place.
func (w *world) replace(f Fault, met func(), end func(p *process)) {
	old := w.slot(f)
	old.mu.Lock()
	ended := old.ended
	old.ended = true
	old.mu.Unlock()
	if ended {
		return
	}
	met()
	end(old)
	p, err := w.newProcess()
	if err != nil {
		w.faultf("no trouble", "process", "%v", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slots[f.Process] = p
}

// inject brings a fault about at its time.
func (w *world) inject(f Fault) {
	time.Sleep(f.At)
	k := faultOf(f.Kind)
	w.mu.Lock()
	w.traceLocked(w.stampLocked(), "fault: "+f.Kind)
	p := w.slots[f.Process]
	w.mu.Unlock()
	from := w.since()
	met := func() { w.meet(k, f, p) }
	k.inject(w, f, met)
	if f.For > 0 {
		number := -1
		if k.process {
			number = p.number
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.spans = append(w.spans, span{check.Span{From: from, To: from + int64(f.For)}, k, number})
	}
}

// meet counts an effect of a fault, and the operations under way that it met. It may be called under any lock but
// that of the world.
func (w *world) meet(k *FaultKind, f Fault, p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.met[k.Name]++
	for a := range w.active {
		if (!k.process || a.process == f.Process) && (!k.object || a.object == f.Object) {
			w.pairs[[2]string{a.what, k.Name}]++
		}
	}
	if f.For > 0 && f.N == 0 {
		return
	}
	now, number := w.since(), -1
	if k.process {
		number = p.number
	}
	w.spans = append(w.spans, span{check.Span{From: now, To: now + int64(max(0, f.After))}, k, number})
}

// prepare creates the objects that have to exist. While another fault is in the way, it tries again.
func (w *world) prepare() {
	ctx, cancel := context.WithTimeout(context.Background(), w.Length+w.outages()+time.Minute)
	defer cancel()
	for i := range w.Objects {
		for {
			err := w.prepareOne(ctx, i)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				w.faultf("no trouble", w.Objects[i].Name, "prepare: %v", err)
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func (w *world) prepareOne(ctx context.Context, i int) error {
	o := &w.Objects[i]
	switch {
	case isLimit(o.Kind):
		return w.prepareLimit(ctx, w.admin, i)
	case isTasks(o.Kind):
		return nil
	}
	if prepare := robustness.KindOf(o.Kind).Prepare; prepare != nil {
		return prepare(ctx, w.admin.rdb, o.Name)
	}
	return nil
}

// newWorld prepares a run of a schedule.
func newWorld(s *Schedule) *world {
	return &world{
		Schedule: s, active: make(map[*activity]struct{}), held: make(map[*holding]struct{}),
		met: make(map[string]int), pairs: make(map[[2]string]int),
		links: make(map[int]int), planned: make(map[string]Op), failed: make(map[string][]string),
	}
}

// Run runs the schedule, in a bubble, and checks what happened.
func (w *world) Run(t *testing.T) (res *Result) {
	t.Helper()
	began := time.Now()
	if left := w.inBubble(t); left != nil {
		w.faults = append(w.faults, check.Fault{Promise: "nothing runs on after Close", Detail: fmt.Sprint(left)})
	}
	res = w.judge()
	res.Took = time.Since(began)
	return res
}

// soFar returns what has happened, for a run that does not end.
func (w *world) soFar() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	trace := slices.Clone(w.trace)
	for _, e := range w.server.executed[max(0, len(w.server.executed)-30):] {
		trace = append(trace, fmt.Sprintf("%v: the server executed %s %v of process %d",
			time.Duration(e.at), e.name, e.keys, e.link))
	}
	return trace
}

// inBubble runs the world, and returns the panic of a bubble whose goroutines do not end.
func (w *world) inBubble(t *testing.T) (left any) {
	defer func() { left = recover() }()
	synctest.Test(t, func(*testing.T) { w.run() })
	return nil
}

func (w *world) run() {
	w.start = time.Now()
	var err error
	if w.server, err = newServer(w.start); err != nil {
		w.faultf("no trouble", "server", "%v", err)
		return
	}
	w.net = newNetwork(w.Seed, w.Least, w.Most)
	w.net.serve, w.net.hides = w.serve, w.Hidden
	if w.Client != plainClient {
		if w.sentinel, err = newSentinel(); err != nil {
			w.faultf("no trouble", "server", "%v", err)
			return
		}
	}
	if w.admin, err = w.newProcess(); err != nil {
		w.faultf("no trouble", "process", "%v", err)
		return
	}
	w.prepare()
	for range w.Processes {
		p, err := w.newProcess()
		if err != nil {
			w.faultf("no trouble", "process", "%v", err)
			return
		}
		w.slots = append(w.slots, p)
	}
	for _, f := range w.Faults {
		w.injecting.Go(func() { w.inject(f) })
	}
	for _, o := range w.Ops {
		w.operating.Go(func() { w.do(o) })
	}
	w.finish()
}
