package semaphore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/sender"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// maxLookPause bounds the time until a waiter looks again at leases and semaphores that last longer.
const maxLookPause = time.Hour

// keys are the keys and the channel of one Semaphore.
type keys struct{ permits, leases, fence, channel string }

func keysOf(name string, fair bool) keys {
	if fair {
		return keys{
			permits: fairKey(name, "permits"), leases: fairKey(name, "leases"), fence: fairKey(name, "fence"),
			channel: scripts.PrefixName("cogwheel_fair", name),
		}
	}
	return keys{
		permits: name, leases: scripts.SuffixName(name, "timeout"), fence: scripts.SuffixName(name, "fence"),
		channel: scripts.SemChannel(name),
	}
}

// acquireRequest is one acquisition of leased permits. Its ids are chosen before it is sent. A script finds
// by them what an earlier copy of the request was granted.
type acquireRequest struct {
	acquisition
	ids       []string // idLen bytes each
	lease     time.Duration
	noWait    bool
	ambiguous bool // a copy of the request may still be in flight
	early     sender.Early

	// Set when the request is granted.
	token  int64
	sentAt time.Time
}

func newAcquireRequest(a acquisition, lease time.Duration) *acquireRequest {
	r := &acquireRequest{acquisition: a, ids: make([]string, a.n), lease: lease}
	for i := range r.ids {
		r.ids[i] = string(newID())
	}
	return r
}

// releaseRequest is one release of leased permits.
type releaseRequest struct {
	ids       []string
	early     sender.Early
	removed   int
	ambiguous bool // an earlier copy of the release may have removed them
}

// appendIDs appends permit ids to the arguments of a script.
func appendIDs(args []any, ids []string) []any {
	for _, id := range ids {
		args = append(args, id)
	}
	return args
}

// acquireReply is the reply of a script to a batch of acquisitions.
type acquireReply struct {
	isSet            bool
	free, held       int64
	nextExpiryMillis int64   // of a lease or of the semaphore; -1 if there is none
	tokens           []int64 // per request, 0 if it was not granted
}

func parseAcquireReply(v []int64, requests int) (acquireReply, error) {
	negative := func(token int64) bool { return token < 0 }
	if len(v) != 4+requests || v[0] != 0 && v[0] != 1 || v[2] < 0 || v[3] < -1 ||
		slices.ContainsFunc(v[4:], negative) ||
		!isCount(v[1]) || !isCount(v[2]) {
		return acquireReply{}, scripts.Unexpected(v)
	}
	return acquireReply{isSet: v[0] == 1, free: v[1], held: v[2], nextExpiryMillis: v[3], tokens: v[4:]}, nil
}

// isCount reports whether a number of a reply can be one of permits: scripts count exactly up to 2^53.
func isCount(n int64) bool { return n >= -1<<53 && n <= 1<<53 }

// plainCall acquires permits of a Semaphore for a batch of waiters.
func (c *Client) plainCall(name string, batch []*waitqueue.Waiter[*acquireRequest]) scripts.Call {
	k := keysOf(name, false)
	permits := 0
	for _, w := range batch {
		permits += len(w.Value.ids)
	}
	args := make([]any, 0, 5+2*len(batch)+permits)
	args = append(args, c.channels.Verb(), k.channel, fenceMillis, c.idleMillis, permits)
	for _, w := range batch {
		args = append(args, redisconn.Millis(w.Value.lease), len(w.Value.ids))
		args = appendIDs(args, w.Value.ids)
	}
	return scripts.PermitAcquire.Call([]string{k.permits, k.leases, k.fence}, args...)
}

// beginPlain sends what attemptPlain sends; see waitqueue.Config.
func (c *Client) beginPlain(
	name string, batch []*waitqueue.Waiter[*acquireRequest], ended <-chan struct{},
) bool {
	return c.channels.Decided() && batch[0].Value.early.Send(c.sender, c.plainCall(name, batch), ended)
}

// attemptPlain acquires permits of a Semaphore for a batch of waiters.
func (c *Client) attemptPlain(
	name string, batch []*waitqueue.Waiter[*acquireRequest],
) (time.Duration, error) {
	c.channels.Decide()
	r := batch[0].Value.early.Run(c.sender, func() scripts.Call { return c.plainCall(name, batch) }, nil)
	v, err := r.Integers(4 + len(batch))
	var reply acquireReply
	if err == nil {
		reply, err = parseAcquireReply(v, len(batch))
		err = r.Understood(err)
	}
	return c.applyAcquireReply(name, false, batch, r, reply, err)
}

