package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cogwheel-go/cogwheel/robustness"
	"github.com/cogwheel-go/cogwheel/robustness/sim"
)

// data is all that the document shows.
type data struct {
	Fixed, Soak, Peers []*robustness.Result
	Simulated          []sim.Line
	Found              []sim.Finding
	Controls           []robustness.ControlResult
	Record             []recorded
	Field              []defect
}

// recorded is a fault of the library that was found and mended.
type recorded struct {
	Fault  string `json:"fault"`
	Test   string `json:"test"`
	Now    string `json:"now"`  // the name of the test today if it is another; "deleted" if what it tests was deleted
	File   string `json:"file"` // of the test, at the commit that mended the fault
	With   string `json:"with"` // what else the test needs of that commit, a pattern of files; may be empty
	Mended string `json:"mended"`
	Before string `json:"before"` // the commit on which the test fails
}

// defect is one of another project, as told in public.
type defect struct {
	Defect string   `json:"defect"`
	Where  string   `json:"where"`
	Link   string   `json:"link"`
	Tests  []string `json:"tests"` // of ours
}

func load(folder string) (d data, err error) {
	if d.Fixed, err = lines[*robustness.Result](filepath.Join(folder, "fixed.jsonl")); err != nil {
		return d, err
	}
	if len(d.Fixed) == 0 {
		return d, fmt.Errorf("%s has no results of the fixed scenarios", folder)
	}
	if d.Soak, err = lines[*robustness.Result](filepath.Join(folder, "soak.jsonl")); err != nil {
		return d, err
	}
	if d.Peers, err = lines[*robustness.Result](filepath.Join(folder, "peers.jsonl")); err != nil {
		return d, err
	}
	slices.SortStableFunc(d.Fixed, func(a, b *robustness.Result) int { return cmp.Compare(a.Seed, b.Seed) })
	slices.SortStableFunc(d.Peers, func(a, b *robustness.Result) int { // they ran side by side
		return cmp.Or(cmp.Compare(rank(a.Kind), rank(b.Kind)), cmp.Compare(a.Seed, b.Seed))
	})
	if d.Controls, err = lines[robustness.ControlResult](filepath.Join(folder, "controls.jsonl")); err != nil {
		return d, err
	}
	if d.Simulated, err = lines[sim.Line](filepath.Join(folder, "simulated.jsonl")); err != nil {
		return d, err
	}
	if d.Found, err = lines[sim.Finding](filepath.Join(folder, "found.jsonl")); err != nil {
		return d, err
	}
	if err := object(filepath.Join(folder, "record.json"), &d.Record); err != nil {
		return d, err
	}
	return d, object(filepath.Join(folder, "field.json"), &d.Field)
}

// rank returns the place of a lock among the peers.
func rank(kind string) int {
	return slices.IndexFunc(robustness.Peers(), func(k *robustness.Kind) bool { return k.Name == kind })
}

// lines reads a file of JSON lines. A file that does not exist has none.
func lines[T any](path string) (all []T, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	in := bufio.NewScanner(bytes.NewReader(text))
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		var v T
		if err := json.Unmarshal(in.Bytes(), &v); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, v)
	}
	return all, in.Err()
}

func object(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
