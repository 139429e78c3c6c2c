package check

import (
	"maps"
	"slices"
	"strings"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Needs are the needs of one feature of a client: commands, keys and channels.
type Needs struct {
	For      string            // the feature, for example "FairMutex"
	Optional bool              // a missing right is a warning, because not every service uses the feature
	Scripts  []*scripts.Script // their commands are read from their sources
	Commands []string          // commands sent outside of scripts, in lower case
	Name     string            // of the object; "" if the check was given no objects
	Keys     []string          // of the object, or with Sample at the end
	Channels []string
}

// Sample is the end of a key or channel that stands for all keys or channels with the same prefix.
const Sample = "cogwheel_check"

// pattern returns the ACL pattern that allows a key or channel. The keys and channels of one name share a pattern,
// because some of them contain ids of clients and holds.
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

// literal returns a pattern for one key or channel. ACL SETUSER refuses spaces, so ? stands for them, and for bytes
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

// waking is the feature that wakes waiters, which otherwise poll.
const waking = "waking waiters"

// routing is the feature by which go-redis, as a cluster client, learns the commands of the server. It asks with each
// call until it has an answer.
const routing = "the cluster client"

// hints are the commands without which waiters poll, and no call fails.
var hints = []string{
	"publish", "subscribe", "unsubscribe", "ping", "spublish", "ssubscribe", "sunsubscribe", "pubsub|shardnumsub",
}

// Listening returns the needs of a client whose waiters listen to the channel of a name.
func Listening(name, channel string) Needs {
	return Needs{
		For: waking, Optional: true, Commands: []string{"subscribe", "unsubscribe", "ping"},
		Name: name, Channels: []string{channel},
	}
}

// inLine is the feature that wakes one waiter for a release. Without it all are woken.
const inLine = "waking one waiter for a release"

// InLine returns the needs of a client whose waiters have a line and listen to channels.
func InLine(name, line string, channels ...string) Needs {
	return Needs{For: inLine, Optional: true, Name: name, Keys: []string{line}, Channels: channels}
}

// hearing is the feature that notifies holders of ForceUnlock at once.
const hearing = "notifying holders"

// Hearing returns the needs of a client whose holds listen to the channel of the client.
func Hearing(channel string) Needs {
	n := Listening("", channel)
	n.For = hearing
	return n
}

// right is a right to a command, a key or a channel.
type right struct {
	uses    []string       // features that need it
	level   cogwheel.Level // of the finding if it is missing
	pattern string         // of a key or channel
}

// rights are rights by the name of the command, key or channel.
type rights map[string]*right

func (r rights) add(name, use string, level cogwheel.Level) {
	entry := r[name]
	if entry == nil {
		entry = &right{level: level}
		r[name] = entry
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

// shard replaces the commands of ordinary channels by those of sharded ones.
func (r rights) shard() {
	for _, command := range []string{"publish", "subscribe", "unsubscribe"} {
		if entry := r[command]; entry != nil {
			r["s"+command] = entry
			delete(r, command)
		}
	}
}

// keys returns the keys of all needs.
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

// channels returns the channels of all needs.
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
