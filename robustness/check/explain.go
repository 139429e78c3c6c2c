package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// explain writes a picture of the longest orders that were found, and the history, into a directory. It returns
// where they are, or why they are not.
func explain(dir string, calls []*history.Call, r Rules, ops []porcupine.Operation, limit time.Duration) string {
	name := strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' {
			return c
		}
		return '-'
	}, calls[0].Object)
	path := filepath.Join(dir, fmt.Sprintf("%s-%d", name, history.Now()))
	text, err := json.MarshalIndent(calls, "", "\t")
	if err != nil {
		panic(err) // a Call has only strings and numbers
	}
	_, info := porcupine.CheckOperationsVerbose(model(r), ops, limit)
	err = errors.Join(
		os.MkdirAll(dir, 0o755),
		os.WriteFile(path+".json", text, 0o644),
		porcupine.VisualizePath(model(r), info, path+".html"),
	)
	if err != nil {
		return "not written: " + err.Error()
	}
	return "see " + path + ".html and .json"
}
