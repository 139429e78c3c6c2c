package redisconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
)

// Base returns the *redis.Client, *redis.ClusterClient or *redis.Ring that a client is or, as a wrapper, embeds. It
// returns nil for a client of another type.
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

// Endless reports whether a call by the client may wait for its reply without end.
func Endless(base redis.UniversalClient) bool {
	timeout, known := ReadTimeout(base)
	return known && timeout <= 0
}

// ReadTimeout returns how long a call by the client waits for its reply; without end if that is not positive. It is
// not known for a client of another type.
func ReadTimeout(base redis.UniversalClient) (timeout time.Duration, known bool) {
	switch c := base.(type) {
	case *redis.Client:
		return c.Options().ReadTimeout, true
	case *redis.ClusterClient:
		return c.Options().ReadTimeout, true
	case *redis.Ring:
		return cmp.Or(c.Options().ReadTimeout, defaultReadTimeout), true
	}
	return 0, false
}

// defaultReadTimeout stands for the 0 in the options of a Ring, whose shards set it.
const defaultReadTimeout = 3 * time.Second

// Retries returns how often the options of a client let a call be repeated.
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

// NodeAddr returns the address of the node that a key lives on, and whether the client knows it without asking a
// server. The address is empty for a client of one server. For a shard of a Ring whose database is not 0, it ends in
// the number of the database. NodeAddr does not block.
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

// ended is a context that has ended. With it, a client returns what it knows, and asks no server.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Reload makes a cluster client ask for its masters again. Without it, the client may dial a dead master for a minute.
func Reload(rdb redis.UniversalClient) {
	if c, ok := rdb.(interface{ ReloadState(context.Context) }); ok {
		c.ReloadState(context.Background())
	}
}
