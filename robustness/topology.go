package robustness

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// Topology is how the servers of a run are arranged.
type Topology string

// The topologies.
const (
	Single   Topology = "single server"
	Sentinel Topology = "sentinel"
	Cluster  Topology = "cluster"
	Quorum   Topology = "five servers"
)

// readTimeout is that of the clients. It is short, so that they notice faults within the time of a run.
const readTimeout = 300 * time.Millisecond

// The user of the processes, whose rights faults change, and its database where there are several.
const (
	user     = "app"
	secret   = "secret"
	database = 1
)

// userArgs make a server know the user, also after a restart.
var userArgs = []string{"--user", user, "on", ">" + secret, "~*", "&*", "+@all"}

// connect returns the clients that a process uses, whose connections the dialer makes.
func (t Topology) connect(addrs []string, d *redistest.FaultDialer, retries int) []redis.UniversalClient {
	switch t {
	case Sentinel:
		return []redis.UniversalClient{redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: redistest.MasterName, SentinelAddrs: addrs, Dialer: d.Dial, PoolSize: 4,
			ReadTimeout: readTimeout, MaxRetries: retries, Username: user, Password: secret, DB: database,
		})}
	case Cluster:
		return []redis.UniversalClient{redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: addrs, Dialer: d.Dial, PoolSize: 4, ReadTimeout: readTimeout, Username: user, Password: secret,
		})}
	}
	var rdbs []redis.UniversalClient
	for _, addr := range addrs {
		rdbs = append(rdbs, redis.NewClient(&redis.Options{
			Addr: addr, Dialer: d.Dial, PoolSize: 4, ReadTimeout: readTimeout, MaxRetries: retries,
			Username: user, Password: secret, DB: database,
		}))
	}
	return rdbs
}
