package robustness

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// Result is what the checks found in a run. As JSON it is a line of the files that docs/reliability.md is made
// from. Durations are nanoseconds.
type Result struct {
	Scenario string        `json:"scenario"`
	Kind     string        `json:"kind"`
	Topology Topology      `json:"topology,omitempty"`
	Seed     uint64        `json:"seed"`
	Length   time.Duration `json:"length"` // of the time with faults
	Environment

	Effects map[string]int `json:"effects,omitempty"` // how often each fault took effect
	Deposed int            `json:"deposed,omitempty"` // primaries that faults deposed although they should not
	Calls   int            `json:"calls"`
	Granted int            `json:"granted"`
	Failed  int            `json:"failed"`
	Killed  int            `json:"killed,omitempty"` // holds whose process was killed
	Lost    int            `json:"lost,omitempty"`   // holds whose client was told that they are lost
	Most    int64          `json:"most,omitempty"`   // holds at one instant

	LosesData  bool          `json:"losesData,omitempty"`
	Overlap    time.Duration `json:"overlap"` // the longest
	Overlaps   int           `json:"overlaps,omitempty"`
	StaleTried int           `json:"staleTried,omitempty"`
	StaleDone  int           `json:"staleDone,omitempty"`
	Idle       Quantiles     `json:"idle"`     // free with a waiter, outside of faults
	Takeover   Quantiles     `json:"takeover"` // from the death of a holder to the next grant, without the lease
	ToldBefore int           `json:"toldBefore,omitempty"`
	ToldAfter  int           `json:"toldAfter,omitempty"` // after the next grant, though no fault lasted at that time
	ToldLate   time.Duration `json:"toldLate,omitempty"`  // the longest, after a conflicting grant
	Leaked     int64         `json:"leaked,omitempty"`    // permits missing after all leases have ended

	Refused        int `json:"refused,omitempty"`        // calls
	RefusedChecked int `json:"refusedChecked,omitempty"` // those that the check of linearizability considers
	KeysLeft       int `json:"keysLeft,omitempty"`       // a lease after the end; counted for peers only

	Limits *LimitFigures `json:"limits,omitempty"`
	Tasks  *TaskFigures  `json:"tasks,omitempty"`
	Timers *TimerFigures `json:"timers,omitempty"`
	Faults []check.Fault `json:"faults,omitempty"` // broken promises
}

// Environment is where and of what a result was measured.
type Environment struct {
	Date   time.Time `json:"date"`
	Cores  int       `json:"cores"`
	Go     string    `json:"go"`
	Redis  string    `json:"redis,omitempty"`
	Commit string    `json:"commit"`
}

func newEnvironment(redis string) Environment {
	return Environment{
		Date: time.Now().UTC().Truncate(time.Second), Cores: runtime.NumCPU(), Go: runtime.Version(),
		Redis: redis, Commit: Commit(),
	}
}

// Commit returns the commit under test: what make found, or what the compiler did.
var Commit = sync.OnceValue(func() string {
	if c := os.Getenv("ROBUSTNESS_COMMIT"); c != "" {
		return c
	}
	info, _ := debug.ReadBuildInfo()
	if info != nil {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value[:12]
			}
		}
	}
	return headOf(".")
})

// headOf reads the commit of the repository around a folder, for a test binary has no stamp.
func headOf(folder string) string {
	for range 8 {
		git := filepath.Join(folder, ".git")
		if text, err := os.ReadFile(git); err == nil { // of a worktree
			if path, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir: "); ok {
				git = path
			}
		}
		if head, err := os.ReadFile(filepath.Join(git, "HEAD")); err == nil {
			return resolve(git, strings.TrimSpace(string(head)))
		}
		folder = filepath.Join(folder, "..")
	}
	return ""
}

func resolve(git, head string) string {
	ref, isRef := strings.CutPrefix(head, "ref: ")
	if !isRef {
		return head[:min(12, len(head))]
	}
	common := git
	if text, err := os.ReadFile(filepath.Join(git, "commondir")); err == nil {
		common = filepath.Join(git, strings.TrimSpace(string(text)))
	}
	text, err := os.ReadFile(filepath.Join(common, ref))
	if err != nil {
		return ""
	}
	return string(text[:min(12, len(text))])
}

