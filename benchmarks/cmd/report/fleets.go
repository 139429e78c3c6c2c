//go:build unix

package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/benchmarks/figures"
)

// What fleets do; see package fleets of the benchmarks.
var (
	fleetWorks = []struct{ name, impl, title string }{
		{"mutex", "cogwheel", "`Mutex`"},
		{"rwmutex", "cogwheel", "`RWMutex`, writers"},
		{"fairmutex", "cogwheel", "`FairMutex`"},
		{"semaphore", "cogwheel", "`Semaphore`"},
		{"counting", "cogwheel", "`CountingSemaphore`"},
		{"fairsemaphore", "cogwheel", "`FairSemaphore`"},
		{"mutex", "bsm", "bsm/redislock"},
		{"mutex", "redsync", "redsync"},
	}
	fleetRates = []int{2, 20, 500}
	fleetHolds = []time.Duration{2 * time.Millisecond, 100 * time.Millisecond}
)

// fleetSizes are the numbers of processes. A smoke run has two of them, one hold and one rate.
func fleetSizes(full bool) []int {
	if full {
		return []int{1, 4, 16, 64, 256}
	}
	return []int{1, 4}
}

func fleetKey(bench string, processes int, unit string) figures.Key {
	return figures.Key{Package: "fleets", Bench: bench + "/processes=" + strconv.Itoa(processes), Unit: unit}
}

func sectionsBench(work string, hold time.Duration) string {
	return fmt.Sprintf("Sections/work=%s/hold=%v", work, hold)
}

func tasksBench(rate int) string { return "Tasks/rate=" + strconv.Itoa(rate) }

func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return strconv.Itoa(n) + " processes"
}

// sizeOfFleet separates a load from the number of processes.
const sizeOfFleet = ", "

// perOperation are the rows of a load for what an operation costs.
func perOperation(load, bench string, n int) []row {
	return []row{
		{load: load, what: "calls", key: fleetKey(bench, n, "calls/op")},
		{what: "µs of the server", key: fleetKey(bench, n, "server-us/op")},
	}
}

// fleetSections compares locks of fleets, as permits have no peer. The page shows both in tables of its own.
func fleetSections(full bool) table {
	t := table{"fleets", "cogwheel", []string{"bsm", "redsync"}, nil}
	for i, hold := range fleetHolds {
		if i > 0 && !full {
			break
		}
		bench := sectionsBench("mutex", hold)
		for _, n := range fleetSizes(full) {
			why := ""
			if n > 1 {
				why = whyAgain
			}
			t.rows = append(t.rows, perOperation(fmt.Sprintf("`Mutex` held for %d ms", hold.Milliseconds())+sizeOfFleet+processes(n), bench, n)...)
			t.rows = append(t.rows,
				row{what: "operations per second", key: fleetKey(bench, n, "ops/s"), more: true, reason: why},
				row{what: "ms of waiting, median", key: fleetKey(bench, n, "p50-wait-ms"), reason: why},
				row{what: "ms of waiting, 99 %", key: fleetKey(bench, n, "p99-wait-ms"), reason: why},
				row{what: "ms of waiting, longest", key: fleetKey(bench, n, "max-wait-ms")},
				row{what: "fairness", key: fleetKey(bench, n, "fairness"), more: true})
		}
	}
	return t
}

// fleetTasks compares queues that fleets serve.
func fleetTasks(full bool) table {
	t := table{"fleets", "cogwheel", []string{"asynq"}, nil}
	for _, rate := range fleetRates {
		if rate != fleetRates[len(fleetRates)-1] && !full {
			continue
		}
		bench := tasksBench(rate)
		for _, n := range fleetSizes(full) {
			t.rows = append(t.rows, perOperation(fmt.Sprintf("%d tasks per second", rate)+sizeOfFleet+processes(n), bench, n)...)
			t.rows = append(t.rows,
				row{what: "ms late, median", key: fleetKey(bench, n, "p50-late-ms")},
				row{what: "ms late, 99 %", key: fleetKey(bench, n, "p99-late-ms")})
		}
	}
	return t
}

// fleetLine is one line of a table of fleets: a work of an implementation in so many processes.
type fleetLine struct {
	title, bench, impl string
	processes          int
}

// FleetSections is the table of locks and permits that are held for so many milliseconds, in Markdown; nothing if that
// was not measured because the run was small.
func (p *page) FleetSections(holdMillis int) (string, error) {
	hold := time.Duration(holdMillis) * time.Millisecond
	if !p.Full() && hold != fleetHolds[0] {
		return "", nil
	}
	var lines []fleetLine
	for _, w := range fleetWorks {
		for _, n := range fleetSizes(p.Full()) {
			lines = append(lines, fleetLine{w.title, sectionsBench(w.name, hold), w.impl, n})
		}
	}
	return p.fleetTable(lines, "wait", "ms of waiting: median, 99 %, longest", true)
}

