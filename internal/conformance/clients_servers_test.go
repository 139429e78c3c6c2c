package conformance_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// topology is how servers are arranged.
type topology string

const (
	oneServer topology = "one server"
	sentinel  topology = "Sentinel"
	cluster   topology = "Cluster"
	shards    topology = "Ring"
)

// The clients log in as a user, so that a primary can refuse other servers.
const (
	appUser   = "app"
	appSecret = "secret"
)

var appArgs = []string{"--user", appUser, "on", ">" + appSecret, "~*", "&*", "+@all"}

const ioTimeout = time.Second // of the clients

// poolSize is that of the clients.
const poolSize = 40

// clientKinds are the kinds of clients that New accepts, and how they are made.
var clientKinds = []struct {
	name    string
	on      topology
	connect func(s *servers, dial dialer) redis.UniversalClient
}{
	{"Client", oneServer, func(s *servers, dial dialer) redis.UniversalClient {
		return redis.NewClient(&redis.Options{
			Addr: shardAddr(0), Dialer: dial, Username: appUser, Password: appSecret,
			ReadTimeout: ioTimeout, DialTimeout: ioTimeout, PoolTimeout: ioTimeout, PoolSize: poolSize,
		})
	}},
	{"FailoverClient", sentinel, func(s *servers, dial dialer) redis.UniversalClient {
		return redis.NewFailoverClient(failoverOptions(s, dial))
	}},
	{"FailoverClusterClient", sentinel, func(s *servers, dial dialer) redis.UniversalClient {
		opt := failoverOptions(s, dial)
		opt.RouteRandomly = true
		return redis.NewFailoverClusterClient(opt)
	}},
	{"ClusterClient", cluster, func(s *servers, dial dialer) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: s.cluster.Addrs(), Dialer: dial, Username: appUser, Password: appSecret, ContextTimeoutEnabled: true,
			ReadTimeout: ioTimeout, DialTimeout: ioTimeout, PoolTimeout: ioTimeout, PoolSize: poolSize,
		})
	}},
	{"Ring", shards, func(s *servers, dial dialer) redis.UniversalClient {
		addrs := map[string]string{}
		for i := range s.primaries {
			addrs[fmt.Sprint("shard", i)] = shardAddr(i)
		}
		return redis.NewRing(&redis.RingOptions{
			Addrs: addrs, Dialer: dial, Username: appUser, Password: appSecret, ContextTimeoutEnabled: true,
			ReadTimeout: ioTimeout, DialTimeout: ioTimeout, PoolTimeout: ioTimeout, PoolSize: poolSize,
		})
	}},
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

func failoverOptions(s *servers, dial dialer) *redis.FailoverOptions {
	return &redis.FailoverOptions{
		MasterName: redistest.MasterName, SentinelAddrs: s.sentinelAddrs(), Dialer: dial,
		Username: appUser, Password: appSecret, ContextTimeoutEnabled: true,
		ReadTimeout: ioTimeout, DialTimeout: ioTimeout, PoolTimeout: ioTimeout, PoolSize: poolSize,
	}
}

// shardAddr is a name, and the network knows which server it leads to.
func shardAddr(i int) string { return fmt.Sprintf("shard%d:6379", i) }

// servers are those of a test.
type servers struct {
	t         *testing.T
	net       *network
	primaries []*redistest.Server // the first one has the objects of the test
	replica   *redistest.Server   // of the first primary
	sentinel  *redistest.Sentinel
	cluster   *redistest.Cluster
}

func startServers(t *testing.T, on topology) *servers {
	t.Helper()
	s := &servers{t: t, net: newNetwork(t)}
	switch on {
	case sentinel:
		s.sentinel = redistest.StartSentinel(t, appArgs...)
		s.primaries, s.replica = []*redistest.Server{s.sentinel.Primary}, s.sentinel.Replicas[0]
		s.net.spared = s.sentinelAddrs()
		return s
	case cluster:
		s.cluster = redistest.StartCluster(t, appArgs...)
		s.primaries, s.replica = s.cluster.Masters, s.cluster.Replicas[0]
		return s
	case shards:
		for range 2 {
			s.primaries = append(s.primaries, redistest.Start(t, withData()...))
		}
	case oneServer:
	}
	s.primaries = append([]*redistest.Server{redistest.Start(t, withData()...)}, s.primaries...)
	host, port, _ := net.SplitHostPort(s.primaries[0].Addr())
	s.replica = redistest.Start(t, append(withData(), "--replicaof", host, port)...)
	for i, primary := range s.primaries {
		s.net.lead(shardAddr(i), primary)
	}
	return s
}

// withData are the arguments of a server that keeps its data when it restarts.
func withData() []string {
	return slices.Concat([]string{
		"--appendonly", "yes", "--appendfsync", "no", "--repl-diskless-sync-delay", "0",
	}, appArgs)
}

