// Command ratios reads the output of go test -bench and prints one table: the median of each figure for the
// implementation under test, and its ratio to each peer that was measured in the same run.
//
//	go test -bench . ./wheel | go run ./cmd/ratios -impl wheel -peers AfterFunc,netty
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/perf/benchfmt"
)

// row is one figure of one benchmark, for each implementation.
type row struct{ bench, unit string }

type table struct {
	rows    []row
	figures map[row]map[string][]float64
}

func main() {
	impls := flag.String("impl", "wheel", "comma-separated implementations under test")
	peers := flag.String("peers", "AfterFunc,netty", "comma-separated implementations to compare with")
	flag.Parse()
	t, err := read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ratios:", err)
		os.Exit(1)
	}
	t.print(os.Stdout, strings.Split(*impls, ","), strings.Split(*peers, ","))
}

func read(in io.Reader) (*table, error) {
	t := &table{figures: map[row]map[string][]float64{}}
	r := benchfmt.NewReader(in, "standard input")
	for r.Scan() {
		res, ok := r.Result().(*benchfmt.Result)
		if !ok {
			continue
		}
		bench, impl := split(string(res.Name))
		for _, v := range res.Values {
			if v.Unit == "sec/op" {
				continue // of one whole iteration; the benchmarks report what matters of it themselves
			}
			if v.OrigUnit != "" { // nanoseconds, which the reader has made seconds
				v.Value, v.Unit = v.OrigValue, v.OrigUnit
			}
			k := row{bench, v.Unit}
			if t.figures[k] == nil {
				t.figures[k] = map[string][]float64{}
				t.rows = append(t.rows, k)
			}
			t.figures[k][impl] = append(t.figures[k][impl], v.Value)
		}
	}
	return t, r.Err()
}

// split takes impl=… out of a benchmark's name.
func split(name string) (bench, impl string) {
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		name = name[:i] // GOMAXPROCS
	}
	var rest []string
	for part := range strings.SplitSeq(name, "/") {
		if v, ok := strings.CutPrefix(part, "impl="); ok {
			impl = v
		} else {
			rest = append(rest, part)
		}
	}
	return strings.Join(rest, "/"), impl
}

func (t *table) print(out io.Writer, impls, peers []string) {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line := func(cells ...string) { _, _ = fmt.Fprintf(w, "| %s\t|\n", strings.Join(cells, "\t| ")) }
	head := []string{"benchmark", "figure", "impl", "median"}
	rule := []string{"---", "---", "---", "---:"}
	for _, p := range peers {
		head, rule = append(head, p, "ratio"), append(rule, "---:", "---:")
	}
	line(head...)
	line(rule...)
	for _, k := range t.rows {
		for _, impl := range impls {
			mine, ok := median(t.figures[k][impl])
			if !ok {
				continue
			}
			cells := []string{k.bench, k.unit, impl, number(mine)}
			for _, p := range peers {
				theirs, ok := median(t.figures[k][p])
				switch {
				case !ok:
					cells = append(cells, "", "")
				case theirs == 0:
					cells = append(cells, number(theirs), "")
				default:
					cells = append(cells, number(theirs), fmt.Sprintf("%.2f", mine/theirs))
				}
			}
			line(cells...)
		}
	}
	_ = w.Flush()
}

func median(v []float64) (float64, bool) {
	if len(v) == 0 {
		return 0, false
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2, true
}

func number(v float64) string {
	if v >= 100 || v == 0 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
