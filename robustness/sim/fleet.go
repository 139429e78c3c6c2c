package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// A fleet is a schedule of many processes on few names, so that lines of waiters form. Its faults are of one of these
// kinds, which decide how strictly the line is judged.
const (
	calmFleet  = "without faults"     // nobody waits for longer than a hand-over takes
	dyingFleet = "processes fail"     // each process that fails may delay the others by a guard
	lossyFleet = "the line is broken" // a waiter waits for its poll at worst
)

// fleetKinds are the kinds of objects whose waiters have lines, and queues of tasks, whose processes have a list.
var fleetKinds = []string{"mutex", "read/write mutex", "leased permits", "counting permits", tasksKind}

// lineFaults are those in which what a line stands on is lost, and nothing else.
var lineFaults = []*FaultKind{
	{Name: "published messages lost", process: true, private: true, draw: some, inject: loseMessages},
	{Name: "lines lost", private: true, draw: nothing, inject: func(w *world, _ Fault, met func()) {
		if w.server.loseLines() > 0 {
			met()
		}
	}},
	refusing("no right to lines", "NOPERM No permissions to access a key",
		func(command string, args []string, inScript bool) bool {
			return inScript && slices.ContainsFunc(args[:min(len(args), 1)], isLine)
		}),
}

func loseMessages(w *world, f Fault, met func()) {
	w.onLink(f, func(l *link) { l.lostMessages = loss{left: f.N, met: met} })
}

// isLine reports whether a key is that of a line, or has what is kept for its waiters.
func isLine(key string) bool {
	return strings.HasSuffix(key, ":waiting") || strings.HasSuffix(key, ":kept")
}

// lines returns the keys of lines that exist.
func (s *server) lines() (keys []string) {
	return slices.DeleteFunc(s.redis.Keys(), func(key string) bool { return !isLine(key) })
}

// loseLines forgets all lines, as a failover does to a replica that has not heard of them yet.
func (s *server) loseLines() (lost int) {
	for _, key := range s.lines() {
		if s.redis.Del(key) {
			lost++
		}
	}
	return lost
}

// drawFleet returns the schedule of a seed as a fleet: crowds that come within moments, and have left again before the
// next one comes.
func drawFleet(seed uint64, kinds ...string) *Schedule {
	d := drawer{rand.New(rand.NewPCG(seed, 55))}
	s := &Schedule{
		Seed:      seed,
		Processes: 3 + d.IntN(1+d.IntN(48)),
		Lease:     d.one(time.Second, 2*time.Second, 5*time.Second),
		Poll:      d.one(time.Second, 5*time.Second),
		Tick:      d.one(time.Millisecond, time.Millisecond, 10*time.Millisecond),
		Least:     d.one(50*time.Microsecond, 200*time.Microsecond, time.Millisecond),
		Timeout:   time.Second,
		Retries:   []int{1, 3}[d.IntN(2)],
		Policy:    "closed",
		Fleet:     []string{calmFleet, dyingFleet, dyingFleet, lossyFleet}[d.IntN(4)],
	}
	s.Most = d.one(s.Least, 3*s.Least)
	if s.Fleet != lossyFleet {
		s.Poll = slowPoll
	}
	kind := kinds[d.IntN(len(kinds))]
	if kind == "counting permits" && s.Fleet == dyingFleet { // no lease ends what its clients held
		s.Fleet = calmFleet
	}
	if isTasks(kind) && s.Fleet == lossyFleet { // without a list each of them asks for each task
		s.Processes = min(s.Processes, 15)
	}
	for i := range 1 + d.IntN(3) {
		name := fmt.Sprintf("%s-%d", strings.ReplaceAll(kind, " ", "-"), i)
		s.Objects = append(s.Objects, Object{Kind: kind, Name: name})
	}
	var crowds []time.Duration
	s.Length = time.Second
	for range 2 + d.IntN(3) {
		crowds = append(crowds, s.Length)
		s.Length += d.crowd(s, s.Length) + time.Second
	}
	if isTasks(kind) {
		d.workers(s)
	}
	d.fleetFaults(s, crowds)
	s.sort()
	return s
}

