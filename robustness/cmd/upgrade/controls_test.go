package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// change is a later version of a file of the library.
type change struct {
	file  string
	found []string // the kinds that must fail, in one direction or both
	edits []string // texts, each followed by the one that stands in its place
}

// controls are later versions that break the rule. What the changes of one version concern is disjoint. But for the one
// without minimum holds, each version understands itself.
var controls = map[string][]change{
	"other channels": {
		{
			"internal/scripts/lock.go",
			[]string{"fair mutex", "multi mutex", "mutex", "mutex with fencing"},
			[]string{`"redisson_lock__channel"`, `"v2_lock__channel"`},
		},
		{"internal/scripts/rwlock.go", []string{"reader", "writer"}, []string{`"redisson_rwlock"`, `"v2_rwlock"`}},
		{
			"internal/scripts/sem.go",
			[]string{"counting semaphore", "semaphore", "semaphore with permits"},
			[]string{`"redisson_sc"`, `"v2_sc"`},
		},
		{
			"semaphore/permits.go",
			[]string{"fair semaphore", "fair semaphore with permits"},
			[]string{`"cogwheel_fair"`, `"v2_fair"`},
		},
	},
	"other keys": {
		{"internal/scripts/fairlock.go", []string{"fair mutex"}, []string{`"redisson_lock_queue"`, `"v2_lock_queue"`}},
		{"internal/scripts/delay.go", []string{"delayed task"}, []string{`"delay:"+part`, `"v2:"+part`}},
		{
			"semaphore/permits.go",
			[]string{"fair semaphore", "fair semaphore with permits", "semaphore", "semaphore with permits"},
			[]string{`"fair:" + part`, `"v2:" + part`, `keyOf(name, fair, "timeout")`, `keyOf(name, fair, "v2")`},
		},
		{
			"ratelimit/internal/algo/algorithm.go",
			[]string{"All of GCRA and fixed window", "All of sliding and fixed window", "fixed window"},
			[]string{`"fixed window", "window"`, `"fixed window", "v2"`},
		},
		{
			"ratelimit/internal/algo/sliding_log.go",
			[]string{"sliding log", "sliding log per client"},
			[]string{"[]string{name,", `[]string{name + ":v2",`},
		},
	},
	"other states": {
		{
			"internal/scripts/include/next_token.lua",
			[]string{"fair mutex", "mutex with fencing", "writer"},
			[]string{"time[1] * 1000000", "(time[1] - 1000000) * 1000000", "if token < clock", "if true"},
		},
		{
			"internal/scripts/include/gcra_state.lua",
			[]string{"All of GCRA and fixed window", "GCRA"},
			[]string{
				"  return text\n", "  return text .. ':v2'\n",
				"  local us, num, burst_s, period, returned, tail = ",
				"  value = value and string.gsub(value, ':v2$', '')\n  local us, num, burst_s, period, returned, tail = ",
			},
		},
		{
			"internal/scripts/include/sliding_state.lua",
			[]string{"All of sliding and fixed window", "sliding window"},
			[]string{
				"local index, previous, current, lasts", "local index, current, previous, lasts",
				"s.index, s.previous, s.current", "s.index, s.current, s.previous",
			},
		},
		{
			"internal/scripts/lock_keep.lua",
			[]string{"mutex with a minimum hold"},
			[]string{"redis.call('HSET', name, id .. ':kept', min_end)", "redis.call('DEL', name)"},
		},
	},
}

// Each control fails for the kinds whose state or channel it changes, and for no others.
func TestControls(t *testing.T) {
	if os.Getenv("CONTROLS") == "" {
		t.Skip("builds the library for each control: make controls")
	}
	this := build(t, root(t))
	for name, changes := range controls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var found []string
			for _, c := range changes {
				found = append(found, c.found...)
			}
			lines, failed := compare(t, this, build(t, root(t), "-overlay", overlay(t, changes)))
			t.Log("\n" + strings.Join(lines, "\n"))
			require.ElementsMatch(t, found, failed)
		})
	}
}

// The edits of each control still apply; TestControls is run less often than the library changes.
func TestControls_Fit(t *testing.T) {
	t.Parallel()
	for name, changes := range controls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			overlay(t, changes)
		})
	}
}

func TestControls_ConcernEveryKind(t *testing.T) {
	t.Parallel()
	found := make(map[string]bool)
	for _, changes := range controls {
		for _, c := range changes {
			for _, kind := range c.found {
				found[kind] = true
			}
		}
	}
	for _, s := range scenarios {
		for _, kind := range s.kinds {
			require.True(t, found[kind], kind)
		}
	}
}

// overlay writes the changed files, and returns the argument for go build -overlay that has them read.
func overlay(t *testing.T, changes []change) string {
	t.Helper()
	replace := make(map[string]string)
	for _, c := range changes {
		file := filepath.Join(root(t), c.file)
		require.NotContains(t, replace, file)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for edit := range slices.Chunk(c.edits, 2) {
			if !strings.Contains(string(text), edit[0]) {
				t.Fatalf("%s has no %s", c.file, edit[0])
			}
		}
		replace[file] = filepath.Join(t.TempDir(), filepath.Base(file))
		changed := strings.NewReplacer(c.edits...).Replace(string(text))
		require.NoError(t, os.WriteFile(replace[file], []byte(changed), 0o644))
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(path, text, 0o644))
	return path
}
