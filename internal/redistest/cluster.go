package redistest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	masters     = 3
	slots       = 16384
	formTimeout = 60 * time.Second
)

var clusterArgs = []string{
	"--cluster-enabled", "yes",
	"--cluster-node-timeout", "2000",
	"--cluster-allow-replica-migration", "no",
	"--repl-diskless-sync", "yes",
	"--repl-diskless-sync-delay", "0",
	"--repl-ping-replica-period", "1", // a replica without data is hidden from clients
}

// Cluster is a Redis Cluster of three masters with one replica each.
type Cluster struct {
	// Masters and Replicas are the nodes in their first roles; Replicas[i]
	// replicates Masters[i]. Failovers do not move them.
	Masters, Replicas []*Server
}

// StartCluster starts a cluster and returns once every node sees all slots served and every replica follows
// its master. A node counts as failed after 2 s; args may change that, as in [Start]. It takes a few seconds
// and skips the test under -short.
func StartCluster(tb testing.TB, args ...string) *Cluster {
	tb.Helper()
	SkipIfShort(tb)
	args = slices.Concat(clusterArgs, args)
	c := &Cluster{}
	for range masters {
		c.Masters = append(c.Masters, startOwned(tb, args, ""))
		c.Replicas = append(c.Replicas, startOwned(tb, args, ""))
	}
	c.mustForm(tb)
	return c
}

// Nodes returns all nodes, masters first.
func (c *Cluster) Nodes() []*Server {
	return append(append([]*Server(nil), c.Masters...), c.Replicas...)
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string { return addrs(c.Nodes()) }

// Client returns a client of the cluster that is closed with the test.
func (c *Cluster) Client(tb testing.TB, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	tb.Helper()
	o := &redis.ClusterOptions{Addrs: c.Addrs()}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClusterClient(o)
	tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Owner returns the node that is now the master of the key's slot.
func (c *Cluster) Owner(tb testing.TB, key string) *Server {
	tb.Helper()
	rdb := c.Client(tb)
	defer rdb.Close()
	master, err := rdb.MasterForKey(context.Background(), key)
	if err != nil {
		tb.Fatal(err)
	}
	for _, s := range c.Nodes() {
		if s.Addr() == master.Options().Addr {
			return s
		}
	}
	tb.Fatalf("redistest: %s is no node of the cluster", master.Options().Addr)
	return nil
}

func (c *Cluster) mustForm(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), formTimeout)
	defer cancel()
	if err := c.form(ctx); err != nil {
		tb.Fatalf("redistest: form the cluster: %v", err)
	}
}

// form joins the single nodes into a cluster.
func (c *Cluster) form(ctx context.Context) error {
	var clients []*redis.Client
	for i, s := range c.Nodes() {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
		defer rdb.Close()
		clients = append(clients, rdb)
		// Distinct epochs from the start spare the nodes from resolving conflicts.
		if err := rdb.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return err
		}
	}
	for i, rdb := range clients {
		for _, other := range c.Nodes()[i+1:] {
			host, port, _ := strings.Cut(other.Addr(), ":")
			if err := rdb.ClusterMeet(ctx, host, port).Err(); err != nil {
				return err
			}
		}
	}
	for i, rdb := range clients[:masters] {
		if err := rdb.ClusterAddSlotsRange(ctx, slots*i/masters, slots*(i+1)/masters-1).Err(); err != nil {
			return err
		}
	}
	known := "cluster_known_nodes:" + strconv.Itoa(len(clients))
	if err := awaitReports(ctx, clients, clusterInfo, "cluster_state:ok", known); err != nil {
		return err
	}
	for i, rdb := range clients[masters:] {
		id, err := clients[i].ClusterMyID(ctx).Result()
		if err != nil {
			return err
		}
		if err := rdb.ClusterReplicate(ctx, id).Err(); err != nil {
			return err
		}
	}
	if err := awaitReports(ctx, clients[masters:], replication, "master_link_status:up"); err != nil {
		return err
	}
	for i, rdb := range clients {
		if err := pollUntil(ctx, func() bool { return seesReplicas(ctx, rdb) }); err != nil {
			return fmt.Errorf("node %d does not know every replica: %w", i, err)
		}
	}
	return nil
}

// seesReplicas reports whether the node lists the replica of every master to clients.
func seesReplicas(ctx context.Context, rdb *redis.Client) bool {
	ranges, err := rdb.ClusterSlots(ctx).Result() //nolint:staticcheck // Redis 6.2 has no CLUSTER SHARDS
	if err != nil || len(ranges) != masters {
		return false
	}
	for _, r := range ranges {
		if len(r.Nodes) != 2 {
			return false
		}
	}
	return true
}

func clusterInfo(ctx context.Context, rdb *redis.Client) (string, error) {
	return rdb.ClusterInfo(ctx).Result()
}

func replication(ctx context.Context, rdb *redis.Client) (string, error) {
	return rdb.Info(ctx, "replication").Result()
}

// nodeReport asks a node for a report about itself.
type nodeReport func(context.Context, *redis.Client) (string, error)

// awaitReports waits until every node's report contains all the words.
func awaitReports(ctx context.Context, clients []*redis.Client, report nodeReport, words ...string) error {
	for i, rdb := range clients {
		for _, word := range words {
			var last string
			says := func() bool {
				last, _ = report(ctx, rdb)
				return strings.Contains(last, word+"\r\n")
			}
			if err := pollUntil(ctx, says); err != nil {
				return fmt.Errorf("node %d does not say %q but:\n%s", i, word, last)
			}
		}
	}
	return nil
}

// pollUntil waits for a state of the servers that no event announces.
func pollUntil(ctx context.Context, cond func() bool) error {
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !cond() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func addrs(servers []*Server) []string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return list
}
