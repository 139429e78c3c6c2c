package scripts_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// scenario is a state of Redis and a call of a script that goes one way through it.
type scenario struct {
	script *scripts.Script
	what   string
	state  [][]any // commands that make it
	keys   []string
	args   []any
	step   [][]any // commands that make a state on the way which is complete of its own, if there is one
}

func (s scenario) String() string { return s.script.Name() + ", " + s.what }

var executes = regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`)

// bench runs scenarios on a server of its own, as a user whose rights it takes away.
type bench struct {
	t           *testing.T
	admin, user *redis.Client
	revoked     []string
	executed    map[string]map[string]bool // by script
}

func newBench(t *testing.T) *bench {
	t.Helper()
	server := redistest.Start(t)
	b := &bench{t: t, admin: server.Client(t), executed: map[string]map[string]bool{}}
	b.grant()
	b.user = server.Client(t, func(o *redis.Options) { o.Username, o.Password, o.MaxRetries = "user", "secret", -1 })
	// The clients of a and b, and readers, hear their turn.
	channels := []string{"c:n:a", "c:n:b", "c:n:r", "cogwheel_fair:n:a", "cogwheel_fair:n:b"}
	for _, client := range []string{"a", "b"} {
		channels = append(channels, scripts.LockChannel("n")+":"+client)
	}
	heard := b.admin.Subscribe(t.Context(), channels...)
	t.Cleanup(func() { _ = heard.Close() })
	for range channels {
		_, err := heard.Receive(t.Context())
		require.NoError(t, err)
	}
	return b
}

// grant gives the user every right but these: commands, or "channels".
func (b *bench) grant(revoked ...string) {
	b.t.Helper()
	if b.revoked != nil && slices.Equal(b.revoked, revoked) {
		return
	}
	b.revoked = append([]string{}, revoked...)
	rules := []any{"ACL", "SETUSER", "user", "reset", "on", ">secret", "~*", "+@all"}
	if !slices.Contains(revoked, "channels") {
		rules = append(rules, "&*")
	}
	for _, command := range revoked {
		if command != "channels" {
			rules = append(rules, "-"+command)
		}
	}
	require.NoError(b.t, b.admin.Do(b.t.Context(), rules...).Err())
}

// run makes the scenario's state, calls the script as the user, and returns the keys before and after.
func (b *bench) run(s scenario, revoked ...string) (before, after map[string]string, err error) {
	b.t.Helper()
	ctx := b.t.Context()
	b.reset(s)
	b.grant(revoked...)
	before = b.snapshot()
	err = s.script.RunOnce(ctx, b.user, s.keys, s.args...).Err()
	return before, b.snapshot(), err
}

func (b *bench) reset(s scenario) {
	b.t.Helper()
	_, err := b.admin.Pipelined(b.t.Context(), func(pipe redis.Pipeliner) error {
		pipe.FlushAll(b.t.Context())
		for _, command := range s.state {
			pipe.Do(b.t.Context(), command...)
		}
		return nil
	})
	require.NoError(b.t, err, "%v", s)
}

// readAllSource tells of each key its name, its value and the time it has left.
const readAllSource = `
local read = {
  string = function(key) return {redis.call('GET', key)} end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
  hash = function(key)
    local fields = redis.call('HKEYS', key)
    table.sort(fields)
    for i, field in ipairs(fields) do
      fields[i] = field .. '=' .. redis.call('HGET', key, field)
    end
    return fields
  end,
}
local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  all[#all + 1] = {key, kind .. ' ' .. table.concat(read[kind](key), ' '), redis.call('PTTL', key)}
end
return all`

var readAll = redis.NewScript(readAllSource)

// snapshot is every key with its value and whether it expires. Keys that are about to end have ended.
func (b *bench) snapshot() map[string]string {
	b.t.Helper()
	keys, err := readAll.Run(b.t.Context(), b.admin, nil).Slice()
	require.NoError(b.t, err)
	return snapshotOf(keys)
}

// hint matches a line, and a lock or permits that are kept for a waiter. They are no part of a state: without a right they differ, and
// all that this costs is time. But they must not stay.
var hint = regexp.MustCompile(`^\S+:waiting zset .*|^\S+:kept string .*|^\S+ hash (mode=\w+ )?next=\S+$|^\S+ string next \S+$`)

// snapshotOf reads the reply of readAll.
func snapshotOf(keys []any) map[string]string {
	all := make(map[string]string, len(keys))
	for _, key := range keys {
		of := key.([]any)
		left := of[2].(int64)
		if left >= 0 && hint.MatchString(fmt.Sprint(of[0], " ", of[1])) {
			continue
		}
		if left < 0 || left > 20 {
			all[of[0].(string)] = fmt.Sprintf("%s expires=%v", of[1], left >= 0)
		}
	}
	return all
}

var instants = regexp.MustCompile(`\b\d(\.\d+e\+1[0-9]|\d{11,}(\.\d+)?)\b`)

// hints are keys on which no promise depends: a script may leave them as they were if a right is missing.
var hints = []string{"waiting"}

// withoutHints returns the keys of a snapshot that are no hints.
func withoutHints(all map[string]string) map[string]string {
	all = maps.Clone(all)
	for _, key := range hints {
		delete(all, key)
	}
	return all
}

// timeless puts one word in the place of every instant: two runs differ in nothing else.
func timeless(all map[string]string) map[string]string {
	out := make(map[string]string, len(all))
	for key, value := range all {
		out[key] = instants.ReplaceAllString(value, "<instant>")
	}
	return out
}

// halves runs a scenario with each right, and each two, taken away, and short of memory, and returns where
// the script left neither the state before nor the complete one.
func (b *bench) halves(s scenario) (faults []string) {
	b.t.Helper()
	_, complete, err := b.run(s)
	require.NoError(b.t, err, "%v", s)
	require.Equal(b.t, timeless(complete), timeless(second(b.run(s))), "%v: goes one way", s)
	var step map[string]string
	if s.step != nil {
		b.reset(scenario{state: s.step})
		step = b.snapshot()
	}
	judge := func(without string, before, after map[string]string, err error) {
		if err != nil && !maps.Equal(before, after) && (step == nil || !maps.Equal(step, after)) {
			faults = append(faults, fmt.Sprintf("%v: without %s it failed with %q and left\n\t%v\nof\n\t%v", s, without, err, after, before))
		}
		done := maps.Equal(withoutHints(timeless(complete)), withoutHints(timeless(after)))
		if err == nil && !done && (step == nil || !maps.Equal(step, after)) {
			faults = append(faults, fmt.Sprintf("%v: without %s it succeeded and left\n\t%v\ninstead of\n\t%v", s, without, after, complete))
		}
	}
	rights := append(s.script.Commands(), "channels")
	for i, first := range rights {
		before, after, err := b.run(s, first)
		judge(first, before, after, err)
		for _, other := range rights[i+1:] {
			before, after, err := b.run(s, first, other)
			judge(first+" and "+other, before, after, err)
		}
	}
	b.grant()
	b.reset(s)
	before := b.snapshot()
	require.NoError(b.t, b.admin.ConfigSet(b.t.Context(), "maxmemory", "1").Err())
	err = s.script.RunOnce(b.t.Context(), b.user, s.keys, s.args...).Err()
	require.NoError(b.t, b.admin.ConfigSet(b.t.Context(), "maxmemory", "0").Err())
	judge("memory", before, b.snapshot(), err)
	return faults
}

func second(_, after map[string]string, _ error) map[string]string { return after }

// strangers puts, one after the other, a value of each type under each key of a scenario, and returns where
// the script failed and left something else than it found.
func (b *bench) strangers(s scenario) (faults []string) {
	b.t.Helper()
	values := map[string][]any{
		"a list":      {"RPUSH", "", "x"},
		"a hash":      {"HSET", "", "x", "y"},
		"a zset":      {"ZADD", "", 1, "x"},
		"a text":      {"SET", "", "x"},
		"a fraction":  {"SET", "", "1.5"},
		"hexadecimal": {"SET", "", "0x10"},
		"infinity":    {"SET", "", "inf"},
		"too much":    {"SET", "", "9223372036854775807"},
	}
	for i, key := range s.keys {
		for what, put := range values {
			put = slices.Clone(put)
			put[1] = key
			b.reset(s)
			require.NoError(b.t, b.admin.Del(b.t.Context(), key).Err())
			require.NoError(b.t, b.admin.Do(b.t.Context(), put...).Err())
			b.grant()
			before := b.snapshot()
			err := s.script.RunOnce(b.t.Context(), b.user, s.keys, s.args...).Err()
			if after := b.snapshot(); err != nil && !maps.Equal(before, after) {
				faults = append(faults, fmt.Sprintf("%v: with %s as key %d it failed with %q and left\n\t%v\nof\n\t%v", s, what, i+1, err, after, before))
			}
		}
	}
	return faults
}

// note remembers which commands the scenario has executed since the last CONFIG RESETSTAT.
func (b *bench) note(s scenario) {
	b.t.Helper()
	name := s.script.Name()
	if b.executed[name] == nil {
		b.executed[name] = map[string]bool{}
	}
	stats, err := b.admin.Info(b.t.Context(), "commandstats").Result()
	require.NoError(b.t, err)
	for _, m := range regexp.MustCompile(`cmdstat_([a-z|]+):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		if n, _ := strconv.Atoi(m[2]); n > 0 {
			b.executed[name][m[1]] = true
		}
	}
}

