package robustness

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// rights are the commands that scripts and clients of some kind send.
var rights = []string{
	"evalsha", "eval", "time", "pexpire", "exists", "get", "set", "del", "hset", "hdel", "hget", "zadd", "zrem",
	"zscore", "zrange", "zrangebyscore", "pttl", "subscribe", "publish", "rpush", "lrange",
}

// refusals are faults of servers that answer, but refuse.
var refusals = []*Fault{
	{Name: "right to a command revoked", Inject: (*Run).revoke},
	{Name: "rights to channels revoked", Inject: func(r *Run) (bool, error) {
		return r.denied(func() error { return r.withUser("resetchannels", "&*", r.atLeastHalf(r.Lease)) })
	}},
	{Name: "AUTH refused", Inject: func(r *Run) (bool, error) {
		return r.denied(func() error { return r.reconnecting("<"+secret, ">"+secret) })
	}},
	{Name: "SELECT refused", On: []Topology{Single, Sentinel, Quorum}, Inject: func(r *Run) (bool, error) {
		return r.denied(func() error { return r.reconnecting("-select", "+select") })
	}},
	{Name: "too many clients", On: []Topology{Single, Cluster, Quorum}, Inject: func(r *Run) (bool, error) {
		return r.counted([]string{"rejected_connections"}, func() error {
			return r.on(r.randomServer(), func(rdb *redis.Client) error {
				return r.configured(rdb, "maxclients", "3", func() error {
					err := rdb.Do(r.ctx, "client", "kill", "user", user).Err()
					r.sleep(r.atLeastHalf(r.Lease / 2))
					return err
				})
			})
		})
	}},
	{Name: "memory exhausted", Inject: func(r *Run) (bool, error) { return r.refusing("maxmemory", "1", "OOM") }},
	{Name: "too few replicas", On: []Topology{Single, Quorum}, Inject: func(r *Run) (bool, error) {
		return r.refusing("min-replicas-to-write", "1", "NOREPLICAS")
	}},
	{Name: "saving fails", On: []Topology{Single, Quorum}, Inject: (*Run).failingSave},
	{Name: "loading", On: []Topology{Single, Quorum}, Inject: (*Run).loading},
	{Name: "read-only replica", On: []Topology{Single}, Inject: func(r *Run) (effect bool, err error) {
		return effect, r.on(r.randomServer(), func(rdb *redis.Client) error {
			if err := rdb.Do(r.ctx, "replicaof", "127.0.0.1", "1").Err(); err != nil {
				return err
			}
			effect = r.refused(rdb, "READONLY")
			r.sleep(r.upTo(r.Lease / 2))
			return rdb.Do(r.ctx, "replicaof", "no", "one").Err()
		})
	}},
}

// revoke takes one command after the other from the user for a while, until one was asked for.
func (r *Run) revoke() (bool, error) {
	for _, i := range r.rnd.Perm(len(rights)) {
		effect, err := r.denied(func() error {
			return r.withUser("-"+rights[i], "+"+rights[i], r.upTo(300*time.Millisecond))
		})
		if effect || err != nil {
			return effect, err
		}
	}
	return false, nil
}

// withUser changes the rights of the user for a while.
func (r *Run) withUser(rule, back string, d time.Duration) error {
	set := func(rule string) error {
		return r.each(func(rdb *redis.Client) error { return rdb.Do(r.ctx, "acl", "setuser", user, rule).Err() })
	}
	if err := set(rule); err != nil {
		return err
	}
	r.sleep(d)
	return set(back)
}

// reconnecting changes the rights of the user for a while in which it has to connect again.
func (r *Run) reconnecting(rule, back string) error {
	done := make(chan error, 1)
	d := r.atLeastHalf(r.Lease / 2)
	go func() { done <- r.withUser(rule, back, d) }()
	r.sleep(10 * time.Millisecond)
	_, err := r.killClients("user", user)
	if err := <-done; err != nil {
		return err
	}
	return err
}

