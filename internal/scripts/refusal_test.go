package scripts_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// What a server puts around errors of scripts does not reach callers, however the script is sent, and the
// error is still the server's.
func TestScripts_ErrorsAreThoseOfTheirCommands(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	key := redistest.Name(t)
	require.NoError(t, rdb.Set(t.Context(), key, "x", 0).Err())
	call := scripts.LockAcquire.Call([]string{key}, "me:1", 1000)
	for how, cmd := range map[string]*redis.Cmd{
		"alone":    scripts.LockAcquire.Run(t.Context(), rdb, call.Keys, call.Args...),
		"once":     scripts.LockAcquire.RunOnce(t.Context(), rdb, call.Keys, call.Args...),
		"in batch": scripts.RunBatch(t.Context(), rdb, []scripts.Call{call})[0],
	} {
		require.EqualError(t, cmd.Err(), "WRONGTYPE Operation against a key holding the wrong kind of value", how)
		require.True(t, redis.HasErrorPrefix(cmd.Err(), "WRONGTYPE"))
		var answer redis.Error
		require.ErrorAs(t, cmd.Err(), &answer)
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	const wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
	for said, want := range map[string]string{
		wrong: wrong,
		wrong + " script: 2fd5, on @user_script:12.":                                                                           wrong,
		"ERR Error running script (call to f_0a1b2c): @user_script:12: " + wrong:                                               wrong,
		"ERR Error running script (call to f_0a1b2c): @user_script:12: @user_script: 12: Unknown Redis command called":         "Unknown Redis command called",
		"READONLY You can't write against a read only replica. script: 9d1c, on @user_script:3.":                               "READONLY You can't write against a read only replica.",
		"ERR Error running script (call to f_0a1b2c): @user_script:12: -READONLY You can't write against a read only replica.": "READONLY You can't write against a read only replica.",
		"@user_script: 255: -READONLY You can't write against a read only replica.":                                            "READONLY You can't write against a read only replica.",
		"@user_script: 12: The user executing the script can't access at least one of the keys":                                "The user executing the script can't access at least one of the keys",
		"ERR ACL failure in script: User u has no permissions to run the 'set' command script: 9d1c, on @user_script:3.":       "ERR ACL failure in script: User u has no permissions to run the 'set' command",
		"ERR unknown command 'evalsha', with args beginning with: '2fd5' '1' 'lock' ":                                          "ERR unknown command 'evalsha'",
		"ERR unknown command `evalsha`, with args beginning with: `2fd5`, `1`, ":                                               "ERR unknown command `evalsha`",
		"NOSCRIPT No matching script. Please use EVAL.":                                                                        "NOSCRIPT No matching script. Please use EVAL.",
	} {
		require.Equal(t, want, scripts.Plain(said))
	}
}