// calledByUser counts, with every right, and with each taken away, what the script calls.
func (b *bench) calledByUser(s scenario) {
	b.t.Helper()
	for _, right := range append([]string{"acl"}, s.script.Commands()...) {
		b.reset(s)
		b.grant(right)
		require.NoError(b.t, b.admin.ConfigResetStat(b.t.Context()).Err())
		_ = s.script.RunOnce(b.t.Context(), b.user, s.keys, s.args...).Err()
		b.note(s)
	}
}

// Whatever right a user lacks, and whatever its keys hold, a script leaves the state before or the complete
// one.
// Guarantees: A5, Q28.
func TestScripts_LeaveNoHalf(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	b := newBench(t)
	now := func() int64 { return b.admin.Time(t.Context()).Val().UnixMilli() }
	covered := map[string]bool{}
	for i := range scenarios(now()) {
		s := scenarios(now())[i] // on a busy machine, the entries of earlier ones have expired
		covered[s.script.Name()] = true
		require.Empty(t, b.halves(s))
		require.Empty(t, b.strangers(s))
		b.calledByUser(s)
	}
	for _, s := range scripts.All() {
		require.True(t, covered[s.Name()], "%s has a scenario", s.Name())
		for _, command := range s.Commands() {
			require.True(t, b.executed[s.Name()][command], "a scenario of %s executes %s", s.Name(), command)
		}
		for command := range b.executed[s.Name()] {
			known := append([]string{"eval", "evalsha", "info", "config|resetstat", "config", "spublish"}, s.Commands()...)
			require.Contains(t, known, command, "Commands of %s lacks one that it executes", s.Name())
		}
	}
}

