package scripts_test

import (
	"fmt"
	"maps"
	"math/bits"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// slotBench runs scenarios on a slot that migrates from one master of a cluster to another.
type slotBench struct {
	t    *testing.T
	slot *redistest.Migration
}

func newSlotBench(t *testing.T) *slotBench {
	t.Helper()
	return &slotBench{t, redistest.StartCluster(t).Migrate(t, slotTag)}
}

const slotTag = "{s}"

// inOneSlot gives all keys of a scenario the same hash tag.
func inOneSlot(s scenario) scenario {
	tag := func(commands [][]any) [][]any {
		tagged := make([][]any, len(commands))
		for i, command := range commands {
			tagged[i] = slices.Clone(command)
			tagged[i][1] = slotTag + strings.Replace(fmt.Sprint(command[1]), "{n}", "n", 1) // a line
		}
		return tagged
	}
	s.state, s.keys = tag(s.state), slices.Clone(s.keys)
	for i, key := range s.keys {
		s.keys[i] = slotTag + key
	}
	s.args = slices.Clone(s.args)
	for i, arg := range s.args {
		switch {
		case arg == scripts.LockChannel("n"):
			s.args[i] = scripts.LockChannel(slotTag + "n")
		case arg == "c:n": // the channel to which a line belongs
			s.args[i] = "c:" + slotTag + "n"
		case arg == "c" && i > 0 && s.args[i-1] == "PUBLISH": // its line is in the slot too
			s.args[i] = "c:" + slotTag
		}
	}
	if s.script == scripts.ReadRelease {
		s.args[3] = slotTag + fmt.Sprint(s.args[3])
	}
	return s
}

// reset makes the state on the master that the slot leaves, and begins the migration if it is to.
func (b *slotBench) reset(state [][]any, migrating bool) {
	b.t.Helper()
	ctx := b.t.Context()
	require.NoError(b.t, b.slot.To.FlushAll(ctx).Err())
	_, err := b.slot.From.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Do(ctx, b.slot.Stable()...)
		pipe.FlushAll(ctx)
		for _, command := range state {
			pipe.Do(ctx, command...)
		}
		if migrating {
			pipe.Do(ctx, b.slot.Migrating()...)
		}
		return nil
	})
	require.NoError(b.t, err)
}

// asking runs a script on a master in the state in which a client is after ASK.
func (b *slotBench) asking(rdb *redis.Client, source string, keys []string, args ...any) *redis.Cmd {
	var cmd *redis.Cmd
	_, _ = rdb.Pipelined(b.t.Context(), func(pipe redis.Pipeliner) error {
		pipe.Do(b.t.Context(), "ASKING")
		cmd = pipe.Eval(b.t.Context(), source, keys, args...)
		return nil
	})
	return cmd
}

// call runs the script of a scenario as a client of the cluster does: it follows ASK.
func (b *slotBench) call(s scenario) (any, error) {
	cmd := s.script.RunOnce(b.t.Context(), b.slot.From, s.keys, s.args...)
	if redis.HasErrorPrefix(cmd.Err(), "ASK") {
		cmd = b.asking(b.slot.To, s.script.Source(), s.keys, s.args...)
	}
	return cmd.Result()
}

// snapshot is every key of both masters, as that of a bench.
func (b *slotBench) snapshot() map[string]string {
	b.t.Helper()
	all := map[string]string{}
	for _, rdb := range []*redis.Client{b.slot.From, b.slot.To} {
		keys, err := b.asking(rdb, readAllSource, nil).Slice()
		require.NoError(b.t, err)
		maps.Copy(all, snapshotOf(keys))
	}
	return all
}

// withoutPlace returns the reply to a call without the place of its waiter in the line of a semaphore, and without the time
// until that waiter is to ask again, which depends on it. Of a list of permits it leaves out how many wait: the line, which
// is no key of the call, may be on the other master.
func withoutPlace(s scenario, reply any) any {
	list, ok := reply.([]any)
	if ok && s.script == scripts.PermitList {
		return slices.Delete(slices.Clone(list), 4, 5)
	}
	if !ok || !slices.ContainsFunc(s.args, func(arg any) bool { return arg == semaphorePlace }) {
		return reply
	}
	list = slices.Clone(list[:len(list)-2])
	list[3] = -1
	return list
}

var numbers = regexp.MustCompile(`\d{3,}`)

// outcome is a reply without times, and without the place in a line, which is a hint.
func outcome(reply any) string {
	if refusal, ok := reply.([]any); ok && len(refusal) == 4 && refusal[0] == int64(0) {
		reply = refusal[:2]
	}
	return numbers.ReplaceAllLiteralString(fmt.Sprint(reply), "<number>")
}

// subsets returns every subset of the keys, or of many keys those that lack, or are, at most one key.
func subsets(keys []string) (all [][]string) {
	const most = 7
	if len(keys) > most {
		all = append(all, nil, keys)
		for i, key := range keys {
			all = append(all, []string{key}, slices.Delete(slices.Clone(keys), i, i+1))
		}
		return all
	}
	for set := range uint(1) << len(keys) {
		subset := make([]string, 0, bits.OnesCount(set))
		for i, key := range keys {
			if set>>i&1 == 1 {
				subset = append(subset, key)
			}
		}
		all = append(all, subset)
	}
	return all
}

