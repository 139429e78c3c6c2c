package robustness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// primaries returns the servers of the run that clients write to.
func (r *Run) primaries() []*redistest.Server {
	switch r.Topology {
	case Sentinel:
		return []*redistest.Server{r.sentinel.Primary}
	case Cluster:
		return r.cluster.Masters
	default:
		return r.servers
	}
}

// retrySoon makes the Sentinels repeat a failover of the same primary without a long pause.
func (r *Run) retrySoon() {
	for _, s := range r.sentinel.Sentinels {
		require.NoError(r.tb, r.soon(s, func(rdb *redis.Client) error {
			return rdb.Do(r.ctx, "sentinel", "set", redistest.MasterName, "failover-timeout", "2000").Err()
		}))
	}
}

// settle waits until all servers work and agree on their roles, which it takes over. It reports whether primaries
// changed.
func (r *Run) settle() (changed bool) {
	if r.Topology != Sentinel && r.Topology != Cluster {
		return false
	}
	before := r.primaries()
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	for {
		err := r.agree()
		if err == nil {
			break
		}
		require.NotErrorIs(r.tb, ctx.Err(), context.DeadlineExceeded, err)
		require.NotErrorIs(r.tb, ctx.Err(), context.Canceled, err)
		r.sleep(20 * time.Millisecond)
	}
	after := r.primaries()
	return slices.ContainsFunc(before, func(s *redistest.Server) bool { return !slices.Contains(after, s) })
}

// agree takes over the roles of the servers, or returns what is not settled.
func (r *Run) agree() error {
	var primaries, replicas []*redistest.Server
	for _, s := range r.servers {
		err := r.soon(s, func(rdb *redis.Client) error {
			said, err := rdb.Info(r.ctx, "replication").Result()
			switch {
			case err != nil:
				return err
			case strings.Contains(said, "role:master\r\n"):
				primaries = append(primaries, s)
			case strings.Contains(said, "master_link_status:up\r\n"):
				replicas = append(replicas, s)
			default:
				return errors.New(s.Addr() + " does not follow")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if r.Topology == Cluster {
		if len(primaries) != len(r.cluster.Masters) {
			return fmt.Errorf("%d masters", len(primaries))
		}
		epochs := make(map[string]bool)
		for _, s := range r.servers {
			err := r.soon(s, func(rdb *redis.Client) error {
				epoch, err := r.sees(rdb, primaries)
				epochs[epoch] = true
				return err
			})
			if err != nil {
				return err
			}
		}
		if len(epochs) > 1 { // after a takeover, another election might win an epoch a second time
			return errors.New("the nodes do not agree on the epoch")
		}
		r.cluster = &redistest.Cluster{Masters: primaries, Replicas: replicas}
		return nil
	}
	if len(primaries) != 1 {
		return fmt.Errorf("%d primaries", len(primaries))
	}
	for _, s := range r.sentinel.Sentinels {
		err := r.soon(s, func(rdb *redis.Client) error {
			master := redis.NewMapStringStringCmd(r.ctx, "sentinel", "master", redistest.MasterName)
			if err := rdb.Process(r.ctx, master); err != nil {
				return err
			}
			of := master.Val()
			if of["ip"]+":"+of["port"] != primaries[0].Addr() || of["flags"] != "master" {
				return fmt.Errorf("a Sentinel sees %s:%s as %s", of["ip"], of["port"], of["flags"])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	r.sentinel = &redistest.Sentinel{Primary: primaries[0], Replicas: replicas, Sentinels: r.sentinel.Sentinels}
	return nil
}

// sees returns the epoch of a node, and an error unless it knows these masters, and that all slots are served.
func (r *Run) sees(rdb *redis.Client, masters []*redistest.Server) (epoch string, err error) {
	said, err := rdb.ClusterInfo(r.ctx).Result()
	if err != nil {
		return "", err
	}
	_, epoch, _ = strings.Cut(said, "cluster_current_epoch:")
	epoch, _, _ = strings.Cut(epoch, "\r\n")
	if !strings.Contains(said, "cluster_state:ok\r\n") || !strings.Contains(said, "cluster_slots_ok:16384\r\n") {
		return "", errors.New("the cluster is not complete")
	}
	ranges, err := rdb.ClusterSlots(r.ctx).Result() //nolint:staticcheck // Redis 6.2 has no CLUSTER SHARDS
	if err != nil {
		return "", err
	}
	for _, slots := range ranges {
		master := slots.Nodes[0].Addr
		if !slices.ContainsFunc(masters, func(s *redistest.Server) bool { return s.Addr() == master }) {
			return "", fmt.Errorf("a node sees %s as a master", master)
		}
	}
	return epoch, nil
}

// soon calls f with a client of a server that does not wait long.
func (r *Run) soon(s *redistest.Server, f func(*redis.Client) error) error {
	rdb := redis.NewClient(&redis.Options{
		Addr: s.Addr(), DialTimeout: time.Second, ReadTimeout: time.Second, MaxRetries: -1, DialerRetries: 1,
		PoolSize: 2,
	})
	defer rdb.Close()
	return f(rdb)
}
