package check

import (
	"cmp"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

// options are the options of a redis client that a check reads.
type options struct {
	read, dial, pool       time.Duration
	minBackoff, maxBackoff time.Duration
	retries, poolSize      int
	contextTimeout         bool
	readOnly               bool
	user                   string
}

func optionsOf(base redis.UniversalClient) (o options, known bool) {
	switch c := base.(type) {
	case *redis.Client:
		opt := c.Options()
		o = options{
			opt.ReadTimeout, opt.DialTimeout, opt.PoolTimeout, opt.MinRetryBackoff, opt.MaxRetryBackoff,
			opt.MaxRetries, opt.PoolSize, true, false, opt.Username,
		}
	case *redis.ClusterClient:
		opt := c.Options()
		o = options{
			opt.ReadTimeout, opt.DialTimeout, opt.PoolTimeout, opt.MinRetryBackoff, opt.MaxRetryBackoff,
			redisconn.Retries(c), opt.PoolSize, opt.ContextTimeoutEnabled, opt.ReadOnly, opt.Username,
		}
	case *redis.Ring:
		opt := c.Options()
		o = options{
			opt.ReadTimeout, opt.DialTimeout, opt.PoolTimeout, opt.MinRetryBackoff, opt.MaxRetryBackoff,
			opt.MaxRetries, opt.PoolSize, opt.ContextTimeoutEnabled, false, opt.Username,
		}
	default:
		return o, false
	}
	// The clients of a cluster's or a Ring's nodes set the defaults.
	node := redis.NewClient(&redis.Options{ReadTimeout: o.read, PoolTimeout: o.pool})
	defer node.Close()
	o.dial = cmp.Or(o.dial, node.Options().DialTimeout)
	o.read = cmp.Or(o.read, node.Options().ReadTimeout)
	o.pool = cmp.Or(o.pool, node.Options().PoolTimeout)
	o.poolSize = cmp.Or(o.poolSize, node.Options().PoolSize)
	return o, true
}

// pauses returns how long go-redis pauses at most between the tries of one command.
func (o options) pauses() (longest time.Duration) {
	for try := 1; try <= o.retries && o.minBackoff > 0; try++ {
		jitter := o.minBackoff << try // at most; it may overflow
		pause := o.minBackoff + jitter
		if jitter < o.minBackoff || pause < 0 || pause > o.maxBackoff {
			pause = o.maxBackoff
		}
		longest += pause
	}
	return longest
}

// judgeOptions reports options that delay calls, and timeouts that are long for the lease.
func (c *Client) judgeOptions(r *cogwheel.Report) {
	o, known := optionsOf(c.Base)
	if !known {
		add(r, finding{
			Level: unknown, Subject: "options", Text: fmt.Sprintf("the options of a %T are not known", c.Base),
			Advice: "pass a *redis.Client, a *redis.ClusterClient, a *redis.Ring or a struct that embeds one",
		})
		return
	}
	longest := time.Duration(max(o.retries, 0)+1)*max(o.read, o.dial) + o.pauses()
	add(r, finding{Level: ok, Subject: "options", Text: fmt.Sprintf(
		"ReadTimeout %v, DialTimeout %v, PoolTimeout %v, MaxRetries %d, PoolSize %d: while a server hangs, %s",
		o.read, o.dial, o.pool, max(o.retries, 0), o.poolSize, c.hang(longest))})
	if c.Lease > 0 {
		for _, timeout := range []struct {
			name string
			d    time.Duration
		}{{"ReadTimeout", o.read}, {"DialTimeout", o.dial}, {"PoolTimeout", o.pool}} {
			if timeout.d > c.Lease/3 {
				add(r, finding{
					Level: warning, Subject: "options",
					Text: fmt.Sprintf("%s %v is more than a third of the lease of %v: while a server hangs, a "+
						"waiter may learn only after this time that another server has taken over",
						timeout.name, timeout.d, c.Lease),
					Advice: fmt.Sprintf("set %s to at most %v, or a longer lease", timeout.name, c.Lease/3),
				})
			}
		}
	}
	if o.poolSize == 1 {
		add(r, finding{
			Level: warning, Subject: "options",
			Text:   "PoolSize 1: a call that hangs delays all others",
			Advice: "set PoolSize to 2 or more",
		})
	}
	if c.Timeout > 0 && !o.contextTimeout {
		add(r, finding{
			Level: warning, Subject: "options",
			Text: fmt.Sprintf("ContextTimeoutEnabled is not set: while a server hangs, the commands of decisions "+
				"outlast the timeout of %v and hold connections for %v", c.Timeout, o.read),
			Advice: "set ContextTimeoutEnabled in the options of the client",
		})
	}
	if o.readOnly {
		add(r, finding{
			Level: warning, Subject: "options",
			Text:   "ReadOnly is set: calls that read outside of scripts may see the past of a replica",
			Advice: "use a client without ReadOnly, RouteByLatency and RouteRandomly",
		})
	}
}

// hang describes how long a call takes while a server hangs.
func (c *Client) hang(longest time.Duration) string {
	if c.Timeout > 0 {
		return fmt.Sprintf("a decision takes at most %v", c.Timeout)
	}
	return fmt.Sprintf("a call without a deadline fails after up to %v", longest.Round(100*time.Millisecond))
}
