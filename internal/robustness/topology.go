package robustness

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// Topology is how the servers of a run are arranged.
type Topology string

const (
	Single   Topology = "single server"
	Sentinel Topology = "sentinel"
	Cluster  Topology = "cluster"
	Quorum   Topology = "five servers"
)

// readTimeout is that of the clients. It is short, so that they notice faults within the time of a run.
const readTimeout = 300 * time.Millisecond

// connect returns the clients that a process uses, whose connections the dialer makes.
func (t Topology) connect(addrs []string, d *redistest.FaultDialer, retries int) []redis.UniversalClient {
	switch t {
	case Sentinel:
		return []redis.UniversalClient{redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: redistest.MasterName, SentinelAddrs: addrs, Dialer: d.Dial, PoolSize: 4,
			ReadTimeout: readTimeout, MaxRetries: retries,
		})}
	case Cluster:
		return []redis.UniversalClient{redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: addrs, Dialer: d.Dial, PoolSize: 4, ReadTimeout: readTimeout,
		})}
	}
	var rdbs []redis.UniversalClient
	for _, addr := range addrs {
		rdbs = append(rdbs, redis.NewClient(&redis.Options{
			Addr: addr, Dialer: d.Dial, PoolSize: 4, ReadTimeout: readTimeout, MaxRetries: retries,
		}))
	}
	return rdbs
}
