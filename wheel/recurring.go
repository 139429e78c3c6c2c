package wheel

// recurring is an entry of Every, Repeat or Schedule. It keeps its node, and so its handle, from one firing to
// the next. While its callback runs, the entry is held outside the rows of its ring, so it cannot fire again
// meanwhile.
type recurring struct {
	f     func()
	rule  rule
	timer Timer

	due      int64 // the deadline of the firing in progress
	dueMoved bool  // whether Timer.Reschedule set due
	moved    bool  // Timer.Reschedule was called since the last firing was due; guarded by the shard's mutex
}

// rule computes the deadlines of a recurring entry, in nanoseconds since the wheel's origin.
type rule interface {
	// next returns the deadline after a firing that was due at due; moved reports whether Timer.Reschedule set
	// due. A result of false ends the entry. It may run the user's code.
	next(now, due int64, moved bool) (deadline int64, ok bool)
}

// wallRule is a rule by the wall clock. When a deadline has come, the wall clock may show that the firing is
// early. A firing counts when it is known not to be early.
type wallRule interface {
	rule
	// begin begins a firing, or reports that it is early, and until when to wait. A moved one is never early.
	begin(now, due int64, moved bool) (deadline int64, early bool)
}

func (p *recurring) bind(t Timer) { p.timer = t }

// beginLocked records the deadline of a firing when the entry is taken from the ring. It reports whether the
// firing counts already.
func (p *recurring) beginLocked(deadline int64) (counts bool) {
	p.due, p.dueMoved, p.moved = deadline, p.moved, false
	_, byWall := p.rule.(wallRule)
	return !byWall
}

func (p *recurring) fire() {
	t := p.timer
	if r, ok := p.rule.(wallRule); ok {
		now := t.shard.scheduler.time.now()
		if deadline, early := r.begin(now, p.due, p.dueMoved); early {
			t.shard.rearm(t.index, t.gen, now, deadline)
			return
		}
		t.shard.countFired(now - p.due)
	}
	defer p.rearm() // also if f calls runtime.Goexit
	defer t.shard.scheduler.recovered()
	p.f()
}

// rearm schedules the next firing of the entry, or ends it.
func (p *recurring) rearm() {
	t := p.timer
	now := t.shard.scheduler.time.now()
	var deadline int64
	var again bool
	defer func() {
		if again {
			t.shard.rearm(t.index, t.gen, now, deadline)
		} else {
			t.shard.end(t.index, t.gen)
		}
	}()
	defer t.shard.scheduler.recovered()
	deadline, again = p.rule.next(now, p.due, p.dueMoved)
}