// applyAcquireReply grants or fails the waiters of a batch as the script decided. It returns the time to
// the next look.
func (c *Client) applyAcquireReply(
	name string, fair bool, batch []*waitqueue.Waiter[*acquireRequest],
	r redisconn.Reply, reply acquireReply, err error,
) (again time.Duration, _ error) {
	for _, w := range batch {
		w.Value.ambiguous = w.Value.ambiguous || r.Ambiguous
	}
	if redisconn.Migrating(r.Err()) {
		for _, w := range batch {
			if !w.Waits() && w.Value.ambiguous {
				c.releaseAbandoned(name, fair, w.Value)
			}
		}
		return awaitMigration(batch, operationError("acquire", name, r.Err())), nil
	}
	if err != nil {
		for _, w := range batch {
			if w.Value.ambiguous || fair { // an earlier look may have queued it in Redis
				c.releaseAbandoned(name, fair, w.Value)
			}
		}
		return 0, operationError("acquire", name, err)
	}
	for i, w := range batch {
		n := int64(len(w.Value.ids))
		var refusal error
		switch {
		case reply.tokens[i] > 0:
			w.Value.token, w.Value.sentAt = reply.tokens[i], r.SentAt
			w.Grant()
			continue
		case !reply.isSet:
			refusal = fmt.Errorf("%w: %s", ErrNotSet, scripts.Quote(name))
		case n > reply.free+reply.held:
			total := reply.free + reply.held
			refusal = fmt.Errorf("%w: %s: %d of %d", ErrExceedsPermits, scripts.Quote(name), n, total)
		default:
			c.monitor.contended(object{kindOf(fair), name}, &w.Value.acquisition)
			if w.Value.noWait && w.Value.ambiguous {
				c.releaseAbandoned(name, fair, w.Value)
			}
			continue
		}
		if w.Value.ambiguous || fair && reply.isSet {
			c.releaseAbandoned(name, fair, w.Value)
		}
		w.Fail(refusal)
	}
	return lookAfter(reply.nextExpiryMillis), nil
}

// lookAfter returns the pause before the look at an expiry, which is so many milliseconds ahead, or 0 for -1: then
// there is no expiry. All processes look. The first look reclaims the permits of a lease; the others are spread.
func lookAfter(expiryMillis int64) (again time.Duration) {
	if expiryMillis < 0 {
		return 0
	}
	return min(redisconn.Duration(expiryMillis), maxLookPause) + time.Millisecond + rand.N(5*time.Millisecond)
}

// releaseAbandoned releases, in the background, what Redis may have granted to a request without a waiter.
func (c *Client) releaseAbandoned(name string, fair bool, r *acquireRequest) {
	c.releaseLater(pendingRelease{name, fair, r.ids}, 0, r.lease, r.ambiguous)
}

// giveBackPlain releases permits that were granted to waiters that had left.
func (c *Client) giveBackPlain(name string, granted []*acquireRequest) {
	for _, r := range granted {
		c.releaseAbandoned(name, false, r)
	}
}

// leavePlain releases what ambiguous requests of waiters that left may be granted. Redis does not know the
// others.
func (c *Client) leavePlain(name string, left []*acquireRequest) {
	for _, r := range left {
		if r.ambiguous {
			c.releaseAbandoned(name, false, r)
		}
	}
}

// plainReleaseCall releases permits of a Semaphore for a batch of waiters.
func (c *Client) plainReleaseCall(name string, batch []*waitqueue.Waiter[*releaseRequest]) scripts.Call {
	k := keysOf(name, false)
	args := []any{c.channels.Verb(), k.channel, 0, c.idleMillis}
	for _, w := range batch {
		args = appendIDs(args, w.Value.ids)
	}
	return scripts.PermitRelease.Call([]string{k.permits, k.leases}, args...)
}

// beginPlainReleases sends what attemptPlainReleases sends; see waitqueue.Config.
func (c *Client) beginPlainReleases(
	name string, batch []*waitqueue.Waiter[*releaseRequest], ended <-chan struct{},
) bool {
	return c.channels.Decided() && batch[0].Value.early.Send(c.sender, c.plainReleaseCall(name, batch), ended)
}

// attemptPlainReleases sends the releases of a batch.
func (c *Client) attemptPlainReleases(
	name string, batch []*waitqueue.Waiter[*releaseRequest],
) (time.Duration, error) {
	c.channels.Decide()
	r := batch[0].Value.early.Run(c.sender, func() scripts.Call { return c.plainReleaseCall(name, batch) }, nil)
	ids := 0
	for _, w := range batch {
		ids += len(w.Value.ids)
	}
	removed, err := r.Flags(ids)
	if err != nil {
		return 0, err
	}
	applyRemoved(batch, removed, r.Ambiguous)
	return 0, nil
}

// applyRemoved grants the releases of a batch. removed says of each id whether it was removed.
func applyRemoved(batch []*waitqueue.Waiter[*releaseRequest], removed []bool, ambiguous bool) {
	for _, w := range batch {
		n := len(w.Value.ids)
		for _, one := range removed[:n] {
			if one {
				w.Value.removed++
			}
		}
		removed = removed[n:]
		w.Value.ambiguous = ambiguous
		w.Grant()
	}
}
