// Package mutants has faults that the library once had, as edits that put them back.
//
//	make mutants                        # puts each back, and runs the tests that have to find it
//	make mutants MUTANT=window_early    # one of them
//	make simulate-controls              # those that the simulation has to find
//
// A file NAME.txt of this folder is a fault. Its first line says what is wrong. The next lines, up to an empty one,
// say what has to find it:
//
//	test: wheel TestEvery_|TestSchedule_     the tests of a folder, by the pattern of go test -run
//	simulate: any                            drawn schedules of package sim; see Mutant.Simulate
//	missed: no test stops a server           nothing finds it today, and why
//
// The edits follow: the path of a file, then lines that are taken out, which begin with -, and lines that are put in
// their place, which begin with +. What is taken out may begin and end within lines, and is in the file once.
package mutants

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Mutant is a fault with the edits that put it into the library.
type Mutant struct {
	Name  string // of its file
	Fault string

	Folder string // of the tests that have to find it, "" if none have
	Run    string // the pattern of their names

	// Simulate says how package sim has to find it: "any" by schedules of all kinds, "kind K" by those of a kind,
	// "promise P" by schedules about who the primary is, as a breach of that promise, "fleet P" by fleets, likewise,
	// and "schedule S" by a schedule of its own. It is "" if package sim does not have to.
	Simulate string

	Missed string // why nothing finds it

	Edits []Edit
}

// Edit replaces a part of a file of the library.
type Edit struct{ File, Old, New string }

// Read returns the faults of the repository at root.
func Read(root string) ([]Mutant, error) {
	files, err := filepath.Glob(filepath.Join(root, "robustness", "mutants", "*.txt"))
	if err != nil {
		return nil, err
	}
	all := make([]Mutant, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if all[i], err = parse(string(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all[i].Name = strings.TrimSuffix(filepath.Base(file), ".txt")
	}
	return all, nil
}

func parse(text string) (m Mutant, err error) {
	head, edits, _ := strings.Cut(text, "\n\n")
	m.Fault, head, _ = strings.Cut(head, "\n")
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "test":
			m.Folder, m.Run, _ = strings.Cut(value, " ")
		case "simulate":
			m.Simulate = value
		case "missed":
			m.Missed = value
		default:
			return m, fmt.Errorf("line %q begins with none of test, simulate, missed", line)
		}
	}
	var file string
	var before byte // the first of the line before
	for line := range strings.Lines(edits) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			before = 0
			continue
		}
		last, first := len(m.Edits)-1, line[0]
		switch {
		case first == '-' && before == '-':
			m.Edits[last].Old += "\n" + line[1:]
		case first == '-':
			m.Edits = append(m.Edits, Edit{File: file, Old: line[1:]})
		case first == '+' && before == '-':
			m.Edits[last].New = line[1:]
		case first == '+' && before == '+':
			m.Edits[last].New += "\n" + line[1:]
		default:
			file = line
		}
		before = first
	}
	if m.Fault == "" || cmp.Or(m.Folder, m.Simulate) == "" || len(m.Edits) == 0 {
		return m, fmt.Errorf("it needs a fault, a test or a simulation, and edits")
	}
	return m, nil
}

// Overlay writes edited copies of files of the repository at root into dir, and returns the file that has go build
// -overlay read them.
func (m Mutant) Overlay(root, dir string) (file string, err error) {
	root, err = filepath.Abs(root)
	if err != nil {
		return "", err
	}
	replaced := make(map[string]string)
	for i, e := range m.Edits {
		path := filepath.Join(root, e.File)
		text, err := os.ReadFile(cmp.Or(replaced[path], path))
		if err != nil {
			return "", err
		}
		if n := strings.Count(string(text), e.Old); n != 1 {
			return "", fmt.Errorf("%s: %s has the text of edit %d %d times instead of once", m.Name, e.File, i+1, n)
		}
		replaced[path] = filepath.Join(dir, fmt.Sprint(i, "-", filepath.Base(e.File)))
		edited := strings.Replace(string(text), e.Old, e.New, 1)
		if err := os.WriteFile(replaced[path], []byte(edited), 0o600); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, overlay, 0o600)
}
