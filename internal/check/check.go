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

// Client describes a client of the library for a check.
type Client struct {
	Package string
	Base    redis.UniversalClient // as in client.Redis
	Needs   []Needs
	Channel func(name string) string // returns the channel of an object; nil if there are no channels
	Keeps   string                   // the objects that Redis keeps for the client, for example "locks"
	Expires string                   // what has keys with an expiry, of which policies volatile-* evict; "": Keeps
	Lease   time.Duration            // the shortest known lease; 0 if there are no leases
	Timeout time.Duration            // of decisions; 0 if there are no decisions

	// In a cluster: whether waiters are woken on sharded channels, and whether the client detects that by itself.
	Sharded, Detects bool

	mu     sync.Mutex
	clocks []clock
}

// clock is the difference between the clock of a server and the local one.
type clock struct {
	addr  string
	ahead time.Duration // of the local clock
	trip  time.Duration // round trip; ahead is exact to half of it
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
		if redisconn.HasOwnSlots(base) {
			return "slots"
		}
		return "cluster"
	case *redis.Ring:
		return "ring"
	}
	return "unknown"
}

// Run checks a client. It asks all servers at the same time, and blocks for some round trips, at most until ctx ends
// or a timeout of the client's options has passed.
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
	c.judgeRing(r)
	nodes, findings := c.nodes(ctx)
	add(r, findings...)
	var asking sync.WaitGroup
	for _, n := range nodes {
		asking.Go(func() { n.check(ctx, wanted, c.servedBy(n, nodes, keys), c.servedBy(n, nodes, channels)) })
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

// servedBy returns the keys or channels of the node n.
func (c *Client) servedBy(n *node, nodes []*node, all rights) rights {
	if len(nodes) == 1 {
		return all
	}
	here := rights{}
	for name, use := range all {
		of, err := redisconn.Node(c.Base, name)
		if err != nil || of == n.checked || of.Options().Addr == n.checked.Options().Addr {
			here[name] = use
		}
	}
	return here
}

// nodes returns the servers of the client; for a cluster, its masters.
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

// probeName returns the prefix of the keys of probes. The prefix begins with the name of the first object, so that an
// ACL pattern for names with a common prefix allows it. It has no braces.
func (c *Client) probeName() string {
	name := fmt.Sprintf(Sample+":%d:", time.Now().UnixNano()) //nolint:forbidigo // a unique name
	if len(c.Needs) > 0 && len(c.Needs[0].Keys) > 0 {
		name = strings.NewReplacer("{", "_", "}", "_").Replace(c.Needs[0].Keys[0]) + ":" + name
	}
	return name
}

// each returns the clients that forEach visits.
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

// judgeRing warns of what a Ring does to holds while a shard is away.
func (c *Client) judgeRing(r *cogwheel.Report) {
	if r.Topology == "ring" && c.Lease > 0 {
		add(r, finding{
			Level: warning, Subject: "topology",
			Text: "a Ring takes the keys of a shard that does not answer to other shards, each process as its own " +
				"connections tell: while processes disagree, and a third of the lease longer, " + c.Keeps +
				" may be held twice",
			Advice: "use Sentinel or a cluster, or WithFencing",
		})
	}
}

// masters returns the masters of a cluster, each with a key in one of its slots, and findings about the slots.
func (c *Client) masters(
	ctx context.Context, base *redis.ClusterClient, fresh string,
) (nodes []*node, findings []finding) {
	//nolint:staticcheck // Redis 6.2 has no CLUSTER SHARDS
	ask := func(ctx context.Context) ([]redis.ClusterSlot, error) { return base.ClusterSlots(ctx).Result() }
	if own := base.Options().ClusterSlots; own != nil {
		ask = own
	}
	ranges, err := ask(ctx)
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
			Text:   "nobody tells the masters of the slots: " + err.Error(),
			Advice: "look at the addresses, the network and whether the servers or Sentinels run",
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

// judgeObjects reports that the rights to keys are not known if the check was given no objects.
func (c *Client) judgeObjects(r *cogwheel.Report, given bool) {
	if !given && len(r.Servers) > 0 {
		add(r, finding{
			Level: unknown, Subject: "keys",
			Text:   "which keys and channels the user may use was not checked",
			Advice: adviceObjects,
		})
	}
}

// tellClocks reports the differences between the clocks of the servers and the local one.
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

// Majority combines the reports of independent servers, of which a majority must work, into one.
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
