package check_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/check"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// all is a need of every command that has a probe.
func all() []check.Needs {
	return []check.Needs{
		{For: "everything", Scripts: scripts.All(), Commands: []string{"multi", "exec", "hgetall", "wait"}},
		check.Listening("", "channel"),
	}
}

// newClient is a client with all needs.
func newClient(rdb redis.UniversalClient, needs ...check.Needs) *check.Client {
	if needs == nil {
		needs = all()
	}
	return &check.Client{
		Package: "check", Base: rdb, Needs: needs, Keeps: "locks", Lease: 30 * time.Second,
		Channel: func(name string) string { return "channel:{" + name + "}" },
	}
}

// Each command of each script can be probed.
func TestProbes_AreComplete(t *testing.T) {
	t.Parallel()
	for _, s := range scripts.All() {
		require.Subset(t, check.Probed(), s.Commands(), s.Name())
	}
}

// The probes of all commands leave what the server holds as it is, also where the user may do nothing but some.
func TestProbes_ChangeNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	ctx := t.Context()
	require.NoError(t, admin.HSet(ctx, "a", "f", "v", "mode", "read").Err())
	require.NoError(t, admin.ZAdd(ctx, "b", redis.Z{Member: "m"}).Err())
	require.NoError(t, admin.RPush(ctx, "c", "m").Err())
	require.NoError(t, admin.Set(ctx, "d", "1", time.Hour).Err())
	dump := func() (keys map[string]string) {
		keys = map[string]string{}
		names, err := admin.Keys(ctx, "*").Result()
		require.NoError(t, err)
		for _, key := range names {
			keys[key] = admin.Dump(ctx, key).Val()
			require.Equal(t, key == "d", admin.TTL(ctx, key).Val() > 0, key)
		}
		return keys
	}
	before := dump()
	needs := append(all(), check.Needs{For: "keys", Keys: []string{"a", "b", "c", "d"}})
	report := check.Run(ctx, newClient(admin, needs...))
	require.NoError(t, report.Err(), "%v", report)
	require.Empty(t, report.Missing())
	require.Equal(t, before, dump())
	for _, right := range report.Rights {
		if right[0] != '+' {
			continue
		}
		rdb := server.Client(t, server.User(t, "only", "~*", "&*", "-@all", right))
		report := check.Run(ctx, newClient(rdb, needs...))
		require.Greater(t, len(report.Missing()), 30, "with %s alone: %v", right, report)
		require.NotContains(t, report.Missing(), right)
		redistest.Poll(t, func() bool { return admin.DBSize(ctx).Val() == int64(len(before)) }) // within a second
		require.Equal(t, before, dump(), "with %s alone", right)
	}
}

// answer is an error of a server.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

// The answers of all supported servers are understood.
func TestJudge(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{
		// Redis 6.2
		"NOPERM this user has no permissions to run the 'get' command or its subcommand":          check.NoCommand,
		"NOPERM this user has no permissions to access one of the keys used as arguments":         check.NoKey,
		"NOPERM this user has no permissions to access one of the channels used as arguments":     check.NoChannel,
		"ERR Unknown subcommand or wrong number of arguments for 'SHARDNUMSUB'. Try PUBSUB HELP.": check.NotThere,
		"ERR unknown command `SPUBLISH`, with args beginning with: ":                              check.NotThere,
		// Redis 7.0
		"NOPERM this user has no permissions to run the 'cluster|slots' command":                                    check.NoCommand,
		"EXECABORT Transaction discarded because of: NOPERM this user has no permissions to run the 'exec' command": check.NoCommand,
		"ERR unknown command 'SPUBLISH', with args beginning with: ":                                                check.NotThere,
		// Redis 7.2 and later, Valkey
		"NOPERM User keychannel has no permissions to run the 'get' command": check.NoCommand,
		"NOPERM No permissions to access a key":                              check.NoKey,
		"NOPERM No permissions to access a channel":                          check.NoChannel,
		// all
		"READONLY You can't write against a read only replica.":                                   check.Unserviceable,
		"OOM command not allowed when used memory > 'maxmemory'.":                                 check.Unserviceable,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist": check.Unserviceable,
		"NOREPLICAS Not enough good replicas to write.":                                           check.Unserviceable,
		"CLUSTERDOWN The cluster is down":                                                         check.Unserviceable,
		"LOADING Redis is loading the dataset in memory":                                          check.Unserviceable,
		"NOAUTH Authentication required.":                                                         check.Unserviceable,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                       check.Allowed,
		"ERR value is not a valid float":                                                          check.Allowed,
		"ERR wrong number of arguments for 'hset' command":                                        check.Allowed,
		"NOSCRIPT No matching script. Please use EVAL.":                                           check.Allowed,
		"ERR EXEC without MULTI":                                                                  check.Allowed,
	} {
		require.Equal(t, want, check.Judge(answer(text)), text)
	}
	require.Equal(t, check.Allowed, check.Judge(nil))
	require.Equal(t, check.Allowed, check.Judge(redis.Nil))
	require.Equal(t, check.Unreachable, check.Judge(errors.New("connection refused")))
}

func TestOlder(t *testing.T) {
	t.Parallel()
	for version, older := range map[string]bool{
		"6.0.16": true, "5.0": true, "6.1.99": true, "6.2": false, "6.2.0": false, "6.2.16": false, "7.0.15": false, "10.0": false,
	} {
		require.Equal(t, older, check.Older(version, check.Lowest), version)
	}
}
