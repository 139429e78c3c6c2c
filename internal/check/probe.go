package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

// Placeholders in probes.
const (
	probeKey     = "\x00key"
	probeChannel = "\x00channel"
)

// probes has a form of each command that changes nothing, except that SET writes the key of probes for a second. The
// key is absent, or holds a string that expires, and no other client knows it.
var probes = map[string][]any{
	"cluster|slots":      {"cluster", "slots"},
	"command":            {"command"},
	"del":                {"del", probeKey},
	"eval":               {"eval", "return 1", 1, probeKey},
	"evalsha":            {"evalsha", strings.Repeat("0", 40), 1, probeKey}, // NOSCRIPT
	"exec":               {"exec"},                                          // without MULTI
	"exists":             {"exists", probeKey},
	"get":                {"get", probeKey},
	"hdel":               {"hdel", probeKey, "f"},
	"hexists":            {"hexists", probeKey, "f"},
	"hget":               {"hget", probeKey, "f"},
	"hgetall":            {"hgetall", probeKey},
	"hlen":               {"hlen", probeKey},
	"hmget":              {"hmget", probeKey, "f"},
	"hrandfield":         {"hrandfield", probeKey, 1},
	"hset":               {"hset", probeKey, "f", "v", "without a value"}, // refused
	"hvals":              {"hvals", probeKey},
	"lindex":             {"lindex", probeKey, 0},
	"lrange":             {"lrange", probeKey, 0, 0},
	"lpop":               {"lpop", probeKey},
	"lrem":               {"lrem", probeKey, 0, ""},
	"multi":              {"multi"},
	"persist":            {"persist", probeKey},
	"pexpire":            {"pexpire", probeKey, 1000},
	"ping":               {"ping"},
	"pttl":               {"pttl", probeKey},
	"publish":            {"publish", probeChannel, ""},
	"pubsub|shardnumsub": {"pubsub", "shardnumsub"},
	"rpush":              {"rpush", probeKey, ""}, // refused: the key holds a string
	"set":                {"set", probeKey, "", "px", 1000},
	"spublish":           {"spublish", probeChannel, ""},
	"time":               {"time"},
	"wait":               {"wait", 0, 0},
	"zadd":               {"zadd", probeKey, "xx", 0, "m"},
	"zcard":              {"zcard", probeKey},
	"zcount":             {"zcount", probeKey, 0, 0},
	"zincrby":            {"zincrby", probeKey, "no number", "m"}, // refused
	"zmscore":            {"zmscore", probeKey, "m"},
	"zrange":             {"zrange", probeKey, 0, 0},
	"zrangebyscore":      {"zrangebyscore", probeKey, 0, 0},
	"zrank":              {"zrank", probeKey, "m"},
	"zrem":               {"zrem", probeKey, "m"},
	"zremrangebyrank":    {"zremrangebyrank", probeKey, 0, 0},
	"zremrangebyscore":   {"zremrangebyscore", probeKey, 0, 0},
	"zrevrange":          {"zrevrange", probeKey, 0, 0},
	"zscore":             {"zscore", probeKey, "m"},
}

// subscribing are the commands that are probed on a connection for messages.
var subscribing = []string{"subscribe", "unsubscribe", "ssubscribe", "sunsubscribe"}

// verdict is the meaning of an answer for a right.
type verdict int

const (
	allowed       verdict = iota
	noCommand             // the user may not run the command
	noKey                 // the user may run it, but not on this key
	noChannel             // the user may run it, but not with this channel
	notThere              // the server does not have the command
	unreachable           // no answer
	unserviceable         // the server refuses the command now: it is a replica, short of memory, or the like
)

// judge returns the verdict of an answer. It knows the texts of Redis 6.2 to 8 and of Valkey.
func judge(err error) verdict {
	if err == nil || errors.Is(err, redis.Nil) {
		return allowed
	}
	if !redisconn.Refused(err) {
		return unreachable
	}
	text := strings.TrimPrefix(err.Error(), "EXECABORT Transaction discarded because of: ")
	lower := strings.ToLower(text)
	switch {
	case strings.HasPrefix(text, "NOPERM") && strings.Contains(text, " run the '"):
		return noCommand
	case strings.HasPrefix(text, "NOPERM") && strings.Contains(lower, "channel"):
		return noChannel
	case strings.HasPrefix(text, "NOPERM"):
		return noKey
	case strings.HasPrefix(lower, "err unknown command"), strings.HasPrefix(lower, "err unknown subcommand"):
		return notThere
	case strings.HasPrefix(text, "NOSCRIPT"): // as intended
		return allowed
	case redisconn.Transient(err), redisconn.IsLoginRefused(err):
		return unserviceable
	}
	return allowed
}

// probe sends the commands in their harmless forms and returns the error of each. HSET and RPUSH come after SET,
// because they need a key with a string. Without the right to SET, RPUSH is left out, because nothing would remove
// the list that it makes. MULTI is left out too: it changes the state of its connection, so check sends it last.
func (n *node) probe(ctx context.Context, wanted []string) map[string]error {
	var first, second []string
	for _, command := range wanted {
		switch {
		case slices.Contains(subscribing, command), command == "set", command == "multi":
		case command == "hset", command == "rpush":
			second = append(second, command)
		default:
			first = append(first, command)
		}
	}
	errs := map[string]error{}
	n.send(ctx, first, errs)
	if slices.Contains(wanted, "set") {
		n.send(ctx, []string{"set"}, errs)
	}
	switch judge(errs["set"]) {
	case noCommand, notThere, unreachable:
		second = slices.DeleteFunc(second, func(command string) bool { return command == "rpush" })
	}
	n.send(ctx, second, errs)
	return errs
}

// send runs commands in one pipeline.
func (n *node) send(ctx context.Context, commands []string, errs map[string]error) {
	if len(commands) == 0 {
		return
	}
	pipe := n.rdb.Pipeline()
	for _, command := range commands {
		words, known := probes[command]
		if !known {
			errs[command] = fmt.Errorf("check: no probe of %s", command)
			continue
		}
		words = slices.Clone(words)
		for i, word := range words {
			switch word {
			case probeKey:
				words[i] = n.probeKey
			case probeChannel:
				words[i] = n.client.Channel(n.probeKey) // on the same node, if it is sharded
			}
		}
		pipe.Do(ctx, words...)
	}
	cmds, err := pipe.Exec(ctx)
	at := 0
	for _, command := range commands {
		if errs[command] != nil {
			continue
		}
		if at < len(cmds) {
			errs[command] = cmds[at].Err()
		} else {
			errs[command] = err
		}
		at++
	}
}

// listen subscribes to channels and unsubscribes. It returns the errors by channel, and the errors that say that the
// user may not run the two commands.
func (n *node) listen(
	ctx context.Context, sharded bool, channels []string,
) (byChannel map[string]error, sub, unsub error) {
	ps := n.rdb.Subscribe(ctx)
	defer ps.Close()
	on, off := ps.Subscribe, ps.Unsubscribe
	if sharded {
		on, off = ps.SSubscribe, ps.SUnsubscribe
	}
	ask := func(f func(context.Context, ...string) error, channel string) error {
		if err := f(ctx, channel); err != nil {
			return err
		}
		_, err := ps.Receive(ctx)
		return err
	}
	byChannel = map[string]error{}
	for _, channel := range channels {
		byChannel[channel] = ask(on, channel)
		if v := judge(byChannel[channel]); v == noCommand || v == notThere {
			sub = byChannel[channel]
			break
		}
	}
	return byChannel, sub, ask(off, n.client.Channel(n.probeKey))
}
