package semaphore

import (
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/sender"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// Redis keeps the requests of all processes for a fair semaphore in one queue, in order of arrival.
// Whatever frees permits assigns them to the first request and wakes its process, which claims them by the
// same call with the same ids. One script does all of it.

func fairKey(name, part string) string { return scripts.SuffixName(name, "fair:"+part) }

// fairChannel returns the channel on which this process hears of permits that were assigned to it.
func (c *Client) fairChannel(name string) string {
	return keysOf(name, true).channel + ":" + c.owner
}

// fairLiveness returns for how long Redis considers a process alive after its last look. A waiting process
// looks at least every poll interval.
func fairLiveness(poll time.Duration) time.Duration { return 3*poll + time.Second }

// fairScript is the call of fairStep.
func (c *Client) fairScript(
	name string, leaving []string, batch []*waitqueue.Waiter[*acquireRequest],
) scripts.Call {
	k := keysOf(name, true)
	scriptKeys := []string{
		k.permits, k.leases, fairKey(name, "queue"), fairKey(name, "alive"), fairKey(name, "needs"), k.fence,
	}
	args := []any{
		c.channels.Verb(), k.channel, redisconn.Millis(fairLiveness(c.poll)), c.owner,
		fenceMillis, c.idleMillis, len(leaving),
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
	return scripts.FairStep.Call(scriptKeys, args...)
}

// fairStep runs the script of fair semaphores, which may have been sent early. It removes the permits or queued
// requests with the leaving ids, queues or claims the requests of the batch, and assigns free permits. removed has
// a 1 for each leaving id that was held.
func (c *Client) fairStep(
	early *sender.Early, name string, leaving []string, batch []*waitqueue.Waiter[*acquireRequest],
) (r redisconn.Reply, removed []bool, reply acquireReply, err error) {
	c.channels.Decide()
	r = early.Run(c.sender, func() scripts.Call { return c.fairScript(name, leaving, batch) }, nil)
	if err = r.Err(); err != nil {
		return r, nil, reply, err
	}
	v, _ := r.Val().([]any) // another type is as an empty list
	removed, reply, err = parseFairReply(v, len(leaving), len(batch))
	err = r.Understood(err)
	return r, removed, reply, err
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

// attemptFair acquires permits of a FairSemaphore for all waiters of this process. Each look tells Redis that
// they are alive.
func (c *Client) attemptFair(name string, batch []*waitqueue.Waiter[*acquireRequest]) (time.Duration, error) {
	r, _, reply, err := c.fairStep(&batch[0].Value.early, name, nil, batch)
	return c.applyAcquireReply(name, true, batch, r, reply, err)
}

// giveBackFair removes requests of waiters that have left from the queue in Redis, and releases what they
// were assigned. It waits for the answer, so that later requests of this process do not queue behind them.
// The background retries what fails.
func (c *Client) giveBackFair(name string, left []*acquireRequest) {
	for batch := range slices.Chunk(left, maxBatch) {
		var ids []string
		for _, request := range batch {
			ids = append(ids, request.ids...)
		}
		r, _, _, err := c.fairStep(new(sender.Early), name, ids, nil)
		for _, request := range batch {
			p, ambiguous := pendingRelease{name, true, request.ids}, request.ambiguous || r.Ambiguous
			switch {
			case err != nil:
				c.releaseLater(p, 0, request.lease, ambiguous)
			case ambiguous:
				c.releaseLater(p, cleanup.LateCopy, request.lease, true)
			}
		}
	}
}

// beginFair sends what attemptFair sends; see waitqueue.Config.
func (c *Client) beginFair(
	name string, batch []*waitqueue.Waiter[*acquireRequest], ended <-chan struct{},
) bool {
	return c.channels.Decided() && batch[0].Value.early.Send(c.sender, c.fairScript(name, nil, batch), ended)
}

// idsOf returns the ids of all releases of a batch.
func idsOf(batch []*waitqueue.Waiter[*releaseRequest]) (ids []string) {
	for _, w := range batch {
		ids = append(ids, w.Value.ids...)
	}
	return ids
}

// beginFairReleases sends what attemptFairReleases sends; see waitqueue.Config.
func (c *Client) beginFairReleases(
	name string, batch []*waitqueue.Waiter[*releaseRequest], ended <-chan struct{},
) bool {
	return c.channels.Decided() && batch[0].Value.early.Send(c.sender, c.fairScript(name, idsOf(batch), nil), ended)
}

// attemptFairReleases sends the releases of a batch.
func (c *Client) attemptFairReleases(
	name string, batch []*waitqueue.Waiter[*releaseRequest],
) (time.Duration, error) {
	r, removed, _, err := c.fairStep(&batch[0].Value.early, name, idsOf(batch), nil)
	if err != nil {
		return 0, err
	}
	c.fair.Kick(name) // the script does not publish what it assigns to the process that runs it
	applyRemoved(batch, removed, r.Ambiguous)
	return 0, nil
}
