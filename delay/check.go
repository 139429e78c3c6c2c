package delay

import (
	"context"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/check"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Check asks the servers whether the Client can work with them: whether they answer and accept writes, their versions,
// whether the user may run each command, whether all slots of a cluster are served, and which timeouts, eviction policy
// and persistence weaken or slow the queues. If queues are given, Check covers their keys and channels. Otherwise it
// covers the commands alone.
//
// Check changes nothing but one key, which expires within a second: cogwheel_check:…, after the name of the first queue
// and a colon if there is one. Its connections, results and errors are those of redislock.Client.Check.
func (c *Client) Check(ctx context.Context, queues ...*Queue) (*cogwheel.Report, error) {
	return check.Call(ctx, &c.gate, c.wheel, argument, ErrClosed, queues, func() *cogwheel.Report {
		c.redis.Channels.Decide()
		lease := DefaultLease
		var needs []check.Needs
		for _, q := range queues {
			needs, lease = append(needs, q.needs()...), min(lease, q.config.lease)
		}
		if len(queues) == 0 {
			needs = c.Queue(check.Sample).needs()
			for i := range needs {
				needs[i].Keys, needs[i].Channels = nil, nil
			}
		}
		return check.Run(ctx, &check.Client{
			Package: "delay", Base: c.redis.Base, Needs: needs,
			Channel: scripts.DelayChannel, Keeps: "tasks", Lease: lease,
			Expires: "tokens and the records of calls, by which a repeated call has no effect (tasks have no expiry)",
			Sharded: c.redis.Channels.Verb() == "SPUBLISH", Detects: c.redis.Channels.Detects(),
		})
	})
}

func (q *Queue) needs() []check.Needs {
	c := q.client
	own := check.Needs{
		For:      "Queue",
		Scripts:  []*scripts.Script{scripts.DelayEdit, scripts.DelayWork, scripts.DelayRenew, scripts.DelayState},
		Commands: []string{"zrangebyscore"},
		Name:     q.name,
		Keys: append(keysOf(q.name), c.recordKey(q.name, "edits"), c.recordKey(q.name, "claims"),
			scripts.DelayKey(q.name, "token"), scripts.DelayKey(q.name, "waiting"), pausedKey(q.name)),
	}
	return []check.Needs{
		own, check.Listening(q.name, scripts.DelayChannel(q.name)),
		check.Listening(q.name, scripts.DelayProcessChannel(q.name, c.process)),
	}
}
