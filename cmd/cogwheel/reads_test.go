package main_test

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// dump returns every key with its content and the instant at which it expires.
func dump(t *testing.T, rdb *redis.Client) map[string]string {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	all := map[string]string{}
	for _, key := range keys {
		content, err := rdb.Dump(t.Context(), key).Result()
		require.NoError(t, err)
		ends, err := rdb.Do(t.Context(), "PEXPIRETIME", key).Text()
		if err != nil { // before Redis 7
			ends = ""
		}
		all[key] = content + ends
	}
	return all
}

// inspect, permits, limit and tasks leave every key as it was.
func TestReads_ChangeNothing(t *testing.T) {
	t.Parallel()
	s := startService(t)
	for _, score := range []string{"1", "2"} { // permits whose leases have ended
		require.NoError(t, s.rdb.Do(t.Context(), "ZADD", "{exports}:timeout", score, "sixteen bytes :"+score).Err())
	}
	before := dump(t, s.rdb)
	require.Greater(t, len(before), 15)
	for _, r := range reads {
		must(t, s.url, r.args...)
	}
	must(t, s.url, "limit", "keys", "api")
	for name := range before {
		run(t, s.url, "inspect", name)
		run(t, s.url, "permits", name)
		run(t, s.url, "limit", name)
		run(t, s.url, "limit", "--rate", "100/h", name)
		run(t, s.url, "tasks", name)
		require.Equal(t, 2, run(t, s.url, "unlock", name).status&2|2)
	}
	require.Equal(t, before, dump(t, s.rdb))
	must(t, s.url, "unlock", "--force", "stock:42")
	require.NotEqual(t, before, dump(t, s.rdb), "a change is seen")
}

// A user that may only read can use inspect, permits, limit and tasks. This is the user of docs/tool.md.
func TestReads_NeedRightsToReadOnly(t *testing.T) {
	t.Parallel()
	s := startService(t)
	text, err := os.ReadFile("../../docs/tool.md")
	require.NoError(t, err)
	line := regexp.MustCompile(`ACL SETUSER looker on >PASSWORD (.*)`).FindSubmatch(text)
	require.NotNil(t, line)
	s.server.User(t, "looker", strings.Fields(string(line[1]))...)
	u, err := url.Parse(s.url)
	require.NoError(t, err)
	u.User = url.UserPassword("looker", "secret")
	for _, r := range reads {
		must(t, u.String(), r.args...)
	}
	r := run(t, u.String(), "unlock", "--force", "stock:42")
	require.Equal(t, 3, r.status)
	require.Contains(t, r.stderr, "lacks a right")
	s.requireHolders(t, "stock:42", 1)
}

// A Redis at its memory limit shows everything, frees locks and keys of limiters, and pauses queues.
func TestTool_OnAFullRedis(t *testing.T) {
	t.Parallel()
	s := startService(t)
	require.NoError(t, s.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	t.Cleanup(func() { _ = s.rdb.ConfigSet(context.Background(), "maxmemory", "0").Err() }) // the service ends first
	for _, r := range reads {
		must(t, s.url, r.args...)
	}
	require.Contains(t, must(t, s.url, "list"), "stock:42")
	must(t, s.url, "limit", "keys", "api")
	must(t, s.url, "limit", "reset", "--yes", "api:{user-7}")
	must(t, s.url, "unlock", "--holder", s.holderOf(t, "stock:42"), "stock:42")
	must(t, s.url, "unlock", "--force", "prices")
	must(t, s.url, "tasks", "pause", "orders")
}

// bench leaves no key behind, also when it is interrupted.
func TestBench_RemovesItsKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb, address := server.Client(t), "redis://"+server.Addr()
	text := must(t, address, "bench", "--duration", "20ms", "--callers", "4")
	require.Contains(t, text, "round trip")
	require.Regexp(t, `lock and unlock +4 callers +4 names +[1-9]\d*/s`, text)
	require.Regexp(t, `limiter decisions +4 callers +1 name +[1-9]\d*/s`, text)
	require.Contains(t, must(t, address, "bench", "--duration=20ms", "--json"), `"per_second": `)
	require.Empty(t, rdb.Keys(t.Context(), "*").Val())

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan result, 1)
	go func() { done <- runWith(ctx, address, "bench", "--duration", "1s") }()
	redistest.Poll(t, func() bool { return len(rdb.Keys(t.Context(), "cogwheel:bench:*").Val()) > 0 })
	cancel()
	require.Equal(t, 3, (<-done).status)
	require.Empty(t, rdb.Keys(t.Context(), "*").Val())
}

// check tells what a user lacks, by its exit status as well, and asks about the packages and names that it is given.
func TestCheck(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.User(t, "app", "~app:*", "~{app:*", "&*", "+@all", "-zadd")
	address := "redis://app:secret@" + server.Addr()

	r := run(t, address, "check")
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stdout, "+zadd")
	require.Contains(t, r.stderr, "calls will fail")
	require.Contains(t, must(t, "redis://"+server.Addr(), "check", "app:7"), "redislock, user default")

	require.Contains(t, run(t, address, "check", "--packages", "semaphore", "other:7").stdout, "~other:7")
	require.NotContains(t, run(t, address, "check", "--packages", "semaphore", "app:7").stdout, "~app:7")
	r = run(t, address, "check", "--json", "--packages", "redislock,ratelimit")
	var reports []struct {
		Package  string
		Findings []struct{ Level, Subject string }
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &reports))
	require.Len(t, reports, 2)
	require.Equal(t, "redislock", reports[0].Package)
	require.Equal(t, "failure", reports[1].Findings[0].Level)
	require.Equal(t, 2, run(t, address, "check", "--packages", "wheel").status)
	require.Equal(t, 2, run(t, address, "check", "a{b").status)
	require.Empty(t, server.Client(t).Keys(t.Context(), "*").Val())
}

// Each form of REDIS_URL finds the object.
func TestConnect_EachForm(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	cluster, sentinel := redistest.SharedCluster(t), redistest.StartSentinel(t)
	for _, url := range []string{
		"redis://" + cluster.Masters[0].Addr() + "?addr=" + cluster.Masters[1].Addr(),
		"redis://" + sentinel.Sentinels[0].Addr() + "?master_name=" + redistest.MasterName + "&addr=" + sentinel.Sentinels[1].Addr(),
		"redis://" + sentinel.Primary.Addr() + "/3",
	} {
		require.Contains(t, must(t, url, "bench", "--duration", "10ms", "--callers", "2"), "lock and unlock")
		r := run(t, url, "inspect", "no such name")
		require.Equal(t, 1, r.status, r.stderr)
	}
}

// In a cluster, a node alone is not enough, and the error says what is.
func TestConnect_NodeOfAClusterAlone(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	hints := 0
	for _, name := range []string{"a", "b", "c", "d"} {
		if r := run(t, "redis://"+cluster.Masters[0].Addr(), "inspect", name); r.status == 3 {
			require.Contains(t, r.stderr, "add ?addr=HOST:PORT")
			hints++
		}
	}
	require.Positive(t, hints)
}
