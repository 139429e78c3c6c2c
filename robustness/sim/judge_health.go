package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// The promises of schedules with healthFaults.
const (
	oneHolder   = "a failover has one holder soon"
	survives    = "a hold survives a failover"
	recovers    = "a process recovers"
	waitsOn     = "a waiter waits through an outage"
	servesOn    = "Serve goes on through an outage"
	policyHelps = "a policy decides in an outage"
)

// trouble is an operation that failed although its caller had time: it returned an error, or the policy of a limit
// decided.
type trouble struct {
	op         Op
	process    int
	called, at int64
	degraded   bool
	err        error
}

// troubledLocked notes how an operation failed.
func (w *world) troubledLocked(p *process, o Op, called int64, degraded bool, err error) {
	var invalid *cogwheel.InvalidError
	if !p.isUp() || errors.As(err, &invalid) {
		return
	}
	w.troubles = append(w.troubles, trouble{o, p.number, called, w.since(), degraded, err})
}

// recovery is how long operations may fail after a fault has ended. After connections went bad none may fail, because
// new ones work, with two exceptions for the first that fails and those beside it: a limiter lets its policy decide
// when an answer is overdue, and a client without retries repeats no call that may have been executed.
func (w *world) recovery(s span, t trouble) int64 {
	limit := isLimit(w.Objects[t.op.Object].Kind)
	switch {
	case !s.fault.pool:
		return int64(2*time.Second + 20*w.Most)
	case limit && t.op.Action == Reset: // a command that go-redis sends alone
		return forever
	case !limit && w.Retries > 0:
		return 0
	}
	first := t.at
	for _, other := range w.troubles {
		if other.process == t.process && other.at >= s.From {
			first = min(first, other.at)
		}
	}
	return first - s.To + int64(time.Second+20*w.Most)
}

// judgeHealth judges what operations met in a schedule of healthFaults.
func (w *world) judgeHealth() (faults []check.Fault) {
	if !w.isOfHealth() {
		return nil
	}
	add := func(t trouble, promise string) {
		faults = append(faults, check.Fault{
			Promise: promise, Object: w.Objects[t.op.Object].Name,
			Detail: fmt.Sprintf("process %d: %s, called at %v, at %v: by the policy %v, error %v",
				t.process, t.op.Action, time.Duration(t.called), time.Duration(t.at), t.degraded, t.err),
		})
	}
	for _, t := range w.troubles {
		switch {
		case !w.isDuring(t):
			add(t, recovers)
		case w.losesData():
		case w.waitsThrough(t):
			add(t, waitsOn)
		case t.op.Action == Serve && w.begunBefore(t):
			add(t, servesOn)
		case w.policyLeaves(t):
			add(t, policyHelps)
		}
	}
	return faults
}

// isOfHealth reports whether the schedule has faults, and all of them are healthFaults.
func (s *Schedule) isOfHealth() bool {
	return len(s.Faults) > 0 && s.only(func(k *FaultKind) bool { return slices.Contains(healthFaults, k) })
}

// only reports whether all faults of the schedule are of such kinds.
func (s *Schedule) only(are func(*FaultKind) bool) bool {
	return !slices.ContainsFunc(s.Faults, func(f Fault) bool { return !are(faultOf(f.Kind)) })
}

// isDuring reports whether a fault concerned the process of an operation while that was in flight, or shortly before.
func (w *world) isDuring(t trouble) bool {
	return slices.ContainsFunc(w.spans, func(s span) bool {
		return s.meets(t.process) && s.From <= t.at && t.called <= s.To+w.recovery(s, t)
	})
}

func (s span) meets(process int) bool { return s.process < 0 || s.process == process }

// waitsThrough reports whether an operation had begun to wait for a lock or permits, which it does through outages, or
// for a limit, which it does while a login is refused.
func (w *world) waitsThrough(t trouble) bool {
	kind := w.Objects[t.op.Object].Kind
	begun := !isLimit(kind) || w.has(passwordRotated) && t.called+int64(w.slack()) < t.at // Redis has answered the wait
	return t.op.Action == Take && !isTasks(kind) && begun && w.begunBefore(t)
}

// begunBefore reports whether an operation had begun before the faults that it met, so long that Redis had answered. It
// should go on then; while a login is refused, for a lease.
func (w *world) begunBefore(t trouble) bool {
	answered := t.called + int64(4*w.Most) // a connection and a call
	return !slices.ContainsFunc(w.spans, func(s span) bool {
		met := s.meets(t.process) && s.From <= t.at && t.called <= s.To+w.recovery(s, t)
		long := s.fault.Name == passwordRotated && s.To-s.From >= int64(w.Lease)/2
		return met && (s.From <= answered || long)
	})
}

// policyLeaves reports whether a policy that decides in outages has left a request without a decision.
func (w *world) policyLeaves(t trouble) bool {
	decides := t.op.Action == Try || t.op.Action == Take
	unknown := w.only(func(k *FaultKind) bool { return k.unknown })
	kind := w.Objects[t.op.Object].Kind
	unlearned := w.Policy == "share" && kind == storedKind // the process may not have read the limit
	denies := w.Policy == "closed" || unlearned
	refused := errors.Is(t.err, ratelimit.ErrUnavailable) && denies
	return isLimit(kind) && decides && unknown && t.err != nil && !refused
}

// watchHolders finds objects on which too many clients rely during a failover, once the clients have had the time to
// notice it: a third of the lease, and what the Sentinels may take. It finds holds that the failover has ended, too.
func (w *world) watchHolders(f Fault) {
	ends := time.Now().Add(f.For)
	w.mu.Lock()
	before := make(map[*holding]bool)
	for h := range w.held {
		before[h] = h.hold.Valid()
	}
	w.mu.Unlock()
	time.Sleep(min(f.For, w.Lease/3+time.Second+20*w.Most))
	for time.Now().Before(ends) {
		for i, o := range w.Objects {
			switch {
			case isTasks(o.Kind):
				w.watchRuns(i)
			case !isLimit(o.Kind) && !robustness.KindOf(o.Kind).Counting: // those stay with the old primary
				w.watchHolds(i)
			}
		}
		time.Sleep(w.Lease / 20)
	}
	for h, valid := range before {
		w.mu.Lock()
		lost := h.lost
		w.mu.Unlock()
		if valid && lost {
			w.faultf(survives, w.Objects[h.object].Name, "the holder of #%d was told that it is lost", h.id)
		}
	}
}

func (w *world) watchHolds(object int) {
	capacity := robustness.KindOf(w.Objects[object].Kind).Capacity
	var sum int64
	var holders []uint64
	w.mu.Lock()
	for h := range w.held {
		if h.object != object || !h.hold.Valid() {
			continue
		}
		holders = append(holders, h.id)
		if weight := h.n; !h.shared {
			sum += weight
		}
	}
	w.mu.Unlock()
	if sum > capacity || capacity == 1 && sum == 1 && len(holders) > 1 {
		slices.Sort(holders)
		w.faultf(oneHolder, w.Objects[object].Name, "%v rely on it", holders)
	}
}

func (w *world) watchRuns(object int) {
	w.mu.Lock()
	running := make(map[string][]int64)
	for _, r := range w.taskRuns {
		if r.object == object && r.ended == forever {
			running[r.ID] = append(running[r.ID], r.Token)
		}
	}
	w.mu.Unlock()
	for id, tokens := range running {
		if len(tokens) > 1 {
			w.faultf(oneHolder, w.Objects[object].Name, "the attempts %v of %s run", tokens, id)
		}
	}
}