// crowd draws calls that begin within moments from at on. lasts is how long all of them take, one after the other.
func (d drawer) crowd(s *Schedule, at time.Duration) (lasts time.Duration) {
	longest := d.one(2*time.Millisecond, 10*time.Millisecond, 30*time.Millisecond)
	within := d.one(10*time.Millisecond, 200*time.Millisecond, time.Second)
	leaves := d.IntN(3) // of ten
	for p := range s.Processes {
		for range 1 + d.IntN(3) {
			o := Op{At: at + d.between(0, within), Process: p, Object: d.IntN(len(s.Objects)), Action: Take, N: 1}
			o.Hold = d.between(0, longest)
			lasts += o.Hold + 5*time.Millisecond
			switch kind := s.Objects[o.Object].Kind; {
			case isTasks(kind):
				o.Action, o.Task.ID, o.Task.Delay = Plan, fmt.Sprint("task-", len(s.Ops)), d.between(0, 2*time.Second)
			case isPermits(kind) && d.IntN(4) == 0:
				o.N = 1 + d.Int64N(3)
			case kind == "read/write mutex":
				o.Shared = d.IntN(3) > 0
			}
			switch {
			case isTasks(s.Objects[o.Object].Kind):
			case d.IntN(10) == 0:
				o.Action = Try
			case d.IntN(10) < leaves:
				o.Patience = d.between(5*time.Millisecond, 300*time.Millisecond)
			}
			s.Ops = append(s.Ops, o)
		}
	}
	return within + lasts
}

// workers draws processes that serve the queues all the time, most of which have nothing to do.
func (d drawer) workers(s *Schedule) {
	for p := range s.Processes {
		for object := range s.Objects {
			s.Ops = append(s.Ops, Op{
				At: d.between(0, 500*time.Millisecond), Process: p, Object: object, Action: Serve, N: 1 + d.Int64N(3),
				Hold: s.Length,
			})
		}
	}
}

// fleetFaults draws faults amid the crowds.
func (d drawer) fleetFaults(s *Schedule, crowds []time.Duration) {
	var names []string
	switch s.Fleet {
	case calmFleet:
		return
	case dyingFleet:
		names = []string{"process killed", "process stands still", "clients closed"}
	default:
		names = []string{
			"published messages lost", "published messages lost", "lines lost", "lines lost", "no right to lines",
			"no right to publish", "key migrates", "connections cut", "scripts forgotten",
		}
	}
	for range 1 + d.IntN(2+s.Processes/5) {
		f := Fault{Kind: names[d.IntN(len(names))], Process: d.IntN(s.Processes), Object: d.IntN(len(s.Objects))}
		f.At = crowds[d.IntN(len(crowds))] + d.between(0, 200*time.Millisecond)
		faultOf(f.Kind).draw(d, s, &f)
		if f.For > 0 {
			f.For = d.between(100*time.Millisecond, 2*s.Lease)
		}
		s.Faults = append(s.Faults, f)
	}
}

// handOver returns a time in which an object that is free is taken by a waiter, also if that subscribes and enters the
// line first.
func (w *world) handOver() time.Duration { return 30*w.Most + 3*w.Tick + 10*time.Millisecond }

// guard is how long a process that does not answer may delay the others.
const guard = 60 * time.Millisecond

// kept is how long permits are kept for a waiter that was woken.
const kept = 50 * time.Millisecond

