package sim

import (
	"regexp"
	"slices"

	"github.com/cogwheel-go/cogwheel/internal/robustness/check"
)

// knownFault is a fault of the library that is known and not fixed yet.
type knownFault struct {
	name     string
	promises []string // that it breaks; nil for all
	detail   string   // a regular expression
	faults   []string // one of which took effect; nil for none
}

// known are those faults. A run in which nothing else is found passes.
var known = []knownFault{
	{
		name:     "a caller that leaves a MultiMutex waits until its parts are given back",
		promises: []string{"a caller returns when its context ends"},
		detail:   `lock "\{multi-mutex.*context deadline exceeded`,
	},
	{
		name:     "a panic in a hook of go-redis kills the process",
		promises: []string{"the process does not crash"}, detail: `panic: a hook panics`,
	},
	{
		name:   "a panic in a hook of go-redis leaves a name unusable, and Close without an end",
		faults: []string{"hook panics"},
	},
	{
		name:     "Close takes many leases while Redis does not answer",
		promises: []string{"Close takes little longer than the longest lease"},
	},
	{
		name:     "an answer about one key takes the limiter from all",
		promises: []string{"a policy decides in outages only"}, faults: []string{"key migrates"},
	},
	{
		name:     "a pause of the process counts as an outage",
		promises: []string{"a policy decides in outages only"}, faults: []string{"process stands still"},
	},
}

// explain moves the broken promises that known faults explain to a list of their own.
func (res *Result) explain() {
	res.Faults = slices.DeleteFunc(res.Faults, func(f check.Fault) bool {
		i := slices.IndexFunc(known, func(k knownFault) bool { return k.explains(f, res.Met) })
		if i >= 0 {
			res.Known, res.Explained = append(res.Known, known[i].name), append(res.Explained, f)
		}
		return i >= 0
	})
	slices.Sort(res.Known)
	res.Known = slices.Compact(res.Known)
}

func (k *knownFault) explains(f check.Fault, met map[string]int) bool {
	happened := func(name string) bool { return met[name] > 0 }
	return (k.promises == nil || slices.Contains(k.promises, f.Promise)) &&
		regexp.MustCompile(k.detail).MatchString(f.Detail) &&
		(k.faults == nil || slices.ContainsFunc(k.faults, happened))
}
