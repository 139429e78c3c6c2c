package redistest

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Answer is an error text of a server, a proxy or a managed service, and the class that it has for the library.
type Answer struct{ Text, Who, Class string }

// Answers returns the table of answers.
func Answers(tb testing.TB) (answers []Answer) {
	tb.Helper()
	_, file, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(file), "..", "redisconn", "testdata", "answers.tsv"))
	if err != nil {
		tb.Fatal(err)
	}
	_, rows, _ := strings.Cut(string(text), "\n") // after the heading
	for row := range strings.Lines(rows) {
		fields := strings.Split(strings.TrimSuffix(row, "\n"), "\t")
		if len(fields) != 3 {
			tb.Fatalf("%d fields in %q", len(fields), row)
		}
		answers = append(answers, Answer{fields[0], fields[1], fields[2]})
	}
	return answers
}
