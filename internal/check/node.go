package check

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

// node is a server that is checked, on separate connections.
type node struct {
	client   *Client
	checked  *redis.Client // the client of this server; rdb has its options
	rdb      *redis.Client
	probeKey string // a key that no other client knows, without braces; in a cluster, in a slot of this node

	mu   sync.Mutex
	addr string // of the server of the last connection

	server   cogwheel.Server
	findings []finding
}

func newNode(c *Client, checked *redis.Client, probeKey string) *node {
	n := &node{client: c, checked: checked, probeKey: probeKey, addr: checked.Options().Addr}
	options := redisconn.OwnOptions(checked, 2) // one for commands and one for messages
	if dial := options.Dialer; redisconn.IsSentinel(checked) {
		options.Dialer = func(ctx context.Context, network, to string) (net.Conn, error) {
			conn, err := dial(ctx, network, to)
			if err == nil {
				n.mu.Lock()
				n.addr = conn.RemoteAddr().String()
				n.mu.Unlock()
			}
			return conn, err
		}
	}
	n.rdb = redis.NewClient(&options)
	return n
}

func (n *node) address() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.addr
}

// found adds a finding about the node.
func (n *node) found(f finding) {
	f.Servers = []string{n.address()}
	n.findings = append(n.findings, f)
}

// check adds the findings about the server. It stops if the server does not answer.
func (n *node) check(ctx context.Context, wanted, keys, channels rights) {
	defer n.rdb.Close()
	if !n.greet(ctx) {
		return
	}
	errs := n.probe(ctx, wanted.names())
	n.judgeCommands(wanted, errs)
	n.judgeScripts(errs)
	n.judgeWritable(ctx, errs, keys)
	n.judgeKeys(ctx, keys)
	n.judgeHooks(ctx, errs)
	n.judgeChannels(ctx, wanted, channels)
	n.tellClock(ctx)
	info, err := n.rdb.Info(ctx).Result()
	n.judgeInfo(parseInfo(info), err)
	n.removeProbe(ctx, wanted)
	if use := wanted["multi"]; use != nil {
		n.judgeCommands(rights{"multi": use}, map[string]error{"multi": n.rdb.Do(ctx, "multi").Err()})
	}
}

// greet connects, and reads the version and the role of the server by HELLO. It returns false if the check cannot go
// on.
func (n *node) greet(ctx context.Context) bool {
	hello, err := n.rdb.Do(ctx, "hello").Result()
	n.server.Addr = n.address()
	switch judge(err) {
	case unreachable:
		n.unreachable(err)
		return false
	case noCommand:
		n.found(refusedConnection(n.client.user(), err))
		return false
	}
	if redisconn.IsLoginRefused(err) {
		n.found(finding{
			Level: failure, Subject: "reachable", Cause: err, Text: "the server refuses the user: " + err.Error(),
			Advice: "set Username and Password in the options of the client",
		})
		return false
	}
	n.found(finding{Level: ok, Subject: "reachable", Text: "the server answers"})
	n.server = readHello(hello)
	n.server.Addr = n.address()
	n.judgeVersion()
	return true
}

func (n *node) unreachable(err error) {
	n.found(finding{
		Level: failure, Subject: "reachable", Cause: err, Text: "no answer: " + err.Error(),
		Advice: "look at the address, the network, TLS and whether the server runs",
	})
}

// refusedConnection returns the finding of a client whose connections are refused, because the options of the client
// need a right that the user does not have, such as SELECT for a DB.
func refusedConnection(user string, err error) finding {
	f := finding{Level: failure, Subject: "reachable", Cause: err, Text: "connections are refused: " + err.Error()}
	if _, rest, ok := strings.Cut(err.Error(), " run the '"); ok {
		command, _, _ := strings.Cut(rest, "'")
		f.Missing = []string{"+" + command}
		f.Advice = grant(user, f.Missing)
	}
	return f
}

// grant returns the command that gives a user rights.
func grant(user string, rules []string) string {
	return fmt.Sprintf("ACL SETUSER %s %s", user, strings.Join(rules, " "))
}

