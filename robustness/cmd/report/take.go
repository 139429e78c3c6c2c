package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cogwheel-go/cogwheel/robustness"
)

// take puts the results of a run into the files of the folder. A file is replaced if the run has results for it.
func take(from, folder string) error {
	raw, err := lines[json.RawMessage](from)
	if err != nil {
		return err
	}
	files := make(map[string]*bytes.Buffer)
	for _, line := range raw {
		name, err := fileOf(line)
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		if files[name] == nil {
			files[name] = &bytes.Buffer{}
		}
		files[name].Write(append(line, '\n'))
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fileOf returns the file of the folder that a line belongs to.
func fileOf(line []byte) (string, error) {
	var l struct {
		Control, Kind, Scenario, Finding string
		Simulated                        json.RawMessage
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return "", err
	}
	kinds := slices.Concat(robustness.Kinds, robustness.LimitKinds, robustness.TaskKinds)
	ours := l.Kind == "wheel" || slices.ContainsFunc(kinds, func(k *robustness.Kind) bool { return k.Name == l.Kind })
	switch {
	case l.Simulated != nil:
		return "simulated.jsonl", nil
	case l.Finding != "":
		return "found.jsonl", nil
	case l.Control != "":
		return "controls.jsonl", nil
	case !ours:
		return "peers.jsonl", nil
	case strings.HasPrefix(l.Scenario, "random"):
		return "soak.jsonl", nil
	default:
		return "fixed.jsonl", nil
	}
}
