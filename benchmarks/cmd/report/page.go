//go:build unix

package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/cogwheel-go/cogwheel/benchmarks/figures"
)

//go:embed page.tmpl
var pageTemplate string

// before are figures of an earlier commit, beside which the page shows those of the results.
//
//go:embed before.txt
var before string

// page is the data that page.tmpl is executed with.
type page struct {
	set    *figures.Set
	tables []table
}

// readPage reads the results of a run.
func readPage(data string) (*page, error) {
	in, err := os.Open(data)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	set, err := figures.Read(in, data)
	if err != nil {
		return nil, err
	}
	if len(set.Keys) == 0 {
		return nil, fmt.Errorf("%s has no results", data)
	}
	earlier, err := figures.Read(strings.NewReader(before), "before.txt")
	if err != nil {
		return nil, err
	}
	set.Add(earlier)
	return &page{set: set, tables: tables(set.Config["size"] == "full")}, nil
}

// documents returns the files that are made from the results, by their path in the repository.
func documents(data, root string) (map[string][]byte, error) {
	p, err := readPage(data)
	if err != nil {
		return nil, err
	}
	files, err := p.plots()
	if err != nil {
		return nil, err
	}
	text, err := p.text("page")
	if err != nil {
		return nil, err
	}
	readme, err := p.text("readme")
	if err != nil {
		return nil, err
	}
	files["docs/benchmarks.md"] = text
	if files["benchmarks/results/report.md"], err = p.text("report"); err != nil {
		return nil, err
	}
	files["README.md"], err = withFigures(filepath.Join(root, "README.md"), readme)
	return files, err
}

// text executes one of the templates.
func (p *page) text(name string) ([]byte, error) {
	t, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := t.ExecuteTemplate(&text, name, p); err != nil {
		return nil, err
	}
	return tidy(text.Bytes()), nil
}

// tidy removes the lines that are left empty by the template.
func tidy(text []byte) []byte {
	text = regexp.MustCompile(`\n{3,}`).ReplaceAll(text, []byte("\n\n"))
	return append(bytes.TrimSpace(text), '\n')
}

// withFigures returns a document with its part between the marks replaced.
func withFigures(document string, part []byte) ([]byte, error) {
	const begin, end = "<!-- figures of make bench-report -->\n", "<!-- end of the figures -->\n"
	text, err := os.ReadFile(document)
	if err != nil {
		return nil, err
	}
	before, rest, ok := bytes.Cut(text, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return nil, errors.New(document + " has no place for figures")
	}
	return slices.Concat(before, []byte(begin), part, []byte(end), after), nil
}

// Config returns a line of the head of the results.
func (p *page) Config(key string) string { return p.set.Config[key] }

// Warning says why the results should not be relied on, if so.
func (p *page) Warning() string {
	load, _ := strconv.ParseFloat(p.Config("load"), 64)
	rounds, _ := strconv.Atoi(p.Config("rounds"))
	switch {
	case !p.Full():
		return "These figures mean nothing: they are from a smoke run, which measures a moment of each benchmark at a thousandth of its size."
	case load > 1:
		return "The machine was busy when these figures were measured: its load average was " + p.Config("load") + "."
	case rounds < 3:
		return "These figures are preliminary: there were too few rounds to show how much they vary."
	}
	return ""
}

// Full reports whether the results can be compared.
func (p *page) Full() bool { return p.Config("size") == "full" }

// Size is a number of the benchmarks, in words of the page.
func (p *page) Size(n int) string { return readable(fmt.Sprint(size(p.Full(), n))) }

// Gigabytes is the memory of the machine.
func (p *page) Gigabytes() string {
	var kB float64
	if _, err := fmt.Sscanf(p.Config("memory"), "%f kB", &kB); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.0f GB", kB/1e6)
}

// Figure is a median, for a sentence.
func (p *page) Figure(pkg, bench, unit, impl string) string {
	v, ok := figures.Median(p.set.Of(figures.Key{Package: pkg, Bench: bench, Unit: unit}, impl))
	if !ok {
		return ""
	}
	return number(v)
}

// Rounds is how many rounds there were, in words.
func (p *page) Rounds() string {
	if n := p.Config("rounds"); n != "1" {
		return n + " rounds"
	}
	return "1 round"
}

// Million is a median of the wheel with a million timers, whose number takes the place of %d in bench.
func (p *page) Million(bench, unit, impl string) string {
	return p.Figure("wheel", fmt.Sprintf(bench, size(p.Full(), 1_000_000)), unit, impl)
}

// Locked is how often so many goroutines, each with a name of its own, lock and unlock in a second.
func (p *page) Locked(goroutines int, impl string) string {
	return p.Figure("locks", fmt.Sprintf("Uncontended/goroutines=%d/ctx=cancellable", goroutines), "pairs/s", impl)
}

