package cogwheel_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// persons are words for a caller, a waiter or a holder as a person.
	persons = regexp.MustCompile(`(?i)\b(he|him|his|himself|whom|whoever|somebody|nobody|everybody)\b`)

	// retired are names that had another word beside them. docs/architecture.md and the code say what they are now.
	retired = regexp.MustCompile(`\b(wish|ballot|joint|gathering|tenure|inBooks|leaveOff|goOn|unlearn|debts|homes)\b`)
)

// wordsIn returns the lines of a text that break the rules of words.
func wordsIn(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if persons.MatchString(line) || retired.MatchString(line) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// Callers are not persons, and one thing has one word, in code, comments, scripts and documents.
func TestWords(t *testing.T) {
	t.Parallel()
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		ext := filepath.Ext(path)
		if err != nil || !slices.Contains([]string{".go", ".lua", ".md", ".yml"}, ext) || path == "words_test.go" {
			return err
		}
		require.Empty(t, wordsIn(read(t, path)), path)
		return nil
	}))
	require.Len(t, wordsIn("the caller gives it back\nhe gives it back\nwhoever has it\na wish\nThe one that has it\n"), 3)
}
