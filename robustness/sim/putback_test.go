package sim_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/sim"
)

// edit replaces a part of a file of the library.
type edit struct{ file, old, new string }

// fault is a fault with the edits that put it into the library.
type fault struct {
	name  string
	edits []edit
}

// schedules find faults that drawn ones seldom meet.
var schedules = map[string]func() *sim.Schedule{
	"a lost lease leaves its worker idle": lostLeases,
	"an end that waits is not renewed":    lateEnd,
}

// lateEnd is a schedule in which the call that records the end of an attempt is lost, while leases are renewed.
func lateEnd() *sim.Schedule {
	plan := func(id string, hold time.Duration) sim.Op {
		return sim.Op{At: 100 * time.Millisecond, Action: sim.Plan, Task: sim.Task{ID: id}, Hold: hold}
	}
	serve := sim.Op{Action: sim.Serve, N: 2, Hold: 15 * time.Second}
	other := serve
	other.At, other.Process = 300*time.Millisecond, 1
	return &sim.Schedule{
		Seed: 1, Processes: 2, Lease: time.Second, Poll: 30 * time.Second, Tick: time.Millisecond,
		Least: 50 * time.Microsecond, Most: 50 * time.Microsecond, Timeout: 5 * time.Second, Retries: -1,
		Policy: "closed", Length: 20 * time.Second, Objects: []sim.Object{{Kind: "delayed tasks", Name: "tasks"}},
		Ops:    []sim.Op{serve, other, plan("a", 500*time.Millisecond), plan("b", 10*time.Second)},
		Faults: []sim.Fault{{At: 500 * time.Millisecond, Kind: "requests lost", N: 1}},
	}
}

// lostLeases is a schedule in which the workers of a process lose their leases while tasks are due, that were claimed
// ahead and handed back.
func lostLeases() *sim.Schedule {
	s := &sim.Schedule{
		Seed: 1, Processes: 1, Lease: time.Second, Poll: 30 * time.Second, Tick: time.Millisecond,
		Least: 50 * time.Microsecond, Most: 50 * time.Microsecond, Timeout: 300 * time.Millisecond, Retries: -1,
		Policy: "closed", Length: 30 * time.Second, Objects: []sim.Object{{Kind: "delayed tasks", Name: "tasks"}},
		Ops:    []sim.Op{{Action: sim.Serve, N: 2, Hold: 29 * time.Second}},
		Faults: []sim.Fault{{At: 1500 * time.Millisecond, Kind: "no replicas", For: 1200 * time.Millisecond}},
	}
	for i := range 30 {
		o := sim.Op{At: time.Duration(100+30*i) * time.Millisecond, Action: sim.Plan, Task: sim.Task{ID: fmt.Sprint(i)}}
		if i >= 10 {
			o.At, o.Hold = 1400*time.Millisecond, 2*time.Second
		}
		s.Ops = append(s.Ops, o)
	}
	return s
}

// putBack are faults that the library had.
var putBack = []fault{
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
		{"ratelimit/outage.go", `	br.up()
	b.client.logger.Info(`, `	b.share.mu.Lock()
	b.share.keys, b.share.overflow = nil, nil
	b.share.mu.Unlock()
	br.up()
	b.client.logger.Info(`},
	}},
}