func (s *servers) sentinelAddrs() (addrs []string) {
	for _, server := range s.sentinel.Sentinels {
		addrs = append(addrs, server.Addr())
	}
	return addrs
}

// admin returns a client of a server that no fault of the network concerns.
func (s *servers) admin(of *redistest.Server) *redis.Client {
	return of.Client(s.t, func(o *redis.Options) {
		o.Username, o.Password = appUser, appSecret
		o.MaxRetries = -1
	})
}

// do sends a command to a server.
func (s *servers) do(to *redistest.Server, command string) {
	s.t.Helper()
	require.NoError(s.t, s.command(to, command), command)
}

func (s *servers) command(to *redistest.Server, command string) error {
	rdb := s.admin(to)
	defer rdb.Close()
	var args []any
	for word := range strings.FieldsSeq(command) {
		args = append(args, word)
	}
	return rdb.Do(context.Background(), args...).Err()
}

// reports waits until INFO of a server tells some words about its replication.
func (s *servers) reports(server *redistest.Server, words ...string) {
	s.t.Helper()
	rdb := s.admin(server)
	defer rdb.Close()
	redistest.Poll(s.t, func() bool {
		said, err := rdb.Info(context.Background(), "replication").Result()
		return err == nil && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(said, w+"\r\n") })
	})
}

// place returns a name that begins with base and lies on the first primary.
func (s *servers) place(rdb redis.UniversalClient, base string) string {
	s.t.Helper()
	if s.sentinel != nil {
		return base
	}
	for i := range 1000 {
		name := fmt.Sprint(base, ":", i)
		var node *redis.Client
		var err error
		addr := shardAddr(0)
		switch c := rdb.(type) {
		case *redis.Ring:
			node, err = c.GetShardClientForKey(name)
		case *redis.ClusterClient:
			addr = s.primaries[0].Addr()
			node, err = c.MasterForKey(context.Background(), name)
		default:
			return name
		}
		require.NoError(s.t, err)
		if node.Options().Addr == addr {
			return name
		}
	}
	require.Fail(s.t, "no name lies on the first primary")
	return ""
}

// replicate waits until the replicas have what was written.
func (s *servers) replicate() {
	s.t.Helper()
	replicas := 1
	if s.sentinel != nil {
		replicas = len(s.sentinel.Replicas)
	}
	rdb := s.admin(s.primaries[0])
	defer rdb.Close()
	n, err := rdb.Wait(context.Background(), replicas, redistest.Patience/10).Result()
	require.NoError(s.t, err)
	require.EqualValues(s.t, replicas, n)
}

// restartReplica restarts a node of a cluster, and waits until it is a replica and all nodes have links to it.
func (s *servers) restartReplica(node *redistest.Server) {
	s.t.Helper()
	node.Restart(s.t)
	s.reports(node, "role:slave", "master_link_status:up")
	for _, other := range s.cluster.Nodes() {
		rdb := s.admin(other)
		redistest.Poll(s.t, func() bool {
			said, err := rdb.ClusterNodes(context.Background()).Result()
			return err == nil && !strings.Contains(said, "disconnected") && !strings.Contains(said, "fail")
		})
		_ = rdb.Close()
	}
}

// promote makes a replica of a cluster the master, without a loss of data.
func (s *servers) promote(replica *redistest.Server) {
	s.t.Helper()
	rdb := s.admin(replica)
	defer rdb.Close()
	ctx := context.Background()
	var asked time.Time
	redistest.Poll(s.t, func() bool {
		if time.Since(asked) > 6*time.Second { // a manual failover is given up after 5 s
			asked = time.Now()
			_ = rdb.ClusterFailover(ctx).Err()
		}
		said, err := rdb.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(said, "role:master\r\n")
	})
}

// cutOff disconnects the first primary of a cluster from its replica.
func (s *servers) cutOff() {
	s.t.Helper()
	s.do(s.primaries[0], "acl setuser default off")
	s.do(s.primaries[0], "client kill type replica")
}

// A serverEvent is what happens to the servers or to the network.
type serverEvent struct {
	name string
	on   []topology

	// inject makes it happen, and returns when it is over. It calls r.cut when the objects' primary still serves clients,
	// and a replica that does not hear of it any more is going to take over.
	inject func(r *run)

	always []topology // on which it happens beside other tests too
	keeps  bool       // nobody loses what was held before: the new primary, if any, knows of it
	splits bool       // for a while, two servers take writes
	kept   bool       // and open connections stay with the old one for ever
	silent bool       // plain go-redis too needs the timeouts of many connections
	warns  string     // a word of the warning by which Check says that holds may be shared
}

// hang stops the first primary for longer than a lease.
func hang(r *run) {
	r.primaries[0].Pause()
	r.sleep(lease + slack)
	r.primaries[0].Resume()
}