// alone are the replies of scripts that leave a call to be sent by itself.
var alone = map[string]string{
	"locks_release, the same lock twice":                                   "[1 2]",
	"permits_release, the last of one semaphore, and one that is not held": "[1 2]",
}

// faults moves every subset of the keys of a scenario, and returns where the call neither did everything nor changed
// nothing. If all keys of the call are on one of the masters, it has to do everything.
func (b *slotBench) faults(plain scenario) (faults []string) {
	b.t.Helper()
	s := inOneSlot(plain)
	b.reset(s.state, false)
	keys, err := b.slot.From.Keys(b.t.Context(), "*").Result()
	require.NoError(b.t, err)
	want, err := b.call(s)
	require.NoError(b.t, err, "%v", s)
	complete := timeless(b.snapshot())
	var step map[string]string // of a script that cannot reach keys that it does not declare
	if s.step != nil {
		b.reset(inOneSlot(scenario{state: s.step}).state, false)
		step = timeless(b.snapshot())
	}
	for _, moved := range subsets(keys) {
		b.reset(s.state, true)
		if len(moved) > 0 {
			b.slot.Move(moved...)
		}
		before := b.snapshot()
		declared := func(on func(key string) bool) bool {
			return !slices.ContainsFunc(s.keys, func(key string) bool { return !on(key) })
		}
		isMoved := func(key string) bool { return slices.Contains(moved, key) }
		isThere := func(key string) bool { return slices.Contains(keys, key) && !isMoved(key) }
		got, err := b.call(s)
		after := b.snapshot()
		did := maps.Equal(complete, timeless(after)) || step != nil && maps.Equal(step, timeless(after))
		switch {
		case err == nil && did && slices.Contains([]string{outcome(withoutPlace(s, want)), alone[s.String()]}, outcome(withoutPlace(s, got))):
		case err == nil:
			faults = append(faults, fmt.Sprintf("%v: with %v moved it returned %v and left\n\t%v\ninstead of %v and\n\t%v", s, moved, got, after, want, complete))
		case !maps.Equal(before, after):
			faults = append(faults, fmt.Sprintf("%v: with %v moved it failed with %q and left\n\t%v\nof\n\t%v", s, moved, err, after, before))
		case declared(isThere) || declared(isMoved):
			faults = append(faults, fmt.Sprintf("%v: with %v moved, which leaves all its keys on one master, it failed with %q", s, moved, err))
		case !redis.IsTryAgainError(err):
			faults = append(faults, fmt.Sprintf("%v: with %v moved it failed with %q", s, moved, err))
		}
	}
	return faults
}

// While a slot of a cluster migrates, a script that has emptied a key may not touch it again. So a script leaves the
// state before or the complete one, whichever keys have moved, and does not fail after it has begun.
// Guarantees: L45, A5.
func TestScripts_LeaveNoHalf_WhileTheirSlotMigrates(t *testing.T) {
	t.Parallel()
	b := newSlotBench(t)
	now := func() int64 { return b.slot.From.Time(t.Context()).Val().UnixMilli() }
	ran := map[*scripts.Script]bool{}
	var faults []string
	for i := range scenarios(now()) {
		s := scenarios(now())[i]
		faults = append(faults, b.faults(s)...)
		ran[s.script] = true
	}
	require.Empty(t, faults, strings.Join(faults, "\n"))
	for _, s := range scripts.All() {
		require.True(t, ran[s], "%s has a scenario", s.Name())
	}
}

// The check finds scripts that touch a key that they have emptied, and scripts that trust the absence of a key that
// they do not declare.
func TestScripts_LeaveNoHalf_WhileTheirSlotMigrates_FindsHalves(t *testing.T) {
	t.Parallel()
	b := newSlotBench(t)
	for name, source := range map[string]string{
		"reads what it has emptied":  "redis.call('DEL', KEYS[1])\nreturn redis.call('EXISTS', KEYS[1])\n",
		"fills what it has emptied":  "redis.call('DEL', KEYS[1])\nredis.call('SET', KEYS[1], 2)\nreturn 1\n",
		"hides that it failed":       "redis.call('DEL', KEYS[1])\nredis.pcall('SET', KEYS[1], 2)\nreturn 1\n",
		"trusts that a key is gone":  "redis.call('SET', KEYS[1], redis.call('EXISTS', '" + slotTag + "other'))\nreturn 1\n",
		"replies what it has not":    "redis.call('SET', KEYS[1], 2)\nreturn redis.pcall('EXISTS', '" + slotTag + "other')\n",
		"fails before it does a bit": "redis.call('EXISTS', '" + slotTag + "absent')\nredis.call('SET', KEYS[1], 2)\nreturn 1\n",
	} {
		state := words("SET name 1\n SET other 1")
		s := scenario{script: scripts.NewScript(name, source), what: "held", state: state, keys: []string{"name"}}
		require.NotEmpty(t, b.faults(s), name)
	}
	good := scenario{script: scripts.NewScript("sets", "redis.call('SET', KEYS[1], 2)\nreturn 1\n"), state: words("SET name 1"), keys: []string{"name"}}
	require.Empty(t, b.faults(good))
}