// settledWrongly are ways to settle a reservation wrongly.
var settledWrongly = []fault{
	{"GCRA gives back twice", []edit{{
		"internal/scripts/rate_gcra.lua", `= us - part_us, num - part_num`, `= math.max(now, us - 2 * part_us), num - part_num`,
	}}},
	{"GCRA gives back what has returned by itself", []edit{{
		"internal/scripts/rate_gcra.lua", `local beyond = ends - since - math.max(now, last)`, `local beyond = period and us - now or 0`,
	}}},
	{"GCRA gives back before charges that were made ahead", []edit{{
		"internal/scripts/rate_gcra.lua", `since - math.max(now, last)`, `since - now`,
	}}},
	{"a window gives back twice", []edit{{
		"internal/scripts/rate_window.lua", `= used - part,`, `= math.max(0, used - 2 * part),`,
	}}},
	{"a window takes back what was charged to another", []edit{{
		"internal/scripts/rate_window.lua", `if stamp == tonumber(ARGV[at]) and stamp > 0 then`, `if stamp then`,
	}}},
	{"a sliding window gives back twice", []edit{{
		"internal/scripts/rate_sliding.lua", `= s.current - part,`, `= math.max(0, s.current - 2 * part),`,
	}}},
	{"a sliding window takes back what was charged to another", []edit{{
		"internal/scripts/rate_sliding.lua", `if later == 0 then`, `if later then`,
	}}},
	{"a log gives back twice", []edit{{
		"internal/scripts/rate_log.lua", `local member, staying = ARGV[i], tonumber(ARGV[i + 1])`,
		`local member, staying = ARGV[i], math.max(0, 2 * ARGV[i + 1] - size(ARGV[i]))`,
	}}},
	{"a reservation is settled twice", []edit{
		{"ratelimit/reservation.go", `	if r.over {`, `	if false {`},
		{"ratelimit/reservation.go", `	case c.settled:`, `	case false:`},
	}},
	{"GCRA forgets a debt", []edit{{
		"internal/scripts/rate_gcra.lua", `us, num, changed = us + debt_us, num + debt_num, true`, `changed = true`,
	}}},
	{"a window forgets a debt", []edit{{
		"internal/scripts/rate_window.lua", `  used = used + settled
  local later = math.min(wanted - settled, most)
  if later > 0 and begins == 0 then
    lasts = math.max(lasts, length) -- or under a shorter length it seems to come from a clock that was set back
    used, begins, ends, stamp, begun = later, ends, ends + lasts, nil, begun + 1
`, `  local later = math.min(wanted - settled, most)
  if later > 0 and begins == 0 then
`,
	}}},
	{"a sliding window forgets a debt", []edit{{
		"internal/scripts/rate_sliding.lua",
		`  s.owed = s.owed + math.max(0, settled - math.max(0, limit - s.current + s.owed))
  s.current, changed = s.current + settled, true
`, ``,
	}}},
	{"a sliding window forgets what it is owed", []edit{{
		"internal/scripts/include/sliding_state.lua", `later == 1 and owed or 0`, `0`,
	}}},
	{"a log forgets a debt", []edit{{
		"internal/scripts/rate_log.lua", `elseif debt and not have[i] and n <= left + rate then
        enter(i, n, now)`, `elseif debt and not have[i] and n <= left + rate then
        answers[i] = 0`,
	}}},
	{"a log forgets what stays of an entry when it counts", []edit{{
		"internal/scripts/rate_log.lua", `return back[member] or size(member)`, `return back[member] and 0 or size(member)`,
	}}},
	{"GCRA forgets a state that is far ahead", []edit{{
		"internal/scripts/rate_gcra.lua", `if left > burst_s * 1000000 + 60000000 then`, `if false then`,
	}}},
	{"a debt is not sent", []edit{{
		"ratelimit/reservation.go", `c.settlement(r.n, used)`, `c.settlement(r.n, min(r.n, used))`,
	}}},
}

