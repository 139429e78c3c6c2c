package robustness

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/robustness/history"
)

// Fault is something that goes wrong during a run.
type Fault struct {
	Name string

	// On lists the topologies that have what the fault breaks; all if it is empty.
	On []Topology

	// Kills says that it ends processes, Stops that it stops them for longer than a lease, and Loses that it makes
	// Redis forget what it confirmed.
	Kills, Stops, Loses bool

	// Inject causes the fault and ends it. It reports whether the fault had an effect.
	Inject func(r *Run) (effect bool, err error)
}

// possible reports whether the fault can happen to what the scenario uses.
func (s *Scenario) possible(f *Fault) bool {
	return (len(f.On) == 0 || slices.Contains(f.On, s.Topology)) && !(f.Kills && s.kind().Counting)
}

// Faults are all faults of one process, its network, and the servers.
var Faults = []*Fault{
	{Name: "replies lost after execution", Inject: func(r *Run) (bool, error) {
		return true, r.randomProcess().fault(networkFault{LoseReplies: 1 + r.rnd.IntN(5), Cut: r.rnd.IntN(2) == 0})
	}},
	{Name: "connections reset", Inject: func(r *Run) (bool, error) {
		return true, r.randomProcess().fault(networkFault{Reset: true})
	}},
	{Name: "network cut both ways", Inject: func(r *Run) (bool, error) {
		return r.cut(redistest.BlackholeUp | redistest.BlackholeDown)
	}},
	{Name: "requests lost", Inject: func(r *Run) (bool, error) { return r.cut(redistest.BlackholeUp) }},
	{Name: "replies lost", Inject: func(r *Run) (bool, error) { return r.cut(redistest.BlackholeDown) }},
	{Name: "slow network", Inject: func(r *Run) (bool, error) {
		d := time.Duration(1+r.rnd.IntN(100)) * time.Millisecond
		return true, r.during(time.Second, func(d2 time.Duration) error {
			return r.randomProcess().fault(networkFault{Delay: d, For: d2})
		})
	}},
	{Name: "process stopped", Stops: true, Inject: func(r *Run) (bool, error) {
		p := r.randomProcess()
		r.note(history.Stopped, p)
		if err := p.signal(syscall.SIGSTOP); err != nil {
			return false, err
		}
		r.sleep(r.upTo(2 * r.Lease))
		err := p.signal(syscall.SIGCONT)
		r.note(history.Resumed, p)
		return true, err
	}},
	{Name: "process killed", Kills: true, Inject: func(r *Run) (bool, error) { return true, r.replace(r.randomProcess()) }},
	{Name: "server hangs", Inject: func(r *Run) (bool, error) {
		s := r.randomServer()
		s.Pause()
		r.sleep(r.upTo(r.Lease * 3 / 2))
		s.Resume()
		return true, nil
	}},
	{Name: "connections killed", Inject: func(r *Run) (bool, error) { return r.killClients("normal") }},
	{Name: "subscriptions killed", Inject: func(r *Run) (bool, error) { return r.killClients("pubsub") }},
	{Name: "CLIENT PAUSE ALL", Inject: func(r *Run) (bool, error) { return r.pause("ALL") }},
	{Name: "CLIENT PAUSE WRITE", Inject: func(r *Run) (bool, error) { return r.pause("WRITE") }},
	{Name: "SCRIPT FLUSH", Inject: func(r *Run) (bool, error) {
		return true, r.each(func(rdb *redis.Client) error { return rdb.ScriptFlush(r.ctx).Err() })
	}},
	{Name: "event loop blocked", Inject: func(r *Run) (bool, error) {
		d := r.upTo(r.Lease / 2)
		return true, r.on(r.randomServer(), func(rdb *redis.Client) error {
			return rdb.Do(r.ctx, "debug", "sleep", d.Seconds()).Err()
		})
	}},
	{Name: "busy script, then SCRIPT KILL", Inject: (*Run).busyScript},
	{Name: "restart with its data", On: []Topology{Single, Quorum}, Inject: func(r *Run) (bool, error) {
		r.randomServer().Restart(r.tb)
		return true, nil
	}},
	{Name: "FLUSHALL", Loses: true, Inject: func(r *Run) (bool, error) {
		return true, r.on(r.randomServer(), func(rdb *redis.Client) error { return rdb.FlushAll(r.ctx).Err() })
	}},
	{Name: "memory exhausted", Inject: func(r *Run) (bool, error) {
		return r.configured("maxmemory", "1", r.upTo(r.Lease/2))
	}},
	{Name: "too few replicas", On: []Topology{Single, Quorum}, Inject: func(r *Run) (bool, error) {
		return r.configured("min-replicas-to-write", "1", r.upTo(r.Lease/2))
	}},
	{Name: "read-only replica", On: []Topology{Single}, Inject: func(r *Run) (bool, error) {
		return true, r.on(r.randomServer(), func(rdb *redis.Client) error {
			if err := rdb.Do(r.ctx, "config", "set", "replica-read-only", "yes").Err(); err != nil {
				return err
			}
			if err := rdb.SlaveOf(r.ctx, "127.0.0.1", "1").Err(); err != nil {
				return err
			}
			r.sleep(r.upTo(r.Lease / 2))
			return rdb.SlaveOf(r.ctx, "NO", "ONE").Err()
		})
	}},
}

