package check_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/check"
)

// FuzzServer judges servers that say anything about themselves: each finding is a line with a level and a
// subject.
func FuzzServer(f *testing.F) {
	f.Add("server:redis version:7.0.15 mode:standalone role:master", "maxmemory:0\r\nmaxmemory_policy:noeviction\r\n"+
		"aof_enabled:1\r\nrun_id:7", "", true)
	f.Add("server:redis version:6.0.9 mode:cluster", "maxmemory:100\nused_memory:95\nmaxmemory_policy:allkeys-lru", "", false)
	f.Add("version:", "used_memory:NaN\nmaxmemory:1e400\nmaxmemory_policy:noeviction\naof_enabled:", "", true)
	f.Add("", "", "NOPERM this user has no permissions to run the 'info' command", true)
	f.Add("version:7.-1.99999999999999999999", "redis_version:", "NOPERM", false)
	f.Add("", "", "OOM command not allowed", false)
	f.Add("", "", "EXECABORT Transaction discarded because of: ERR unknown command", false)
	f.Fuzz(func(t *testing.T, hello, info, refused string, resp3 bool) {
		var list []any
		asMap := map[any]any{}
		for pair := range strings.FieldsSeq(hello) {
			key, value, _ := strings.Cut(pair, ":")
			list, asMap[key] = append(list, key, value), value
		}
		var reply any = list
		if resp3 {
			reply = asMap
		}
		refused, _, _ = strings.Cut(refused, "\r\n") // as every error of a server
		found := check.JudgeServer(reply, info, strings.ReplaceAll(refused, "\n", " "))
		require.NotEmpty(t, found)
		for _, f := range found {
			require.Contains(t, []cogwheel.Level{cogwheel.LevelOK, cogwheel.LevelUnknown, cogwheel.LevelWarning, cogwheel.LevelFailure}, f.Level)
			require.NotEmpty(t, f.Subject)
			require.NotEmpty(t, f.Text)
			require.NotContains(t, f.Text, "\n")
			require.NotContains(t, f.Advice, "\n")
		}
	})
}
