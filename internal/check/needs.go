package check

import (
	"maps"
	"slices"
	"strings"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Needs is what one thing that a client does needs of its servers.
type Needs struct {
	For      string            // the thing, for example "FairMutex"
	Optional bool              // a lack is a warning: not every service does it
	Scripts  []*scripts.Script // their commands are read from their sources
	Commands []string          // those sent outside of scripts, in lower case
	Name     string            // of the object; "" if it is not known which objects there are
	Keys     []string          // of the object, or of a Sample of many
	Channels []string
}

// Sample is the end of a key or channel that stands for all keys or channels with the same beginning.
const Sample = "cogwheel_check"

// pattern returns the ACL pattern that allows a key or channel. The keys and channels that belong to one name share a
// pattern, as some of them have ids of clients and holds in them.
func (n *Needs) pattern(key string) string {
	tagged := n.Name
	if !strings.Contains(n.Name, "{") {
		tagged = "{" + n.Name + "}"
	}
	if before, _, ok := strings.Cut(key, tagged+":"); ok && n.Name != "" {
		return literal(before+tagged+":") + "*"
	}
	if before, _, ok := strings.Cut(key, Sample); ok {
		return literal(before) + "*"
	}
	return literal(key)
}

// literal returns a pattern for one key or channel. ACL SETUSER refuses spaces: ? stands for them, and for bytes
// that are not printable ASCII.
func literal(key string) string {
	var b strings.Builder
	for _, c := range []byte(key) {
		switch {
		case c <= ' ' || c >= 0x7f:
			c = '?'
		case strings.IndexByte(`*?[]\`, c) >= 0:
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// Waking is what waiters need to be woken instead of polling.
const waking = "waking waiters"

// routing is what a cluster client needs to know the commands of the server. It asks anew with each call
// until it is answered.
const routing = "the cluster client"

// hints are the commands whose lack makes waiters poll and fails no call.
var hints = []string{
	"publish", "subscribe", "unsubscribe", "ping", "spublish", "ssubscribe", "sunsubscribe", "pubsub|shardnumsub",
}

// Listening are the commands that a client with waiters sends outside of scripts, for the channel of a name.
func Listening(name, channel string) Needs {
	return Needs{
		For: waking, Optional: true, Commands: []string{"subscribe", "unsubscribe", "ping"},
		Name: name, Channels: []string{channel},
	}
}

// hearing is what holders need to hear of ForceUnlock at once.
const hearing = "notifying holders"

// Hearing are the commands that a client with holds sends for its own channel.
func Hearing(channel string) Needs {
	n := Listening("", channel)
	n.For = hearing
	return n
}

// right is a right and what needs it.
type right struct {
	uses    []string
	level   cogwheel.Level // of its lack
	pattern string         // of a key or channel
}

// rights are rights by what they are a right to.
type rights map[string]*right

func (r rights) add(to, use string, level cogwheel.Level) {
	entry := r[to]
	if entry == nil {
		entry = &right{level: level}
		r[to] = entry
	}
	if !slices.Contains(entry.uses, use) {
		entry.uses = append(entry.uses, use)
	}
	if level.Compare(entry.level) > 0 {
		entry.level = level
	}
}

func (r rights) names() []string { return slices.Sorted(maps.Keys(r)) }

// patterns returns the patterns of keys or channels, each once and sorted.
func (r rights) patterns(names []string) []string {
	var patterns []string
	for _, name := range names {
		patterns = append(patterns, r[name].pattern)
	}
	slices.Sort(patterns)
	return slices.Compact(patterns)
}

// commands returns the commands of all needs.
func commands(needs []Needs) rights {
	all := rights{}
	add := func(n *Needs, command string) {
		switch {
		case slices.Contains(hints, command):
			all.add(command, waking, warning)
		case n.Optional:
			all.add(command, n.For, warning)
		default:
			all.add(command, n.For, failure)
		}
	}
	for _, n := range needs {
		for _, s := range n.Scripts {
			for _, command := range s.Commands() {
				add(&n, command)
			}
			add(&n, "evalsha")
			add(&n, "eval")
		}
		for _, command := range n.Commands {
			add(&n, command)
		}
	}
	return all
}

// shard puts the commands of sharded channels in the place of those of ordinary ones.
func (r rights) shard() {
	for _, command := range []string{"publish", "subscribe", "unsubscribe"} {
		if entry := r[command]; entry != nil {
			r["s"+command] = entry
			delete(r, command)
		}
	}
}

// keys returns the keys, and channels the channels, of all needs.
func keys(needs []Needs) rights {
	all := rights{}
	for _, n := range needs {
		for _, key := range n.Keys {
			all.add(key, n.For, failure)
			all[key].pattern = n.pattern(key)
		}
	}
	return all
}

func channels(needs []Needs) rights {
	all := rights{}
	for _, n := range needs {
		for _, channel := range n.Channels {
			all.add(channel, n.For, warning)
			all[channel].pattern = n.pattern(channel)
		}
	}
	return all
}
