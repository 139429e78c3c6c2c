package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Schedule is everything that the simulation decides: it is drawn from a seed before anything runs, so it can be
// printed, shortened and run again.
type Schedule struct {
	Seed      uint64        `json:"seed"`
	Processes int           `json:"processes"`
	Lease     time.Duration `json:"lease"`
	Poll      time.Duration `json:"poll"`
	Tick      time.Duration `json:"tick"`
	Least     time.Duration `json:"least"` // of a message on its way
	Most      time.Duration `json:"most"`
	Timeout   time.Duration `json:"timeout"`          // of go-redis for a reply
	Retries   int           `json:"retries"`          // of go-redis; -1 for none
	Policy    string        `json:"policy"`           // of limits
	Client    string        `json:"client,omitempty"` // how the processes find the primary
	Hidden    bool          `json:"hidden,omitempty"` // a proxy hides the addresses of servers
	Fleet     string        `json:"fleet,omitempty"`  // the kind of its faults
	Length    time.Duration `json:"length"`
	Objects   []Object      `json:"objects"`
	Ops       []Op          `json:"ops"`
	Faults    []Fault       `json:"faults"`
}

// How processes find the primary: by its address, or by a Sentinel.
const (
	plainClient     = ""
	failoverClient  = "FailoverClient"
	failoverCluster = "FailoverClusterClient"
)

// Object is what operations are about.
type Object struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Limit Limit  `json:"limit"` // of a limit, at first
}

// Limit is a rate, a period and a burst.
type Limit struct {
	Rate  int64         `json:"rate,omitempty"`
	Per   time.Duration `json:"per,omitempty"`
	Burst int64         `json:"burst,omitempty"`
}

// Action is what an operation does.
type Action string

// The actions.
const (
	Take   Action = "take"   // acquire, wait for it, hold it, and release it; of a limit: wait
	Try    Action = "try"    // the same without waiting; of a limit: allow
	Change Action = "change" // of a limit: set another one
	Reset  Action = "reset"  // of a limit: forget what was used
	Settle Action = "settle" // of a limit: reserve, wait for it, work, and settle with what was used

	Plan   Action = "schedule"   // a task
	Cancel Action = "cancel"     // a task
	Move   Action = "reschedule" // a task
	Retry  Action = "retry"      // a task that has failed
	Forget Action = "forget"     // a task that has failed
	Serve  Action = "serve"      // a queue of tasks, for a while, with N workers
)

// Op is an operation of a process.
type Op struct {
	At       time.Duration `json:"at"`
	Process  int           `json:"process"`
	Object   int           `json:"object"`
	Action   Action        `json:"action"`
	N        int64         `json:"n,omitempty"`
	Used     int64         `json:"used,omitempty"` // of Settle: more than N is a debt
	Shared   bool          `json:"shared,omitempty"`
	Patience time.Duration `json:"patience,omitempty"` // 0: waits without an end
	Hold     time.Duration `json:"hold,omitempty"`
	Limit    Limit         `json:"limit"` // of Change
	Task     Task          `json:"task"`  // of a task
}

// Fault is something that goes wrong.
type Fault struct {
	At      time.Duration `json:"at"`
	Kind    string        `json:"kind"`
	Process int           `json:"process"` // -1: all
	For     time.Duration `json:"for,omitempty"`
	N       int           `json:"n,omitempty"`
	After   time.Duration `json:"after,omitempty"`
	Object  int           `json:"object,omitempty"`
}

func (o Op) describe(s *Schedule) string {
	text := fmt.Sprintf("%-8v process %d: %s %s", o.At, o.Process, o.Action, s.Objects[o.Object].Name)
	if o.N > 1 {
		text += fmt.Sprintf(" n=%d", o.N)
	}
	if o.Action == Settle {
		text += fmt.Sprintf(" used=%d", o.Used)
	}
	if o.Shared {
		text += " shared"
	}
	if o.Patience > 0 {
		text += fmt.Sprintf(" patience=%v", o.Patience)
	}
	if o.Hold > 0 {
		text += fmt.Sprintf(" hold=%v", o.Hold)
	}
	if o.Task.ID != "" {
		text += o.Task.describe()
	}
	if o.Action == Change {
		text += fmt.Sprintf(" to %d per %v, burst %d", o.Limit.Rate, o.Limit.Per, o.Limit.Burst)
	}
	return text
}

func (f Fault) describe(s *Schedule) string {
	text := fmt.Sprintf("%-8v fault: %s", f.At, f.Kind)
	if faultOf(f.Kind).process {
		text += fmt.Sprintf(", process %d", f.Process)
	}
	if f.For > 0 {
		text += fmt.Sprintf(", for %v", f.For)
	}
	if f.N > 0 {
		text += fmt.Sprintf(", n=%d", f.N)
	}
	if f.After > 0 {
		text += fmt.Sprintf(", after %v", f.After)
	}
	if faultOf(f.Kind).object {
		text += ", " + s.Objects[f.Object].Name
	}
	return text
}

