package robustness

import (
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// serverFaults are those of servers that are slow, away for a while, or forget nothing but connections and scripts.
var serverFaults = []*Fault{
	{Name: "server hangs", On: []Topology{Single, Quorum}, Inject: func(r *Run) (bool, error) {
		s := r.randomServer()
		s.Pause()
		r.sleep(r.upTo(r.Lease * 3 / 2))
		s.Resume()
		return true, nil
	}},
	{Name: "connections killed", Inject: func(r *Run) (bool, error) { return r.killClients("type", "normal") }},
	{Name: "subscriptions killed", Inject: func(r *Run) (bool, error) { return r.killClients("type", "pubsub") }},
	{Name: "connection storm", Inject: func(r *Run) (effect bool, err error) {
		for end := time.Now().Add(r.upTo(r.Lease)); time.Now().Before(end) && err == nil; {
			var killed bool
			killed, err = r.killClients("user", user)
			effect = effect || killed
			r.sleep(20 * time.Millisecond)
		}
		return effect, err
	}},
	{Name: "CLIENT PAUSE ALL", Inject: func(r *Run) (bool, error) {
		return r.pause("ALL", func(rdb *redis.Client) error { return rdb.Ping(r.ctx).Err() })
	}},
	{Name: "CLIENT PAUSE WRITE", Inject: func(r *Run) (bool, error) {
		return r.pause("WRITE", func(rdb *redis.Client) error { return rdb.Publish(r.ctx, "probe", "").Err() })
	}},
	{Name: "SCRIPT FLUSH", Inject: func(r *Run) (bool, error) {
		return r.counted([]string{"errorstat_NOSCRIPT"}, func() error {
			return r.each(func(rdb *redis.Client) error { return rdb.ScriptFlush(r.ctx).Err() })
		})
	}},
	{Name: "event loop blocked", Inject: func(r *Run) (bool, error) {
		d := r.stall(r.Lease / 2)
		return true, r.on(r.randomServer(), func(rdb *redis.Client) error {
			return rdb.Do(r.ctx, "debug", "sleep", d.Seconds()).Err()
		})
	}},
	{Name: "busy script, then SCRIPT KILL", Inject: (*Run).busyScript},
	{Name: "restart with its data", On: []Topology{Single, Quorum}, Inject: func(r *Run) (bool, error) {
		r.randomServer().Restart(r.tb)
		return true, nil
	}},
}

// killClients kills the connections that the filter names, but for its own, and reports whether there were any.
func (r *Run) killClients(filter ...any) (effect bool, err error) {
	err = r.each(func(rdb *redis.Client) error {
		n, err := rdb.Do(r.ctx, append(append([]any{"client", "kill"}, filter...), "skipme", "yes")...).Int()
		effect = effect || n > 0
		return err
	})
	return effect, err
}

// pause pauses the clients of a server. The effect is that a probe of the same sort is paused too.
func (r *Run) pause(what string, probe func(*redis.Client) error) (effect bool, err error) {
	d := r.stall(r.Lease)
	err = r.on(r.randomServer(), func(rdb *redis.Client) error {
		began := time.Now()
		if err := rdb.Do(r.ctx, "client", "pause", d.Milliseconds(), what).Err(); err != nil {
			return err
		}
		err := probe(rdb)
		effect = time.Since(began) >= d.Truncate(time.Millisecond)
		return err
	})
	return effect, err
}

// busyScript blocks a server with a script that only reads, which SCRIPT KILL ends.
func (r *Run) busyScript() (bool, error) {
	s := r.randomServer()
	done := make(chan error, 1)
	killed := false
	go func() {
		done <- r.on(s, func(rdb *redis.Client) error {
			err := rdb.Eval(r.ctx, "while true do redis.call('TIME') end", nil).Err()
			killed = err != nil && strings.Contains(err.Error(), "killed")
			if killed {
				return nil
			}
			return err
		})
	}()
	r.sleep(r.stall(r.Lease / 2))
	err := r.soon(s, func(rdb *redis.Client) error { // a busy server refuses SELECT
		for {
			err := rdb.ScriptKill(r.ctx).Err()
			if err == nil || !strings.Contains(err.Error(), "NOTBUSY") || r.ctx.Err() != nil {
				return err
			}
			select {
			case err := <-done: // a Sentinel killed it
				done <- err
				return err
			default:
				r.sleep(5 * time.Millisecond)
			}
		}
	})
	if err != nil {
		return false, fmt.Errorf("SCRIPT KILL: %w", err)
	}
	err = <-done
	return killed, err
}
