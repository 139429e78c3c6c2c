package main

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/sim"
)

//go:embed *.md.tmpl
var templates embed.FS

// view is what the template sees.
type view struct {
	data
	All      sum // the fixed scenarios and the soak, by class
	Locks    sum
	Permits  sum
	Limits   sum
	Tasks    sum
	Wheel    sum
	SoakSum  sum
	SoakBy   []soakRow
	Classes  []string
	Faults   []faultRow
	Fleet    *sim.Figures // of all simulated runs
	Caught   int
	PeerSums []peerSum
	First    *robustness.Result   // of the fixed scenarios
	Failures []*robustness.Result // runs in which a promise was broken
}

// soakRow is the part of the soak with one class of objects.
type soakRow struct {
	Class string
	sum
}

// Figures returns what matters most of the class.
func (r soakRow) Figures() string {
	switch r.Class {
	case "limits":
		return fmt.Sprintf("over-admission %.1f; %d losses of data, at most %.2f bursts each",
			r.Over, r.Losses, r.OverPerLoss)
	case "tasks":
		return fmt.Sprintf("%s attempts; %d leases ended", number(r.Attempts), r.Leases)
	case "permits":
		return fmt.Sprintf("overlap %s; leaked %d; free with a waiter %v", short(r.Overlap), r.Leaked, r.Idle)
	default:
		return fmt.Sprintf("overlap %s; stale writes %d of %d; free with a waiter %v",
			short(r.Overlap), r.StaleDone, r.StaleTried, r.Idle)
	}
}

// peerSum is what the runs of one lock had in which no data was lost.
type peerSum struct {
	Kind              string
	Grants, Overlaps  int
	Longest, ToldLate time.Duration
}

// peerSums returns a row for each lock. The results of a lock follow one another.
func peerSums(results []*robustness.Result) (rows []peerSum) {
	for _, r := range results {
		if r.LosesData {
			continue
		}
		if len(rows) == 0 || rows[len(rows)-1].Kind != r.Kind {
			rows = append(rows, peerSum{Kind: r.Kind})
		}
		row := &rows[len(rows)-1]
		row.Grants, row.Overlaps = row.Grants+r.Granted, row.Overlaps+r.Overlaps
		row.Longest, row.ToldLate = max(row.Longest, r.Overlap), max(row.ToldLate, r.ToldLate)
	}
	return rows
}

// FoundSeeds counts the controls that the simulation detects by a seed.
func (v view) FoundSeeds() (n int) {
	for _, f := range v.Found {
		if f.Seeds > 0 {
			n++
		}
	}
	return n
}

// documents returns the texts of reliability.md and runs.md by file name.
func documents(folder string) (map[string]string, error) {
	d, err := load(folder)
	if err != nil {
		return nil, err
	}
	all := slices.Concat(d.Fixed, d.Soak)
	v := view{
		data: d, All: total(all), Locks: total(of(all, "locks")), Permits: total(of(all, "permits")),
		Limits: total(of(all, "limits")), Tasks: total(of(all, "tasks")), Wheel: total(of(all, "timers")),
		SoakSum: total(d.Soak), PeerSums: peerSums(d.Peers),
		Classes: classes, Faults: faultRows(all), First: d.Fixed[0], Fleet: &sim.Figures{},
	}
	for _, class := range classes {
		if found := of(d.Soak, class); len(found) > 0 {
			v.SoakBy = append(v.SoakBy, soakRow{class, total(found)})
		}
	}
	for _, l := range d.Simulated {
		v.Fleet.Merge(l.Simulated)
	}
	for _, c := range d.Controls {
		if c.Caught {
			v.Caught++
		}
	}
	for _, r := range all {
		if len(r.Faults) > 0 {
			v.Failures = append(v.Failures, r)
		}
	}
	t, err := template.New("").Funcs(template.FuncMap{
		"figure": figure, "number": number, "short": short, "dir": path.Dir,
		"after": func(d time.Duration) string {
			if d < 0 {
				return "at least " + short(-d) + " before"
			}
			return "at most " + short(d) + " after"
		},
		"date":       func(t time.Time) string { return t.Format(time.DateOnly) },
		"tests":      func(names []string) string { return "`" + strings.Join(names, "`, `") + "`" },
		"name":       func(s string) string { _, what, _ := strings.Cut(s, ": "); return what },
		"peerFaults": func(s string) string { return strings.TrimPrefix(s, "peers: ") },
		"last":       func(rs []*robustness.Result) *robustness.Result { return rs[len(rs)-1] },
	}).ParseFS(templates, "*.md.tmpl")
	if err != nil {
		return nil, err
	}
	texts := make(map[string]string)
	for _, page := range t.Templates() {
		var b strings.Builder
		if err := page.Execute(&b, v); err != nil {
			return nil, err
		}
		texts[strings.TrimSuffix(page.Name(), ".tmpl")] = b.String()
	}
	return texts, nil
}