// Quantiles are those of a number of durations.
type Quantiles struct {
	N   int           `json:"n"`
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
	Max time.Duration `json:"max"`
}

func quantiles(w check.Waits) Quantiles {
	w.Sort()
	return Quantiles{len(w), w.Quantile(0.5), w.Quantile(0.99), w.Quantile(1)}
}

func (q Quantiles) String() string {
	if q.N == 0 {
		return "none"
	}
	return fmt.Sprintf("%d, p50 %v, p99 %v, max %v", q.N, round(q.P50), round(q.P99), round(q.Max))
}

// Bounds of the checks.
const (
	searchLimit = 30 * time.Second
	settleSlack = 3 * time.Second // for a busy machine
	toldSlack   = time.Second     // likewise
)

// ofExclusion are promises that end with a loss of data. Where there are two holders, the store rejects one of them.
var ofExclusion = []string{"overlap", "no write of a holder is rejected"}

// newResult returns a result without findings.
func (r *Run) newResult() *Result {
	return &Result{
		Scenario: r.Name, Kind: r.Kind, Topology: r.Topology, Seed: r.Seed, Length: r.Length,
		Environment: newEnvironment(r.redisVersion()), Effects: r.allEffects(), Deposed: r.deposed,
		LosesData: r.lostData(), Leaked: r.leaked,
	}
}

// redisVersion asks the first server.
func (r *Run) redisVersion() string {
	for _, s := range r.servers {
		info, err := s.Client(r.tb).Info(r.ctx, "server").Result()
		if _, rest, found := strings.Cut(info, "redis_version:"); err == nil && found {
			version, _, _ := strings.Cut(rest, "\r")
			return version
		}
	}
	return ""
}

// judge runs all checks.
func (r *Run) judge() *Result {
	events := r.history.Events()
	calls := history.Calls(events)
	res := r.newResult()
	res.count(calls)
	switch k := r.kind(); {
	case k.Limit != nil:
		r.judgeLimits(res, calls)
	case k.Tasks != nil:
		r.judgeTasks(res, events)
	default:
		r.judgeHolds(res, calls)
	}
	for _, e := range events {
		if e.Step == history.Trouble {
			process := fmt.Sprint("process ", history.ProcessOf(e.Client))
			res.Faults = append(res.Faults, check.Fault{Promise: "no trouble", Object: process, Detail: e.Note})
		}
	}
	res.Faults = append(res.Faults, check.NothingAfterClose(events)...)
	res.Faults = append(res.Faults, r.left...)
	res.requireEffect(r)
	return res
}

// judgeHolds checks locks and permits.
func (r *Run) judgeHolds(res *Result, calls []*history.Call) {
	rules, grace := r.kind().Rules(r.Settings), r.longestSpan()+settleSlack
	stops, patience := check.Stops(r.history.Events()), r.Poll+readTimeout+settleSlack
	lost, inTime := r.lostData(), toldSlack
	if lost {
		inTime += r.Lease // for its holder may learn of it at the end of the lease only
	}
	var idle, takeover check.Waits
	for object, calls := range history.ByObject(calls) {
		overlap, most, faults := check.Overlap(calls, rules)
		res.Overlap, res.Most = max(res.Overlap, overlap), max(res.Most, most)
		res.Overlaps += len(faults)
		tried, done, stale := check.Store(calls)
		res.StaleTried, res.StaleDone = res.StaleTried+tried, res.StaleDone+done
		faults = append(faults, stale...)
		faults = append(faults, check.Tokens(calls)...)
		if lost {
			faults = slices.DeleteFunc(faults, func(f check.Fault) bool {
				return slices.Contains(ofExclusion, f.Promise)
			})
		} else {
			faults = append(faults, check.Linear(calls, rules, grace, searchLimit)...)
			first, late := check.Told(calls, rules, r.spans)
			res.ToldBefore, res.ToldAfter = res.ToldBefore+first, res.ToldAfter+late
		}
		refused, checked := check.Refusals(calls, rules, grace)
		res.Refused, res.RefusedChecked = res.Refused+refused, res.RefusedChecked+checked
		late, untold := check.InTime(calls, rules, stops, inTime)
		res.ToldLate, faults = max(res.ToldLate, late), append(faults, untold...)
		if r.Fleet {
			faults = append(faults, r.judgeLine(calls, rules, grace, stops)...)
		}
		waits := check.Free(calls, rules, grace, r.spans)
		idle, takeover = append(idle, waits...), append(takeover, check.Takeovers(calls, rules, r.spans)...)
		progress := check.Progress(calls, rules, grace, r.spans)
		faults = append(faults, check.NoneStrands(waits, patience)...)
		for _, f := range append(faults, check.NoneStrands(progress, rules.Lease+grace+patience)...) {
			f.Object = object
			res.Faults = append(res.Faults, f)
		}
	}
	res.Idle, res.Takeover = quantiles(idle), quantiles(takeover)
}