// configured changes a setting of a server while f runs.
func (r *Run) configured(rdb *redis.Client, setting, value string, f func() error) error {
	old, err := rdb.ConfigGet(r.ctx, setting).Result()
	if err != nil {
		return err
	}
	if err := rdb.ConfigSet(r.ctx, setting, value).Err(); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return rdb.ConfigSet(r.ctx, setting, old[setting]).Err()
}

// refusing changes a setting of a server for a while in which it refuses writes.
func (r *Run) refusing(setting, value, word string) (effect bool, err error) {
	return effect, r.on(r.randomServer(), func(rdb *redis.Client) error {
		return r.configured(rdb, setting, value, func() error {
			effect = r.refused(rdb, word)
			r.sleep(r.upTo(r.Lease / 2))
			return nil
		})
	})
}

// refused reports whether the server refuses a write with an error that begins with the word.
func (r *Run) refused(rdb *redis.Client, word string) bool {
	for i := range 100 { // in a cluster, some of the keys are of another server
		err := rdb.Set(r.ctx, "probe:"+strconv.Itoa(i), 1, 100*time.Millisecond).Err()
		if err == nil || !strings.HasPrefix(err.Error(), "MOVED") {
			return err != nil && strings.HasPrefix(err.Error(), word)
		}
	}
	return false
}

// failingSave makes the snapshots of a server fail, which then refuses writes.
func (r *Run) failingSave() (effect bool, err error) {
	s := r.randomServer()
	obstacle := filepath.Join(s.Dir(), "dump.rdb") // a directory in place of the file
	return effect, r.on(s, func(rdb *redis.Client) error {
		if err := os.RemoveAll(obstacle); err != nil {
			return err
		}
		if err := os.Mkdir(obstacle, 0o700); err != nil {
			return err
		}
		err := r.configured(rdb, "save", "3600 1", func() error {
			if err := r.save(rdb, "err"); err != nil {
				return err
			}
			effect = r.refused(rdb, "MISCONF")
			r.sleep(r.upTo(r.Lease / 2))
			if err := os.Remove(obstacle); err != nil {
				return err
			}
			return r.save(rdb, "ok")
		})
		return err
	})
}

// save saves a snapshot and waits for the outcome.
func (r *Run) save(rdb *redis.Client, outcome string) error {
	if err := rdb.BgSave(r.ctx).Err(); err != nil {
		return err
	}
	for r.ctx.Err() == nil {
		said, err := rdb.Info(r.ctx, "persistence").Result()
		if err != nil || strings.Contains(said, "rdb_last_bgsave_status:"+outcome+"\r\n") {
			return err
		}
		r.sleep(5 * time.Millisecond)
	}
	return r.ctx.Err()
}

// loading makes a server load its data for a while.
func (r *Run) loading() (bool, error) {
	const keys = 100
	s := r.randomServer()
	each := r.atLeastHalf(r.Lease/2) / keys
	return r.counted([]string{"errorstat_LOADING"}, func() error {
		return r.on(s, func(rdb *redis.Client) error {
			for _, set := range [][]any{
				{"debug", "populate", keys, "filler"},
				{"config", "set", "key-load-delay", each.Microseconds(), "loading-process-events-interval-bytes", 1024},
				{"debug", "reload"},
				{"config", "set", "key-load-delay", 0},
				{"eval", "for i = 0, 99 do redis.call('UNLINK', 'filler:' .. i) end", 0},
			} {
				if err := rdb.Do(r.ctx, set...).Err(); err != nil && !errors.Is(err, redis.Nil) {
					return err
				}
			}
			return nil
		})
	})
}

// randomKey returns a key of a random object for which want is true, or "" if there is none for a while.
func (r *Run) randomKey(s *redistest.Server, want func(rdb *redis.Client, key string) bool) (found string, err error) {
	err = r.on(s, func(rdb *redis.Client) error {
		for range 200 {
			key, err := rdb.RandomKey(r.ctx).Result()
			switch {
			case errors.Is(err, redis.Nil):
			case err != nil:
				return err
			case strings.Contains(key, "object-") && !strings.HasPrefix(key, "probe") && want(rdb, key):
				found = key
				return nil
			}
			r.sleep(2 * time.Millisecond)
		}
		return nil
	})
	return found, err
}
