package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

// Client is a client of the library that is checked.
type Client struct {
	Package string
	Base    redis.UniversalClient // one whose nodes are known, or of another type
	Needs   []Needs
	Channel func(name string) string // that of an object; nil if there are no channels
	Keeps   string                   // what Redis keeps for it, for example "locks"
	Lease   time.Duration            // the shortest that is known; 0 if there are none
	Timeout time.Duration            // of decisions; 0 if there is none

	// Of a cluster: whether waiters are woken on sharded channels, and whether the client has asked for that.
	Sharded, Detects bool

	mu     sync.Mutex
	clocks []clock
}

// clock is how far a server's clock is ahead of the local one.
type clock struct {
	addr        string
	ahead, trip time.Duration
}

func (c *Client) user() string {
	o, _ := optionsOf(c.Base)
	return cmp.Or(o.user, "default")
}

func (c *Client) topology() string {
	switch base := c.Base.(type) {
	case *redis.Client:
		if redisconn.IsSentinel(base) {
			return "sentinel"
		}
		return "single"
	case *redis.ClusterClient:
		return "cluster"
	case *redis.Ring:
		return "ring"
	}
	return "unknown"
}

// Run checks a client. It blocks for some round trips to each server, which are asked at the same time, at most
// until ctx ends or a timeout of the client's options passes.
func Run(ctx context.Context, c *Client) *cogwheel.Report {
	r := &cogwheel.Report{Package: c.Package, User: c.user(), Topology: c.topology()}
	wanted, keys, channels := commands(c.Needs), keys(c.Needs), channels(c.Needs)
	if c.Sharded {
		wanted.shard()
	}
	if r.Topology == "cluster" {
		wanted.add("cluster|slots", "every call", failure)
		wanted.add("command", routing, warning)
		if c.Detects {
			wanted.add("pubsub|shardnumsub", waking, warning)
		}
	}
	for prefix, of := range map[string]rights{"+": wanted, "~": keys, "&": channels} {
		for _, right := range of.names() {
			r.Rights = append(r.Rights, prefix+right)
		}
	}
	slices.SortFunc(r.Rights, func(a, b string) int {
		const order = "+~&"
		return cmp.Or(cmp.Compare(strings.Index(order, a[:1]), strings.Index(order, b[:1])), strings.Compare(a, b))
	})
	c.judgeOptions(r)
	nodes, findings := c.nodes(ctx)
	add(r, findings...)
	var asking sync.WaitGroup
	for _, n := range nodes {
		asking.Go(func() { n.check(ctx, wanted, c.at(n, nodes, keys), c.at(n, nodes, channels)) })
	}
	asking.Wait()
	for _, n := range nodes {
		r.Servers = append(r.Servers, n.server)
		add(r, n.findings...)
	}
	c.judgeObjects(r, len(keys) > 0)
	c.tellClocks(r)
	return merge(r)
}

// at returns those of the keys or channels that a node serves.
func (c *Client) at(n *node, nodes []*node, all rights) rights {
	if len(nodes) == 1 {
		return all
	}
	here := rights{}
	for name, use := range all {
		of, err := redisconn.Node(c.Base, name)
		if err != nil || of == n.of || of.Options().Addr == n.of.Options().Addr {
			here[name] = use
		}
	}
	return here
}

// nodes returns the servers of the client: of a cluster, the masters.
func (c *Client) nodes(ctx context.Context) (nodes []*node, findings []finding) {
	fresh := c.probeName()
	switch base := c.Base.(type) {
	case *redis.Client:
		return []*node{newNode(c, base, fresh+"0")}, nil
	case *redis.Ring:
		shards := c.each(ctx, base.ForEachShard)
		for i, shard := range shards {
			nodes = append(nodes, newNode(c, shard, fresh+strconv.Itoa(i)))
		}
		return nodes, nil
	case *redis.ClusterClient:
		return c.masters(ctx, base, fresh)
	}
	return nil, []finding{{
		Level: unknown, Subject: "topology",
		Text: fmt.Sprintf("the servers of a %T are not known, and none was asked", c.Base),
	}}
}

// probeName returns what the keys of probes begin with. It begins with the name of the first object, so that a
// pattern for names that begin alike allows it, and has no braces.
func (c *Client) probeName() string {
	name := fmt.Sprintf(Sample+":%d:", time.Now().UnixNano())
	if len(c.Needs) > 0 && len(c.Needs[0].Keys) > 0 {
		name = strings.NewReplacer("{", "_", "}", "_").Replace(c.Needs[0].Keys[0]) + ":" + name
	}
	return name
}

