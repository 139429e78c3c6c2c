package main

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root    = "../../.."
	results = "../../results"
)

// No figure of the document is typed by hand.
func TestDocument_IsWhatTheProgramWrites(t *testing.T) {
	t.Parallel()
	want, err := documents(results)
	require.NoError(t, err)
	require.Len(t, want, 2)
	for name, text := range want {
		is, err := os.ReadFile(fileIn(results, root+"/docs", name))
		require.NoError(t, err)
		if text != string(is) {
			t.Errorf("%s differs; make reliability-report RESULTS=/dev/null writes it", name)
		}
	}
}

// The tests that the record and the list of the field's defects name exist.
func TestRecord_NamesTestsThatExist(t *testing.T) {
	t.Parallel()
	d, err := load(results)
	require.NoError(t, err)
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	}))
	names := make(map[string]bool)
	for _, r := range d.Record {
		if now := cmp.Or(r.Now, r.Test); now != "deleted" {
			names[now] = true
		}
		require.Len(t, r.Mended, 7, r.Test)
		require.Len(t, r.Before, 7, r.Test)
	}
	for _, f := range d.Field {
		require.True(t, strings.HasPrefix(f.Link, "https://github.com/"), f.Defect)
		for _, name := range f.Tests {
			names[name] = true
		}
	}
	require.Greater(t, len(names), 20)
	for name := range names {
		require.Contains(t, all.String(), "\nfunc "+name+"(t *testing.T)")
	}
}

func TestDocument_ShowsARunThatFailed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"record.json", "field.json"} {
		text, err := os.ReadFile(filepath.Join(results, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	_, err := documents(dir)
	require.ErrorContains(t, err, "no results")
	const failed = `{"scenario":"mutex: every fault","kind":"mutex","seed":4,` +
		`"faults":[{"Promise":"overlap","Object":"o","Detail":"two"}],"effects":{"FLUSHALL":3}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "fixed.jsonl"), []byte(failed+"\n"), 0o644))
	texts, err := documents(dir)
	require.NoError(t, err)
	text, runs := texts["reliability.md"], texts["runs.md"]
	require.Contains(t, text, "Runs in which a promise was found broken")
	require.Contains(t, text, "o: overlap: two")
	require.Contains(t, runs, "| FLUSHALL | 3, **1 runs failed** |")
	require.NotContains(t, text+runs, "## Controls")
}

func TestTake_PutsEachResultIntoItsFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from := filepath.Join(dir, "run")
	soak := `{"scenario":"random, seed 1","kind":"mutex"}` + "\n"
	fixed := `{"scenario":"mutex: every fault","kind":"mutex"}` + "\n" + `{"scenario":"timers","kind":"wheel"}` + "\n"
	peers := `{"scenario":"mutex: every fault","kind":"another library"}` + "\n"
	controls := `{"control":"no-op lock"}` + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "soak.jsonl"), []byte("old\n"), 0o644))
	require.NoError(t, os.WriteFile(from, []byte(fixed+soak+peers+controls), 0o644))
	require.NoError(t, take(from, dir))
	for name, want := range map[string]string{"soak": soak, "fixed": fixed, "peers": peers, "controls": controls} {
		is, err := os.ReadFile(filepath.Join(dir, name+".jsonl"))
		require.NoError(t, err)
		require.Equal(t, want, string(is), name)
	}
	require.NoError(t, take(os.DevNull, dir), "nothing replaces nothing")
	require.FileExists(t, filepath.Join(dir, "fixed.jsonl"))
}
