package wheel

import (
	"context"
	"sync"
	"time"
	"unsafe"
)

// Wheel schedules callbacks. Make one with New or share the one of Default. Its methods are safe for concurrent
// use.
type Wheel struct {
	scheduler *scheduler
	funcs     *shardSet[func()]
	objects   *shardSet[object]
	shared    bool // the wheel of Default

	sleepers sync.Pool // of *sleeper; one per wheel, because a channel belongs to the synctest bubble that made it
}

// object is an entry with more than a function.
type object interface {
	// bind gives the entry its handle, before it can fire.
	bind(t Timer)
	fire()
}

// New makes a wheel. Its goroutines start with the first entry. They end at most 0.3 s after the last entry has
// fired or was stopped, so an empty wheel need not be stopped. The error, if any, is a *cogwheel.InvalidError
// that names the option.
func New(opts ...Option) (*Wheel, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	c := newScheduler(cfg)
	w := &Wheel{scheduler: c}
	w.funcs = newShardSet(c, func(f func()) { f() })
	w.funcs.preload = preloadFuncs
	w.objects = newShardSet(c, object.fire)
	w.objects.bind = object.bind
	w.objects.recurs = func(o object, deadline int64) (stays, counts bool) {
		if p, ok := o.(*recurring); ok {
			return true, p.beginLocked(deadline)
		}
		return false, true
	}
	w.objects.exempt = func(o object) bool {
		switch o.(type) {
		case notified, *timeoutContext: // of the library itself, and of contexts, which cannot be refused
			return true
		}
		return false
	}
	w.objects.moved = func(o object) {
		if p, ok := o.(*recurring); ok {
			p.moved = true
		}
	}
	return w, nil
}

// preloadFuncs reads the first word of each closure. When they are due, closures have left the caches; reads
// that do not depend on each other miss together instead of one after another.
func preloadFuncs(fs []func()) {
	for k := range fs {
		_ = **(**uintptr)(unsafe.Pointer(&fs[k]))
	}
}

// AfterFunc calls f once, at the earliest when d has passed, on the wheel's executor: by default no call of f
// waits for another callback. If d is zero or less, f is called as soon as possible. AfterFunc does not block,
// and allocates only when the wheel's memory has to grow.
//
// It returns a *cogwheel.InvalidError if f is nil, ErrStopped, or ErrTooManyPending; then nothing is scheduled.
func (w *Wheel) AfterFunc(d time.Duration, f func()) (Timer, error) {
	if f == nil {
		return Timer{}, errNilFunction
	}
	return w.funcs.schedule(d, f)
}

// Now returns the wheel's time: time.Now, or the time of WithClock's clock. Code that compares deadlines when
// an entry fires should read the time from Now, so that a test that moves the clock moves both.
func (w *Wheel) Now() time.Time { return w.scheduler.time.wall() }

// TickDuration returns the length of one tick, see WithTickDuration.
func (w *Wheel) TickDuration() time.Duration { return time.Duration(w.scheduler.ticks.length) }

// Len returns the number of pending entries, including those of Every, Repeat, Schedule, Sleep, WithTimeout and
// the other packages of this library, of which WithMaxPendingTimeouts does not count the last two. It is exact if
// nothing is scheduled, stopped or fired meanwhile.
func (w *Wheel) Len() int { return w.scheduler.len() }

// Unprocessed is an entry that the wheel's Stop ended before it fired, or before its next firing.
type Unprocessed struct {
	Func    func()        // of AfterFunc, Every, Repeat and Schedule (with the next instant); nil for the others
	Timeout *Timeout      // of NewTimeout, now cancelled; nil for the others
	Left    time.Duration // time that was left until its deadline; 0 if it was due or its callback was running
}

// Stop ends the wheel. Later calls return ErrStopped, and the wheel's goroutines end. Stop returns each entry that
// has not fired exactly once, in no particular order, and never an entry for which Timer.Stop had returned false
// before. Entries of Every, Repeat and Schedule are returned once, also while their callback runs. Calls of Sleep
// return ErrStopped, and contexts of WithTimeout keep their deadlines on runtime timers; Stop returns neither.
//
// Stop also ends the entries of the other packages of this library, before it waits for callbacks, and does not
// return them: leases, and with them locks and permits, are lost with the cause renewal.ErrUnwatched, and waiting
// calls return an error that matches ErrStopped. So stop the wheel after the clients that use it.
//
// Only the first call waits until the callbacks that have begun have returned: if its error is nil, no callback runs,
// and none will. If ctx ends first, or has ended before, Stop returns the entries with ctx's error. Callbacks that
// had begun, or were about to begin, then end on their own, and nothing can wait for them any more; no other begins.
//
// Any other call returns nil, nil at once, even while the first still waits. Stop returns a *cogwheel.InvalidError if
// ctx is nil, ErrStopFromTask if a callback of the same wheel calls it, and ErrDefaultWheel on the wheel of Default;
// then the wheel keeps running.
func (w *Wheel) Stop(ctx context.Context) ([]Unprocessed, error) {
	if w.shared {
		return nil, ErrDefaultWheel
	}
	var rest []Unprocessed
	addFunc := func(f func(), left time.Duration) { rest = append(rest, Unprocessed{Func: f, Left: left}) }
	var cancelled []*Timeout
	var contexts []*timeoutContext
	var notices []object
	addObject := func(o object, left time.Duration) {
		switch o := o.(type) {
		case *Timeout:
			if o.end(timeoutCancelled) {
				rest = append(rest, Unprocessed{Timeout: o, Left: left})
				cancelled = append(cancelled, o)
			}
		case *recurring:
			rest = append(rest, Unprocessed{Func: o.f, Left: left})
		case *sleeper:
			o.woken <- ErrStopped
		case *timeoutContext:
			contexts = append(contexts, o)
		case notified:
			notices = append(notices, stopNotice(o))
		}
	}
	err := w.scheduler.shutdown(ctx, func(now int64) {
		w.funcs.close(now, addFunc)
		w.objects.close(now, addObject)
		// Before Stop waits for running callbacks: one of them may wait for such a context or for a notice.
		for _, c := range contexts {
			c.useRuntimeTimer(time.Until(c.deadline))
		}
		w.objects.callAtStop(notices)
	})
	for _, t := range cancelled {
		t.runCancelled()
	}
	return rest, err
}
