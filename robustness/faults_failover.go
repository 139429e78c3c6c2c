package robustness

import (
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// failovers are faults after which other servers are primaries, and those of the slots of a cluster. Replication is
// asynchronous, so most of them may lose the last writes.
var failovers = []*Fault{
	{
		Name: "primary killed, back as a replica", On: []Topology{Sentinel}, Loses: true,
		Inject: func(r *Run) (bool, error) {
			old := r.sentinel.Primary
			old.Kill()
			r.awaitSuccessor(old)
			old.Restart(r.tb)
			return r.settle(), nil
		},
	},
	{
		Name: "primary killed while a replica hangs", On: []Topology{Sentinel}, Loses: true,
		Inject: func(r *Run) (bool, error) {
			old, lagging := r.sentinel.Primary, r.sentinel.Replicas[r.rnd.IntN(len(r.sentinel.Replicas))]
			lagging.Pause()
			r.sleep(r.atLeastHalf(time.Second))
			old.Kill()
			r.awaitSuccessor(old)
			lagging.Resume()
			old.Restart(r.tb)
			return r.settle(), nil
		},
	},
	{
		Name: "primary killed after its replicas were cut off", On: []Topology{Sentinel}, Loses: true,
		Inject: func(r *Run) (bool, error) {
			old := r.sentinel.Primary
			_ = r.sentinel.Isolate(r.tb).Close()
			r.sleep(r.upTo(500 * time.Millisecond)) // what is written now is lost
			old.Kill()
			r.awaitSuccessor(old)
			old.Restart(r.tb)
			return r.settle(), nil
		},
	},
	{
		Name: "primary cut off and alive", On: []Topology{Sentinel}, Loses: true, Repeats: true,
		Inject: func(r *Run) (bool, error) {
			cut := r.sentinel.Isolate(r.tb)
			defer cut.Close()
			r.awaitSuccessor(r.sentinel.Primary)
			r.sleep(r.upTo(r.Lease))
			if err := cut.Do(r.ctx, "acl", "setuser", "default", "on").Err(); err != nil {
				return false, err
			}
			return r.settle(), nil
		},
	},
	{Name: "primary hangs for long", On: []Topology{Sentinel}, Loses: true, Inject: func(r *Run) (bool, error) {
		old := r.sentinel.Primary
		old.Pause()
		r.awaitSuccessor(old)
		old.Resume()
		return r.settle(), nil
	}},
	{
		Name: "primary killed after its replicas had all", On: []Topology{Sentinel}, Deposes: true,
		Inject: func(r *Run) (bool, error) {
			old := r.sentinel.Primary
			var id string
			err := r.on(old, func(rdb *redis.Client) (err error) {
				id, err = r.replicate(rdb)
				return err
			})
			if err != nil {
				return false, err
			}
			old.Kill()
			r.awaitSuccessor(old)
			old.Restart(r.tb)
			r.settle()
			return true, r.on(r.sentinel.Primary, func(rdb *redis.Client) error {
				said, err := rdb.Info(r.ctx, "replication").Result()
				if !strings.Contains(said, "master_replid2:"+id) {
					r.deposed++ // the successor, by another Sentinel
				}
				return err
			})
		},
	},
	{Name: "SENTINEL FAILOVER", On: []Topology{Sentinel}, Loses: true, Inject: func(r *Run) (bool, error) {
		old := r.sentinel.Primary
		err := r.soon(r.sentinel.Sentinels[0], func(rdb *redis.Client) error {
			return rdb.Do(r.ctx, "sentinel", "failover", redistest.MasterName).Err()
		})
		if err != nil {
			return false, err
		}
		r.awaitSuccessor(old)
		return r.settle(), nil
	}},
	{Name: "CLUSTER FAILOVER", On: []Topology{Cluster}, Deposes: true, Inject: func(r *Run) (bool, error) {
		return r.promote()
	}},
	{Name: "CLUSTER FAILOVER TAKEOVER", On: []Topology{Cluster}, Loses: true, Inject: func(r *Run) (bool, error) {
		return r.promote("takeover")
	}},
	{Name: "slot migrates", On: []Topology{Cluster}, Inject: func(r *Run) (bool, error) {
		m := r.cluster.Migrate(r.tb, r.objects[r.rnd.IntN(len(r.objects))])
		r.sleep(r.upTo(r.Lease / 3))
		m.Finish()
		return true, nil
	}},
	{
		Name: "master killed, back as a replica", On: []Topology{Cluster}, Loses: true,
		Inject: func(r *Run) (bool, error) {
			r.awaitElectable()
			old := r.randomServer()
			old.Kill()
			r.awaitMasters(old)
			old.Restart(r.tb)
			return r.settle(), nil
		},
	},
	{Name: "master hangs for long", On: []Topology{Cluster}, Loses: true, Inject: func(r *Run) (bool, error) {
		r.awaitElectable()
		old := r.randomServer()
		old.Pause()
		r.awaitMasters(old)
		old.Resume()
		return r.settle(), nil
	}},
}

// replicate makes a primary execute no writes from now on, and waits until its replicas have those before. It returns
// the id of the replication.
func (r *Run) replicate(rdb *redis.Client) (id string, err error) {
	if err := rdb.Do(r.ctx, "client", "pause", time.Minute.Milliseconds(), "WRITE").Err(); err != nil {
		return "", err
	}
	field := func(said, name string) string {
		_, value, _ := strings.Cut(said, "\r\n"+name+":")
		value, _, _ = strings.Cut(value, "\r\n")
		return value
	}
	for r.ctx.Err() == nil {
		said, err := rdb.Info(r.ctx, "replication").Result()
		if err != nil {
			return "", err
		}
		if strings.Count(said, ",offset="+field(said, "master_repl_offset")+",") == len(r.sentinel.Replicas) {
			return field(said, "master_replid"), nil
		}
		r.sleep(5 * time.Millisecond)
	}
	return "", r.ctx.Err()
}

// awaitSuccessor waits until the Sentinels name another primary.
func (r *Run) awaitSuccessor(old *redistest.Server) {
	(&redistest.Sentinel{Primary: old, Sentinels: r.sentinel.Sentinels}).AwaitFailover(r.tb)
}

// awaitElectable waits until the last election in the cluster is forgotten, four node timeouts later. A node of Redis
// 7.0 that won it, was deposed by a takeover, and sees its master fail before that, counts the old votes: it declares
// itself the master under the old epoch, which the others never accept.
func (r *Run) awaitElectable() {
	if wait := time.Until(r.elected.Add(9 * time.Second)); wait > 0 {
		r.sleep(wait)
	}
}

// awaitMasters waits until the other nodes have another master for the slots of one that is away.
func (r *Run) awaitMasters(away *redistest.Server) {
	others := slices.DeleteFunc(slices.Clone(r.servers), func(s *redistest.Server) bool { return s == away })
	redistest.Poll(r.tb, func() bool {
		for _, s := range others {
			err := r.soon(s, func(rdb *redis.Client) error {
				_, err := r.sees(rdb, others)
				return err
			})
			if err != nil {
				return false
			}
		}
		return true
	})
	r.elected = time.Now()
}

// promote makes a replica of the cluster a master.
func (r *Run) promote(how ...any) (bool, error) {
	s := r.cluster.Replicas[r.rnd.IntN(len(r.cluster.Replicas))]
	err := r.on(s, func(rdb *redis.Client) error {
		var asked time.Time
		for {
			if time.Since(asked) > 6*time.Second { // a manual failover is given up after 5 s
				if err := rdb.Do(r.ctx, append([]any{"cluster", "failover"}, how...)...).Err(); err != nil {
					return err
				}
				asked = time.Now()
			}
			said, err := rdb.Info(r.ctx, "replication").Result()
			if err != nil || strings.Contains(said, "role:master\r\n") {
				return err
			}
			r.sleep(10 * time.Millisecond)
		}
	})
	if err != nil {
		return false, err
	}
	return r.settle(), nil
}
