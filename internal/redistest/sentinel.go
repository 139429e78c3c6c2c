package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is the name of the primary in the Sentinels' configuration.
const MasterName = "main"

const (
	replicas  = 2
	sentinels = 3
)

// Sentinel is a primary with two replicas, watched by three Sentinels.
type Sentinel struct {
	// Primary and Replicas are the servers in their first roles. Failovers do
	// not move them.
	Primary   *Server
	Replicas  []*Server
	Sentinels []*Server
}

// StartSentinel starts the servers and their Sentinels and returns once all of them know each other. A
// primary counts as down after 1 s; two Sentinels must agree. Each of args is one word of the command line of
// the data servers. It takes a few seconds and skips the test under -short.
func StartSentinel(tb testing.TB, args ...string) *Sentinel {
	tb.Helper()
	SkipIfShort(tb)
	ctx, cancel := context.WithTimeout(context.Background(), formTimeout)
	defer cancel()
	args = append([]string{"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"}, args...)
	g := &Sentinel{Primary: startOwned(tb, args, "")}
	host, port, _ := strings.Cut(g.Primary.Addr(), ":")
	for range replicas {
		g.Replicas = append(g.Replicas, startOwned(tb, append([]string{"--replicaof", host, port}, args...), ""))
	}
	conf := strings.Join([]string{
		fmt.Sprintf("sentinel monitor %s %s %s 2", MasterName, host, port),
		fmt.Sprintf("sentinel down-after-milliseconds %s 1000", MasterName),
		fmt.Sprintf("sentinel failover-timeout %s 5000", MasterName),
		"",
	}, "\n")
	for range sentinels {
		g.Sentinels = append(g.Sentinels, startOwned(tb, nil, conf))
	}
	if err := g.awaitReady(ctx); err != nil {
		tb.Fatalf("redistest: start the Sentinels: %v", err)
	}
	return g
}

// Client returns a client that follows the primary and is closed with the test.
func (g *Sentinel) Client(tb testing.TB, opts ...func(*redis.FailoverOptions)) *redis.Client {
	tb.Helper()
	o := &redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: addrs(g.Sentinels)}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewFailoverClient(o)
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// ClusterClient returns the client of redis.NewFailoverClusterClient, which is closed with the test.
func (g *Sentinel) ClusterClient(tb testing.TB, opts ...func(*redis.FailoverOptions)) *redis.ClusterClient {
	tb.Helper()
	o := &redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: addrs(g.Sentinels)}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewFailoverClusterClient(o)
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// SentinelClients are the clients of a primary that Sentinels watch, by name. That of Hidden connects through a proxy,
// which does not tell the address of the server.
var SentinelClients = map[string]func(testing.TB, *Sentinel) redis.UniversalClient{
	"FailoverClient":        func(tb testing.TB, g *Sentinel) redis.UniversalClient { return g.Client(tb) },
	"FailoverClusterClient": func(tb testing.TB, g *Sentinel) redis.UniversalClient { return g.ClusterClient(tb) },
	"FailoverClient, hidden": func(tb testing.TB, g *Sentinel) redis.UniversalClient {
		return g.Client(tb, func(o *redis.FailoverOptions) { o.Dialer = DialHidden })
	},
	"FailoverClusterClient, hidden": func(tb testing.TB, g *Sentinel) redis.UniversalClient {
		return g.ClusterClient(tb, func(o *redis.FailoverOptions) { o.Dialer = DialHidden })
	},
}

// DialHidden is a Dialer whose connections do not tell the address of the server, like those through a SOCKS proxy.
func DialHidden(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return hiddenConn{conn}, nil
}

type hiddenConn struct{ net.Conn }

func (hiddenConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero} }

// Isolate disconnects the primary from the Sentinels and its replicas, and refuses new connections to it.
// Existing connections of clients go on, so the primary looks alive to them. The Sentinels promote a replica.
// Isolate returns a client of the old primary.
func (g *Sentinel) Isolate(tb testing.TB) (old *redis.Client) {
	tb.Helper()
	ctx := context.Background()
	old = g.Primary.Client(tb, func(o *redis.Options) {
		o.PoolSize, o.PipelinePoolSize, o.MaxRetries = 1, -1, -1
	})
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatalf("redistest: isolate the primary: %v", err)
		}
	}
	check(old.Do(ctx, "acl", "setuser", "default", "off").Err()) // refuses new connections
	clients, err := old.ClientList(ctx).Result()
	check(err)
	for line := range strings.Lines(clients) {
		fields := make(map[string]string)
		for field := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(field, "=")
			fields[name] = value
		}
		if strings.HasPrefix(fields["name"], "sentinel-") || strings.Contains(fields["flags"], "S") {
			check(old.ClientKillByFilter(ctx, "id", fields["id"]).Err())
		}
	}
	return old
}

// AwaitFailover waits until every Sentinel reports another primary than the first.
func (g *Sentinel) AwaitFailover(tb testing.TB) {
	tb.Helper()
	for _, s := range g.Sentinels {
		rdb := redis.NewSentinelClient(&redis.Options{Addr: s.Addr()})
		Poll(tb, func() bool {
			addr, err := rdb.GetMasterAddrByName(context.Background(), MasterName).Result()
			return err == nil && strings.Join(addr, ":") != g.Primary.Addr()
		})
		_ = rdb.Close()
	}
}

// awaitReady waits until the replicas follow and every Sentinel knows all other servers.
func (g *Sentinel) awaitReady(ctx context.Context) error {
	for _, s := range g.Replicas {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
		defer rdb.Close()
		if err := awaitReports(ctx, []*redis.Client{rdb}, replication, "master_link_status:up"); err != nil {
			return err
		}
	}
	for i, s := range g.Sentinels {
		rdb := redis.NewSentinelClient(&redis.Options{Addr: s.Addr()})
		defer rdb.Close()
		var state map[string]string
		settled := func() bool {
			state, _ = rdb.Master(ctx, MasterName).Result()
			return state["flags"] == "master" &&
				state["num-slaves"] == strconv.Itoa(replicas) &&
				state["num-other-sentinels"] == strconv.Itoa(sentinels-1)
		}
		if err := pollUntil(ctx, settled); err != nil {
			return fmt.Errorf("sentinel %d: %w; it knows %v", i, err, state)
		}
	}
	return nil
}

// sentinelLine writes the configuration unless an earlier run left one, since a Sentinel keeps its file up to
// date itself.
func (s *Server) sentinelLine() ([]string, error) {
	path := filepath.Join(s.dir, "sentinel.conf")
	if _, err := os.Stat(path); err != nil || !s.logged("Sentinel ID is") {
		conf := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\n%s", s.port, s.dir, s.conf)
		if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
			return nil, err
		}
	}
	return []string{path, "--sentinel"}, nil
}
