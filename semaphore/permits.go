package semaphore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// request is one Acquire of leased permits. Its ids are chosen before it is sent, so that it does not matter how often it is.
type request struct {
	ids    []string // 16 bytes each
	ttl    time.Duration
	once   bool // does not wait
	token  int64
	sentAt time.Time
	doubt  bool // a copy of the call may still be under way
}

func newRequest(n int64, ttl time.Duration) *request {
	r := &request{ids: make([]string, n), ttl: ttl}
	for i := range r.ids {
		r.ids[i] = string(newID())
	}
	return r
}

// releaseRequest is one release of leased permits.
type releaseRequest struct {
	ids     []string
	removed int
	doubt   bool // an earlier copy may have removed them
}

// counts is what a script says beside the grants.
type counts struct {
	set        bool
	free, held int64
	nearest    int64 // milliseconds, -1 if nothing expires
	tokens     []int64
}

func readCounts(v []int64, requests int) (counts, error) {
	if len(v) != 4+requests {
		return counts{}, fmt.Errorf("unexpected reply %v", v)
	}
	return counts{v[0] == 1, v[1], v[2], v[3], v[4:]}, nil
}

// attemptLeased is the Attempt of leased semaphores.
func (c *Client) attemptLeased(name string, batch []*waitqueue.Waiter[*request]) (time.Duration, error) {
	k := keysOf(name, false)
	args := []any{publish, k.channel, fenceMillis}
	for _, w := range batch {
		args = append(args, calls.Millis(w.Value.ttl), len(w.Value.ids))
		for _, id := range w.Value.ids {
			args = append(args, id)
		}
	}
	r := c.run(nil, scripts.PermitAcquire, []string{k.permits, k.leases, k.fence}, args...)
	v, err := r.Int64Slice()
	var n counts
	if err == nil {
		n, err = readCounts(v, len(batch))
	}
	return c.apply(name, false, batch, r, n, err)
}

// apply marks the waiters as the script says.
func (c *Client) apply(name string, fair bool, batch []*waitqueue.Waiter[*request], r calls.Reply, n counts, err error) (time.Duration, error) {
	for _, w := range batch {
		w.Value.doubt = w.Value.doubt || r.Ambiguous
	}
	if calls.Migrating(r.Err()) {
		return wait(batch, operationError("acquire", name, r.Err())), nil
	}
	if err != nil {
		for _, w := range batch {
			if w.Value.doubt || fair { // a fair semaphore may have entered it before
				c.giveBack(name, fair, w.Value)
			}
		}
		return 0, operationError("acquire", name, err)
	}
	for i, w := range batch {
		wants := int64(len(w.Value.ids))
		var refusal error
		switch {
		case n.tokens[i] > 0:
			w.Value.token, w.Value.sentAt = n.tokens[i], r.SentAt
			w.Grant()
			continue
		case !n.set:
			refusal = fmt.Errorf("%w: %s", ErrNotSet, scripts.Quote(name))
		case wants > n.free+n.held:
			refusal = fmt.Errorf("%w: %s: %d of %d", ErrExceedsPermits, scripts.Quote(name), wants, n.free+n.held)
		default:
			if w.Value.once && w.Value.doubt {
				c.giveBack(name, fair, w.Value)
			}
			continue
		}
		if w.Value.doubt || fair && n.set {
			c.giveBack(name, fair, w.Value)
		}
		w.Fail(refusal)
	}
	if n.nearest < 0 {
		return 0, nil
	}
	// Others look at the same instant; who comes a little later finds it done.
	return time.Duration(n.nearest+1)*time.Millisecond + rand.N(5*time.Millisecond), nil
}

// giveBack releases, in the background, what a request may have got that nobody waits for.
func (c *Client) giveBack(name string, fair bool, r *request) {
	c.releaseLater(pendingRelease{name, fair, r.ids}, 0, r.ttl, r.doubt)
}

func (c *Client) giveBackLeased(name string, granted []*request) {
	for _, r := range granted {
		c.giveBack(name, false, r)
	}
}

// leaveLeased deals with those of whom a copy may still be under way. Of the others Redis knows nothing.
func (c *Client) leaveLeased(name string, left []*request) {
	for _, r := range left {
		if r.doubt {
			c.giveBack(name, false, r)
		}
	}
}

// attemptReturns is the Attempt of releases of leased permits.
func (c *Client) attemptReturns(name string, batch []*waitqueue.Waiter[*releaseRequest]) (time.Duration, error) {
	k := keysOf(name, false)
	args := []any{publish, k.channel, 0}
	for _, w := range batch {
		for _, id := range w.Value.ids {
			args = append(args, id)
		}
	}
	r := c.run(nil, scripts.PermitRelease, []string{k.permits, k.leases}, args...)
	removed, err := r.Int64Slice()
	if err != nil {
		return 0, err
	}
	return 0, applyReturns(batch, removed, r.Ambiguous)
}

func applyReturns(batch []*waitqueue.Waiter[*releaseRequest], removed []int64, doubt bool) error {
	for _, w := range batch {
		n := len(w.Value.ids)
		if len(removed) < n {
			return fmt.Errorf("unexpected reply of %d removals", len(removed))
		}
		for _, one := range removed[:n] {
			w.Value.removed += int(one)
		}
		removed = removed[n:]
		w.Value.doubt = doubt
		w.Grant()
	}
	return nil
}

// granted makes a Grant of what the queue returned.
func (l *Leased) granted(ctx context.Context, r *request, err error) (*Grant, error) {
	if err != nil {
		if err == ctx.Err() { //nolint:errorlint // only the bare error of the queue
			err = operationError("acquire", l.name, calls.Ended(ctx))
		}
		return nil, err
	}
	g := &Grant{client: l.client, name: l.name, fair: l.fair, ids: r.ids, token: r.token, ttl: r.ttl, doubt: r.doubt}
	if err := g.hold(l.config.renew, r.sentAt); err != nil {
		l.client.giveBack(l.name, g.fair, r)
		return nil, operationError("acquire", l.name, err)
	}
	l.client.keep(g)
	if g.Err() != nil { // lost before it was entered
		l.client.drop(g)
	}
	return g, nil
}

// nothing is a grant of no permits.
func (l *Leased) nothing() *Grant {
	return &Grant{client: l.client, name: l.name, lease: newUnlimited()}
}
