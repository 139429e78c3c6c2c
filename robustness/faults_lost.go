package robustness

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// losses are faults that make Redis forget, and those of single keys.
var losses = []*Fault{
	{Name: "FLUSHALL", Loses: true, Inject: func(r *Run) (effect bool, err error) {
		return effect, r.on(r.randomServer(), func(rdb *redis.Client) error {
			effect = rdb.DBSize(r.ctx).Val() > 0
			return rdb.FlushAll(r.ctx).Err()
		})
	}},
	{
		Name: "restart without its data", On: []Topology{Single, Quorum}, Loses: true,
		Inject: func(r *Run) (bool, error) {
			s := r.randomServer()
			s.Kill()
			for _, name := range []string{"appendonlydir", "appendonly.aof", "dump.rdb"} {
				if err := os.RemoveAll(filepath.Join(s.Dir(), name)); err != nil {
					return false, err
				}
			}
			s.Restart(r.tb)
			return true, nil
		},
	},
	{Name: "eviction", Loses: true, Repeats: true, Inject: (*Run).evict},
	{Name: "key deleted", Loses: true, Inject: func(r *Run) (bool, error) {
		s := r.randomServer()
		key, err := r.randomKey(s, func(rdb *redis.Client, key string) bool { return rdb.Del(r.ctx, key).Val() > 0 })
		return key != "", err
	}},
	{Name: "key overwritten", Loses: true, Inject: func(r *Run) (bool, error) {
		s := r.randomServer()
		key, err := r.randomKey(s, func(rdb *redis.Client, key string) bool {
			return rdb.SetXX(r.ctx, key, "foreign", 0).Val()
		})
		if key == "" {
			return false, err
		}
		r.sleep(r.upTo(r.Lease / 2))
		return true, r.on(s, func(rdb *redis.Client) error {
			if rdb.Get(r.ctx, key).Val() != "foreign" {
				return nil // the library may have replaced it
			}
			return rdb.Del(r.ctx, key).Err()
		})
	}},
	{Name: "key persisted", Inject: func(r *Run) (bool, error) {
		s := r.randomServer()
		var ttl time.Duration
		key, err := r.randomKey(s, func(rdb *redis.Client, key string) bool {
			ttl = rdb.PTTL(r.ctx, key).Val()
			return ttl > 0 && rdb.Persist(r.ctx, key).Val()
		})
		if key == "" {
			return false, err
		}
		r.sleep(r.upTo(r.Lease / 2))
		return true, r.on(s, func(rdb *redis.Client) error { // if its holder has not renewed it meanwhile
			if rdb.PTTL(r.ctx, key).Val() != -1 {
				return nil
			}
			return rdb.PExpire(r.ctx, key, ttl).Err()
		})
	}},
	{Name: "clock set forward", On: []Topology{Single}, Loses: true, Clock: true, Inject: func(r *Run) (bool, error) {
		return r.setClock(time.Hour)
	}},
	{Name: "clock set back", On: []Topology{Single}, Loses: true, Clock: true, Inject: func(r *Run) (bool, error) {
		return r.setClock(-time.Hour)
	}},
}

// evict makes a server evict keys at random while others are written.
func (r *Run) evict() (bool, error) {
	return r.counted([]string{"evicted_keys"}, func() error {
		return r.on(r.randomServer(), func(rdb *redis.Client) error {
			said, err := rdb.Info(r.ctx, "memory").Result()
			if err != nil {
				return err
			}
			_, used, _ := strings.Cut(said, "used_memory:")
			used, _, _ = strings.Cut(used, "\r\n")
			return r.configured(rdb, "maxmemory-policy", "allkeys-random", func() error {
				return r.configured(rdb, "maxmemory", used, func() error {
					for i := range 300 {
						err := rdb.Set(r.ctx, "filler:"+strconv.Itoa(i), strings.Repeat("x", 1000), time.Second).Err()
						full := err != nil && strings.HasPrefix(err.Error(), "OOM")
						if err != nil && !full && !strings.HasPrefix(err.Error(), "MOVED") {
							return err
						}
					}
					return nil
				})
			})
		})
	})
}

// setClock sets the clock of the server for a while.
func (r *Run) setClock(offset time.Duration) (effect bool, err error) {
	r.clock.Set(r.tb, offset)
	r.moved = max(r.moved, offset)
	defer r.clock.Set(r.tb, 0)
	return effect, r.on(r.randomServer(), func(rdb *redis.Client) error {
		now, err := rdb.Time(r.ctx).Result()
		effect = time.Until(now).Round(time.Minute) == offset
		r.sleep(r.atLeastHalf(r.Lease))
		return err
	})
}