// The check finds scripts that write before what may be refused.
func TestScripts_LeaveNoHalf_FindsHalves(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, source := range map[string]string{
		"writes first":         "redis.call('HSET', KEYS[1], ARGV[1], 1)\nredis.call('PEXPIRE', KEYS[1], 1000)\nreturn 1\n",
		"publishes first":      "local verb = 'PUBLISH'\nredis.call('SET', KEYS[1], 1)\nredis.call(verb, 'c', 1)\nreturn 1\n",
		"hides what it failed": "redis.call('SET', KEYS[1], 1)\nredis.pcall('HSET', 'other', 'a', 1)\nreturn 1\n",
		"undoes with the same": "redis.call('HSET', KEYS[1], ARGV[1], 1)\nlocal set = redis.pcall('PEXPIRE', KEYS[1], 1000)\n" +
			"if type(set) == 'table' then redis.pcall('PEXPIRE', KEYS[1], 0) return set end\nreturn 1\n",
	} {
		s := scenario{script: scripts.NewScript(name, source), what: "free", keys: []string{"name"}, args: []any{"me:1"}}
		require.NotEmpty(t, b.halves(s), name)
	}
	wrong := "redis.call('SET', KEYS[1], 1)\nredis.call('HSET', KEYS[2], 'a', 1)\nreturn 1\n"
	s := scenario{script: scripts.NewScript("reads no type", wrong), what: "free", keys: []string{"name", "other"}}
	require.NotEmpty(t, b.strangers(s))
}

// An operator that adds one right after the other, as the refusals ask for them, leaves nothing behind on the
// way.
// Guarantees: A5.
func TestScripts_LeaveNoHalf_RightsGivenOneByOne(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	now := b.admin.Time(t.Context()).Val().UnixMilli()
	for _, s := range scenarios(now) {
		var rights []string // in the order in which the script asks for them
		for _, m := range executes.FindAllStringSubmatch(s.script.Source(), -1) {
			if right := "+" + strings.ToLower(m[1]); !slices.Contains(rights, right) {
				rights = append(rights, right)
			}
		}
		for n := range rights {
			b.reset(s)
			rules := []any{"ACL", "SETUSER", "user", "reset", "on", ">secret", "~*", "+evalsha", "+eval"}
			for _, right := range rights[:n+1] {
				rules = append(rules, right)
			}
			b.revoked = nil
			require.NoError(t, b.admin.Do(t.Context(), rules...).Err())
			before := b.snapshot()
			err := s.script.RunOnce(t.Context(), b.user, s.keys, s.args...).Err()
			if after := b.snapshot(); err != nil && s.step == nil {
				require.Equal(t, before, after, "%v with %v: %v", s, rights[:n+1], err)
			}
		}
	}
}

// A server at its memory limit refuses a script the first write if that may take memory. What renews, gives back, ends
// or deletes takes none, or as little as a task that runs.
// Guarantees: L43.
func TestScripts_AFullServerRefusesWhatTakesMemoryAlone(t *testing.T) {
	t.Parallel()
	gives := regexp.MustCompile(`_(renew|release|leave|force|delete)$|^delay_work$`)
	b := newBench(t)
	now := b.admin.Time(t.Context()).Val().UnixMilli()
	for _, s := range scenarios(now) {
		edits := s.script == scripts.DelayEdit && !slices.Contains(s.args, any("schedule"))
		if !edits && !gives.MatchString(s.script.Name()) {
			continue
		}
		_, want, err := b.run(s)
		require.NoError(t, err, "%v", s)
		b.reset(s)
		require.NoError(t, b.admin.ConfigSet(t.Context(), "maxmemory", "1").Err())
		require.True(t, redis.IsOOMError(b.user.Set(t.Context(), "other", 1, 0).Err()))
		err = s.script.RunOnce(t.Context(), b.user, s.keys, s.args...).Err()
		require.NoError(t, err, "%v", s)
		require.Equal(t, timeless(want), timeless(b.snapshot()), "%v", s)
		require.NoError(t, b.admin.ConfigSet(t.Context(), "maxmemory", "0").Err())
	}
}