// FleetTasks is the table of tasks, likewise.
func (p *page) FleetTasks() (string, error) {
	var lines []fleetLine
	for _, rate := range fleetRates {
		if !p.Full() && rate != fleetRates[len(fleetRates)-1] {
			continue
		}
		for _, impl := range []string{"cogwheel", "asynq"} {
			for _, n := range fleetSizes(p.Full()) {
				title := fmt.Sprintf("%s, %d per second", names[impl], rate)
				lines = append(lines, fleetLine{title, tasksBench(rate), impl, n})
			}
		}
	}
	return p.fleetTable(lines, "late", "ms late: median, 99 %, most", false)
}

// Fleet is the number of processes that the short page shows, as text.
func (p *page) Fleet() string {
	sizes := fleetSizes(p.Full())
	return strconv.Itoa(sizes[min(3, len(sizes)-1)])
}

// ShortFleets is a table of one size of fleets beside other libraries, in Markdown.
func (p *page) ShortFleets() (string, error) {
	n, err := strconv.Atoi(p.Fleet())
	if err != nil {
		return "", err
	}
	var text strings.Builder
	cells := func(c ...string) { text.WriteString("| " + strings.Join(c, " | ") + " |\n") }
	cells("", "", "calls", "µs of the server", "per second", "ms: median, 99 %, longest", "fairness")
	cells("---", "---", "---:", "---:", "---:", "---:", "---:")
	add := func(load, unit string, lines []fleetLine) error {
		for _, l := range lines {
			line := []string{load, names[l.impl]}
			for _, u := range []string{"calls/op", "server-us/op", "ops/s"} {
				figure := p.fleetCell(l, l.impl, u)
				if figure == "" {
					return fmt.Errorf("no figures of %v by %s", fleetKey(l.bench, n, u), l.impl)
				}
				line = append(line, figure)
			}
			cells(append(line, p.fleetTimes(l, l.impl, unit), p.fleetCell(l, l.impl, "fairness"))...)
			load = ""
		}
		return nil
	}
	for i, hold := range fleetHolds {
		if i > 0 && !p.Full() {
			break
		}
		var lines []fleetLine
		for _, impl := range []string{"cogwheel", "bsm", "redsync"} {
			lines = append(lines, fleetLine{"", sectionsBench("mutex", hold), impl, n})
		}
		if err := add(fmt.Sprintf("`Mutex` held for %d ms", hold.Milliseconds()), "wait", lines); err != nil {
			return "", err
		}
	}
	rate := fleetRates[len(fleetRates)-1]
	var lines []fleetLine
	for _, impl := range []string{"cogwheel", "asynq"} {
		lines = append(lines, fleetLine{"", tasksBench(rate), impl, n})
	}
	err = add(fmt.Sprintf("%d tasks per second", rate), "late", lines)
	return text.String(), err
}

// fleetTable has a column of earlier figures beside each column for which there are some.
func (p *page) fleetTable(lines []fleetLine, unit, times string, fair bool) (string, error) {
	compared := slices.ContainsFunc(lines, func(l fleetLine) bool { return p.fleetBefore(l, "calls/op") != "" })
	timed := slices.ContainsFunc(lines, func(l fleetLine) bool { return p.timesBefore(l, unit) != "" })
	head := []string{"", "processes"}
	add := func(title string, before bool) {
		head = append(head, title)
		if before {
			head = append(head, "before")
		}
	}
	add("calls per operation", compared)
	add("µs of the server per operation", compared)
	add("operations per second", compared)
	add(times, timed)
	if fair {
		add("fairness", false)
	}
	var text strings.Builder
	cells := func(c []string) { text.WriteString("| " + strings.Join(c, " | ") + " |\n") }
	cells(head)
	cells(append([]string{"---"}, slices.Repeat([]string{"---:"}, len(head)-1)...))
	title := ""
	for _, l := range lines {
		line := []string{"", strconv.Itoa(l.processes)}
		if l.title != title {
			title, line[0] = l.title, l.title
		}
		for _, unit := range []string{"calls/op", "server-us/op", "ops/s"} {
			mine := p.fleetCell(l, l.impl, unit)
			if mine == "" {
				return "", fmt.Errorf("no figures of %v by %s", fleetKey(l.bench, l.processes, unit), l.impl)
			}
			if l.impl == "cogwheel" {
				mine = "**" + mine + "**"
			}
			line = append(line, mine)
			if compared {
				line = append(line, p.fleetBefore(l, unit))
			}
		}
		line = append(line, p.fleetTimes(l, l.impl, unit))
		if timed {
			line = append(line, p.timesBefore(l, unit))
		}
		if fair {
			line = append(line, p.fleetCell(l, l.impl, "fairness"))
		}
		cells(line)
	}
	return text.String(), nil
}

// fleetCell is a median, or empty.
func (p *page) fleetCell(l fleetLine, impl, unit string) string {
	v, ok := figures.Median(p.set.Of(fleetKey(l.bench, l.processes, unit), impl))
	if !ok {
		return ""
	}
	return number(v)
}

func (p *page) fleetBefore(l fleetLine, unit string) string {
	if l.impl != "cogwheel" {
		return ""
	}
	return p.fleetCell(l, "before", unit)
}

