package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness"
)

// classes are what faults are counted for.
var classes = []string{"locks", "permits", "limits", "tasks", "timers"}

func class(r *robustness.Result) string {
	switch {
	case r.Timers != nil:
		return "timers"
	case r.Limits != nil:
		return "limits"
	case r.Tasks != nil:
		return "tasks"
	case strings.Contains(r.Kind, "permits"):
		return "permits"
	default:
		return "locks"
	}
}

// sum is what several runs have in common.
type sum struct {
	Runs, Calls, Granted, Failed, Killed, Lost, Effects int
	Broken                                              int // promises
	Time                                                time.Duration
	Overlap                                             time.Duration
	StaleTried, StaleDone                               int
	Idle, Takeover                                      worst
	ToldBefore, ToldAfter                               int
	Leaked                                              int64
	ByRedis, ByPolicy                                   int
	Over, OverPerLoss                                   float64
	Losses                                              int
	Timers, TimersLost, TimersEarly, TimersTwice        int
	Late                                                worst
	Attempts, Leases                                    int // of tasks; those that ended
}

// worst is the quantiles of several runs: of each, the run with the longest.
type worst struct {
	N             int
	P50, P99, Max time.Duration
}

func (w worst) with(q robustness.Quantiles) worst {
	if q.N == 0 {
		return w
	}
	if w.N == 0 {
		w.P50, w.P99, w.Max = q.P50, q.P99, q.Max
	}
	w.N += q.N
	w.P50, w.P99, w.Max = max(w.P50, q.P50), max(w.P99, q.P99), max(w.Max, q.Max)
	return w
}

func (w worst) String() string {
	if w.N == 0 {
		return "none"
	}
	return fmt.Sprintf("%s / %s / %s", short(w.P50), short(w.P99), short(w.Max))
}

func total(results []*robustness.Result) (s sum) {
	for _, r := range results {
		s.Runs++
		s.Time += r.Length
		s.Calls, s.Granted, s.Failed = s.Calls+r.Calls, s.Granted+r.Granted, s.Failed+r.Failed
		s.Killed, s.Lost = s.Killed+r.Killed, s.Lost+r.Lost
		s.Broken += len(r.Faults)
		for _, n := range r.Effects {
			s.Effects += n
		}
		s.StaleTried, s.StaleDone = s.StaleTried+r.StaleTried, s.StaleDone+r.StaleDone
		s.Idle, s.Takeover = s.Idle.with(r.Idle), s.Takeover.with(r.Takeover)
		s.Leaked += r.Leaked
		if !r.LosesData {
			s.Overlap = max(s.Overlap, r.Overlap)
			s.ToldBefore, s.ToldAfter = s.ToldBefore+r.ToldBefore, s.ToldAfter+r.ToldAfter
		}
		if l := r.Limits; l != nil {
			s.ByRedis, s.ByPolicy = s.ByRedis+int(l.ByRedis), s.ByPolicy+int(l.ByPolicy)
			s.Losses += l.Losses
			if l.Losses == 0 {
				s.Over = max(s.Over, l.OverMax)
			} else {
				s.OverPerLoss = max(s.OverPerLoss, l.OverMax/float64(l.Losses)/float64(l.Burst))
			}
		}
		if t := r.Tasks; t != nil {
			s.Attempts, s.Leases = s.Attempts+t.Attempts, s.Leases+t.Losses
		}
		if f := r.Timers; f != nil {
			s.Timers += f.Timers
			s.TimersLost += f.Lost
			s.TimersEarly += f.Early
			s.TimersTwice += f.Twice
			s.Late = s.Late.with(f.Late)
		}
	}
	return s
}

// of returns the results of a class.
func of(results []*robustness.Result, name string) (found []*robustness.Result) {
	for _, r := range results {
		if class(r) == name {
			found = append(found, r)
		}
	}
	return found
}

// faultRow is how often a fault took effect in runs of each class, and in how many of them a promise was broken.
type faultRow struct {
	Name  string
	Cells []string
}

func faultRows(results []*robustness.Result) (rows []faultRow) {
	type cell struct{ effects, broken int }
	counts := make(map[string]map[string]*cell)
	for _, r := range results {
		for name, n := range r.Effects {
			if counts[name] == nil {
				counts[name] = make(map[string]*cell)
			}
			c := counts[name][class(r)]
			if c == nil {
				c = &cell{}
				counts[name][class(r)] = c
			}
			c.effects += n
			if len(r.Faults) > 0 {
				c.broken++
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		row := faultRow{Name: name}
		for _, class := range classes {
			text := ""
			if c := counts[name][class]; c != nil {
				text = fmt.Sprintf("%d", c.effects)
				if c.broken > 0 {
					text += fmt.Sprintf(", **%d runs failed**", c.broken)
				}
			}
			row.Cells = append(row.Cells, text)
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows, func(a, b faultRow) int { return cmp.Compare(a.Name, b.Name) })
	return rows
}

// figure is what a run says about its own kind of object.
func figure(r *robustness.Result) string {
	var parts []string
	switch class(r) {
	case "timers":
		t := r.Timers
		return fmt.Sprintf("%s timers: lost %d, early %d, twice %d; %s stopped, %s reset; late %s",
			number(t.Timers), t.Lost, t.Early, t.Twice, number(t.Stopped), number(t.Resets), quantiles(t.Late))
	case "tasks":
		t := r.Tasks
		return fmt.Sprintf("%s scheduled, %s attempts; %d leases ended; takeover %s",
			number(t.Scheduled), number(t.Attempts), t.Losses, quantiles(t.Takeover))
	case "limits":
		l := r.Limits
		parts = append(parts, fmt.Sprintf(
			"%s permits granted, %.0f%% of the limit", number(int(l.ByRedis)), 100*l.Utilisation))
		if l.Losses > 0 {
			parts = append(parts, fmt.Sprintf(
				"over-admission %.1f after %d losses of data, with a burst of %d", l.OverMax, l.Losses, l.Burst))
		} else {
			parts = append(parts, fmt.Sprintf("over-admission %.1f", l.OverMax))
		}
		if l.ByPolicy > 0 {
			parts = append(parts, fmt.Sprintf("%s by the policy in outages", number(int(l.ByPolicy))))
		}
	default:
		parts = append(parts, fmt.Sprintf(
			"%s grants; losses: %d; holders killed: %d; overlap %s",
			number(r.Granted), r.Lost, r.Killed, short(r.Overlap)))
		if r.StaleTried > 0 {
			parts = append(parts, fmt.Sprintf("stale writes %d of %d", r.StaleDone, r.StaleTried))
		}
		if class(r) == "permits" {
			parts = append(parts, fmt.Sprintf("leaked %d", r.Leaked))
		}
		parts = append(parts, "free with a waiter "+quantiles(r.Idle))
		if r.Takeover.N > 0 {
			parts = append(parts, "takeover "+quantiles(r.Takeover))
		}
	}
	return strings.Join(parts, "; ")
}

func quantiles(q robustness.Quantiles) string { return worst(q).String() }

// short rounds a duration to what a reader compares.
func short(d time.Duration) string {
	switch abs := d.Abs(); {
	case d == 0:
		return "0"
	case abs < time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case abs < time.Second:
		return d.Round(100 * time.Microsecond).String()
	default:
		return d.Round(10 * time.Millisecond).String()
	}
}

// number writes thousands apart.
func number(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}
