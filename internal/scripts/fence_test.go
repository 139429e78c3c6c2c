package scripts_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// lockTokenScripts are the scripts that write the token counter which Redisson's RFencedLock has too.
func lockTokenScripts() (writers []*scripts.Script) {
	for _, s := range scripts.All() {
		ours := strings.HasPrefix(s.Name(), "permit") // count tokens of semaphores
		if strings.Contains(s.Source(), "fence") && !ours {
			writers = append(writers, s)
		}
	}
	return writers
}

// Java increments the counter and does not renew an expiry: with one, its tokens would fall to 1 some day.
// Guarantees: L34.
func TestTokens_TheCounterThatJavaMadeGetsNoExpiry(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	now := b.admin.Time(t.Context()).Val().UnixMilli()
	left := lockTokenScripts()
	require.Len(t, left, 7)
	for _, s := range scenarios(now) {
		if !slices.Contains(lockTokenScripts(), s.script) || !slices.Contains(s.keys, "f") {
			continue
		}
		left = slices.DeleteFunc(left, func(script *scripts.Script) bool { return script == s.script })
		for expiry, expires := range map[string]string{"": "expires=false", "PX 5000": "expires=true"} {
			with := s
			with.state = append(slices.Clone(s.state), words("SET f 7 "+expiry)...)
			_, after, err := b.run(with)
			require.NoError(t, err, "%v", s)
			require.Contains(t, after["f"], expires, "%v", s)
			if strings.Contains(s.what, "free") {
				require.NotContains(t, after["f"], "string 7 ", "%v: it writes a new token", s)
			}
		}
	}
	require.Empty(t, left, "without a scenario")
}

func TestTokens_TheCounterOfASharedNameHasNoExpiry(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shared := map[*scripts.Script][]any{
		scripts.LockAcquire:     {"me:1", 30_000, 0, 5},
		scripts.StringAcquire:   {"me:1", 30_000, 0, 5},
		scripts.WriteAcquire:    {"me:1:write", 30_000, 0, 5},
		scripts.FairLockAcquire: {"me:1", 30_000, 1, 300_000, 15_000, "PUBLISH", "c", 0},
	}
	for script, args := range shared {
		keys := []string{"n", "f"}
		if script == scripts.FairLockAcquire {
			keys = []string{"n", "q", "t", "a", "f"}
		}
		for _, state := range []string{"", "SET f 7", "SET f 7 PX 5000"} {
			_, after, err := b.run(scenario{script: script, state: words(state), keys: keys, args: args})
			require.NoError(t, err)
			require.Contains(t, after["f"], "expires=false", "%s after %q", script.Name(), state)
		}
	}
}