// timesBefore are those of fleetTimes of the earlier figures, or of whole sections if there are only these.
func (p *page) timesBefore(l fleetLine, unit string) string {
	if l.impl != "cogwheel" {
		return ""
	}
	if waits := p.fleetTimes(l, "before", unit); waits != "" {
		return waits
	}
	return p.fleetTimes(l, "before", "section")
}

// fleetTimes are the quantiles of a line, or empty.
func (p *page) fleetTimes(l fleetLine, impl, unit string) string {
	var all []string
	for _, quantile := range []string{"p50", "p99", "max"} {
		if v := p.fleetCell(l, impl, quantile+"-"+unit+"-ms"); v != "" {
			all = append(all, v)
		}
	}
	return strings.Join(all, "; ")
}

// fleetPlotLine is a line of a plot: the colour's name, the title in the legend, and what was measured.
type fleetPlotLine struct{ colour, title, bench, impl string }

// fleetPlot draws calls per operation against the number of processes, both on scales of factors.
func (p *page) fleetPlot(title, y string, lines []fleetPlotLine) ([]byte, error) {
	c := p.newChart(title, "processes", y)
	grid(c.Plot, false, true)
	most, least := 0.0, math.Inf(1)
	var places []string
	for _, n := range fleetSizes(p.Full()) { // each is four times the one before
		places = append(places, strconv.Itoa(n))
	}
	for _, l := range lines {
		var points []point
		for x, n := range fleetSizes(p.Full()) {
			if y, ok := spreadOf(p.set.Of(fleetKey(l.bench, n, "calls/op"), l.impl)); ok && y.least > 0 {
				points = append(points, point{float64(x), y})
				most, least = max(most, y.most), min(least, y.least)
			}
		}
		if err := c.addLine(l.colour, l.title, points, true); err != nil {
			return nil, err
		}
	}
	c.NominalX(places...)
	c.X.Min, c.X.Max = -0.3, float64(len(places))-0.7
	c.X.Padding = 4
	if err := logScale(&c.Y, least*0.8, most*1.2); err != nil {
		return nil, err
	}
	return c.svg(lineHeight)
}

func (p *page) fleetLocksPlot() ([]byte, error) {
	bench := sectionsBench("mutex", fleetHolds[0])
	return p.fleetPlot("Processes want one lock, each for 2 ms", "calls of Redis for lock and unlock", []fleetPlotLine{
		{"before", "cogwheel before", bench, "before"},
		{"bsm", names["bsm"], bench, "bsm"},
		{"redsync", names["redsync"], bench, "redsync"},
		{"cogwheel", names["cogwheel"], bench, "cogwheel"},
	})
}

func (p *page) fleetTasksPlot() ([]byte, error) {
	return p.fleetPlot("Processes serve one queue of delayed tasks", "calls of Redis for a task", []fleetPlotLine{
		{"asynq-few", "asynq, 2/s", tasksBench(2), "asynq"},
		{"cogwheel-few", "cogwheel, 2/s", tasksBench(2), "cogwheel"},
		{"before", "cogwheel before, 500/s", tasksBench(500), "before"},
		{"asynq", "asynq, 500/s", tasksBench(500), "asynq"},
		{"cogwheel", "cogwheel, 500/s", tasksBench(500), "cogwheel"},
	})
}

// Later says when a package was measured, if that was in a run of its own, and what differed then.
func (p *page) Later(pkg string) string {
	date := p.Config(pkg + "-date")
	if date == "" {
		return ""
	}
	commit := "commit `" + p.Config(pkg+"-commit") + "`"
	if p.Config(pkg+"-changed") != "" {
		commit += " with changes"
	}
	all := []string{date, commit}
	for _, x := range []struct{ key, before, after string }{
		{"processor", "", ""}, {"cores", "", " cores"}, {"goversion", "", ""}, {"redis", "redis-server ", ""},
	} {
		if v := p.Config(pkg + "-" + x.key); v != "" && v != p.Config(x.key) {
			all = append(all, x.before+v+x.after)
		}
	}
	if load := p.Config(pkg + "-load"); load != "" {
		all = append(all, "load average "+load+" at the beginning")
	}
	return strings.Join(all, ", ")
}

// LaterPackages are the packages that were measured in runs of their own.
func (p *page) LaterPackages() []string {
	return slices.DeleteFunc([]string{"wheel", "locks", "limits", "semaphores", "delays", "fleets"}, func(pkg string) bool {
		return p.Later(pkg) == ""
	})
}

// FleetWarning says why the figures of fleets should not be relied on, if so.
func (p *page) FleetWarning() string {
	var all []string
	if load, _ := strconv.ParseFloat(p.Config("fleets-load"), 64); load > 1 {
		all = append(all, "The machine was busy when the figures of this section were measured.")
	}
	if window := p.Config("fleets-window"); window != "" {
		all = append(all, "They are preliminary: each was measured for "+window+" at most.")
	}
	return strings.Join(all, " ")
}
