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
	"strings"
	"text/tabwriter"

	"github.com/cogwheel-go/cogwheel/benchmarks/figures"
)

func main() {
	impls := flag.String("impl", "wheel", "comma-separated implementations under test")
	peers := flag.String("peers", "AfterFunc,netty", "comma-separated implementations to compare with")
	flag.Parse()
	set, err := figures.Read(os.Stdin, "standard input")
	if err != nil {
		fmt.Fprintln(os.Stderr, "ratios:", err)
		os.Exit(1)
	}
	table(os.Stdout, set, strings.Split(*impls, ","), strings.Split(*peers, ","))
}

func table(out io.Writer, set *figures.Set, impls, peers []string) {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	line := func(cells ...string) { _, _ = fmt.Fprintf(w, "| %s\t|\n", strings.Join(cells, "\t| ")) }
	head := []string{"benchmark", "figure", "impl", "median"}
	rule := []string{"---", "---", "---", "---:"}
	for _, p := range peers {
		head, rule = append(head, p, "ratio"), append(rule, "---:", "---:")
	}
	line(head...)
	line(rule...)
	for _, k := range set.Keys {
		for _, impl := range impls {
			mine, ok := figures.Median(set.Of(k, impl))
			if !ok {
				continue
			}
			cells := []string{k.Bench, k.Unit, impl, number(mine)}
			for _, p := range peers {
				theirs, ok := figures.Median(set.Of(k, p))
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

func number(v float64) string {
	if v >= 100 || v == 0 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