// closeIdle makes the server close the connections, which go-redis does not notice: it cannot either under TLS.
func closeIdle(r *run) {
	r.fillPools()
	r.do(r.primaries[0], "client kill type normal")
}

// reset cuts the idle connections.
func reset(r *run) {
	r.fillPools()
	r.net.reset()
}

// forget makes the idle connections silent.
func forget(r *run) {
	r.fillPools()
	r.net.forget()
}

var serverEvents = []serverEvent{
	{name: "no fault", on: []topology{oneServer, sentinel, cluster, shards}, always: []topology{oneServer, sentinel}},
	{
		name: "failover, the old primary is alive", on: []topology{oneServer, shards}, keeps: true, splits: true, kept: true,
		inject: func(r *run) {
			r.do(r.replica, "replicaof no one")
			r.cut()
			r.net.lead(shardAddr(0), r.replica)
		},
	},
	{
		name: "failover, the old primary is alive", on: []topology{sentinel}, always: []topology{sentinel},
		keeps: true, splits: true,
		inject: func(r *run) {
			r.servers.sentinel.Isolate(r.t)
			r.cut()
			r.servers.sentinel.AwaitFailover(r.t)
		},
	},
	{
		name: "failover, the old primary is alive", on: []topology{cluster}, keeps: true, splits: true,
		inject: func(r *run) {
			r.cutOff()
			r.cut()
			r.do(r.replica, "cluster failover takeover")
			r.reports(r.replica, "role:master")
		},
	},
	{
		name: "hang", on: []topology{oneServer}, inject: hang,
	},
	{
		name: "hang", on: []topology{sentinel, cluster}, splits: true, inject: hang,
	},
	{
		name: "hang", on: []topology{shards}, splits: true, warns: "shard", inject: hang,
	},
	{
		name: "short hang", on: []topology{oneServer}, keeps: true,
		inject: func(r *run) {
			r.primaries[0].Pause()
			r.sleep(1500 * time.Millisecond)
			r.primaries[0].Resume()
		},
	},
	{
		name: "idle connections are closed by the server", on: []topology{oneServer}, keeps: true, inject: closeIdle,
	},
	{
		name: "idle connections are reset", on: []topology{oneServer, sentinel, cluster}, always: []topology{oneServer},
		keeps: true, inject: reset,
	},
	{
		name: "idle connections are silent", on: []topology{oneServer, sentinel, cluster}, keeps: true, silent: true,
		inject: forget,
	},
	// A Ring takes a shard for down if it does not reach it by the connections of its pool.
	{
		name: "idle connections are closed by the server", on: []topology{shards}, splits: true, warns: "shard",
		inject: closeIdle,
	},
	{
		name: "idle connections are reset", on: []topology{shards}, splits: true, warns: "shard", inject: reset,
	},
	{
		name: "idle connections are silent", on: []topology{shards}, splits: true, warns: "shard", silent: true,
		inject: forget,
	},
	{
		name: "idle connections lead to a replica", on: []topology{oneServer, shards}, keeps: true,
		inject: func(r *run) {
			r.fillPools()
			r.do(r.replica, "replicaof no one")
			r.net.lead(shardAddr(0), r.replica)
			r.do(r.primaries[0], "replicaof "+strings.ReplaceAll(r.replica.Addr(), ":", " "))
		},
	},
	{
		name: "rolling restart", on: []topology{oneServer, shards}, keeps: true,
		inject: func(r *run) {
			for _, server := range append(slices.Clone(r.primaries), r.replica) {
				server.Restart(r.t)
			}
		},
	},
	{
		name: "rolling restart", on: []topology{sentinel}, keeps: true, splits: true,
		inject: func(r *run) {
			g := r.servers.sentinel
			for _, server := range g.Sentinels {
				server.Restart(r.t)
			}
			for _, server := range g.Replicas {
				server.Restart(r.t)
				r.reports(server, "master_link_status:up")
			}
			redistest.Poll(r.t, func() bool {
				rdb := redis.NewClient(&redis.Options{Addr: g.Sentinels[0].Addr()})
				defer rdb.Close()
				return rdb.Do(context.Background(), "sentinel", "failover", redistest.MasterName).Err() == nil
			})
			g.AwaitFailover(r.t)
			r.reports(g.Primary, "role:slave")
			g.Primary.Restart(r.t) // as a primary without data, for up to 10 s
			r.reports(g.Primary, "role:slave", "master_link_status:up")
		},
	},
	{
		name: "rolling restart", on: []topology{cluster}, keeps: true,
		inject: func(r *run) {
			for i, replica := range r.servers.cluster.Replicas {
				r.restartReplica(replica)
				r.promote(replica)
				r.restartReplica(r.servers.cluster.Masters[i])
			}
		},
	},
}
