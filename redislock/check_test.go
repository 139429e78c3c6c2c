package redislock_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// clusterRights are those that a cluster needs beside those of a single server, as docs/operations.md says.
var (
	clusterRights  = []string{"+cluster|slots", "+command"}
	shardingRights = []string{"+spublish", "+ssubscribe", "+sunsubscribe", "+pubsub|shardnumsub"} // from Redis 7 on
)

// With the documented rights locks work in a cluster, waiters are woken, and Check names the right that one of
// the nodes lacks, and that node.
func TestCheck_Cluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	documented, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	for _, right := range slices.Concat(clusterRights, shardingRights) {
		require.Regexp(t, "[` ]"+regexp.QuoteMeta(right)+"[`\\s]", string(documented))
	}
	rights := append(redistest.DocumentedRights(t, "redislock", "TestCheck"), clusterRights...)
	publish, subscribe := "+publish", "+subscribe"
	if redistest.HasShardedChannels(t) {
		rights, publish, subscribe = append(rights, shardingRights...), "+spublish", "+ssubscribe"
	}
	connect := func(name string, without map[*redistest.Server]string) *redis.ClusterClient {
		var login func(*redis.Options)
		for _, s := range cluster.Nodes() {
			var given []string
			for _, right := range rights {
				if right != without[s] {
					given = append(given, right)
				}
			}
			login = s.User(t, name, given...)
		}
		return cluster.Client(t, func(o *redis.ClusterOptions) {
			var user redis.Options
			login(&user)
			o.Username, o.Password = user.Username, user.Password
		})
	}
	c := newClient(t, connect("locks", nil), redislock.WithPoll(time.Hour))
	other := newClient(t, connect("locks", nil), redislock.WithPoll(time.Hour))
	names := namesOnThreeMasters(t, cluster)
	check := func(c *redislock.Client) (*cogwheel.Report, error) {
		m := func(i int) *redislock.Mutex { return c.FairMutex(names[i], redislock.WithFencing()) }
		rw := func(i int) *redislock.RWMutex { return c.RWMutex(names[i]) }
		return c.Check(t.Context(), m(0), rw(0), m(1), rw(1), m(2), rw(2))
	}
	for _, kind := range singleNameKinds {
		l := mustTryLock(t, newMutex(c, kind, names[0]))
		waiting := callAsync(func() (*redislock.Lock, error) {
			if kind == "read" {
				return newMutex(other, "write", names[0]).Lock(within(t, patience))
			}
			return newMutex(other, kind, names[0]).Lock(within(t, patience))
		})
		_, err := newMutex(c, kind, names[0]).State(t.Context())
		require.NoError(t, err)
		mustUnlock(t, l)
		mustUnlock(t, waiting.await(t))
	}
	report, err := check(c)
	require.NoError(t, err, "%v", report)
	require.Empty(t, report.Missing(), "%v", report)
	require.Len(t, report.Servers, 3)
	require.Equal(t, "cluster", report.Topology)
	require.Contains(t, report.String(), "3 masters serve all slots")
	poll(t, func() bool { // what the probes wrote has gone
		keys := 0
		for _, s := range cluster.Masters {
			found, err := s.Client(t).Keys(t.Context(), "*TestCheck*cogwheel_check*").Result()
			require.NoError(t, err)
			keys += len(found)
		}
		return keys == 0
	})

	node := cluster.Owner(t, names[0])
	for _, right := range []string{publish, subscribe, "+command", "+pexpire", "~redisson_lock_queue:{TestCheck*"} {
		c := newClient(t, connect("some", map[*redistest.Server]string{node: right}))
		report, _ := check(c)
		require.Len(t, report.Missing(), 1, "%s: %v", right, report)
		for _, f := range report.Findings {
			if f.Missing != nil {
				require.Equal(t, []string{node.Addr()}, f.Servers, "%v", report)
			}
		}
	}
}

// A quorum of which a minority is down can work, and is told so.
func TestCheck_Quorum(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
	var rdbs []redis.UniversalClient
	for _, s := range servers {
		rdbs = append(rdbs, s.Client(t))
	}
	q, err := redislock.NewQuorum(rdbs, redislock.WithWheel(newWheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, q.Close)
	report, err := q.Check(t.Context(), q.Mutex("orders"))
	require.NoError(t, err, "%v", report)
	require.Len(t, report.Servers, 3)
	servers[0].Kill()
	report, err = q.Check(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, "warning", report.Level())
	servers[1].Kill()
	_, err = q.Check(t.Context())
	require.ErrorContains(t, err, servers[0].Addr())
	require.ErrorContains(t, err, servers[1].Addr())
}

// Check of a server that hangs ends with its context, and says which server it is.
func TestCheck_ServerThatHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t))
	server.Pause()
	defer server.Resume()
	report, err := c.Check(within(t, 300*time.Millisecond), c.Mutex("orders"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	if report != nil { // the machine was not too busy to tell
		require.Equal(t, server.Addr(), report.Servers[0].Addr)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	_, err = c.Check(ctx)
	require.ErrorIs(t, err, why)
}
