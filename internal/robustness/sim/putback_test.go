package sim_test

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// edit replaces a part of a file of the library.
type edit struct{ file, old, new string }

// putBack are faults that the library had, each with the edits that put it back.
var putBack = []struct {
	name  string
	edits []edit
}{
	{"a stopped wheel leaves holds and waits unwatched", []edit{{
		"wheel/wheel.go", `notices = append(notices, stopNotice(o))`, `_ = o`,
	}}},
	{"a step of the wall clock loses holds", []edit{{
		"internal/clock/clock.go", `if r.HasBoot {`, `if false {`,
	}}},
	{"a window grants before it begins", []edit{{
		"internal/scripts/rate_window.lua", `if n > limit or begins > ahead or in_order`, `if n > limit or in_order`,
	}}},
	{"a sliding window rounds the share of the one before down", []edit{{
		"internal/scripts/include/sliding_state.lua", ` + (part > 0 and 1 or 0)`, ``,
	}}},
	{"what exceeds a lowered limit is a debt of later windows", []edit{{
		"ratelimit/fixed_window.go", `total - max(0, limit.Rate-s.used)`, `total - (limit.Rate - s.used)`,
	}}},
	{"Reset drops the grant of its own waiter", []edit{
		{"ratelimit/limiter.go", `		old := s.mark()
		err := k.client.rdb.Del(ctx, s.id.key).Err()
`, `		old := s.mark()
		s.mu.Lock()
		s.changedLocked(old)
		first := s.kickLocked()
		s.mu.Unlock()
		s.send(first)
		err := k.client.rdb.Del(ctx, s.id.key).Err()
		old = s.mark()
`},
		{"ratelimit/job.go", `		j.settleLineLocked(at)
`, `		if j.err == nil && j.got.snapshot != nil && j.sentAt.Before(s.changed) {
			s.line.failed(0)
			return nil
		}
		j.settleLineLocked(at)
`},
	}},
	{"a probe that writes nothing ends an outage, and shares are forgotten", []edit{
		{"internal/scripts/rate_gcra.lua", `  write_back(state_key, value, now)
`, ``},
		{"internal/scripts/rate_window.lua", `  write_back(state_key, value, '0:1')`, ``},
		{"internal/scripts/rate_log.lua", `elseif ARGV[2] == '-2' then`, `elseif ARGV[2] == '-9' then`},
		{"ratelimit/outage.go", `		br.up()
		b.client.logger.Info(`, `		b.share.mu.Lock()
		b.share.keys, b.share.overflow = nil, nil
		b.share.mu.Unlock()
		br.up()
		b.client.logger.Info(`},
	}},
}

// TestPutBack puts each fault back, and runs schedules until one finds it.
func TestPutBack(t *testing.T) {
	if os.Getenv("CONTROLS") == "" {
		t.Skip("takes minutes: make simulate-controls")
	}
	for _, f := range putBack {
		if only := os.Getenv("CONTROL"); cmp.Or(only, f.name) != f.name {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			find(t, f.name, build(t, f.edits), nil, nil)
		})
	}
}

// build builds this test with edits of the library.
func build(t *testing.T, edits []edit) (binary string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	dir, replaced := t.TempDir(), make(map[string]string)
	for i, e := range edits {
		path := filepath.Join(root, e.file)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), e.old), "%s has changed: edit %d does not fit", e.file, i)
		replaced[path] = filepath.Join(dir, filepath.Base(e.file))
		text = []byte(strings.Replace(string(text), e.old, e.new, 1))
		require.NoError(t, os.WriteFile(replaced[path], text, 0o600))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	require.NoError(t, err)
	name, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	require.NoError(t, os.WriteFile(name, overlay, 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", name, "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}
