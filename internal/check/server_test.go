package check_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/check"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// requireFinding requires a finding of the level about the subject whose text contains part.
func requireFinding(t *testing.T, r *cogwheel.Report, level cogwheel.Level, subject, part string) {
	t.Helper()
	require.True(t, slices.ContainsFunc(r.Findings, func(f cogwheel.Finding) bool {
		return f.Level == level && f.Subject == subject && strings.Contains(f.Text, part)
	}), "%s %s %q in\n%v", level, subject, part, r)
	require.Equal(t, r.Err() != nil, r.Level() == cogwheel.LevelFailure)
}

// A server that cannot serve locks is a failure, and the answer of the server is in the error.
func TestRun_ServersThatCannotServe(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		args          []string
		config        []string
		subject, text string
	}{
		"a replica":               {args: []string{"--replicaof", "127.0.0.1", "1"}, subject: "writable", text: "a replica"},
		"short of memory":         {config: []string{"maxmemory", "1"}, subject: "writable", text: "OOM"},
		"without enough replicas": {config: []string{"min-replicas-to-write", "1"}, subject: "writable", text: "NOREPLICAS"},
		"with a password":         {config: []string{"requirepass", "secret"}, subject: "reachable", text: "NOAUTH"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.args...)
			if c.config != nil {
				require.NoError(t, server.Client(t).ConfigSet(t.Context(), c.config[0], c.config[1]).Err())
			}
			r := check.Run(t.Context(), newClient(server.Client(t)))
			requireFinding(t, r, cogwheel.LevelFailure, c.subject, c.text)
			require.Regexp(t, `^check: check: [^\n]*$`, r.Err().Error())
		})
	}
	server := redistest.Start(t)
	rdb := server.Client(t)
	requireFinding(t, check.Run(t.Context(), newClient(rdb)), cogwheel.LevelOK, "writable", "takes writes")
	server.Kill()
	r := check.Run(t.Context(), newClient(rdb))
	requireFinding(t, r, cogwheel.LevelFailure, "reachable", "refused")
	require.Len(t, r.Servers, 1)
}

// Managed services and proxies lack commands.
func TestRun_ServerWithoutSubscribe(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--rename-command", "SUBSCRIBE", "", "--rename-command", "INFO", "")
	r := check.Run(t.Context(), newClient(server.Client(t)))
	requireFinding(t, r, cogwheel.LevelWarning, "commands", "SUBSCRIBE")
	requireFinding(t, r, cogwheel.LevelUnknown, "memory", "does not tell")
	require.NoError(t, r.Err())
}

// A server that refuses the user, or an option of the connection, is told from one that is down.
func TestRun_UsersThatCannotConnect(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	wrong := func(o *redis.Options) { o.Username, o.Password = "unknown", "wrong" }
	r := check.Run(t.Context(), newClient(server.Client(t, wrong)))
	requireFinding(t, r, cogwheel.LevelFailure, "reachable", "WRONGPASS")
	db := func(o *redis.Options) { o.DB = 1 }
	r = check.Run(t.Context(), newClient(server.Client(t, server.User(t, "app", "~*", "&*", "+@all", "-select"), db)))
	requireFinding(t, r, cogwheel.LevelFailure, "reachable", "connections are refused")
	require.Equal(t, []string{"+select"}, r.Missing())
}

// Writes are refused also where the user may not use the key of the check: those on the keys of objects tell.
func TestRun_FindsOutAboutWritesOnTheKeysOfObjects(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	require.NoError(t, admin.HSet(t.Context(), "app:a", "holder", 1).Err())
	user := server.Client(t, server.User(t, "app", "~app:a", "&*", "+@all"))
	needs := check.Needs{For: "it", Commands: []string{"set"}, Keys: []string{"app:a"}}
	r := check.Run(t.Context(), newClient(user, needs))
	requireFinding(t, r, cogwheel.LevelOK, "writable", "takes writes")
	require.Equal(t, "1", admin.HGet(t.Context(), "app:a", "holder").Val())
	require.NoError(t, admin.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	r = check.Run(t.Context(), newClient(user, needs))
	requireFinding(t, r, cogwheel.LevelFailure, "writable", "NOREPLICAS")
	needs.Keys = nil
	r = check.Run(t.Context(), newClient(user, needs))
	requireFinding(t, r, cogwheel.LevelUnknown, "writable", "not known")
}

// A server that hangs is told when the context ends.
func TestRun_ServerThatHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	server.Pause()
	defer server.Resume()
	r := check.Run(redistest.Within(t, 300*time.Millisecond), newClient(rdb))
	requireFinding(t, r, cogwheel.LevelFailure, "reachable", "no answer")
}

func TestRun_Eviction(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	for _, c := range []struct {
		limit, policy string
		level         cogwheel.Level
		text          string
	}{
		{"0", "allkeys-lru", cogwheel.LevelOK, "no maxmemory"},
		{"1gb", "noeviction", cogwheel.LevelOK, "no key is evicted"},
		{"1gb", "allkeys-lfu", cogwheel.LevelWarning, "allkeys-lfu may evict locks"},
		{"1gb", "volatile-ttl", cogwheel.LevelWarning, "volatile-ttl may evict locks"},
		{"900kb", "noeviction", cogwheel.LevelWarning, "of maxmemory are used"},
	} {
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", c.limit).Err())
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", c.policy).Err())
		requireFinding(t, check.Run(t.Context(), newClient(rdb)), c.level, "memory", c.text)
	}
}

