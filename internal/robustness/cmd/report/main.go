// Command report writes docs/reliability.md from the results of runs, which are files of JSON lines:
//
//	report [-results folder] [-out file] [-from file]
//
// The folder holds fixed.jsonl, soak.jsonl, peers.jsonl and controls.jsonl, of which all but the first may be
// missing, and record.json and field.json, which are kept by hand. The results of -from, as ROBUSTNESS_RESULTS names
// them in a run, replace those of the same file of the folder first.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	results := flag.String("results", "results", "folder of the results")
	out := flag.String("out", "../../docs/reliability.md", "file to write")
	from := flag.String("from", "", "results of a run, to be put into the folder")
	flag.Parse()
	if err := run(*results, *out, *from); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(results, out, from string) error {
	if from != "" {
		if err := take(from, results); err != nil {
			return err
		}
	}
	text, err := document(results)
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(text), 0o644)
}
