//go:build unix

package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// rowsOf returns the rows of the tables in a text that say what an object costs, without what is not the same each
// time: the memory depends on the server.
func rowsOf(text string) (rows []string) {
	for line := range strings.Lines(text) {
		if cells := strings.Split(strings.TrimSpace(line), "|"); len(cells) == 8 && strings.HasPrefix(cells[1], " `") {
			cells = slices.Delete(cells, 3, 4)
			rows = append(rows, strings.Join(cells, "|"))
		}
	}
	return rows
}

// The table of docs/operations.md is what the command beside it prints.
func TestObjects_AreThoseOfTheDocument(t *testing.T) {
	document, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(document), "\n## What one object costs\n")
	section, _, _ = strings.Cut(section, "\n## ")

	var printed bytes.Buffer
	if err := objects(&printed); err != nil {
		t.Fatal(err)
	}
	want, got := rowsOf(printed.String()), rowsOf(section)
	if len(want) != 12 || !slices.Equal(want, got) {
		t.Fatalf("the command prints\n%s\nthe document has\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}