// Decided is how many decisions a second so many goroutines get from one limit.
func (p *page) Decided(goroutines int, impl string) string {
	return p.Figure("limits", fmt.Sprintf("Versus/keys=1/goroutines=%d/ctx=cancel", goroutines), "/s", impl)
}

// Permitted is how often 64 goroutines acquire and release one of five leased permits in a second.
func (p *page) Permitted(impl string) string {
	return p.Figure("semaphores", "Contended/kind=leased/permits=5/goroutines=64/hold=0s", "pairs/s", impl)
}

// Table is the table of a subject, in Markdown.
func (p *page) Table(name string) (string, error) {
	t, err := p.subject(name)
	if err != nil {
		return "", err
	}
	return p.markdown(t, p.cell)
}

// Short is the part of that table that decides: the rows that are marked, without floors and copies of an algorithm, and
// ratios without the least and the greatest.
func (p *page) Short(name string) (string, error) {
	t, err := p.subject(name)
	if err != nil {
		return "", err
	}
	var rows []row
	load := ""
	for _, r := range t.rows {
		load = r.loadAfter(load)
		if !r.short {
			continue
		}
		r.load = load
		rows = append(rows, r)
	}
	for i := len(rows) - 1; i > 0; i-- {
		if rows[i].load == rows[i-1].load {
			rows[i].load = ""
		}
	}
	peers := slices.DeleteFunc(slices.Clone(t.peers), func(peer string) bool { return peer == "floor" || peer == "netty" })
	return p.markdown(table{t.name, t.ours, peers, rows}, p.shortCell)
}

func (p *page) subject(name string) (table, error) {
	i := slices.IndexFunc(p.tables, func(t table) bool { return t.name == name })
	if i < 0 {
		return table{}, fmt.Errorf("no table %q", name)
	}
	return p.tables[i], nil
}

// markdown writes a table, whose cells of peers the function returns.
func (p *page) markdown(t table, cell func(r row, ours, peer string) string) (string, error) {
	var text strings.Builder
	cells := func(c ...string) { text.WriteString("| " + strings.Join(c, " | ") + " |\n") }
	head, rule := []string{"", "", "cogwheel"}, []string{"---", "---", "---:"}
	for _, peer := range t.peers {
		if p.measured(t, peer) {
			head, rule = append(head, p.name(peer)), append(rule, "---:")
		}
	}
	cells(head...)
	cells(rule...)
	for _, r := range t.rows {
		ours := r.ours(t)
		mine, ok := spreadOf(p.set.Of(r.key, ours))
		if !ok {
			return "", fmt.Errorf("no figures of %v by %s", r.key, ours)
		}
		line := []string{r.load, r.what, "**" + number(mine.median) + "**"}
		for _, peer := range t.peers {
			if p.measured(t, peer) {
				line = append(line, cell(r, ours, peer))
			}
		}
		cells(line...)
	}
	return text.String(), nil
}

// name is what the page calls an implementation. That of Netty has its version, as ratios to it depend on that.
func (p *page) name(impl string) string {
	if impl == "Netty" {
		return "Netty " + p.Config("netty")
	}
	return names[impl]
}

// measured reports whether an implementation has a figure in the table.
func (p *page) measured(t table, impl string) bool {
	return slices.ContainsFunc(t.rows, func(r row) bool { return len(p.set.Of(r.key, impl)) > 0 })
}

// cell has the figure of a peer, and how many times better ours is.
func (p *page) cell(r row, ours, peer string) string {
	theirs, ok := spreadOf(p.set.Of(r.key, peer))
	if !ok || strings.HasPrefix(r.key.Unit, "B/") && theirs.median < 0 { // more was freed than the timers take
		return ""
	}
	ratio, ok := r.advantage(p.set, ours, peer)
	if !ok || !ratio.finite() || peer == "floor" {
		return number(theirs.median)
	}
	return number(theirs.median) + "; " + ratio.String()
}

// shortCell has the figure of a peer, and the ratio in brackets.
func (p *page) shortCell(r row, ours, peer string) string {
	text := p.cell(r, ours, peer)
	figure, _, ok := strings.Cut(text, "; ")
	if !ok {
		return text
	}
	ratio, _ := r.advantage(p.set, ours, peer)
	return figure + " (" + ratio.short() + ")"
}

// short is the median ratio, with a mark if the rounds do not agree on which is better.
func (s spread) short() string {
	if s.least < 1 && s.most > 1 {
		return "≈ " + times(s.median) + "x"
	}
	return times(s.median) + "x"
}

func (s spread) finite() bool {
	return s.least > 0 && !math.IsInf(s.most, 0) && !math.IsNaN(s.median)
}

// String is the ratio with what it was at least and at most.
func (s spread) String() string {
	if s.least == s.most {
		return times(s.median) + "x"
	}
	return fmt.Sprintf("%sx (%s–%s)", times(s.median), times(s.least), times(s.most))
}

