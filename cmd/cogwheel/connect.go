package main

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// connect returns a client of the Redis that the URL names. It does not connect yet. Errors do not repeat the
// URL, as it may have a password.
func connect(redisURL string) (redis.UniversalClient, error) {
	if redisURL == "" {
		return nil, usageError("REDIS_URL is not set, such as redis://localhost:6379; cogwheel help shows all forms")
	}
	redis.SetLogger(silent{}) // what fails is in the error
	u, err := url.Parse(redisURL)
	if err != nil {
		return nil, badURL(err)
	}
	switch query := u.Query(); {
	case query.Has("master_name"):
		o, err := redis.ParseFailoverURL(redisURL)
		if err != nil {
			return nil, badURL(err)
		}
		o.ContextTimeoutEnabled = true
		return redis.NewFailoverClient(o), nil
	case query.Has("addr"):
		o, err := redis.ParseClusterURL(redisURL)
		if err != nil {
			return nil, badURL(err)
		}
		o.ContextTimeoutEnabled = true
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(redisURL)
	if err != nil {
		return nil, badURL(err)
	}
	o.ContextTimeoutEnabled = true // --timeout bounds every command
	return redis.NewClient(o), nil
}

// noteReplica says that the data may be old if the server is a replica.
func (t *tool) noteReplica(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	maybe := false
	switch rdb := t.rdb.(type) {
	case *redis.ClusterClient:
		o := rdb.Options()
		maybe = o.ReadOnly || o.RouteByLatency || o.RouteRandomly
	case *redis.Client:
		hello, err := rdb.Do(ctx, "hello").Result() // needs no right
		maybe = err == nil && slices.Contains([]string{"replica", "slave"}, roleOf(hello))
	}
	if maybe {
		printf(t.note, "cogwheel: this is read from a replica, and may be older than what the primary has\n")
	}
}

// roleOf returns the role in a reply to HELLO, a map or a list.
func roleOf(hello any) string {
	switch hello := hello.(type) {
	case map[any]any:
		role, _ := hello["role"].(string)
		return role
	case []any:
		if at := slices.Index(hello, any("role")); at >= 0 && at+1 < len(hello) {
			role, _ := hello[at+1].(string)
			return role
		}
	}
	return ""
}

func badURL(err error) error {
	if _, ok := errors.AsType[*url.Error](err); ok { // whose text may have the password
		err = errors.New("not a URL; in a password, / is written as %2F and % as %25")
	}
	return usageError("REDIS_URL: " + err.Error())
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// waiting returns how many processes wait for a lock: those in its line, and the connections that listen for its
// releases; or nil if the user of REDIS_URL may not know. The readers in the line listen on a channel of their own.
func (t *tool) waiting(ctx context.Context, channel string) *int64 {
	const readers = "r"
	line, err := t.rdb.ZRange(ctx, scripts.SuffixName(t.name, "waiting"), 0, -1).Result()
	if err != nil {
		return nil
	}
	n := t.subscribers(ctx, channel)
	if n == nil {
		return nil
	}
	*n += int64(len(line))
	if slices.Contains(line, readers) {
		if listening := t.subscribers(ctx, channel+":"+readers); listening != nil {
			*n += *listening - 1
		}
	}
	return n
}

// subscribers returns how many connections are subscribed to a channel, or nil if the user of REDIS_URL may
// not know. In a cluster, a subscription may be on any node.
func (t *tool) subscribers(ctx context.Context, channel string) *int64 {
	cluster, isCluster := t.rdb.(*redis.ClusterClient)
	if !isCluster {
		counts, err := t.rdb.PubSubNumSub(ctx, channel).Result()
		if err != nil {
			return nil
		}
		n := counts[channel]
		return &n
	}
	var sum atomic.Int64
	err := cluster.ForEachShard(ctx, func(ctx context.Context, node *redis.Client) error {
		counts, err := node.PubSubNumSub(ctx, channel).Result()
		if err != nil {
			return err
		}
		sum.Add(counts[channel])
		if counts, err = node.PubSubShardNumSub(ctx, channel).Result(); err == nil { // since Redis 7
			sum.Add(counts[channel])
		}
		return nil
	})
	if err != nil {
		return nil
	}
	n := sum.Load()
	return &n
}