// readHello reads the reply of HELLO, a map or a list.
func readHello(reply any) (s cogwheel.Server) {
	facts := map[string]string{}
	switch reply := reply.(type) {
	case map[any]any:
		for k, v := range reply {
			facts[fmt.Sprint(k)] = fmt.Sprint(v)
		}
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			facts[fmt.Sprint(reply[i])] = fmt.Sprint(reply[i+1])
		}
	}
	s.Name, s.Version, s.Mode, s.Role = facts["server"], facts["version"], facts["mode"], facts["role"]
	return s
}

// Lowest is the lowest version of Redis that Check accepts; New does not look. Every version of Valkey is accepted. The
// README and docs/operations.md name it too.
const Lowest = "6.2"

func (n *node) judgeVersion() {
	name, version := n.server.Name, n.server.Version
	switch {
	case version == "":
		n.found(finding{Level: unknown, Subject: "version", Text: "the server does not tell its version"})
	case name == "redis" && older(version, Lowest):
		n.found(finding{
			Level: failure, Subject: "version", Text: fmt.Sprintf("%s %s is older than %s", name, version, Lowest),
			Advice: "use Redis " + Lowest + " or later, or Valkey",
		})
	default:
		n.found(finding{Level: ok, Subject: "version", Text: name + " " + version})
	}
	clustered := n.client.topology() == "cluster"
	if n.server.Mode == "cluster" && !clustered {
		n.found(finding{
			Level: failure, Subject: "topology",
			Text:   "the server is a node of a cluster, and the client is for one server",
			Advice: "use redis.NewClusterClient",
		})
	}
}

// before7 reports whether the server tells that it is older than Redis 7.
func (n *node) before7() bool {
	return n.server.Name == "redis" && n.server.Version != "" && older(n.server.Version, "7")
}

// older reports whether a version is older than another.
func older(version, than string) bool {
	numbers := func(v string) (n []int) {
		for part := range strings.SplitSeq(v, ".") {
			i, _ := strconv.Atoi(part)
			n = append(n, i)
		}
		return n
	}
	return slices.Compare(numbers(version), numbers(than)) < 0
}

// lack groups missing rights: those with equal fields make one finding.
type lack struct {
	verdict     verdict
	level       cogwheel.Level
	consequence string
}

// judgeCommands reports the commands that the user may not run, or that the server does not have.
func (n *node) judgeCommands(wanted rights, errs map[string]error) {
	lacks, all := map[lack][]string{}, true
	for _, command := range wanted.names() {
		err, asked := errs[command]
		use := wanted[command]
		switch v := judge(err); {
		case !asked && command == "rpush":
			n.found(finding{
				Level: unknown, Subject: "commands", Text: "whether the user may run RPUSH is not known without SET",
			})
			all = false
		case v == unreachable:
			n.unreachable(err)
			return
		case command == "pubsub|shardnumsub" && (v == notThere || n.before7()): // nothing is sharded
		case v == noCommand, v == notThere:
			as := lack{v, use.level, consequence(use)}
			lacks[as] = append(lacks[as], command)
			all = false
		}
	}
	for as, commands := range lacks {
		names := strings.ToUpper(strings.ReplaceAll(strings.Join(commands, ", "), "|", " "))
		f := finding{Level: as.level, Subject: "commands", Cause: errs[commands[0]]}
		if as.verdict == notThere {
			f.Text = fmt.Sprintf("the server does not have %s: %s", names, as.consequence)
		} else {
			f.Text = fmt.Sprintf("user %s may not run %s: %s", n.client.user(), names, as.consequence)
			n.advise(&f, "+", commands)
		}
		n.found(f)
	}
	if all && len(wanted) > 2 {
		n.found(finding{Level: ok, Subject: "commands", Text: "the user may run every command that is needed"})
	}
}

// advise adds the missing rights to a finding, and the command that grants them.
func (n *node) advise(f *finding, prefix string, names []string) {
	for _, name := range names {
		f.Missing = append(f.Missing, prefix+name)
	}
	f.Advice = grant(n.client.user(), f.Missing)
	if prefix != "+" {
		f.Advice += ", or wider patterns"
	}
}

// consequence describes the effect of a missing right.
func consequence(missing *right) string {
	uses := strings.Join(missing.uses, ", ")
	switch {
	case slices.Contains(missing.uses, waking):
		return "waiters poll instead of being woken"
	case slices.Contains(missing.uses, hearing):
		return "holders learn of ForceUnlock at their next renewal"
	case slices.Contains(missing.uses, routing):
		return "go-redis asks without success before each call"
	case missing.level == warning:
		return uses + " cannot be used"
	}
	return uses + " will fail"
}