// comparison is one ratio that is not in favour of cogwheel.
type comparison struct {
	Subject, What, Peer string
	Ratio               spread
	Why                 string
	load, figure        string // the parts of What
}

// NotFaster returns the comparisons in which cogwheel was worse in every round, if clearly, or else those in which it
// was not better in every round. Floors are no peers, and figures that were measured once and are equal as printed are left out.
func (p *page) NotFaster(clearly bool) []comparison {
	var found []comparison
	for _, t := range p.tables {
		load := ""
		for _, r := range t.rows {
			load = r.loadAfter(load)
			ours := r.ours(t)
			for _, peer := range t.peers {
				ratio, ok := r.advantage(p.set, ours, peer)
				if !ok || peer == "floor" || ratio.least >= 1 || ratio.String() == "1.00x" || (ratio.most < 1) != clearly {
					continue
				}
				found = append(found, comparison{t.name, load + ": " + r.what, p.name(peer), ratio, r.why(peer), load, r.what})
			}
		}
	}
	return found
}

// slower is a ratio below 1 in all rounds, or what several such ratios were at least and at most.
type slower struct {
	subject, load, figure, peer string
	least, most                 float64
}

// Slower returns the rows of a table with the comparisons that cogwheel loses in every round, one row for each load. All locks
// of fleets have one row, and all tasks.
func (p *page) Slower() string {
	var all []slower
	for _, c := range p.NotFaster(true) {
		s := slower{c.Subject, c.load, c.figure, c.Peer, c.Ratio.median, c.Ratio.median}
		if c.Subject == "fleets" {
			s.load, s.figure = "tasks", ""
			if strings.HasPrefix(c.load, "`Mutex`") {
				s.load = "`Mutex`"
			}
		}
		i := slices.IndexFunc(all, func(x slower) bool {
			return x.subject == s.subject && x.load == s.load && x.figure == s.figure && x.peer == s.peer
		})
		if i < 0 {
			all = append(all, s)
			continue
		}
		all[i].least, all[i].most = min(all[i].least, s.least), max(all[i].most, s.most)
	}
	var text strings.Builder
	var last slower
	for i, s := range all {
		newLoad := s.subject != last.subject || s.load != last.load
		switch {
		case s.subject != last.subject:
			text.WriteString(strings.Repeat(" |\n", min(i, 1)) + "| " + s.subject + " | " + s.load + " | ")
		case newLoad:
			text.WriteString(" |\n|  | " + s.load + " | ")
		case s.figure != last.figure:
			text.WriteString("; ")
		default:
			text.WriteString(", ")
		}
		if s.figure != "" && (newLoad || s.figure != last.figure) {
			text.WriteString(s.figure + ": ")
		}
		text.WriteString(s.peer + " " + times(s.least))
		if most := times(s.most); most != times(s.least) {
			text.WriteString("–" + most)
		}
		text.WriteString("x")
		last = s
	}
	if len(all) > 0 {
		text.WriteString(" |\n")
	}
	return text.String()
}

// why returns what stands in the way of the goal beside a peer, or nothing.
func (r row) why(peer string) string {
	for _, g := range r.goals {
		if g.peer == peer {
			return g.why
		}
	}
	return r.reason
}

// loadAfter is the load of a row in full, which may begin with "the same", after the load of the row before.
func (r row) loadAfter(before string) string {
	if r.load == "" {
		return before
	}
	if rest, ok := strings.CutPrefix(r.load, "the same"); ok {
		return before + rest
	}
	return r.load
}

// verdict is a goal and what became of it.
type verdict struct {
	What, Goal, Found, Verdict, Why string
}

// Goals returns the goals whose peer was measured.
func (p *page) Goals() []verdict {
	var all []verdict
	for _, t := range p.tables {
		load := ""
		for _, r := range t.rows {
			load = r.loadAfter(load)
			for _, g := range r.goals {
				v := verdict{What: load + ": " + r.what, Verdict: "met"}
				var missed bool
				if g.peer == "" {
					mine, ok := spreadOf(p.set.Of(r.key, r.ours(t)))
					if !ok {
						continue
					}
					v.Goal, v.Found, missed = "at most "+number(g.value), number(mine.median), mine.median > g.value
				} else {
					ratio, ok := r.advantage(p.set, r.ours(t), g.peer)
					if !ok {
						continue
					}
					v.Goal = fmt.Sprintf("at least %gx, beside %s", g.value, p.name(g.peer))
					v.Found, missed = ratio.String(), ratio.median < g.value
				}
				if missed {
					v.Verdict, v.Why = "missed", g.why
				}
				all = append(all, v)
			}
		}
	}
	return all
}

// Count returns how many goals have a verdict.
func (p *page) Count(verdict string) int {
	n := 0
	for _, g := range p.Goals() {
		if g.Verdict == verdict {
			n++
		}
	}
	return n
}