// String lists operations and faults in the order of their times.
func (s *Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d processes, lease %v, poll %v, tick %v, delays %v to %v, "+
		"read timeout %v, retries %d, policy %s\n",
		s.Seed, s.Processes, s.Lease, s.Poll, s.Tick, s.Least, s.Most, s.Timeout, s.Retries, s.Policy)
	if s.Fleet != "" {
		fmt.Fprintf(&b, "a fleet: %s\n", s.Fleet)
	}
	if s.Client != plainClient {
		fmt.Fprintf(&b, "the redis clients are of the kind %s; their proxy hides addresses: %v\n", s.Client, s.Hidden)
	}
	for _, o := range s.Objects {
		fmt.Fprintf(&b, "%s is a %s", o.Name, o.Kind)
		if o.Limit.Rate > 0 {
			fmt.Fprintf(&b, " of %d per %v, burst %d", o.Limit.Rate, o.Limit.Per, o.Limit.Burst)
		}
		b.WriteString("\n")
	}
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, o := range s.Ops {
		lines = append(lines, line{o.At, o.describe(s)})
	}
	for _, f := range s.Faults {
		lines = append(lines, line{f.At, f.describe(s)})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	for _, l := range lines {
		b.WriteString(l.text + "\n")
	}
	return b.String()
}

// has reports whether a fault of the kind is in the schedule.
func (s *Schedule) has(kinds ...string) bool {
	return slices.ContainsFunc(s.Faults, func(f Fault) bool { return slices.Contains(kinds, f.Kind) })
}

// drawer draws a schedule.
type drawer struct{ *rand.Rand }

// between draws from [least, most], in steps of a millisecond.
func (d drawer) between(least, most time.Duration) time.Duration {
	return (least + time.Duration(d.Int64N(int64(most-least)+1))).Truncate(time.Millisecond)
}

func (d drawer) one(of ...time.Duration) time.Duration { return of[d.IntN(len(of))] }

// Draw returns the schedule of a seed, for objects of all Kinds unless others are named: of one seed in eight for
// delayed tasks alone, and of another one for a fleet, so that the other seeds stay as they were before. Each has a few
// kinds of objects and a few kinds of faults, rather than some of each: what needs two faults of one kind, or many
// operations on one object, is met more often so.
func Draw(seed uint64, kinds ...string) *Schedule {
	if len(kinds) == 0 {
		if rand.New(rand.NewPCG(seed, 54)).IntN(8) == 0 {
			return drawFleet(seed, fleetKinds...)
		}
		kinds = slices.DeleteFunc(slices.Clone(Kinds), isTasks)
		if rand.New(rand.NewPCG(seed, 34)).IntN(8) == 0 {
			kinds = []string{tasksKind}
		}
	}
	d := drawer{rand.New(rand.NewPCG(seed, 27))}
	s := &Schedule{
		Seed:      seed,
		Processes: 2 + d.IntN(3),
		Lease:     d.one(time.Second, 2*time.Second, 5*time.Second, 30*time.Second),
		Poll:      d.one(200*time.Millisecond, time.Second, 5*time.Second),
		Tick:      d.one(time.Millisecond, time.Millisecond, 10*time.Millisecond),
		Least:     d.one(50*time.Microsecond, 200*time.Microsecond, 2*time.Millisecond),
		Timeout:   d.one(300*time.Millisecond, time.Second, 3*time.Second),
		Retries:   []int{-1, 1, 3, 3}[d.IntN(4)],
		Policy:    []string{"closed", "open", "share"}[d.IntN(3)],
	}
	s.Most = d.one(s.Least, 3*s.Least, 10*s.Least)
	s.Poll = max(s.Poll, s.Lease/30) // or waiters of a long lease would keep the server busy
	s.Length = min(12*s.Lease, 60*time.Second)
	for i := range 1 + d.IntN(2) {
		kind := kinds[d.IntN(len(kinds))]
		for j := range 1 + d.IntN(2) {
			o := Object{Kind: kind, Name: fmt.Sprintf("%s-%d-%d", strings.ReplaceAll(kind, " ", "-"), i, j)}
			if isLimit(kind) {
				o.Limit = d.limit(kind)
			}
			s.Objects = append(s.Objects, o)
		}
	}
	d.ops(s)
	d.faults(s)
	if health := (drawer{rand.New(rand.NewPCG(seed, 46))}); health.IntN(5) == 0 {
		health.health(s)
	}
	return s
}

func (d drawer) limit(kind string) Limit {
	l := Limit{Rate: 1 + d.Int64N(20), Per: d.one(time.Second, 2*time.Second, 10*time.Second)}
	l.Burst = l.Rate
	if kind == bucketKind && d.IntN(2) == 0 {
		l.Burst = 1 + d.Int64N(20)
	}
	return l
}