// each collects the clients of nodes.
func (c *Client) each(
	ctx context.Context, forEach func(context.Context, func(context.Context, *redis.Client) error) error,
) (all []*redis.Client) {
	_ = forEach(ctx, func(_ context.Context, node *redis.Client) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		all = append(all, node)
		return nil
	})
	return all
}

const slots = 16384

// masters returns the masters of a cluster, each with a key of its slots, and what is wrong with the slots.
func (c *Client) masters(
	ctx context.Context, base *redis.ClusterClient, fresh string,
) (nodes []*node, findings []finding) {
	//nolint:staticcheck // Redis 6.2 has no CLUSTER SHARDS
	ranges, err := base.ClusterSlots(ctx).Result()
	switch {
	case judge(err) == noCommand:
		return nil, []finding{refusedConnection(c.user(), err)}
	case err != nil && strings.Contains(err.Error(), "cluster support disabled"):
		return nil, []finding{{
			Level: failure, Subject: "topology", Cause: err, Text: "the server is not part of a cluster",
			Advice: "use redis.NewClient",
		}}
	case err != nil:
		return nil, []finding{{
			Level: failure, Subject: "reachable", Cause: err,
			Text:   "no node of the cluster tells its slots: " + err.Error(),
			Advice: "look at the addresses, the network and whether the servers run",
		}}
	}
	served := 0
	for _, r := range ranges {
		served += r.End - r.Start + 1
	}
	if served < slots {
		findings = append(findings, finding{
			Level: failure, Subject: "topology",
			Text:   fmt.Sprintf("%d of %d slots have no master", slots-served, slots),
			Advice: remedies["CLUSTERDOWN"],
		})
	}
	byAddr := map[string]*node{}
	masters := c.each(ctx, base.ForEachMaster)
	for i := 0; len(byAddr) < len(masters) && i < slots; i++ {
		key := fresh + strconv.Itoa(i)
		master, err := base.MasterForKey(ctx, key)
		if err != nil {
			continue
		}
		if addr := master.Options().Addr; byAddr[addr] == nil {
			byAddr[addr] = newNode(c, master, key)
			nodes = append(nodes, byAddr[addr])
		}
	}
	if served == slots {
		findings = append(findings, finding{
			Level: ok, Subject: "topology", Text: fmt.Sprintf("%d masters serve all slots", len(masters)),
		})
	}
	return nodes, findings
}

// judgeObjects says that nothing is known about keys if the check was given no objects.
func (c *Client) judgeObjects(r *cogwheel.Report, given bool) {
	if !given && len(r.Servers) > 0 {
		add(r, finding{
			Level: unknown, Subject: "keys",
			Text:   "which keys and channels the user may use was not checked",
			Advice: adviceObjects,
		})
	}
}

// tellClocks tells how far the clocks of the servers are from the local one.
func (c *Client) tellClocks(r *cogwheel.Report) {
	for _, clock := range c.clocks {
		how := "ahead of"
		if clock.ahead < 0 {
			how = "behind"
		}
		text := fmt.Sprintf("the server's clock is %v %s this one (to within %v): nothing compares the two",
			clock.ahead.Abs(), how, clock.trip.Round(100*time.Microsecond))
		add(r, finding{Level: ok, Subject: "clock", Text: text, Servers: []string{clock.addr}})
	}
}

// Majority makes one report of those of independent servers of which a majority suffices.
func Majority(reports []*cogwheel.Report) *cogwheel.Report {
	first := reports[0]
	all := &cogwheel.Report{Package: first.Package, User: first.User, Topology: "quorum", Rights: first.Rights}
	failing := 0
	ids := map[string]string{}
	for _, r := range reports {
		if r.Level() == failure {
			failing++
		}
		all.Servers = append(all.Servers, r.Servers...)
		if len(r.Servers) != 1 || r.Servers[0].RunID == "" {
			continue
		}
		addr, id := r.Servers[0].Addr, r.Servers[0].RunID
		if other, again := ids[id]; again {
			add(all, finding{
				Level: failure, Subject: "topology", Text: other + " and " + addr + " are the same server",
				Advice: "a quorum needs independent servers",
			})
		}
		ids[id] = addr
	}
	working := len(reports) - failing
	for _, r := range reports {
		for _, f := range r.Findings {
			if f.Level == failure && working > len(reports)/2 {
				f.Level = warning
				f.Text += fmt.Sprintf(" (the other servers suffice: %d of %d can work)", working, len(reports))
			}
			add(all, f)
		}
	}
	return merge(all)
}
