package redislock_test

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// deployment is a single server or a cluster, with a client for each node. Tests share deployments and keep
// apart by the names of their locks.
type deployment struct {
	rdb     redis.UniversalClient // may do everything
	clients redis.UniversalClient // for lock clients
	nodes   []*redis.Client       // masters and replicas
	options redis.UniversalOptions
}

func newDeployment(t testing.TB, protocol int, servers ...*redistest.Server) *deployment {
	t.Helper()
	dep := &deployment{options: redis.UniversalOptions{Protocol: protocol, IsClusterMode: len(servers) > 1}}
	for _, s := range servers {
		dep.options.Addrs = append(dep.options.Addrs, s.Addr())
		dep.nodes = append(dep.nodes, s.Client(t))
	}
	dep.rdb = dep.connect(t)
	dep.clients = dep.rdb
	return dep
}

// asDocumentedUser has lock clients log in as the user of docs/operations.md. The names begin with prefix.
func (dep *deployment) asDocumentedUser(t testing.TB, s *redistest.Server, prefix string) *deployment {
	t.Helper()
	var o redis.Options
	s.User(t, "redislock", redistest.DocumentedRights(t, "redislock", prefix)...)(&o)
	dep.options.Username, dep.options.Password = o.Username, o.Password
	dep.clients = dep.connect(t)
	return dep
}

// singleServer and sharedCluster return deployments that all tests share. Tests do not stop or flush them,
// nor flush their scripts.
func singleServer(t testing.TB) *deployment { return newDeployment(t, 3, redistest.Shared(t)) }

func sharedCluster(t testing.TB) *deployment {
	return newDeployment(t, 3, redistest.SharedCluster(t).Nodes()...)
}

var deployments = map[string]func(testing.TB) *deployment{
	"single server": singleServer,
	"cluster":       sharedCluster,
}

// onEachDeployment runs f as a parallel subtest on each deployment.
func onEachDeployment(t *testing.T, f func(*testing.T, *deployment)) {
	t.Helper()
	for name, where := range deployments {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, where(t))
		})
	}
}

// onEachDeploymentWithThreeNames runs each check on a single server, and on a cluster where each of the three
// names belongs to a different master.
func onEachDeploymentWithThreeNames(
	t *testing.T, checks map[string]func(t *testing.T, rdb redis.UniversalClient, names [3]string),
) {
	t.Helper()
	for what, check := range checks {
		t.Run("single server: "+what, func(t *testing.T) {
			t.Parallel()
			check(t, redistest.Shared(t).Client(t), threeNames(t))
		})
		t.Run("cluster: "+what, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.SharedCluster(t)
			check(t, cluster.Client(t), namesOnThreeMasters(t, cluster))
		})
	}
}

func namesOnThreeMasters(t testing.TB, cluster *redistest.Cluster) [3]string {
	t.Helper()
	names := make(map[*redistest.Server]string)
	for len(names) < 3 {
		name := redistest.Name(t)
		names[cluster.Owner(t, name)] = name
	}
	var all []string
	for _, name := range names {
		all = append(all, name)
	}
	slices.Sort(all)
	return [3]string(all)
}

// connect returns a new client of the deployment. It is closed with the test.
func (dep *deployment) connect(t testing.TB, change ...func(*redis.UniversalOptions)) redis.UniversalClient {
	t.Helper()
	o := dep.options
	for _, f := range change {
		f(&o)
	}
	rdb := redis.NewUniversalClient(&o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// forEachMaster calls f for each master.
func (dep *deployment) forEachMaster(t testing.TB, f func(context.Context, *redis.Client) error) {
	t.Helper()
	if cluster, ok := dep.rdb.(*redis.ClusterClient); ok {
		require.NoError(t, cluster.ForEachMaster(t.Context(), f))
		return
	}
	require.NoError(t, f(t.Context(), dep.nodes[0]))
}

// keysWith returns the keys whose names contain part.
func (dep *deployment) keysWith(t testing.TB, part string) (keys []string) {
	t.Helper()
	var mu sync.Mutex
	dep.forEachMaster(t, func(ctx context.Context, rdb *redis.Client) error {
		found, err := rdb.Keys(ctx, "*"+part+"*").Result()
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, found...)
		return err
	})
	return keys
}

// hasShardedChannels reports whether waiters are woken on sharded channels.
func (dep *deployment) hasShardedChannels(t testing.TB) bool {
	t.Helper()
	return dep.options.IsClusterMode && redistest.HasShardedChannels(t)
}

// publishCommand returns the command that publishes to waiters.
func (dep *deployment) publishCommand(t testing.TB) string {
	t.Helper()
	if dep.hasShardedChannels(t) {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// channelsWith returns the channels that have subscribers and whose names contain part.
func (dep *deployment) channelsWith(t testing.TB, part string) (channels []string) {
	t.Helper()
	for _, node := range dep.nodes {
		found, err := node.PubSubChannels(t.Context(), "*"+part+"*").Result()
		require.NoError(t, err)
		channels = append(channels, found...)
		if dep.hasShardedChannels(t) {
			found, err = node.PubSubShardChannels(t.Context(), "*"+part+"*").Result()
			require.NoError(t, err)
			channels = append(channels, found...)
		}
	}
	return channels
}

func (dep *deployment) awaitSubscribed(t testing.TB, channel string) {
	t.Helper()
	poll(t, func() bool { return slices.Contains(dep.channelsWith(t, channel), channel) })
}

// nextMessage subscribes to a Redis channel, as a Java service would. The returned channel receives the next
// message.
func (dep *deployment) nextMessage(t testing.TB, channel string) <-chan string {
	t.Helper()
	subscribe := dep.rdb.Subscribe
	if dep.hasShardedChannels(t) {
		subscribe = dep.rdb.SSubscribe
	}
	sub := subscribe(t.Context(), channel)
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	heard := make(chan string, 1)
	ctx := within(t, patience)
	go func() {
		if m, err := sub.ReceiveMessage(ctx); err == nil {
			heard <- m.Payload
		}
	}()
	return heard
}

// awaitListening waits until a client that holds locks hears that they were freed by force.
func (dep *deployment) awaitListening(t testing.TB, c *redislock.Client) {
	t.Helper()
	dep.awaitSubscribed(t, clientChannel(t, c))
}

// holdsLocks is a Client or a Quorum.
type holdsLocks interface {
	Holds() iter.Seq[redislock.Hold]
}

// clientChannel returns the channel of a Client or a Quorum, which must hold a lock.
func clientChannel(t testing.TB, c holdsLocks) string {
	t.Helper()
	for h := range c.Holds() {
		client, _, _ := strings.Cut(h.ID, ":")
		return "cogwheel_client:" + client
	}
	require.Fail(t, "the client holds no lock")
	return ""
}