// lineWait is far more than a line needs for the next waiter, on a machine that is busy with something else, and less
// than the time until the first poll of a fleet.
const lineWait = 5 * time.Second

// judgeLine checks a line, whose waiters depend on no poll also while processes are killed or stopped.
func (r *Run) judgeLine(
	calls []*history.Call, rules check.Rules, grace time.Duration, stops map[int][]check.Span,
) []check.Fault {
	waits := check.Free(check.Running(calls, stops), rules, grace, r.outages)
	faults := check.NoneStrands(waits, lineWait)
	if r.lostData() { // and lines
		return faults
	}
	const perFault = 10 // of the callers that come while nobody answers
	return append(faults, check.Overtaken(calls, rules, stops, lineWait/5, perFault*len(r.spans))...)
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
	for _, f := range r.ineffective() {
		if r.Each {
			res.Faults = append(res.Faults, check.Fault{
				Promise: "faults take effect", Object: r.Name, Detail: f.Name + " did not",
			})
		}
	}
	// Calls that fail at once, as those that are refused the rights, say nothing about the others. Most of those that
	// ask for a limit are denied.
	share := r.kind().Limit == nil && r.GiveUp < overload
	if res.Granted < 20 || share && 20*res.Granted < res.Calls-res.Failed {
		res.Faults = append(res.Faults, check.Fault{
			Promise: "calls succeed", Object: r.Name,
			Detail: fmt.Sprintf("%d of %d were granted", res.Granted, res.Calls),
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
	fmt.Fprintf(&b, "%s, %s on %s, seed %d", res.Scenario, res.Kind, res.Topology, res.Seed)
	switch {
	case res.Timers != nil:
		fmt.Fprintf(&b, ": %v", res.Timers)
	case res.Limits != nil:
		fmt.Fprintf(&b, ": %d calls, %d failed; %v", res.Calls, res.Failed, res.Limits)
	case res.Tasks != nil:
		fmt.Fprintf(&b, ": %d calls, %d failed; %v", res.Calls, res.Failed, res.Tasks)
	default:
		fmt.Fprintf(&b, ": %d calls, %d granted, %d failed, %d of killed processes; "+
			"%d lost, %d told before the next grant, %d after, up to %v late; "+
			"overlap %v, at most %d at a time; %d of %d refusals checked; "+
			"stale writes %d tried, %d done; free with a waiter: %v; takeover: %v; %d leaked",
			res.Calls, res.Granted, res.Failed, res.Killed, res.Lost, res.ToldBefore, res.ToldAfter,
			round(res.ToldLate), res.Overlap, res.Most, res.RefusedChecked, res.Refused,
			res.StaleTried, res.StaleDone, res.Idle, res.Takeover, res.Leaked)
	}
	fmt.Fprintf(&b, "; %d primaries deposed; faults %v", res.Deposed, res.Effects)
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

// ControlResult is what became of a wrong implementation, which a check has to catch. As JSON it is a line of
// results/controls.jsonl.
type ControlResult struct {
	Control string `json:"control"`
	Where   string `json:"where"` // the scenario, or the test
	Caught  bool   `json:"caught"`
	By      string `json:"by"` // the promises that were found broken
	Environment
}
