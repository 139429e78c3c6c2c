package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Kinds are the kinds of objects: locks and permits of package robustness, but those on several servers, and
// limits, and queues of tasks.
var Kinds = func() (names []string) {
	for _, k := range robustness.Kinds {
		if !k.Quorum && !k.Reenters {
			names = append(names, k.Name)
		}
	}
	return append(append(names, limitKinds...), tasksKind)
}()

func isLimit(kind string) bool { return slices.Contains(limitKinds, kind) }

func isPermits(kind string) bool { return strings.HasSuffix(kind, "permits") }

// do carries out an operation at its time.
func (w *world) do(o Op) {
	time.Sleep(o.At)
	p := w.at(o.Process)
	if !p.awake() || !p.isUp() {
		return
	}
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	a := &activity{
		process: o.Process, object: o.Object, what: w.Objects[o.Object].Kind + ", " + string(o.Action),
		by: p, began: time.Now(),
	}
	if o.Patience > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.Patience)
		a.ends = time.Now().Add(o.Patience)
	}
	defer cancel()
	w.mu.Lock()
	w.ops++
	a.since = w.since()
	for b := range w.active {
		a.behind = a.behind || b.by == p && b.object == a.object
	}
	w.active[a] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.active, a)
	}()
	switch kind := w.Objects[o.Object].Kind; {
	case isLimit(kind):
		w.ask(ctx, p, o, a)
	case isTasks(kind):
		w.doTask(ctx, p, o)
	default:
		w.take(ctx, p, o, a)
	}
}

// recovered turns the panic of a hook into an error, as net/http does. Any other panic goes on.
func recovered(err *error) {
	switch v := recover(); {
	case v == nil:
	case strings.Contains(fmt.Sprint(v), hookPanic):
		*err = errors.New(hookPanic)
	default:
		panic(v)
	}
}

// take acquires a lock or permits, relies on them for a while, and releases them.
func (w *world) take(ctx context.Context, p *process, o Op, a *activity) {
	object := &w.Objects[o.Object]
	w.mu.Lock()
	w.ids++
	id := w.ids
	w.recordLocked(p, history.Event{
		Step: history.Called, ID: id, Client: history.ClientID(p.number, 0), Object: object.Name,
		N: o.N, Shared: o.Shared, Try: o.Action == Try, Note: fmt.Sprintf("patience %v", o.Patience),
	})
	w.mu.Unlock()
	hold, err := acquire(ctx, p.lockers[object.Kind], robustness.Ask{
		Object: object.Name, N: o.N, Shared: o.Shared, Try: o.Action == Try,
	})
	late := time.Duration(0)
	if !a.ends.IsZero() {
		late = time.Since(a.ends)
	}
	if !p.awake() {
		return
	}
	w.prompt(p, o, a)
	switch {
	case err == nil:
		h := &holding{
			process: p, object: o.Object, id: id, hold: hold, n: o.N, shared: o.Shared, since: time.Now(),
		}
		w.granted(h)
		w.rely(h, o.Hold)
		return
	case errors.Is(err, robustness.ErrRefused) && ctx.Err() == nil:
		w.record(p, history.Event{Step: history.Refused, ID: id})
	default: // a waiter whose context ends may be behind another, or be granted what nobody wants any more
		w.record(p, history.Event{Step: history.Failed, ID: id, Note: err.Error()})
		if ctx.Err() == nil {
			w.mu.Lock()
			w.troubledLocked(p, o, a.since, false, err)
			w.mu.Unlock()
		}
	}
	if late > w.Tick+time.Millisecond && !w.has("process stands still") {
		w.faultf("a caller returns when its context ends", object.Name, "call #%d returned %v later: %v", id, late, err)
	}
}

func acquire(ctx context.Context, l robustness.Locker, ask robustness.Ask) (hold robustness.Hold, err error) {
	defer recovered(&err)
	return l.Acquire(ctx, ask)
}

// granted records a grant, and which other clients rely on theirs after it.
func (w *world) granted(h *holding) {
	w.mu.Lock()
	others := make(map[*holding]bool)
	for other := range w.held {
		others[other] = other.object == h.object
	}
	w.mu.Unlock()
	for other := range others {
		if other.process.link.standsStill() > 0 {
			others[other] = false // it relies on nothing while it does not run
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recordLocked(h.process, history.Event{Step: history.Granted, ID: h.id, Token: h.hold.Token()})
	w.held[h] = struct{}{}
	for other := range w.held {
		if (other == h || others[other]) && other.hold.Valid() {
			w.recordLocked(other.process, history.Event{Step: history.Relied, ID: other.id})
		}
	}
}

// prompt looks whether a call that does not wait for others took a timeout although no message was lost meanwhile: then
// it waited for calls on connections that are silent. One call for each object is under way, so a call behind another
// for its object waits for that.
func (w *world) prompt(p *process, o Op, a *activity) {
	took := time.Since(a.began)
	if o.Action != Try || a.behind || took < w.Timeout*4/5 ||
		slices.ContainsFunc(w.Faults, func(f Fault) bool { return f.Kind != "connections silent" }) {
		return
	}
	w.net.mu.Lock()
	lost := slices.ContainsFunc(p.link.unheard, func(at time.Time) bool { return !at.Before(a.began) })
	w.net.mu.Unlock()
	if !lost {
		w.faultf("a call waits for no silent connection", w.Objects[o.Object].Name, "a call took %v", took)
	}
}

// failedRelease is a release of a valid hold that returned an error.
type failedRelease struct {
	*holding
	called, returned int64
}

// rely relies on a hold for a while, and then releases it.
func (w *world) rely(h *holding, patience time.Duration) {
	p := h.process
	timer := time.NewTimer(patience)
	defer timer.Stop()
	told := false
	select {
	case <-timer.C:
	case <-h.hold.Told():
		told = true
	}
	if !p.awake() {
		return
	}
	w.mu.Lock()
	delete(w.held, h)
	h.lost = told
	if told {
		w.recordLocked(p, history.Event{Step: history.Told, ID: h.id})
	} else if h.hold.Valid() {
		w.recordLocked(p, history.Event{Step: history.Relied, ID: h.id})
	}
	w.recordLocked(p, history.Event{Step: history.Release, ID: h.id})
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	called, valid := w.since(), h.hold.Valid()
	step, err := release(ctx, h.hold)
	if !p.awake() {
		return
	}
	e := history.Event{Step: step, ID: h.id}
	if err != nil {
		e.Note = err.Error()
	}
	w.record(p, e)
	if step == history.Open && valid {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.unsent = append(w.unsent, failedRelease{h, called, w.since()})
	}
}

func release(ctx context.Context, h robustness.Hold) (step history.Step, err error) {
	defer func() {
		if err != nil && step == "" {
			step = history.Open
		}
	}()
	defer recovered(&err)
	return h.Release(ctx)
}
