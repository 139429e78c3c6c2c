package robustness

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/robustness/check"
	"github.com/cogwheel-go/cogwheel/internal/robustness/history"
)

// Result is what the checks found in a run.
type Result struct {
	Scenario string
	Kind     string
	Topology Topology
	Seed     uint64
	Length   time.Duration

	Effects map[string]int // how often each fault took effect
	Calls   int
	Granted int
	Failed  int
	Killed  int // holds whose process was killed
	Lost    int // holds whose client was told that they are lost
	Most    int64

	Overlap    time.Duration // the longest
	Overlaps   int
	StaleTried int
	StaleDone  int
	Idle       check.Waits   // free with a waiter, outside of faults
	ToldLate   time.Duration // the longest from a conflicting grant until a client was told of its loss

	KeysLeft int // a lease after the end; counted for peers only

	Refused        int // calls
	RefusedChecked int // those that the check of linearizability considers
	Faults         []check.Fault
}

// Bounds of the checks.
const (
	searchLimit = 30 * time.Second
	settleSlack = 3 * time.Second // for a busy machine
	toldSlack   = time.Second     // likewise
)

// voidByLoss are the promises that do not hold while Redis loses what it confirmed.
var voidByLoss = []string{"overlap", "told in time", "no write of a holder is rejected"}

// judge runs all checks.
func (r *Run) judge() *Result {
	events := r.history.Events()
	calls := history.Calls(events)
	res := &Result{
		Scenario: r.Name, Kind: r.Kind, Topology: r.Topology, Seed: r.Seed, Length: r.Length, Effects: r.effects,
	}
	res.count(calls)
	rules, grace := r.kind().rules(r.Settings), r.longestSpan()+settleSlack
	stops, patience := check.Stops(events), r.Poll+readTimeout+settleSlack
	for object, calls := range history.ByObject(calls) {
		overlap, most, faults := check.Overlap(calls, rules)
		res.Overlap, res.Most = max(res.Overlap, overlap), max(res.Most, most)
		res.Overlaps += len(faults)
		tried, done, stale := check.Store(calls)
		res.StaleTried, res.StaleDone = res.StaleTried+tried, res.StaleDone+done
		faults = append(faults, stale...)
		faults = append(faults, check.Tokens(calls)...)
		if !r.losesData() {
			faults = append(faults, check.Linear(calls, rules, grace, searchLimit)...)
		}
		refused, checked := check.Refusals(calls, rules, grace)
		res.Refused, res.RefusedChecked = res.Refused+refused, res.RefusedChecked+checked
		late, untold := check.InTime(calls, rules, stops, toldSlack)
		res.ToldLate, faults = max(res.ToldLate, late), append(faults, untold...)
		waits := check.Free(calls, rules, grace, r.spans)
		res.Idle = append(res.Idle, waits...)
		faults = append(faults, check.NoneStrands(waits, patience)...)
		faults = append(faults, check.NoneStrands(check.Progress(calls, rules, grace, r.spans), rules.Lease+grace+patience)...)
		for _, f := range faults {
			if f.Object = object; !(r.losesData() && slices.Contains(voidByLoss, f.Promise)) {
				res.Faults = append(res.Faults, f)
			}
		}
	}
	res.Idle.Sort()
	for _, e := range events {
		if e.Step == history.Trouble {
			res.Faults = append(res.Faults, check.Fault{Promise: "no trouble", Object: fmt.Sprint("process ", history.ProcessOf(e.Client)), Detail: e.Note})
		}
	}
	res.requireEffect(r)
	return res
}

func (res *Result) count(calls []*history.Call) {
	for _, c := range calls {
		res.Calls++
		switch c.Outcome {
		case history.Granted:
			res.Granted++
		case history.Failed:
			res.Failed++
		}
		if c.Killed != history.Never && c.Held() {
			res.Killed++
		}
		if c.Told != history.Never {
			res.Lost++
		}
	}
}

// requireEffect makes a run fail in which nothing happened.
func (res *Result) requireEffect(r *Run) {
	if len(r.Scenario.Faults) > 0 && len(res.Effects) == 0 {
		res.Faults = append(res.Faults, check.Fault{Promise: "faults take effect", Object: r.Name, Detail: "none did"})
	}
	if 20*res.Granted < res.Calls {
		res.Faults = append(res.Faults, check.Fault{
			Promise: "calls succeed", Object: r.Name, Detail: fmt.Sprintf("%d of %d were granted", res.Granted, res.Calls),
		})
	}
}

func (r *Run) longestSpan() (longest time.Duration) {
	for _, s := range r.spans {
		longest = max(longest, time.Duration(s.To-s.From))
	}
	return longest
}

// String returns the result in a line, and each fault in one.
func (res *Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s on %s, seed %d: %d calls, %d granted, %d failed, %d lost, %d of killed processes; "+
		"overlap %v, at most %d at a time; told up to %v late; %d of %d refusals checked; stale writes %d tried, %d done; free with a waiter p50 %v, p99 %v, max %v; faults %v",
		res.Scenario, res.Kind, res.Topology, res.Seed, res.Calls, res.Granted, res.Failed, res.Lost, res.Killed,
		res.Overlap, res.Most, round(res.ToldLate), res.RefusedChecked, res.Refused, res.StaleTried, res.StaleDone,
		round(res.Idle.Quantile(0.5)), round(res.Idle.Quantile(0.99)), round(res.Idle.Quantile(1)), res.Effects)
	for i, f := range res.Faults {
		if i == 20 {
			fmt.Fprintf(&b, "\n\tand %d more", len(res.Faults)-i)
			break
		}
		fmt.Fprintf(&b, "\n\t%v", f)
	}
	return b.String()
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