func TestRun_Options(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) {
		o.ReadTimeout, o.DialTimeout, o.PoolTimeout, o.PoolSize = 11*time.Second, 12*time.Second, 9*time.Second, 1
	})
	r := check.Run(t.Context(), newClient(rdb))
	require.NoError(t, r.Err())
	requireFinding(t, r, cogwheel.LevelWarning, "options", "ReadTimeout 11s is more than a third of the lease of 30s")
	requireFinding(t, r, cogwheel.LevelWarning, "options", "DialTimeout 12s")
	requireFinding(t, r, cogwheel.LevelWarning, "options", "PoolSize 1")
	require.NotContains(t, r.String(), "PoolTimeout 9s is more")
	requireFinding(t, r, cogwheel.LevelOK, "options", "after up to 48.2s") // four tries, and pauses of 30, 50 and 90 ms
	r = check.Run(t.Context(), newClient(server.Client(t, func(o *redis.Options) {
		o.ReadTimeout, o.DialTimeout, o.MaxRetries = time.Second, time.Second, 2
		o.MinRetryBackoff, o.MaxRetryBackoff = 2*time.Second, 3*time.Second
	})))
	requireFinding(t, r, cogwheel.LevelOK, "options", "after up to 9s")
	r = check.Run(t.Context(), newClient(server.Client(t)))
	require.Equal(t, cogwheel.LevelUnknown, r.Level(), "the defaults are fine: %v", r)
}

type anyClient redis.UniversalClient

// What fits only another client is told, with the client that fits.
func TestRun_ClientsThatDoNotFit(t *testing.T) {
	t.Parallel()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{redistest.Start(t).Addr()}})
	defer cluster.Close()
	requireFinding(t, check.Run(t.Context(), newClient(cluster)), cogwheel.LevelFailure, "topology", "not part of a cluster")
	node := redistest.Start(t, "--cluster-enabled", "yes")
	r := check.Run(t.Context(), newClient(node.Client(t)))
	requireFinding(t, r, cogwheel.LevelFailure, "topology", "the client is for one server")
	requireFinding(t, r, cogwheel.LevelFailure, "writable", "CLUSTERDOWN")
	half := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{node.Addr()}})
	defer half.Close()
	require.NoError(t, node.Client(t).ClusterAddSlotsRange(t.Context(), 0, 9999).Err())
	requireFinding(t, check.Run(t.Context(), newClient(half)), cogwheel.LevelFailure, "topology", "6384 of 16384 slots have no master")
	r = check.Run(t.Context(), newClient(struct{ anyClient }{cluster}))
	requireFinding(t, r, cogwheel.LevelUnknown, "topology", "not known")
}

// A majority suffices for a quorum, of servers that are not the same.
func TestMajority(t *testing.T) {
	t.Parallel()
	var servers []*redistest.Server
	var reports []*cogwheel.Report
	for range 3 {
		servers = append(servers, redistest.Start(t))
	}
	run := func(n ...int) *cogwheel.Report {
		reports = nil
		for _, i := range n {
			reports = append(reports, check.Run(t.Context(), newClient(servers[i].Client(t))))
		}
		return check.Majority(reports)
	}
	r := run(0, 1, 2)
	require.NoError(t, r.Err())
	require.Len(t, r.Servers, 3)
	require.Equal(t, "quorum", r.Topology)
	requireFinding(t, run(0, 1, 1), cogwheel.LevelFailure, "topology", "are the same server")
	servers[1].Kill()
	r = run(0, 1, 2)
	require.NoError(t, r.Err())
	requireFinding(t, r, cogwheel.LevelWarning, "reachable", "2 of 3 can work")
	servers[2].Kill()
	r = run(0, 1, 2)
	requireFinding(t, r, cogwheel.LevelFailure, "reachable", "no answer")
	require.NotContains(t, r.String(), "suffice")
}

func TestReport(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	r := check.Run(t.Context(), newClient(server.Client(t, server.User(t, "app", "~*", "&*", "+@all", "-pexpire", "-wait"))))
	require.EqualError(t, r.Err(), "check: check: user app may not run PEXPIRE, WAIT: everything will fail")
	require.Equal(t, []string{"+pexpire", "+wait"}, r.Missing())
	lines := strings.Split(r.String(), "\n")
	require.Equal(t, "check, user app, single", lines[0])
	require.Equal(t, "  "+server.Addr()+"  "+r.Servers[0].Name+" "+r.Servers[0].Version+", standalone, master", lines[1])
	require.Equal(t, "failure  commands     user app may not run PEXPIRE, WAIT: everything will fail", lines[2])
	require.Equal(t, strings.Repeat(" ", 22)+"-> ACL SETUSER app +pexpire +wait", lines[3])
	text, err := json.Marshal(r)
	require.NoError(t, err)
	var back cogwheel.Report
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, r.String(), back.String())
	require.Equal(t, cogwheel.LevelFailure, back.Level())
	empty, err := json.Marshal(&cogwheel.Report{})
	require.NoError(t, err)
	require.NotContains(t, string(empty), "null")
	var unwrapped interface{ Unwrap() []error }
	require.ErrorAs(t, r.Err(), &unwrapped)
	require.True(t, redis.HasErrorPrefix(unwrapped.Unwrap()[0], "NOPERM"))
	require.NoError(t, (&cogwheel.Report{Findings: []cogwheel.Finding{{Level: cogwheel.LevelWarning}}}).Err())
}