// tasksWrongly are ways to delay tasks wrongly.
var tasksWrongly = []fault{
	{"a claim without a lease", []edit{{
		"internal/scripts/delay_work.lua", `    task.attempt, task.ends = failures .. ':' .. losses .. ':' .. token, begins and ends or ends + 0.5
    task.since, task.due = instant(task.due), false`,
		`    task.text, task.attempt, task.due = false, false, false`,
	}}},
	{"a cancel that ignores a running task", []edit{{
		"internal/scripts/delay_edit.lua", ` .. token .. ':x'`, ` .. token`,
	}}},
	{"due times by the clock of the client", []edit{{
		"delay/queue.go", `q.edit(ctx, "schedule", id, micros(delay), payload, opts)`,
		`q.edit(ctx, "schedule", id, fmt.Sprint("@", q.client.wheel.Now().Add(delay).UnixMicro()), payload, opts)`,
	}}},
	{"a repeated claim claims again", []edit{{
		"internal/scripts/delay_work.lua", `if last and tonumber(last) >= number then`, `if false then`,
	}}},
	{"ends of attempts ignore the token", []edit{{
		"internal/scripts/delay_work.lua", `local is_last = token == ARGV[at + 2]`, `local is_last = true`,
	}}},
	{"a repeated schedule schedules again", []edit{{
		"internal/scripts/delay_edit.lua", `if last and tonumber(last) >= number then`, `if false then`,
	}}},
	{"a task of a running id runs beside it", []edit{{
		"internal/scripts/delay_edit.lua", `  if task.ends then
    local at, bound = bounded(wanted, most, task.later`, `  if false then
    local at, bound = bounded(wanted, most, task.later`,
	}}},
	{"a claimed task does not wait for its time", []edit{{
		"delay/serve.go", `	if wait <= 0 {`, `	if true {`,
	}}},
	{"a server that stops keeps its tasks", []edit{{
		"delay/serve.go", `	for _, a := range waiting {
		s.backLocked(a)
	}`, `	for _, a := range waiting {
		delete(s.claimed, a)
	}`,
	}}},
	{"a lost lease does not end the context", []edit{{
		"delay/attempt.go", `e.Context = a.lease.Context(s.ctx)`, `e.Context = s.ctx`,
	}}},
	{"every claimed task counts as begun", []edit{{
		"internal/scripts/delay_work.lua", `begins = instant(base + i), i <= free and losses < alone_from`, `begins = instant(base + i), true`,
	}}},
	{"a lost task does not wait", []edit{{
		"internal/scripts/delay_work.lua", `task.ends = now + pause_of(losses + 1, tonumber(token)) + 0.5`, `task.ends = now + 0.5`,
	}}},
	{"a task with losses does not run alone", []edit{{
		"delay/solo.go", `return a.Losses >= aloneFrom`, `return a.Losses >= 10*aloneFrom`,
	}}},
	{"a lost lease leaves its worker idle", []edit{{
		"delay/serve.go", `calls := s.records || s.roomLocked() > 0 && !s.claims.After(now)`, `calls := s.records || now.IsZero()`,
	}}},
	{"a task that is handed back forgets its time", []edit{{
		"internal/scripts/delay_work.lua", `        leave(id, failures .. ':' .. losses .. ':' .. token, since_of(task))
      end`, `        leave(id, failures .. ':' .. losses .. ':' .. token, now)
      end`,
	}}},
	{"a lost lease forgets the time of its task", []edit{{
		"internal/scripts/delay_work.lua", `    leave(id, failures .. ':' .. losses .. ':' .. token .. ':', since_of(task))`,
		`    leave(id, failures .. ':' .. losses .. ':' .. token .. ':', now)`,
	}}},
	{"an end that waits is not renewed", []edit{{
		"delay/serve.go", `	a.ended = true
	s.ended++
`, `	a.ended = true
	s.ended++
	if a.lease != nil {
		a.lease.Close(nil)
	}
`,
	}}},
	{"leases are not renewed", []edit{{
		"delay/renew.go", `batch.Outcomes[i] = renewal.Extended`, `_ = i`,
	}}},
}

// inferred are ways to infer who the primary is, whether it is well, and what its answers mean, by the promise that
// each breaks.
var inferred = map[string][]fault{
	"a failover has one holder soon": {
		{"renewals stay on connections to a primary that was replaced", []edit{{
			"internal/redisconn/server.go", `case age > maxAge:`, `case age < 0:`,
		}}},
		{"renewals of a FailoverClusterClient stay with a primary that was replaced", []edit{{
			"internal/redisconn/masters.go", `Sub(m.asked) > maxAge`, `Sub(m.asked) > time.Hour`,
		}}},
	},
	"a process recovers": {
		{"a call over a bad connection is not repeated", []edit{{
			"internal/calls/calls.go", `if j.checked || !redisconn.OfConnection(err) {`, `if true || j.checked {`,
		}}},
		{"a check of a node asks over an old connection", []edit{{
			"internal/redisconn/refresh.go", `return askFresh(ctx, c, ask) }`, `return Answer(ask(ctx, c)) }`,
		}}},
		{"a check of a node leaves bad connections in the pool", []edit{{
			"internal/redisconn/refresh.go", `askIdle(ctx, c, ask); return nil }`, `return nil }`,
		}}},
	},
	"a policy decides in an outage": {
		{"an unknown answer is final", []edit{{
			"internal/redisconn/class.go", `return Unavailable, false`, `return Fault, true`,
		}}},
	},
	"Serve goes on through an outage": {
		{"Serve ends while a password is rotated", []edit{{
			"delay/work.go", `redisconn.IsLoginRefused(err) && !endures`, `redisconn.IsLoginRefused(err) && (!endures || true)`,
		}}},
	},
	"a waiter waits through an outage": {
		{"a waiting Lock ends while a password is rotated", []edit{{
			"redislock/acquire.go", `case head.waits() && head.endures(&r):`,
			`case head.waits() && !redisconn.IsLoginRefused(err) && head.endures(&r):`,
		}}},
		{"a waiting Acquire ends while a password is rotated", []edit{{
			"semaphore/call.go", `(!login || waits(w))`, `!login`,
		}}},
		{"a waiting Acquire ends in an outage", []edit{{
			"semaphore/call.go", `case w.Waits() && begun &&`, `case w.Waits() && begun && login &&`,
		}}},
		{"a wait for a limit ends while a password is rotated", []edit{{
			"ratelimit/job.go", `case redisconn.IsLoginRefused(err) && l.trouble`, `case false && l.trouble`,
		}}},
	},
	"a release that fails is sent again": {
		{"a release is dropped whose login is refused", []edit{{
			"internal/cleanup/cleanup.go", `case err != nil && redisconn.Permanent(err):`,
			`case err != nil && (redisconn.Permanent(err) || redisconn.IsLoginRefused(err)):`,
		}}},
	},
}

