// Command report writes docs/reliability.md and, beside the results, runs.md from the results of runs, which are files
// of JSON lines:
//
//	report [-results folder] [-out folder] [-from file]
//
// The folder holds fixed.jsonl, soak.jsonl, peers.jsonl, controls.jsonl, simulated.jsonl and found.jsonl, of which
// all but the first may be missing, and record.json and field.json, which are kept by hand. The results of -from, as
// ROBUSTNESS_RESULTS names them in a run, replace those of the same file of the folder first.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	results := flag.String("results", "results", "folder of the results")
	out := flag.String("out", "../docs", "folder of reliability.md")
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
	texts, err := documents(results)
	if err != nil {
		return err
	}
	for name, text := range texts {
		if err := os.WriteFile(fileIn(results, out, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fileIn returns where a document is written.
func fileIn(results, out, name string) string {
	if name == "runs.md" {
		return filepath.Join(results, name)
	}
	return filepath.Join(out, name)
}
