package robustness

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// Fault is something that goes wrong during a run.
type Fault struct {
	Name string

	// On lists the topologies that have what the fault breaks; all if it is empty.
	On []Topology

	// Kills says that it ends clients with what they hold, Stops that it stops processes for longer than a lease,
	// and Loses that it makes Redis forget what it confirmed.
	Kills, Stops, Loses bool

	Deposes bool // primaries change without a loss
	Clock   bool // needs a server whose clock can be set
	Repeats bool // what it loses is lost again and again while it lasts, so that it adds more than a burst to a limit

	// Inject causes the fault and ends it. It reports whether the fault had an effect. A fault that a process
	// carries out has its effect in the history instead.
	Inject func(r *Run) (effect bool, err error)
}

// Faults are all faults.
var Faults = slices.Concat(processFaults, serverFaults, refusals, losses, failovers)

// possible reports whether the fault can happen to what the scenario uses. Tasks promise nothing after a loss of data.
func (s *Scenario) possible(f *Fault) bool {
	return (len(f.On) == 0 || slices.Contains(f.On, s.Topology)) &&
		!(f.Kills && s.kind().Counting) && !(f.Clock && !redistest.HasClocks()) &&
		!(f.Repeats && s.kind().Limit != nil) && !(f.Loses && s.kind().Tasks != nil)
}

// those returns the faults of the lists that are possible in the scenario, but for those that lose data.
func (s *Scenario) those(lists ...[]*Fault) []*Fault {
	return slices.DeleteFunc(slices.Concat(lists...), func(f *Fault) bool {
		return f.Loses || !s.possible(f)
	})
}

// losing returns the faults of the lists that are possible in the scenario and lose data.
func (s *Scenario) losing(lists ...[]*Fault) []*Fault {
	return slices.DeleteFunc(slices.Concat(lists...), func(f *Fault) bool {
		return !f.Loses || f.Clock || !s.possible(f)
	})
}

// each calls f with a client of each server that runs.
func (r *Run) each(f func(*redis.Client) error) error {
	for _, s := range r.servers {
		if err := r.on(s, f); err != nil {
			return err
		}
	}
	return nil
}

// on calls f with a client of a server. It waits for replies for as long as faults may last.
func (r *Run) on(s *redistest.Server, f func(*redis.Client) error) error {
	rdb := redis.NewClient(&redis.Options{
		Addr: s.Addr(), DB: r.db(), ReadTimeout: time.Minute, MaxRetries: -1, PoolSize: 2,
	})
	defer rdb.Close()
	return f(rdb)
}

// db returns the database of the processes.
func (r *Run) db() int {
	if r.Topology == Cluster {
		return 0
	}
	return database
}

// counted reports whether the counters of all servers that have one of the names rise while f runs or soon after.
func (r *Run) counted(counters []string, f func() error) (bool, error) {
	count := func() (sum int, err error) {
		err = r.each(func(rdb *redis.Client) error {
			said, err := rdb.Info(r.ctx, "everything").Result()
			for line := range strings.Lines(said) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
				if slices.Contains(counters, name) {
					n, _ := strconv.Atoi(strings.TrimPrefix(value, "count="))
					sum += n
				}
			}
			return err
		})
		return sum, err
	}
	return r.rises(count, f)
}

// denied reports whether servers refuse a user rights while f runs or soon after.
func (r *Run) denied(f func() error) (bool, error) {
	if err := r.each(func(rdb *redis.Client) error { return rdb.ACLLogReset(r.ctx).Err() }); err != nil {
		return false, err
	}
	count := func() (sum int, err error) {
		err = r.each(func(rdb *redis.Client) error {
			log, err := rdb.ACLLog(r.ctx, 100).Result()
			for _, entry := range log {
				if entry.Username == user {
					sum += int(entry.Count)
				}
			}
			return err
		})
		return sum, err
	}
	return r.rises(count, f)
}

func (r *Run) rises(count func() (int, error), f func() error) (bool, error) {
	before, err := count()
	if err != nil {
		return false, err
	}
	if err := f(); err != nil {
		return false, err
	}
	for range 10 {
		after, err := count()
		if err != nil || after > before {
			return err == nil, err
		}
		r.sleep(30 * time.Millisecond)
	}
	return false, nil
}

// stall returns for how long a server may be silent without being deposed, at most the given time.
func (r *Run) stall(most time.Duration) time.Duration {
	if r.Topology == Sentinel || r.Topology == Cluster {
		most = min(most, 500*time.Millisecond)
	}
	return r.upTo(most)
}

func (r *Run) randomProcess() *child { return r.children[r.rnd.IntN(len(r.children))] }

// randomServer returns one that clients write to. In a cluster, it is the master of an object.
func (r *Run) randomServer() *redistest.Server {
	if r.Topology == Cluster {
		return r.cluster.Owner(r.tb, r.objects[r.rnd.IntN(len(r.objects))])
	}
	primaries := r.primaries()
	return primaries[r.rnd.IntN(len(primaries))]
}

func (r *Run) upTo(d time.Duration) time.Duration { return time.Duration(1 + r.rnd.Int64N(int64(d))) }

// atLeastHalf returns a time between half of d and d.
func (r *Run) atLeastHalf(d time.Duration) time.Duration { return d/2 + r.upTo(d/2) }

func (r *Run) sleep(d time.Duration) {
	ctx, cancel := context.WithTimeout(r.ctx, d)
	defer cancel()
	<-ctx.Done()
}

// named returns the faults with the given names.
func named(names ...string) (faults []*Fault) {
	byName := make(map[string]*Fault)
	for _, f := range Faults {
		byName[f.Name] = f
	}
	for _, name := range names {
		f := byName[name]
		if f == nil {
			panic("no such fault among " + strings.Join(slices.Sorted(maps.Keys(byName)), ", ") + ": " + name)
		}
		faults = append(faults, f)
	}
	return faults
}
