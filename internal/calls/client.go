package calls

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

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
var ErrNodes = errors.New("calls: a client whose nodes are not known")

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

// Reload has a cluster client look for the masters anew. Otherwise it may go on dialing a dead one for a minute.
func Reload(rdb redis.UniversalClient) {
	if c, ok := rdb.(interface{ ReloadState(context.Context) }); ok {
		c.ReloadState(context.Background())
	}
}
