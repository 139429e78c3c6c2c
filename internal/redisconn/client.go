package redisconn

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/redis/go-redis/v9"
)

// Base returns the *redis.Client, *redis.ClusterClient or *redis.Ring that a client is, or that it embeds, as
// wrappers do that add to one. It is nil for a client of another make.
func Base(rdb redis.UniversalClient) redis.UniversalClient {
	switch rdb.(type) {
	case nil:
		return nil
	case *redis.Client, *redis.ClusterClient, *redis.Ring:
		return rdb
	}
	v := reflect.Indirect(reflect.ValueOf(rdb))
	if v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		if field := v.Type().Field(i); !field.Anonymous || !field.IsExported() {
			continue
		}
		if inner, ok := reflect.TypeAssert[redis.UniversalClient](v.Field(i)); ok {
			if base := Base(inner); base != nil {
				return base
			}
		}
	}
	return nil
}

// Endless reports whether a call by the client may wait for its reply for ever.
func Endless(base redis.UniversalClient) bool {
	switch c := base.(type) {
	case *redis.Client:
		return c.Options().ReadTimeout <= 0
	case *redis.ClusterClient:
		return c.Options().ReadTimeout <= 0
	case *redis.Ring:
		return c.Options().ReadTimeout < 0 // 0 is the default there
	}
	return false
}

// Retries is how often the client is meant to retry a call.
func Retries(rdb redis.UniversalClient) int {
	switch c := rdb.(type) {
	case *redis.Client:
		return c.Options().MaxRetries
	case *redis.Ring:
		return c.Options().MaxRetries
	default: // a cluster client counts redirections instead
		return 3
	}
}

// ErrNodes is wrapped by Node's error for a client of a type whose nodes are not known.
var ErrNodes = errors.New("redisconn: a client whose nodes are not known")

// Node returns the client of the node that a key lives on.
func Node(rdb redis.UniversalClient, key string) (*redis.Client, error) {
	switch c := rdb.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(context.Background(), key)
	case *redis.Ring:
		return c.GetShardClientForKey(key)
	}
	return nil, fmt.Errorf("%w: %T", ErrNodes, rdb)
}

// NodeAddr returns the address of the node that a key lives on, if that is known without asking a server. It
// is empty for a client of one server, and ends in the number of the database for a shard of a Ring that uses
// another than 0. It does not block.
func NodeAddr(rdb redis.UniversalClient, key string) (addr string, known bool) {
	switch c := rdb.(type) {
	case *redis.Client:
		return "", true
	case *redis.ClusterClient:
		master, err := c.MasterForKey(ended, key)
		if err != nil {
			return "", false
		}
		return master.Options().Addr, true
	case *redis.Ring:
		shard, err := c.GetShardClientForKey(key)
		if err != nil {
			return "", false
		}
		addr = shard.Options().Addr
		if db := shard.Options().DB; db != 0 {
			addr = fmt.Sprintf("%s/%d", addr, db) // shards may be databases of one server
		}
		return addr, true
	}
	return "", false
}

// ended is a context that has ended. A client returns what it knows all the same, and asks no server for what
// it does not know.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Reload has a cluster client look for the masters anew. Otherwise it may go on dialing a dead one for a
// minute.
func Reload(rdb redis.UniversalClient) {
	if c, ok := rdb.(interface{ ReloadState(context.Context) }); ok {
		c.ReloadState(context.Background())
	}
}
