package sim

import (
	"fmt"
	"strings"
	"time"
)

// Figures are those of many runs. As JSON they are a line of results/simulated.jsonl.
type Figures struct {
	Runs      int            `json:"runs"`
	Stopped   int            `json:"stopped,omitempty"` // runs that say nothing; see watch
	Simulated time.Duration  `json:"simulated"`
	Took      time.Duration  `json:"took"`
	Ops       int            `json:"ops"`
	Met       map[string]int `json:"met"`              // how often each fault took effect
	Pairs     map[string]int `json:"pairs"`            // how often each operation and fault have met
	Failed    []uint64       `json:"failed,omitempty"` // seeds
}

// Line is a line of results/simulated.jsonl.
type Line struct {
	Simulated *Figures  `json:"simulated"`
	Seed      uint64    `json:"seed"` // the first
	Date      time.Time `json:"date"`
	Commit    string    `json:"commit"`
}

// Finding is how a fault was found. As JSON it is a line of results/found.jsonl.
type Finding struct {
	Finding   string    `json:"finding"` // the fault, or the wrong implementation
	Seeds     int       `json:"seeds,omitempty"`
	By        string    `json:"by,omitempty"` // the broken promise
	Again     int       `json:"again"`        // of Runs runs of the last of these seeds
	Runs      int       `json:"runs,omitempty"`
	Elsewhere string    `json:"elsewhere,omitempty"` // what finds it instead
	Date      time.Time `json:"date"`
	Commit    string    `json:"commit"`
}

func (f Finding) String() string {
	if f.Elsewhere != "" {
		return fmt.Sprintf("%-72s %s", f.Finding, f.Elsewhere)
	}
	return fmt.Sprintf("%-72s %5d seeds, %2d of %d runs of that seed, by %q", f.Finding, f.Seeds, f.Again, f.Runs, f.By)
}

// Merge adds other figures.
func (f *Figures) Merge(o *Figures) {
	f.init()
	f.Runs, f.Stopped, f.Ops = f.Runs+o.Runs, f.Stopped+o.Stopped, f.Ops+o.Ops
	f.Simulated, f.Took = f.Simulated+o.Simulated, f.Took+o.Took
	f.Failed = append(f.Failed, o.Failed...)
	for _, of := range [][2]map[string]int{{f.Met, o.Met}, {f.Pairs, o.Pairs}} {
		for name, n := range of[1] {
			of[0][name] += n
		}
	}
}

func (f *Figures) init() {
	if f.Met == nil {
		f.Met, f.Pairs = make(map[string]int), make(map[string]int)
	}
}

// HoursPerMinute is how many hours were simulated in a minute.
func (f *Figures) HoursPerMinute() float64 { return f.Simulated.Hours() / max(f.Took.Minutes(), 1e-9) }

// OpsPerMinute is how many operations a minute had.
func (f *Figures) OpsPerMinute() int { return int(float64(f.Ops) / max(f.Took.Minutes(), 1e-9)) }

// Operations returns the kinds of objects, with all that is done to them.
func (f *Figures) Operations() []string { return Kinds }

// FaultNames returns all faults.
func (f *Figures) FaultNames() (names []string) {
	for _, k := range FaultKinds {
		names = append(names, k.Name)
	}
	return names
}

// Pair returns how often operations on a kind of object and a fault have met.
func (f *Figures) Pair(kind, fault string) (n int) {
	for pair, met := range f.Pairs {
		if strings.HasPrefix(pair, kind+", ") && strings.HasSuffix(pair, pairSign+fault) {
			n += met
		}
	}
	return n
}

// pairSign stands between an operation and a fault.
const pairSign = " × "

// Add counts a run.
func (f *Figures) Add(res *Result) {
	if res.Skipped {
		return
	}
	f.init()
	f.Runs++
	if res.Stopped != "" {
		f.Stopped++
	}
	f.Simulated += res.Length
	f.Ops += res.Ops
	for name, n := range res.Met {
		f.Met[name] += n
	}
	for name, n := range res.Pairs {
		f.Pairs[name] += n
	}
	if len(res.Faults) > 0 {
		f.Failed = append(f.Failed, res.Seed)
	}
}

func (f *Figures) String() string {
	return fmt.Sprintf("%d runs, %d of them stopped, %.1f simulated hours and %d operations in %v: "+
		"%.1f hours and %d operations a minute; "+
		"%d of %d faults and %d pairs of operation and fault met; seeds that failed %v",
		f.Runs, f.Stopped, f.Simulated.Hours(), f.Ops, f.Took.Round(time.Second),
		f.HoursPerMinute(), f.OpsPerMinute(),
		len(f.Met), len(FaultKinds), len(f.Pairs), f.Failed)
}

// lastEvents is how many events of a failed run are shown.
const lastEvents = 40

// Explain returns what there is to know about a run that failed: the broken promises, the shortest schedule in
// which the first of them is broken, and the last events of that.
func Explain(res *Result, kinds []string, commit string, limit time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, commit %s\n", res.Seed, commit)
	for i, f := range res.Faults {
		if i == 10 {
			fmt.Fprintf(&b, "and %d more\n", len(res.Faults)-i)
			break
		}
		fmt.Fprintf(&b, "%v\n", f)
	}
	s, short := Shrink(Draw(res.Seed, kinds...), res.Faults[0].Promise, limit)
	if short == nil {
		fmt.Fprintf(&b, "%d other runs of the schedule did not fail; the last events of this one:\n", tries)
		short = res
	} else {
		fmt.Fprintf(&b, "the shortest schedule that fails:\n%v%v\nits last events:\n", s, short.Faults[0])
	}
	for _, line := range short.Trace[max(0, len(short.Trace)-lastEvents):] {
		fmt.Fprintln(&b, line)
	}
	return b.String()
}

// Repeat returns in how many of the runs the promise was broken.
func (o Orders) Repeat(promise string) (failed int) {
	_ = o.Each(func(res *Result) bool { // an error is no failure
		if res.breaks(promise) {
			failed++
		}
		return true
	})
	return failed
}

// breaks reports whether the promise is broken.
func (res *Result) breaks(promise string) bool {
	for _, f := range res.Faults {
		if f.Promise == promise {
			return true
		}
	}
	return false
}