// judgeLine checks that no object is free for long while somebody waits. Overtaking is left to real runs, because here
// the messages of a crowd take most of the time after which nobody may overtake.
func (w *world) judgeLine(calls []*history.Call, rules check.Rules, events []history.Event) []check.Fault {
	if w.Fleet == "" || w.Fleet == lossyFleet {
		return nil
	}
	stops, failures := check.Stops(events), len(w.Faults)
	each := guard + w.Tick + time.Millisecond
	if rules.Capacity > 1 {
		each += kept // another process that is woken meanwhile finds less than it wants
	}
	bound := w.handOver() + time.Duration(failures)*each
	hindered := append(w.unknown(calls, stops), together(calls, stops, int64(each), int64(w.Lease))...)
	slices.SortFunc(hindered, byStart)
	return check.NoneStrands(check.Progress(check.Running(calls, stops), rules, 0, hindered), bound)
}

func byStart(a, b check.Span) int { return cmp.Compare(a.From, b.From) }

// together returns the times in which two processes that wait for an object do not answer. One may have been woken, and
// the other may be its guard: then the object stays free until a stopped one continues, or until a poll. A killed
// process counts for as long as its guard waits for it, from the next time that the object can be taken.
func together(calls []*history.Call, stops map[int][]check.Span, guarded, lease int64) (spans []check.Span) {
	type failure struct {
		process int
		check.Span
		killed bool
	}
	var failures []failure
	for _, c := range calls {
		p := history.ProcessOf(c.Client)
		for _, s := range stops[p] {
			if c.At <= s.From && s.From <= min(c.Return, c.Killed) {
				failures = append(failures, failure{process: p, Span: s})
			}
		}
		if c.Killed < c.Return {
			woken := heldUntil(calls, c.Killed, lease)
			failures = append(failures, failure{p, check.Span{From: c.Killed, To: woken + guarded}, true})
		}
	}
	for i, a := range failures {
		for _, b := range failures[:i] {
			from, to := max(a.From, b.From), min(a.To, b.To)
			if a.process == b.process || from >= to {
				continue
			}
			switch {
			case a.killed && b.killed:
				to = history.Never
			case a.killed:
				to = b.To
			case b.killed:
				to = a.To
			}
			spans = append(spans, check.Span{From: from, To: min(to, history.Never-guarded) + guarded})
		}
	}
	return spans
}

// heldUntil returns when the holds of some time have ended: those of a killed process end with their lease.
func heldUntil(calls []*history.Call, at, lease int64) int64 {
	until := at
	for _, c := range calls {
		if c.Held() && c.At <= at {
			until = max(until, min(c.Released, min(c.Killed, history.Never-lease)+lease))
		}
	}
	return until
}

// unknown returns the times in which a process that failed may hold an object without having been told: its request was
// on its way when it failed.
func (w *world) unknown(calls []*history.Call, stops map[int][]check.Span) (spans []check.Span) {
	failed := func(c *history.Call, at int64) {
		if c.At <= at && at <= min(c.Return, c.Killed) && w.requested(c, at) {
			spans = append(spans, check.Span{From: at, To: at + int64(w.Lease+w.handOver())})
		}
	}
	for _, c := range calls {
		if c.Killed != history.Never {
			failed(c, c.Killed)
		}
		for _, s := range stops[history.ProcessOf(c.Client)] {
			failed(c, s.From)
		}
	}
	slices.SortFunc(spans, byStart)
	return spans
}

// requested reports whether the server executed a request for the object of a call, by its process, at about a time.
func (w *world) requested(c *history.Call, at int64) bool {
	link, margin := w.links[history.ProcessOf(c.Client)], int64(2*w.Most)
	return slices.ContainsFunc(w.server.executed, func(e execution) bool {
		return e.link == link && at-margin <= e.at && e.at <= at+margin && strings.HasSuffix(e.name, "acquire") &&
			slices.Contains(e.keys, c.Object)
	})
}

// judgeLines looks for what is left of lines when all clients are closed and what they left has expired. The list of a
// queue does not expire: what stays there leaves when another process serves the queue.
func (w *world) judgeLines() {
	for _, key := range w.server.lines() {
		if !strings.HasSuffix(key, "}:delay:waiting") {
			w.faultf("nobody stays in a line", "line", "the key %s", key)
		}
	}
}
