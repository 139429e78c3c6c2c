package check_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/check"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// Rights are patterns for all keys and channels of a name: with the advised line, the user lacks nothing.
func TestRun_AdvisesPatternsThatSuffice(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--acl-pubsub-default", "resetchannels")
	for _, c := range []struct{ name, key, channel, right, hears string }{
		{"a", "a", "redisson_lock__channel:{a}", "~a", "&redisson_lock__channel:{a}"},
		{"a", "{a}:7f3:rwlock_timeout:1", "redisson_lock__channel:{a}:7f3", "~{a}:*", "&redisson_lock__channel:{a}:*"},
		{"a", "redisson_lock_token:{a}", "c:{a}", "~redisson_lock_token:{a}", "&c:{a}"},
		{"a:{7}", "a:{7}", "c:a:{7}:7f3", "~a:{7}", "&c:a:{7}:*"},
		{"a:{7}:b", "a:{7}:b", "c:a:{7}:b:7f3", "~a:{7}:b", "&c:a:{7}:b:*"},
		{"", "api:{" + check.Sample + "}:window", "to:" + check.Sample, "~api:{*", "&to:*"},
		{"", "api:{}:window", "to:{}:a", "~api:{}:window", "&to:{}:a"},
		{"two words", "two words", "c:{two words}:1", "~two?words", "&c:{two?words}:*"},
		{`*?[x]\`, `{*?[x]\}:1`, `*?[x]\`, `~{\*\?\[x\]\\}:*`, `&\*\?\[x\]\\`},
		{"é\n", "é\n", "é\n", "~???", "&???"},
	} {
		needs := append(all(), check.Needs{For: "it", Name: c.name, Keys: []string{c.key}}, check.Listening(c.name, c.channel))
		run := func(rights ...string) []string {
			rdb := server.Client(t, server.User(t, "app", append([]string{"+@all", "~cogwheel_check:*", "&channel", "&probe:*"}, rights...)...))
			client := newClient(rdb, needs...)
			client.Channel = func(name string) string { return "probe:" + name }
			return check.Run(t.Context(), client).Missing()
		}
		missing := run()
		require.ElementsMatch(t, []string{c.right, c.hears}, missing, c.key)
		require.Empty(t, run(missing...), c.key)
	}
}

// What the report says of a refused key is the pattern too.
func TestRun_NamesThePatternOfARefusedKey(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t, server.User(t, "app", "+@all", "&*"))
	r := check.Run(t.Context(), newClient(rdb, append(all(), check.Needs{
		For: "it", Name: "a", Keys: []string{"{a}:call:1:f00", "{a}:call:2:f00"},
	})...))
	require.Equal(t, []string{"~{a}:*"}, r.Missing())
	require.NotContains(t, r.String(), "f00")
	require.Contains(t, r.String(), "user app may not use the key {a}:*: it will fail")
	var unwrapped interface{ Unwrap() []error }
	require.ErrorAs(t, r.Err(), &unwrapped)
	require.True(t, redis.HasErrorPrefix(unwrapped.Unwrap()[0], "NOPERM"))
}
