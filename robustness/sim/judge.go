package sim

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Result is what the checks found in a run.
type Result struct {
	Seed   uint64         `json:"seed"`
	Length time.Duration  `json:"length"` // simulated
	Took   time.Duration  `json:"took"`
	Ops    int            `json:"ops"`
	Met    map[string]int `json:"met"` // faults that took effect
	Pairs  map[string]int `json:"pairs"`
	Faults []check.Fault  `json:"faults,omitempty"`
	Trace  []string       `json:"trace,omitempty"` // of a run that failed

	Skipped bool   `json:"skipped,omitempty"` // the orders leave it out
	Stopped string `json:"stopped,omitempty"` // the goroutine that stopped the bubble; see watch
}

// searchLimit bounds the search of the check of linearizability.
const searchLimit = 5 * time.Second

// judge runs all checks.
func (w *world) judge() *Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	res := &Result{
		Seed: w.Seed, Length: time.Duration(w.calm), Ops: w.ops,
		Met: w.met, Pairs: make(map[string]int), Faults: w.faults,
	}
	for pair, n := range w.pairs {
		res.Pairs[pair[0]+pairSign+pair[1]] = n
	}
	events := w.history.Events()
	byObject := history.ByObject(history.Calls(events))
	for i := range w.Objects {
		if o := &w.Objects[i]; !isLimit(o.Kind) && !isTasks(o.Kind) {
			for _, f := range w.judgeHolds(o, byObject[o.Name], events) {
				f.Object = o.Name
				res.Faults = append(res.Faults, f)
			}
		}
	}
	res.Faults = append(res.Faults, check.NothingAfterClose(events)...)
	res.Faults = append(res.Faults, w.judgeLimits()...)
	res.Faults = append(res.Faults, w.judgeTasks()...)
	res.Faults = append(res.Faults, w.judgeHealth()...)
	slices.SortStableFunc(res.Faults, func(a, b check.Fault) int { return cmp.Compare(a.Promise, b.Promise) })
	if len(res.Faults) > 0 {
		res.Trace = w.trace
	}
	return res
}

// judgeHolds checks a lock or a semaphore.
func (w *world) judgeHolds(o *Object, calls []*history.Call, events []history.Event) (faults []check.Fault) {
	rules := robustness.KindOf(o.Kind).Rules(robustness.Settings{Lease: w.Lease})
	rules.Fair = rules.Fair || o.Kind == "multi mutex" // a caller that has some of the parts gives them back
	grace := w.outages() + w.slack()
	spans, causes := w.spansOf(w.slack()), w.causes()
	patience := w.Poll + w.slack() + time.Second
	if rules.Fair {
		patience += 3 * w.Poll // until a caller that left without a word is skipped
	}
	if !w.losesData() {
		_, _, overlaps := check.Overlap(calls, rules)
		faults = append(faults, overlaps...)
		undecided := func(f check.Fault) bool { return strings.HasPrefix(f.Detail, "undecided") }
		// A copy of a request that arrives late takes a lock that was given back, until its process releases it again
		// or the lease ends. Where a lease may end before an unanswered attempt is given up, a call can hold twice.
		copies := w.has("requests late", "process stands still")
		if len(w.Faults) == 0 || 2*w.Timeout <= w.Lease && !copies {
			limit := searchLimit
			if w.Fleet != "" { // an order among so many calls at once is seldom found
				limit /= 50
			}
			linear := check.Linear(calls, rules, grace, limit)
			faults = append(faults, slices.DeleteFunc(linear, undecided)...)
		}
		faults = append(faults, check.Kept(calls, rules, causes)...)
		_, untold := check.InTime(calls, rules, check.Stops(events), 2*w.Tick)
		faults = append(faults, untold...)
	}
	if !w.has("server's clock steps") || !w.has("server restarts without its data") { // then tokens may fall
		faults = append(faults, check.Tokens(calls)...)
	}
	faults = append(faults, check.NoneStrands(check.Free(calls, rules, grace, spans), patience)...)
	faults = append(faults, w.judgeLine(calls, rules, events)...)
	progress := check.Progress(calls, rules, grace, spans)
	return append(faults, check.NoneStrands(progress, rules.Lease+grace+patience)...)
}

func (w *world) losesData() bool {
	return slices.ContainsFunc(w.Faults, func(f Fault) bool { return faultOf(f.Kind).loses })
}

// spansOf returns the times in which faults lasted, each with the time after it that calls take to recover.
func (w *world) spansOf(recovery time.Duration) (spans []check.Span) {
	for _, s := range w.spans {
		spans = append(spans, check.Span{From: s.From, To: s.To + int64(recovery)})
	}
	return spans
}

// causes returns the times of the faults that may cost a client its hold.
func (w *world) causes() (spans []check.Span) {
	for _, s := range w.spans {
		if !s.fault.private || s.fault.Name == "wheel stopped" || s.fault.Name == "clients closed" {
			spans = append(spans, check.Span{From: s.From, To: s.To + int64(w.slack())})
		}
	}
	return spans
}

// remains checks what is left when all clients are closed.
func (w *world) remains() {
	time.Sleep(w.Lease + w.Lease/2 + 4*w.Poll + w.slack() + w.outages()) // a request may have come that late
	w.server.redis.SetTime(time.UnixMicro(w.server.micros()))            // keys expire
	w.judgeLines()
	if w.losesData() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := semaphore.New(w.admin.rdb, semaphore.WithWheel(w.admin.wheel))
	if err != nil {
		w.faultf("no trouble", "admin", "%v", err)
		return
	}
	defer func() { _ = c.Close(ctx) }()
	for _, o := range w.Objects {
		if isLimit(o.Kind) || isTasks(o.Kind) || !slices.Contains(Kinds, o.Kind) {
			continue
		}
		k := robustness.KindOf(o.Kind)
		if k.Free != nil {
			free, err := k.Free(ctx, c, o.Name)
			if err != nil || free != k.Capacity {
				w.faultf("no permit is lost", o.Name, "%d of %d are free after the end: %v", free, k.Capacity, err)
			}
			continue
		}
		for _, key := range w.server.redis.Keys() {
			if key == o.Name || strings.HasPrefix(key, "{"+o.Name+"}:") && !strings.HasSuffix(key, "fence") {
				w.faultf("nothing is left", o.Name, "the key %s", key)
			}
		}
	}
}
