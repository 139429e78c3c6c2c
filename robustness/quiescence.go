package robustness

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// remains is what a run left in a server.
type remains struct {
	keys     map[string]time.Duration // the time after which each expires; -1 for never
	channels []string                 // with subscribers
	clients  []string                 // connections of processes
	missing  map[string]int64         // permits of each object that are not free
	moved    time.Duration            // for which a server wrote on a clock that was ahead
}

// stay are the keys that stay after the last use of an object, and for how long at most; -1 for ever. They are those
// of docs/keys.md.
var stay = []struct {
	key  *regexp.Regexp
	most time.Duration
}{
	{regexp.MustCompile(`^redisson_lock_token:\{.+\}$`), 24 * time.Hour},
	{regexp.MustCompile(`^\{.+\}:(fair:)?fence$`), 24 * time.Hour},
	{regexp.MustCompile(`^\{.+\}:(origin|acquiring:.+|releasing:.+)$`), 10 * time.Minute},
	{regexp.MustCompile(`^\{.+\}:delay:token$`), 24 * time.Hour},
	{regexp.MustCompile(`^\{.+\}:delay:(edits|claims):.+$`), 10 * time.Minute},
	{regexp.MustCompile(`^\{.+\}:call:.+:.+$`), time.Minute},
}

// stayWithPermits are the keys of semaphores that stay for ever.
var stayWithPermits = regexp.MustCompile(`^([^{}]+|\{.+\}:(timeout|fair:permits|fair:leases))$`)

// stayWithLimits are the keys of limiters that stay for ever, and limitsEnd those that end with what they count.
var (
	stayWithLimits = regexp.MustCompile(`^([^{}]+|\{.+\}:(value|permits))$`)
	limitsEnd      = regexp.MustCompile(`^robustness:\{.+\}(:window|:sliding)?$`)
)

// faults returns what a kind may not leave behind.
func (l remains) faults(k *Kind) (faults []check.Fault) {
	add := func(object, detail string) {
		faults = append(faults, check.Fault{Promise: "nothing is left", Object: object, Detail: detail})
	}
	for key, ttl := range l.keys {
		if k.Capacity > 1 && stayWithPermits.MatchString(key) && ttl == -1 {
			continue
		}
		if k.Limit != nil && (stayWithLimits.MatchString(key) || limitsEnd.MatchString(key) && ttl != -1) {
			continue
		}
		most := time.Duration(0)
		for _, s := range stay {
			if s.key.MatchString(key) {
				most = s.most + l.moved
			}
		}
		if ttl == -1 || ttl > most {
			add(key, fmt.Sprintf("expires in %v, more than %v", ttl, most))
		}
	}
	for _, channel := range l.channels {
		add(channel, "has a subscriber")
	}
	for _, client := range l.clients {
		add("connection", client)
	}
	for object, n := range l.missing {
		if n != 0 {
			add(object, fmt.Sprintf("%d permits are missing", n))
		}
	}
	return faults
}

// leftBehind waits until nothing is left of the run, for as long as leases and queues may last, and returns what
// is left then.
func (r *Run) leftBehind() (faults []check.Fault) {
	queue := 3*r.Poll + time.Second
	for end := time.Now().Add(max(r.Lease, queue) + settleSlack); ; r.sleep(100 * time.Millisecond) {
		l := remains{keys: make(map[string]time.Duration), missing: make(map[string]int64), moved: r.moved}
		for _, s := range r.primaries() {
			require.NoError(r.tb, r.on(s, func(rdb *redis.Client) error { return r.look(rdb, &l) }))
		}
		if r.kind().Free != nil {
			look := func(rdb redis.UniversalClient) error { return r.lookForPermits(rdb, &l) }
			require.NoError(r.tb, r.asClient(look))
		}
		if faults = l.faults(r.kind()); len(faults) == 0 || time.Now().After(end) {
			for _, n := range l.missing {
				r.leaked += n
			}
			return faults
		}
	}
}

// look adds what is left in a server.
func (r *Run) look(rdb *redis.Client, l *remains) error {
	keys := rdb.Scan(r.ctx, 0, "", 1000).Iterator()
	for keys.Next(r.ctx) {
		if strings.HasPrefix(keys.Val(), "filler:") || strings.HasPrefix(keys.Val(), "probe") {
			continue
		}
		ttl, err := rdb.PTTL(r.ctx, keys.Val()).Result()
		if err != nil {
			return err
		}
		if ttl != -2 { // gone meanwhile
			l.keys[keys.Val()] = ttl
		}
	}
	if err := keys.Err(); err != nil {
		return err
	}
	channels, err := rdb.PubSubChannels(r.ctx, "*").Result()
	if err != nil {
		return err
	}
	shards, _ := rdb.PubSubShardChannels(r.ctx, "*").Result() // since Redis 7.0
	l.channels = append(l.channels, slices.DeleteFunc(slices.Concat(channels, shards), func(name string) bool {
		return strings.HasPrefix(name, "__sentinel__:")
	})...)
	clients, err := rdb.ClientList(r.ctx).Result()
	for line := range strings.Lines(clients) {
		if strings.Contains(line, " user="+user+" ") {
			l.clients = append(l.clients, strings.TrimSpace(line))
		}
	}
	return err
}

// lookForPermits adds the permits that are not free.
func (r *Run) lookForPermits(rdb redis.UniversalClient, l *remains) error {
	return withSemaphores(r.ctx, rdb, func(c *semaphore.Client) error {
		for _, object := range r.objects {
			free, err := r.kind().Free(r.ctx, c, object)
			if err != nil {
				return err
			}
			if !r.lostData() {
				l.missing[object] = r.kind().Capacity - free
			}
		}
		return nil
	})
}
