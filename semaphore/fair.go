package semaphore

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// Redis keeps the requests of all processes for a fair semaphore in one queue, in order of arrival. A call that
// frees permits assigns them to the first request and wakes its process. The process claims them by the same
// call with the same ids. One script does all of it.

func fairKey(name, part string) string { return scripts.SuffixName(name, "fair:"+part) }

// fairChannel returns the channel on which this process is notified of permits that were assigned to it.
func (c *Client) fairChannel(name string) string {
	return keysOf(name, true).channel + ":" + c.owner
}

// fairLiveness returns how long Redis considers a process alive after its last query. A waiting process queries
// at least every poll interval.
func fairLiveness(poll time.Duration) time.Duration { return 3*poll + time.Second }

// fairStep removes the permits or queued requests with the leaving ids, queues or claims the requests of the batch,
// and assigns free permits.
func (c *Client) fairStep(
	name string, leaving []string, batch []*waitqueue.Waiter[*acquireRequest],
) (call calls.Call, again time.Duration, ok bool) {
	k := keysOf(name, true)
	declared, other := declaredPermits(name, true, batch)
	scriptKeys := []string{
		k.permits, k.leases, fairKey(name, "queue"), fairKey(name, "alive"), fairKey(name, "needs"), k.fence,
		other,
	}
	args := []any{
		c.redis.Channels.Verb(), k.channel, redisconn.Millis(fairLiveness(c.poll)), c.owner,
		fenceMillis, c.idleMillis, declared, len(leaving),
	}
	args = appendIDs(args, leaving)
	for _, w := range batch {
		waits := 1
		if w.Value.noWait {
			waits = 0
		}
		args = append(args, redisconn.Millis(w.Value.lease), waits, len(w.Value.ids))
		args = appendIDs(args, w.Value.ids)
	}
	return calls.Call{Call: scripts.FairStep.Call(scriptKeys, args...)}, 0, true
}

// readFairReply reads the reply to fairStep. removed has a 1 for each leaving id that was held.
func readFairReply(r *redisconn.Reply, leaving, requests int) (removed []bool, reply acquireReply, err error) {
	if err = r.Err(); err != nil {
		return nil, reply, err
	}
	v, _ := r.Val().([]any) // any other type counts as an empty list
	removed, reply, err = parseFairReply(v, leaving, requests)
	return removed, reply, r.Understood(err)
}

func parseFairReply(v []any, leaving, requests int) (removed []bool, reply acquireReply, err error) {
	if len(v) == 0 {
		return nil, reply, scripts.Unexpected(v)
	}
	first, ok := v[0].([]any)
	if !ok || len(first) != leaving {
		return nil, reply, scripts.Unexpected(v)
	}
	for _, one := range first {
		if one != int64(0) && one != int64(1) {
			return nil, reply, scripts.Unexpected(v)
		}
		removed = append(removed, one == int64(1))
	}
	rest, err := int64s(v[1:])
	if err != nil {
		return nil, reply, err
	}
	reply, err = parseAcquireReply(rest, requests)
	return removed, reply, err
}

func int64s(v []any) ([]int64, error) {
	out := make([]int64, len(v))
	for i, x := range v {
		n, ok := x.(int64)
		if !ok {
			return nil, scripts.Unexpected(v)
		}
		out[i] = n
	}
	return out, nil
}

// splitLeft returns the permit ids of waiters that have left, and the waiters behind them.
func splitLeft(batch []*waitqueue.Waiter[*acquireRequest]) (
	leaving []string, left, waiting []*waitqueue.Waiter[*acquireRequest],
) {
	n := 0
	for ; n < len(batch) && batch[n].Left(); n++ {
		leaving = append(leaving, batch[n].Value.ids...)
	}
	return leaving, batch[:n], batch[n:]
}

// buildFair acquires permits of a FairSemaphore for all waiters of this process, and tells Redis that the
// process is alive. It removes the requests of waiters that have left, and releases the permits assigned to
// them, so that later requests of this process do not queue behind them.
func (c *Client) buildFair(
	name string, batch []*waitqueue.Waiter[*acquireRequest],
) (call calls.Call, again time.Duration, ok bool) {
	leaving, _, waiting := splitLeft(batch)
	longest := fairLiveness(c.poll)
	for _, w := range waiting {
		longest = max(longest, w.Value.lease)
	}
	c.mayBeHeldFor(longest)
	return c.fairStep(name, leaving, waiting)
}

// applyFair applies the reply to the call of buildFair. If the call failed, the background removes the requests
// of waiters that have left.
func (c *Client) applyFair(
	name string, batch []*waitqueue.Waiter[*acquireRequest], r redisconn.Reply,
) (time.Duration, error) {
	leaving, left, waiting := splitLeft(batch)
	_, reply, err := readFairReply(&r, len(leaving), len(waiting))
	for _, w := range left {
		p, ambiguous := pendingRelease{name, true, w.Value.ids}, w.Value.ambiguous || r.Ambiguous
		switch {
		case err != nil:
			c.releaseLater(p, 0, w.Value.lease, ambiguous)
		case ambiguous:
			c.releaseLater(p, cleanup.LateCopy, w.Value.lease, true)
		}
	}
	return c.applyAcquireReply(name, true, waiting, r, reply, err)
}

// buildFairReleases releases permits of a FairSemaphore for a batch of waiters.
func (c *Client) buildFairReleases(
	name string, batch []*waitqueue.Waiter[*releaseRequest],
) (call calls.Call, again time.Duration, ok bool) {
	return c.fairStep(name, idsOf(batch), nil)
}

// applyFairReleases applies the reply to the call of buildFairReleases.
func (c *Client) applyFairReleases(
	name string, batch []*waitqueue.Waiter[*releaseRequest], r redisconn.Reply,
) (time.Duration, error) {
	removed, _, err := readFairReply(&r, len(idsOf(batch)), 0)
	if err != nil {
		return 0, err
	}
	c.fair.Kick(name) // the script does not notify the process that runs it
	applyRemoved(batch, removed, r.Ambiguous)
	return 0, nil
}
