package ratelimit

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
)

// LineSim is processes whose waiters stand in lines for one limit, all in virtual time: a server that decides
// as the scripts do, a network that takes its time, a wheel with ticks, and waiters that come and go as the
// test says.
type LineSim struct {
	Now     time.Duration
	Scripts []time.Duration // when each was sent
	Up      time.Duration   // how long a script takes to the server, at most, and
	Down    time.Duration   // its answer back
	Tick    time.Duration   // of the wheel

	rng    *rand.Rand
	server simServer
	lines  []*simLine
	queue  simQueue
	seq    int
}

type simServer interface {
	decide(now time.Duration, a *algo.Ask, at algo.Reading) algo.Answer
}

type simLine struct {
	line *keys.Line
	k    keys.Knowledge
	wake time.Duration
}

type simEvent struct {
	at  time.Duration
	seq int
	do  func()
}

// simQueue is a heap by time.
type simQueue []simEvent

func (q *simQueue) Len() int { return len(*q) }
func (q *simQueue) Less(i, j int) bool {
	a, b := (*q)[i], (*q)[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}
func (q *simQueue) Swap(i, j int) { (*q)[i], (*q)[j] = (*q)[j], (*q)[i] }
func (q *simQueue) Push(e any)    { *q = append(*q, e.(simEvent)) }
func (q *simQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// SimWaiter is one that waits.
type SimWaiter struct {
	Process   int
	N         int64
	Call, Ret time.Duration
	Err       error
	Done      bool
	Then      func() // called when it is done

	w *keys.Waiter
}

// Execute executes a call at an instant in us.
type Execute func(call scripts.Call, micros int64) []int64

// NewLineSim returns a simulation of some processes; which is "gcra" or "sliding", for which a server executes the script, "window" or
// "log".
func NewLineSim(which string, l Limit, processes int, seed uint64, execute Execute) *LineSim {
	s := &LineSim{rng: rand.New(rand.NewPCG(seed, 7)), Tick: time.Millisecond}
	var a algo.Algorithm
	switch which {
	case "gcra":
		a = algo.Kinds[GCRA].New(algo.Limit(l))
		s.server = simScript{a, execute}
	case "stocked": // the control: what is charged is never too old
		a = algo.Kinds[GCRA].New(algo.Limit(l))
		a, s.server = stocked{a}, simScript{a, execute}
	case "sliding":
		a = algo.Kinds[SlidingWindow].New(algo.Limit(l))
		s.server = simScript{a, execute}
	case "window":
		a = algo.Kinds[FixedWindow].New(algo.Limit(l))
		s.server = &simWindow{Algorithm: a, limit: oracle.Limit(l)}
	case "log":
		a, s.server = algo.NewLog(""), &simLog{limit: oracle.Limit(l), entered: map[string]time.Duration{}}
	}
	for range processes {
		s.lines = append(s.lines, &simLine{line: keys.NewLine(a), wake: keys.Never})
	}
	return s
}

// stocked keeps what was charged for later callers.
type stocked struct{ algo.Algorithm }

func (stocked) Fit(spans []algo.Span, n int64, _ time.Duration) algo.Fitting {
	for _, s := range spans {
		if n <= s.N {
			return algo.Fitting{}
		}
		n -= s.N
	}
	return algo.Fitting{Missing: n}
}

// After calls do when d has passed.
func (s *LineSim) After(d time.Duration, do func()) { s.at(d, do) }

func (s *LineSim) at(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.queue, simEvent{s.Now + d, s.seq, do})
}

// Wait adds a waiter to the line of a process.
func (s *LineSim) Wait(process int, n int64, deadline time.Duration) *SimWaiter {
	l := s.lines[process]
	sw := &SimWaiter{Process: process, N: n, Call: s.Now}
	sw.w = &keys.Waiter{N: n, Since: s.Now, Deadline: deadline, End: func(err error) {
		sw.Done, sw.Err, sw.Ret = true, err, s.Now
		if sw.Then != nil {
			s.at(0, sw.Then)
		}
	}}
	if deadline == 0 {
		sw.w.Deadline = keys.Never
	}
	if !l.line.Push(sw.w, s.Now, &l.k) {
		sw.Done, sw.Err, sw.Ret = true, ErrWouldExceedDeadline, s.Now
	}
	s.pump(l)
	return sw
}

// Cancel takes a waiter out, and reports whether it was not served yet.
func (s *LineSim) Cancel(sw *SimWaiter) bool {
	l := s.lines[sw.Process]
	left := l.line.Leave(sw.w, s.Now)
	if left {
		sw.Done, sw.Ret = true, s.Now
		s.pump(l)
	}
	return left
}

// Charged is what a process has been charged and has not used.
func (s *LineSim) Charged(process int) int64 { return s.lines[process].line.Charged.N }

func (s *LineSim) pump(l *simLine) {
	step := l.line.Advance(s.Now, &l.k)
	switch {
	case step.Look:
		request, settlement := l.line.Look(s.Now)
		s.send(algo.Ask{Request: request, Settlement: settlement}, func(a *algo.Ask, got algo.Answer, at algo.Reading) {
			if got.Snapshot != nil {
				l.k = keys.Knowledge{Snapshot: got.Snapshot, Sent: at.Sent, Took: at.Got - at.Sent}
			}
			l.line.Looked(a, got, at)
			l.line.Serve(s.Now)
			l.line.Refuse(s.Now, &l.k, math.MaxInt64)
		}, l)
	case step.GiveBack:
		if spans := l.line.Charged.TakeAll(); len(spans) > 0 {
			s.send(algo.Ask{Settlement: algo.Settlement{Back: spans}}, func(*algo.Ask, algo.Answer, algo.Reading) {}, l)
		}
		return
	}
	l.wake = step.Wake
}

// send has the server decide, and the answer come back.
func (s *LineSim) send(a algo.Ask, settle func(*algo.Ask, algo.Answer, algo.Reading), l *simLine) {
	s.Scripts = append(s.Scripts, s.Now)
	sent := s.Now
	up, down := s.some(s.Up), s.some(s.Down)
	s.at(up, func() {
		got := s.server.decide(s.Now, &a, algo.Reading{Sent: sent, Got: s.Now + down})
		s.at(down, func() {
			settle(&a, got, algo.Reading{Sent: sent, Got: s.Now})
			s.pump(l)
		})
	})
}

func (s *LineSim) some(most time.Duration) time.Duration {
	if most == 0 {
		return 0
	}
	return time.Duration(s.rng.Int64N(int64(most)))
}

// Run lets virtual time pass until then.
func (s *LineSim) Run(until time.Duration) {
	for {
		next := until
		if len(s.queue) > 0 {
			next = min(next, s.queue[0].at)
		}
		var woken *simLine
		for _, l := range s.lines {
			if l.wake == keys.Never {
				continue
			}
			// A wheel fires at its ticks, never early.
			at := max(l.wake, s.Now) + s.Tick - 1
			if at -= at % s.Tick; at < next {
				next, woken = at, l
			}
		}
		s.Now = next
		switch {
		case woken != nil:
			woken.wake = keys.Never
			s.pump(woken)
		case next == until:
			return
		default:
			heap.Pop(&s.queue).(simEvent).do()
		}
	}
}

// simScript answers by the script.
type simScript struct {
	algo.Algorithm
	execute Execute
}

func (s simScript) decide(at time.Duration, a *algo.Ask, r algo.Reading) algo.Answer {
	const began = 1e15
	got, err := s.Decode(a, s.execute(s.Encode("k", a), began+at.Microseconds()), r)
	if err != nil {
		panic(err)
	}
	return got
}

// simWindow answers as rate_window.lua does.
type simWindow struct {
	algo.Algorithm

	limit   oracle.Limit
	windows oracle.Windows
}

func (w *simWindow) decide(at time.Duration, a *algo.Ask, r algo.Reading) algo.Answer {
	now, ms := at.Truncate(time.Millisecond), int64(time.Millisecond)
	if at := int64(now); at >= w.windows.Ends {
		w.windows.Grant(at, 0, w.limit)
	}
	begins, ends := w.windows.Begins-int64(now), w.windows.Ends-int64(now)
	reply, all := []int64{w.windows.Used, max(0, begins) / ms, ends / ms}, true
	for _, run := range a.Runs {
		granted := int64(0)
		for granted < run.Count && all {
			free := w.windows.Free(int64(now), run.N, w.limit)
			if all = time.Duration(free) <= now+a.Ahead; all {
				w.windows.Grant(free, run.N, w.limit)
				granted++
			}
		}
		reply = append(reply, granted)
	}
	got, err := w.Decode(a, reply, r)
	if err != nil {
		panic(err)
	}
	return got
}

// simLog answers as rate_log.lua does.
type simLog struct {
	limit   oracle.Limit
	log     oracle.SlidingLog
	entered map[string]time.Duration // members, and from when on they may be used
}

func (l *simLog) giveBack(now time.Duration, member string) bool {
	at, found := l.entered[member]
	if found = found && at > now-l.limit.Per; found {
		l.log.GiveBack(int64(now), int64(at), algo.EntrySize(member), l.limit)
	}
	delete(l.entered, member)
	return found
}

func (l *simLog) decide(now time.Duration, a *algo.Ask, r algo.Reading) algo.Answer {
	now = now.Truncate(time.Microsecond)
	reply := []int64{l.limit.Rate, l.limit.Per.Milliseconds(), 0, 0, 0}
	for _, s := range a.Back {
		if l.giveBack(now, s.Entry) {
			reply[4]++
		}
	}
	algorithm := algo.NewLog("")
	members := algorithm.Encode("x", a).Args[5+2*len(a.Back):]
	denied, latest := false, now
	for i, arg := range members {
		m, coming := arg.(string), i >= len(members)-int(a.Coming)
		at := time.Duration(l.log.Free(int64(now), algo.EntrySize(m), l.limit))
		denied = denied || at-now > a.Ahead || coming && at <= latest
		if denied {
			reply = append(reply, -2-max(1, (at-now).Microseconds()))
			continue
		}
		if !coming {
			latest = at
		}
		l.log.Grant(int64(at), algo.EntrySize(m), l.limit)
		l.entered[m] = at
		reply = append(reply, (at - now).Microseconds())
	}
	reply[2] = max(l.log.Left(int64(now), l.limit), math.MinInt32)
	got, err := algorithm.Decode(a, reply, r)
	if err != nil {
		panic(err)
	}
	return got
}

// MissingInSlidingWindow returns how many permits a line asks for at an instant for a waiter of n, after have permits
// were charged that can be used until another instant.
func MissingInSlidingWindow(l Limit, n, have int64, until, now time.Duration) (asked int64) {
	line, k := keys.NewLine(algo.Kinds[SlidingWindow].New(algo.Limit(l))), &keys.Knowledge{}
	line.Push(&keys.Waiter{N: n, Deadline: keys.Never}, 0, k)
	line.Charged.Add(algo.Span{N: have, Until: until})
	line.Advance(now, k)
	a, _ := line.Look(now)
	for _, r := range a.Runs {
		asked += r.N * r.Count
	}
	return asked
}
