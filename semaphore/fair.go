package semaphore

import (
	"fmt"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// fairChannel is where this process hears that permits were assigned to it.
func (c *Client) fairChannel(name string) string {
	return keysOf(name, true).channel + ":" + c.owner
}

// fairAlive is how long a process counts as alive after a look: it looks at least every poll interval.
func (c *Client) fairAlive() time.Duration { return 3*c.poll + time.Second }

// step runs the one script of fair semaphores: ids leave, requests come or are confirmed, and what is free is assigned.
func (c *Client) step(name string, leaving []string, batch []*waitqueue.Waiter[*request]) (r calls.Reply, removed []int64, n counts, err error) {
	k := keysOf(name, true)
	part := func(s string) string { return scripts.SuffixName(name, "fair:"+s) }
	ks := []string{k.permits, k.leases, part("queue"), part("alive"), part("needs"), k.fence}
	args := []any{publish, k.channel, calls.Millis(c.fairAlive()), c.owner, fenceMillis, len(leaving)}
	for _, id := range leaving {
		args = append(args, id)
	}
	for _, w := range batch {
		waits := 1
		if w.Value.once {
			waits = 0
		}
		args = append(args, calls.Millis(w.Value.ttl), waits, len(w.Value.ids))
		for _, id := range w.Value.ids {
			args = append(args, id)
		}
	}
	r = c.run(nil, scripts.FairStep, ks, args...)
	v, err := r.Slice()
	if err != nil {
		return r, nil, n, err
	}
	if len(v) == 0 {
		return r, nil, n, fmt.Errorf("unexpected empty reply")
	}
	first, ok := v[0].([]any)
	if !ok || len(first) != len(leaving) {
		return r, nil, n, fmt.Errorf("unexpected reply %v", v)
	}
	if removed, err = integers(first); err != nil {
		return r, nil, n, err
	}
	rest, err := integers(v[1:])
	if err != nil {
		return r, nil, n, err
	}
	n, err = readCounts(rest, len(batch))
	return r, removed, n, err
}

func integers(v []any) ([]int64, error) {
	out := make([]int64, len(v))
	for i, x := range v {
		n, ok := x.(int64)
		if !ok {
			return nil, fmt.Errorf("unexpected %T in a reply", x)
		}
		out[i] = n
	}
	return out, nil
}

// attemptFair is the Attempt of fair semaphores: it names every request of this process, so that Redis knows that they
// are alive.
func (c *Client) attemptFair(name string, batch []*waitqueue.Waiter[*request]) (time.Duration, error) {
	r, _, n, err := c.step(name, nil, batch)
	return c.apply(name, true, batch, r, n, err)
}

// giveBackFair takes requests out of Redis' queue, or returns what they were assigned. It waits for the answer: what this process asks for
// next is not to stand behind requests that it has given up. What fails is tried again in the background.
func (c *Client) giveBackFair(name string, gone []*request) {
	for some := range slices.Chunk(gone, maxBatch) {
		var ids []string
		for _, r := range some {
			ids = append(ids, r.ids...)
		}
		reply, _, _, err := c.step(name, ids, nil)
		for _, r := range some {
			p, ambiguous := pendingRelease{name, true, r.ids}, r.doubt || reply.Ambiguous
			switch {
			case err != nil:
				c.releaseLater(p, 0, r.ttl, ambiguous)
			case ambiguous:
				c.releaseLater(p, cleanup.LateCopy, r.ttl, true)
			}
		}
	}
}

// attemptFairReturns is the Attempt of releases of fair semaphores.
func (c *Client) attemptFairReturns(name string, batch []*waitqueue.Waiter[*releaseRequest]) (time.Duration, error) {
	var leaving []string
	for _, w := range batch {
		leaving = append(leaving, w.Value.ids...)
	}
	r, removed, _, err := c.step(name, leaving, nil)
	if err != nil {
		return 0, err
	}
	// What was assigned to this process was not announced to it.
	c.fair.Kick(name)
	return 0, applyReturns(batch, removed, r.Ambiguous)
}