// TestPutBack puts each fault back, and runs schedules until one finds it.
func TestPutBack(t *testing.T) {
	if os.Getenv("CONTROLS") == "" {
		t.Skip("takes minutes: make simulate-controls")
	}
	for kind, faults := range map[string][]fault{"": slices.Concat(putBack, settledWrongly), "delayed tasks": tasksWrongly} {
		for _, f := range faults {
			if only := os.Getenv("CONTROL"); cmp.Or(only, f.name) != f.name {
				continue
			}
			t.Run(f.name, func(t *testing.T) {
				if schedule := schedules[f.name]; schedule != nil {
					findBy(t, f.name, build(t, f.edits), schedule())
					return
				}
				kinds := slices.DeleteFunc([]string{kind}, func(k string) bool { return k == "" })
				find(t, f.name, sim.Orders{Binary: build(t, f.edits), Kinds: kinds}, nil)
			})
		}
	}
	for promise, faults := range inferred {
		for _, f := range faults {
			if only := os.Getenv("CONTROL"); cmp.Or(only, f.name) != f.name {
				continue
			}
			t.Run(f.name, func(t *testing.T) {
				find(t, f.name, sim.Orders{Binary: build(t, f.edits), Health: true}, []string{promise})
			})
		}
	}
}

// findBy runs a schedule twenty times, of which one breaks a promise, and none without the fault.
func findBy(t *testing.T, name, binary string, s *sim.Schedule) {
	t.Helper()
	const runs = 20
	broken := func(binary string) (n int, by string) {
		require.NoError(t, sim.Orders{Schedule: s, Count: runs, Binary: binary}.Each(func(res *sim.Result) bool {
			if len(res.Faults) > 0 {
				n, by = n+1, res.Faults[0].Promise
			}
			return true
		}))
		return n, by
	}
	n, by := broken(binary)
	require.Positive(t, n)
	note(t, sim.Finding{Finding: name, Seeds: 1, By: by, Again: n, Runs: runs})
	n, by = broken("")
	require.Zero(t, n, by)
}

// TestPutBack_EditsFit finds edits whose text is no longer in the library, without the minutes that TestPutBack takes.
func TestPutBack_EditsFit(t *testing.T) {
	t.Parallel()
	if os.Getenv("SIM_ORDERS") != "" {
		t.Skip("only other tests give orders")
	}
	all := slices.Concat(slices.Collect(maps.Values(inferred))...)
	for _, f := range slices.Concat(putBack, settledWrongly, tasksWrongly, all) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			edited(t, t.TempDir(), f.edits)
		})
	}
}

// edited applies edits to copies of files of the library, in dir. It returns the copy of each file.
func edited(t *testing.T, dir string, edits []edit) (replaced map[string]string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	replaced = make(map[string]string)
	for i, e := range edits {
		path := filepath.Join(root, e.file)
		text, err := os.ReadFile(cmp.Or(replaced[path], path))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), e.old), "%s has changed: edit %d does not fit", e.file, i)
		replaced[path] = filepath.Join(dir, filepath.Base(e.file))
		text = []byte(strings.Replace(string(text), e.old, e.new, 1))
		require.NoError(t, os.WriteFile(replaced[path], text, 0o600))
	}
	return replaced
}

// build builds this test with edits of the library.
func build(t *testing.T, edits []edit) (binary string) {
	t.Helper()
	dir := t.TempDir()
	overlay, err := json.Marshal(map[string]any{"Replace": edited(t, dir, edits)})
	require.NoError(t, err)
	name, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	require.NoError(t, os.WriteFile(name, overlay, 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", name, "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}