func (n *node) judgeScripts(errs map[string]error) {
	err, asked := errs["eval"]
	if !asked {
		return
	}
	switch judge(err) {
	case allowed, noKey, unserviceable:
		if err != nil && judge(err) == allowed {
			n.found(finding{Level: failure, Subject: "scripts", Cause: err, Text: "a script failed: " + err.Error()})
			return
		}
		n.found(finding{Level: ok, Subject: "scripts", Text: "Lua scripts run"})
	}
}

// judgeWritable reports whether the server takes writes. A server that is a replica, short of memory, without enough
// replicas or unable to save refuses SET before it reads the options. So SET can be tried on a key of the service: with
// NX and XX, which contradict each other, it never writes.
func (n *node) judgeWritable(ctx context.Context, errs map[string]error, keys rights) {
	if n.server.Role == "replica" || n.server.Role == "slave" {
		n.found(finding{
			Level: failure, Subject: "writable", Text: "the server is a replica", Advice: remedies["READONLY"],
		})
		return
	}
	for _, command := range slices.Sorted(maps.Keys(errs)) {
		// Any answer to SET that is not known, as of a proxy, says the same.
		if err := errs[command]; judge(err) == unserviceable || command == "set" && redisconn.IsUnavailable(err) {
			n.found(notWritable(err))
			return
		}
	}
	set := judge(errs["set"])
	for _, key := range keys.names() {
		if set != noKey {
			break
		}
		err := n.rdb.Do(ctx, "set", key, "", "nx", "xx").Err()
		if set = judge(err); set == unserviceable {
			n.found(notWritable(err))
			return
		}
	}
	switch set {
	case allowed:
		n.found(finding{Level: ok, Subject: "writable", Text: "the server takes writes"})
	case noKey:
		n.found(finding{
			Level: unknown, Subject: "writable",
			Text: "whether the server takes writes is not known: no key that user " +
				n.client.user() + " may use was found", Advice: adviceObjects,
		})
	}
}

// adviceObjects is the advice for a check that was given no objects.
const adviceObjects = "give Check the objects that the service uses"

// remedies has the advice for a server that refuses writes, by the code of its error.
var remedies = map[string]string{
	"READONLY":    "connect to the primary, for example through Sentinel by redis.NewFailoverClient",
	"OOM":         "give the server more memory, or remove keys",
	"MISCONF":     "the server cannot save its data: look at its disk and its log",
	"NOREPLICAS":  "bring back replicas, or lower min-replicas-to-write",
	"CLUSTERDOWN": "have every slot of the cluster served: redis-cli --cluster check",
	"MASTERDOWN":  "connect to the primary",
	"LOADING":     "wait until the server has loaded its data",
	"BUSY":        "a script runs for too long: SCRIPT KILL ends it",
}

func notWritable(err error) finding {
	code, _, _ := strings.Cut(err.Error(), " ")
	return finding{
		Level: failure, Subject: "writable", Cause: err, Text: "the server refuses commands: " + err.Error(),
		Advice: remedies[code],
	}
}

// judgeKeys reports whether the user may use the keys of this node. It runs a script that does nothing with each key.
func (n *node) judgeKeys(ctx context.Context, keys rights) {
	lacks := map[lack][]string{}
	var cause error
	for _, key := range keys.names() {
		err := n.rdb.Eval(ctx, "return 1", []string{key}).Err()
		switch judge(err) {
		case noKey:
			as := lack{noKey, failure, consequence(keys[key])}
			lacks[as], cause = append(lacks[as], key), err
		case noCommand, notThere:
			n.found(finding{
				Level: unknown, Subject: "keys", Text: "which keys the user may use is not known without EVAL",
			})
			return
		case unreachable:
			n.unreachable(err)
			return
		}
	}
	for as, names := range lacks {
		patterns := keys.patterns(names)
		f := finding{
			Level: failure, Subject: "keys", Cause: cause,
			Text: fmt.Sprintf("user %s may not use the key %s: %s",
				n.client.user(), strings.Join(patterns, ", "), as.consequence),
		}
		n.advise(&f, "~", patterns)
		n.found(f)
	}
	if len(keys) > 0 && len(lacks) == 0 {
		n.found(finding{Level: ok, Subject: "keys", Text: "the user may use the keys that are needed"})
	}
}