// A Ring is checked shard by shard, and the defaults of its clients count.
func TestRun_Ring(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{
		"a": redistest.Start(t).Addr(), "b": redistest.Start(t).Addr(),
	}})
	defer ring.Close()
	r := check.Run(t.Context(), newClient(ring, append(all(), check.Needs{For: "it", Keys: []string{"{x}:1", "{x}:2"}})...))
	require.NoError(t, r.Err(), "%v", r)
	require.Len(t, r.Servers, 2)
	requireFinding(t, r, cogwheel.LevelOK, "writable", "takes writes")
	requireFinding(t, r, cogwheel.LevelOK, "options", "DialTimeout 5s")
	require.NotContains(t, r.String(), "PoolSize 0")
	requireFinding(t, r, cogwheel.LevelWarning, "topology", "locks may be held twice")
	limits := newClient(ring, all()...)
	limits.Lease = 0
	require.NotContains(t, check.Run(t.Context(), limits).String(), "held twice", "nothing is held")
}

// A FailoverClusterClient has no cluster, and needs no rights that only a cluster has.
func TestRun_FailoverClusterClient(t *testing.T) {
	t.Parallel()
	g := redistest.StartSentinel(t)
	rdb := g.ClusterClient(t)
	client := newClient(rdb, append(all(), check.Needs{For: "it", Keys: []string{"x"}})...)
	client.Detects = true
	r := check.Run(t.Context(), client)
	require.NoError(t, r.Err(), "%v", r)
	require.Equal(t, "slots", r.Topology)
	require.Len(t, r.Servers, 1)
	require.True(t, strings.HasSuffix(g.Primary.Addr(), r.Servers[0].Addr), "go-redis leaves out a loopback host")
	require.Equal(t, "master", r.Servers[0].Role)
	requireFinding(t, r, cogwheel.LevelOK, "topology", "1 masters serve all slots")
	require.NotContains(t, r.Rights, "+cluster|slots")
	require.NotContains(t, r.Rights, "+pubsub|shardnumsub")
}

// A policy volatile-* evicts keys with an expiry alone, which the objects of a package need not have.
func TestRun_EvictionOfKeysWithAnExpiry(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1gb").Err())
	for policy, evicts := range map[string]string{"volatile-lru": "may evict tokens when", "allkeys-lru": "may evict tasks when"} {
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", policy).Err())
		client := newClient(rdb)
		client.Keeps, client.Expires = "tasks", "tokens"
		requireFinding(t, check.Run(t.Context(), client), cogwheel.LevelWarning, "memory", policy+" "+evicts)
	}
}

// keyHook gives the keys of scripts a prefix.
type keyHook struct{ alone, piped bool }

func (h keyHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h keyHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.change(h.alone, cmd)
		return next(ctx, cmd)
	}
}

func (h keyHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.change(h.piped, cmds...)
		return next(ctx, cmds)
	}
}

func (keyHook) change(on bool, cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if args := cmd.Args(); on && cmd.Name() == "eval" {
			args[3] = "app:" + args[3].(string)
		}
	}
}

// A hook that changes keys is reported: renewals have no hooks, so each hold would be lost at once.
func TestRun_AHookThatChangesKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for name, hook := range map[string]keyHook{
		"no key": {}, "of a command": {alone: true}, "of a pipeline": {piped: true}, "of both": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := server.Client(t)
			rdb.AddHook(hook)
			client := newClient(rdb)
			r := check.Run(t.Context(), client)
			if hook == (keyHook{}) {
				require.NoError(t, r.Err())
				require.NotContains(t, r.String(), "hooks")
				return
			}
			requireFinding(t, r, cogwheel.LevelFailure, "hooks", "do not find locks")
			client.Lease = 0 // limits are not renewed
			r = check.Run(t.Context(), client)
			require.NoError(t, r.Err())
			requireFinding(t, r, cogwheel.LevelWarning, "hooks", "a hook of the client changes the key")
		})
	}
	t.Run("in a cluster", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.SharedCluster(t).Client(t)
		require.NotContains(t, check.Run(t.Context(), newClient(rdb)).String(), "hooks")
		rdb.AddHook(keyHook{true, true})
		requireFinding(t, check.Run(t.Context(), newClient(rdb)), cogwheel.LevelFailure, "hooks", "do not find locks")
	})
}