// ops draws operations: a steady trickle, and crowds that call within milliseconds.
func (d drawer) ops(s *Schedule) {
	n, crowd := 30+d.IntN(120), d.IntN(4)
	other := func(o Object) bool { return !isLimit(o.Kind) }
	if !slices.ContainsFunc(s.Objects, other) && d.IntN(2) == 0 { // as many as the limits let pass, and more
		n, s.Length = 4*n, min(s.Length, 20*time.Second)
	}
	longest := min(d.one(20*time.Millisecond, s.Lease/4, 2*s.Lease), 3*s.Length/time.Duration(n)) // or all would wait
	gaveUp := d.IntN(3)
	d.servers(s)
	for len(s.Ops) < n {
		at := d.between(0, s.Length)
		count := 1
		if d.IntN(8) < crowd {
			count = 2 + d.IntN(12)
		}
		object := d.IntN(len(s.Objects))
		for range count {
			at += d.between(0, 5*time.Millisecond)
			o := Op{At: at, Process: d.IntN(s.Processes), Object: object, Action: Take, N: 1}
			d.detail(s, &o, longest, gaveUp)
			s.Ops = append(s.Ops, o)
		}
	}
	s.sort()
}

// sort sorts operations and faults by their times.
func (s *Schedule) sort() {
	slices.SortStableFunc(s.Ops, func(a, b Op) int { return int(a.At - b.At) })
	slices.SortStableFunc(s.Faults, func(a, b Fault) int { return int(a.At - b.At) })
}

func (d drawer) detail(s *Schedule, o *Op, longest time.Duration, gaveUp int) {
	object := &s.Objects[o.Object]
	if isTasks(object.Kind) {
		d.task(s, o)
		return
	}
	if d.IntN(4) == 0 {
		o.Action = Try
	}
	if d.IntN(4) < gaveUp {
		o.Patience = d.between(0, d.one(20*time.Millisecond, time.Second, s.Lease)) + time.Millisecond
	}
	if isLimit(object.Kind) {
		switch d.IntN(20) {
		case 0:
			o.Action, o.Limit = Change, d.limit(object.Kind)
			o.Limit.Per = object.Limit.Per
		case 1:
			o.Action = Reset
		case 2, 3, 4, 5, 6, 7, 8:
			o.Action = Try
		case 9, 10, 11, 12:
			d.settle(object, o, longest)
			return
		}
		o.N = 1 + d.Int64N(1+d.Int64N(4))
		return
	}
	if o.Hold = d.between(0, longest); d.IntN(30) == 0 {
		o.Hold = d.between(0, 2*s.Lease) // needs renewals
	}
	o.Shared = object.Kind == "read/write mutex" && d.IntN(3) > 0
	if isPermits(object.Kind) && d.IntN(4) == 0 {
		o.N = 1 + d.Int64N(3)
	}
}

// settle draws a reservation: of a part of the limit, or of about all of it, of which a part is used, or more than it.
func (d drawer) settle(object *Object, o *Op, longest time.Duration) {
	o.Action, o.N = Settle, 1+d.Int64N(1+d.Int64N(object.Limit.Burst))
	o.Used = d.Int64N(o.N + 1)
	if d.IntN(4) == 0 {
		o.Used += o.N + d.Int64N(object.Limit.Burst)
	}
	o.Hold = d.between(0, d.one(20*time.Millisecond, longest, object.Limit.Per, 3*object.Limit.Per))
}

// pairs are faults that concern the same code: each alone does not reach it, and by chance they seldom meet.
var pairs = [][]string{
	{"wheel full", "requests lost"}, // a release fails, and needs a timer to be repeated
	{"wheel full", "network parted"},
	{"server hangs", "clients closed"},
	{"connections silent", "clients closed"},
}

// faults draws a few kinds of faults, each of which happens once or more. Half of the time they come together.
func (d drawer) faults(s *Schedule) {
	if d.IntN(6) == 0 {
		return
	}
	together := d.IntN(2) == 0
	var first []Fault
	var kinds []*FaultKind
	for range 1 + d.IntN(3) {
		kinds = append(kinds, outages[d.IntN(len(outages))])
	}
	if d.IntN(8) == 0 {
		together, kinds = true, nil
		for _, name := range pairs[d.IntN(len(pairs))] {
			kinds = append(kinds, faultOf(name))
		}
	}
	for i, kind := range kinds {
		if kind.ends && slices.ContainsFunc(s.Objects, func(o Object) bool { return o.Kind == "counting permits" }) {
			continue // no lease ends what its clients held
		}
		for j := range 1 + d.IntN(4) {
			f := Fault{
				At: d.between(s.Length/20, s.Length), Kind: kind.Name,
				Process: d.IntN(s.Processes), Object: d.IntN(len(s.Objects)),
			}
			kind.draw(d, s, &f)
			if i > 0 && j < len(first) && together {
				f.At = first[j].At + d.between(0, max(first[j].For, 20*time.Millisecond))
				f.Process = first[j].Process
			}
			s.Faults = append(s.Faults, f)
		}
		if i == 0 {
			first = slices.Clone(s.Faults)
		}
	}
	s.sort()
}