// judgeHooks reports a hook of the client that changes keys. Its calls go through the hooks, alone and in a pipeline,
// as the calls of the library do. Renewals and releases in the background have no hooks, so they would miss the keys.
func (n *node) judgeHooks(ctx context.Context, errs map[string]error) {
	if err, asked := errs["eval"]; !asked || judge(err) != allowed {
		return // the user may not use the key
	}
	ask := func(c redis.Scripter) *redis.Cmd { return c.Eval(ctx, "return KEYS[1]", []string{n.probeKey}) }
	alone, pipe := ask(n.client.Base), n.client.Base.Pipeline()
	piped := ask(pipe)
	_, _ = pipe.Exec(ctx)
	for _, cmd := range []*redis.Cmd{alone, piped} {
		key, err := cmd.Text()
		if err != nil || key == n.probeKey {
			continue
		}
		f := finding{
			Level: warning, Subject: "hooks",
			Text:   fmt.Sprintf("a hook of the client changes the key %q into %q", n.probeKey, key),
			Advice: "remove the hook, and give the objects the names that their keys shall have",
		}
		if n.client.Lease > 0 {
			f.Level = failure
			f.Text += ": renewals, which no hook sees, do not find " + n.client.Keeps + ", so these are lost"
		}
		n.found(f)
		return
	}
}

// judgeChannels reports whether the user may subscribe to channels, and which of the channels of this node.
func (n *node) judgeChannels(ctx context.Context, wanted, channels rights) {
	on, off, sharded := "subscribe", "unsubscribe", false
	if wanted["ssubscribe"] != nil {
		on, off, sharded = "ssubscribe", "sunsubscribe", true
	}
	if wanted[on] == nil {
		return
	}
	names := channels.names()
	if len(names) == 0 {
		names = []string{n.client.Channel(n.probeKey)}
	}
	byChannel, sub, unsub := n.listen(ctx, sharded, names)
	n.judgeCommands(rights{on: wanted[on], off: wanted[off]}, map[string]error{on: sub, off: unsub})
	lacks := map[string][]string{} // channels by the consequence
	for _, channel := range channels.names() {
		if judge(byChannel[channel]) == noChannel {
			lacks[consequence(channels[channel])] = append(lacks[consequence(channels[channel])], channel)
		}
	}
	for what, names := range lacks {
		patterns := channels.patterns(names)
		f := finding{
			Level: warning, Subject: "channels", Cause: byChannel[names[0]],
			Text: fmt.Sprintf("user %s may not use the channel %s: %s",
				n.client.user(), strings.Join(patterns, ", "), what),
		}
		n.advise(&f, "&", patterns)
		n.found(f)
	}
	if len(lacks) == 0 && len(channels) > 0 && sub == nil {
		n.found(finding{Level: ok, Subject: "channels", Text: "the user may use the channels that are needed"})
	}
}

// tellClock measures the clock of the server. The difference is for information: the library never compares the clock
// of a server with the local one.
func (n *node) tellClock(ctx context.Context) {
	sent := time.Now() //nolint:forbidigo // the clock of the machine is what is compared
	at, err := n.rdb.Time(ctx).Result()
	if err != nil {
		return // TIME is among the commands, if it is needed
	}
	trip := time.Since(sent) //nolint:forbidigo // as above
	ahead := at.Sub(sent.Add(trip / 2)).Round(time.Millisecond)
	n.client.mu.Lock()
	defer n.client.mu.Unlock()
	n.client.clocks = append(n.client.clocks, clock{n.address(), ahead, trip})
}

// removeProbe removes the key of the probes. Without it, the key expires within a second.
func (n *node) removeProbe(ctx context.Context, wanted rights) {
	if wanted["del"] != nil {
		_ = n.rdb.Del(ctx, n.probeKey).Err()
	} else if wanted["set"] != nil {
		_ = n.rdb.Do(ctx, "set", n.probeKey, "", "xx", "px", 1).Err()
	}
}