// cut loses bytes of one process for up to two leases.
func (r *Run) cut(directions redistest.Fault) (bool, error) {
	return true, r.during(2*r.Lease, func(d time.Duration) error {
		return r.randomProcess().fault(networkFault{Lost: directions, For: d})
	})
}

// during starts something that lasts up to a time, and waits for its end.
func (r *Run) during(most time.Duration, start func(time.Duration) error) error {
	d := r.upTo(most)
	if err := start(d); err != nil {
		return err
	}
	r.sleep(d)
	return nil
}

func (r *Run) killClients(kind string) (effect bool, err error) {
	err = r.each(func(rdb *redis.Client) error {
		n, err := rdb.Do(r.ctx, "client", "kill", "type", kind, "skipme", "yes").Int()
		effect = effect || n > 0
		return err
	})
	return effect, err
}

func (r *Run) pause(what string) (bool, error) {
	d := r.upTo(r.Lease)
	err := r.on(r.randomServer(), func(rdb *redis.Client) error {
		return rdb.Do(r.ctx, "client", "pause", d.Milliseconds(), what).Err()
	})
	r.sleep(d)
	return true, err
}

// configured changes a setting of a server for a while.
func (r *Run) configured(setting, value string, d time.Duration) (bool, error) {
	return true, r.on(r.randomServer(), func(rdb *redis.Client) error {
		old, err := rdb.ConfigGet(r.ctx, setting).Result()
		if err != nil {
			return err
		}
		if err := rdb.ConfigSet(r.ctx, setting, value).Err(); err != nil {
			return err
		}
		r.sleep(d)
		return rdb.ConfigSet(r.ctx, setting, old[setting]).Err()
	})
}

// busyScript blocks a server with a script that only reads, which SCRIPT KILL ends.
func (r *Run) busyScript() (bool, error) {
	s := r.randomServer()
	done := make(chan error, 1)
	go func() {
		done <- r.on(s, func(rdb *redis.Client) error {
			err := rdb.Eval(r.ctx, "while true do redis.call('TIME') end", nil).Err()
			if err != nil && !strings.Contains(err.Error(), "killed") {
				return err
			}
			return nil
		})
	}()
	r.sleep(r.upTo(r.Lease / 2))
	err := r.on(s, func(rdb *redis.Client) error {
		for {
			err := rdb.ScriptKill(r.ctx).Err()
			if err == nil || !strings.Contains(err.Error(), "NOTBUSY") || r.ctx.Err() != nil {
				return err
			}
			select {
			case <-done: // it ended by itself
				return nil
			default:
				r.sleep(5 * time.Millisecond)
			}
		}
	})
	if err != nil {
		return false, fmt.Errorf("SCRIPT KILL: %w", err)
	}
	return true, <-done
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
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: time.Minute, MaxRetries: -1, PoolSize: 2})
	defer rdb.Close()
	return f(rdb)
}

func (r *Run) randomProcess() *child              { return r.children[r.rnd.IntN(len(r.children))] }
func (r *Run) randomServer() *redistest.Server    { return r.servers[r.rnd.IntN(len(r.servers))] }
func (r *Run) upTo(d time.Duration) time.Duration { return time.Duration(1 + r.rnd.Int64N(int64(d))) }

func (r *Run) sleep(d time.Duration) {
	ctx, cancel := context.WithTimeout(r.ctx, d)
	defer cancel()
	<-ctx.Done()
}

// named returns the faults with the given names.
func named(names ...string) (faults []*Fault) {
	for _, f := range Faults {
		if slices.Contains(names, f.Name) {
			faults = append(faults, f)
		}
	}
	if len(faults) != len(names) {
		panic("no such fault among " + strconv.Quote(strings.Join(names, ", ")))
	}
	return faults
}
