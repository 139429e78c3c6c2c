package semaphore

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/line"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// maxLookPause bounds the pause between the queries of a waiter for leases and semaphores that last longer.
const maxLookPause = time.Hour

// keys are the keys and the channel of one Semaphore.
type keys struct{ permits, leases, fence, channel string }

// permitsKey returns the key of the free permits of a semaphore.
func permitsKey(name string, fair bool) string {
	if fair {
		return keyOf(name, fair, "permits")
	}
	return name
}

// keyOf returns another key of a semaphore.
func keyOf(name string, fair bool, part string) string {
	if fair {
		part = "fair:" + part
	}
	return scripts.SuffixName(name, part)
}

func keysOf(name string, fair bool) keys {
	k := keys{permits: permitsKey(name, fair), fence: keyOf(name, fair, "fence")}
	if fair {
		k.leases, k.channel = keyOf(name, fair, "leases"), scripts.PrefixName("cogwheel_fair", name)
	} else {
		k.leases, k.channel = keyOf(name, fair, "timeout"), scripts.SemChannel(name) // Redisson's
	}
	return k
}

// acquireRequest is one acquisition of leased permits. Its ids are chosen before it is sent. By them, a script
// finds the permits that an earlier copy of the request was granted.
type acquireRequest struct {
	acquisition
	keys      *keys
	ids       []string // idLen bytes each
	lease     time.Duration
	permits   int64 // that a call sets if none is set, or 0
	noWait    bool
	ambiguous bool // a copy of the request may still be in flight

	// Set when the request is granted.
	token  int64
	sentAt time.Time
}

func (s *Semaphore) newRequest(a acquisition) *acquireRequest {
	r := &acquireRequest{
		acquisition: a, keys: &s.keys, ids: make([]string, a.n), lease: s.config.lease, permits: s.config.permits,
	}
	for i := range r.ids {
		r.ids[i] = string(newID())
	}
	return r
}

// releaseRequest is one release of leased permits.
type releaseRequest struct {
	ids       []string
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
	nextExpiryMillis int64   // until the next end of a lease or of the semaphore; -1 if there is none
	tokens           []int64 // per request, 0 if it was not granted
}

// granted returns the number of requests that were granted.
func (r acquireReply) granted() (n int) {
	for _, token := range r.tokens {
		if token > 0 {
			n++
		}
	}
	return n
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

// isCount reports whether a number in a reply can be a number of permits: scripts count exactly up to 2^53.
func isCount(n int64) bool { return n >= -1<<53 && n <= 1<<53 }

// declaredPermits returns the number of permits that a call for a batch sets if none is set: that of the first
// request that names one, or 0. key is the permits key of the other kind. A call without such a number reads
// no such key, and names the key of its own permits: while a slot migrates, Redis refuses calls with missing
// keys.
func declaredPermits(name string, fair bool, batch []*waitqueue.Waiter[*acquireRequest]) (n int64, key string) {
	for _, w := range batch {
		if w.Value.permits > 0 {
			return w.Value.permits, permitsKey(name, !fair)
		}
	}
	return 0, permitsKey(name, fair)
}

// maxPermitWarnings is the number of names for which a Client warns that another number of permits is set.
const maxPermitWarnings = 1000

// comparePermits logs a warning, once for each name, if the number of permits is another than was named.
func (c *Client) comparePermits(name string, total int64, batch []*waitqueue.Waiter[*acquireRequest]) {
	ambiguous := func(w *waitqueue.Waiter[*acquireRequest]) bool { return w.Value.ambiguous }
	if slices.ContainsFunc(batch, ambiguous) { // the script may have counted a permit of an earlier copy twice
		return
	}
	for _, w := range batch {
		declared := w.Value.permits
		if declared == 0 || declared == total || !c.warnOfPermits(name) {
			continue
		}
		c.logger.LogAttrs(w.Value.ctx, slog.LevelWarn,
			"semaphore: another number of permits is set, and the declared one does not change it",
			slog.String("name", name), slog.Int64("permits", total), slog.Int64("declared", declared))
	}
}

// warnOfPermits reports whether a warning of comparePermits is due for a name.
func (c *Client) warnOfPermits(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, warned := c.warned[name]; warned || len(c.warned) == maxPermitWarnings {
		return false
	}
	c.warned[name] = struct{}{}
	return true
}

// leased has the waiting for permits of a Semaphore, or of a FairSemaphore.
type leased struct {
	fair         bool
	acquisitions *waitqueue.Group[string, *acquireRequest]
	releases     *waitqueue.Group[string, *releaseRequest]
	lines        *line.Lines[string]
	renewals     *renewal.Destination
}

// newLeased returns a leased without renewals.
func (c *Client) newLeased(fair bool) leased {
	lines := c.newLines(fair)
	return leased{
		fair: fair, lines: lines,
		acquisitions: waitqueue.New(c.wheel, waitqueue.Config[string, *acquireRequest]{
			Submit: c.redis.Sender.Submit,
			Build: func(name string, batch []*waitqueue.Waiter[*acquireRequest]) waitqueue.Attempt {
				asked := lines.Most(name, len(batch))
				read := func(r redisconn.Reply) (time.Duration, error) {
					return c.readGrants(name, fair, batch, asked, r), nil
				}
				return waitqueue.Attempt{Call: calls.Call{Call: c.acquireCall(name, fair, batch, asked)}, Read: read}
			},
			MaxBatch: maxBatch, Poll: c.poll, Second: fair, Workers: c.gate.Workers,
			Listen: lines.Listen, Listens: lines.Listens,
			Behind: func(name string) bool { return c.leased(fair).releases.Unbuilt(name) && lines.Next(name) },
			GiveBack: func(name string, granted []*acquireRequest) {
				for _, r := range granted {
					c.releaseAbandoned(name, fair, r)
				}
			},
			Leave: func(name string, left []*acquireRequest) {
				for _, r := range left {
					if r.ambiguous { // Redis does not know the others
						c.releaseAbandoned(name, fair, r)
					}
				}
			},
		}),
		releases: waitqueue.New(c.wheel, waitqueue.Config[string, *releaseRequest]{
			Submit: c.redis.Sender.Submit,
			Build: func(name string, batch []*waitqueue.Waiter[*releaseRequest]) waitqueue.Attempt {
				call := calls.Call{Call: c.releaseCall(name, fair, idsOf(batch), lines.Releases(name))}
				if lines.Next(name) {
					call.Next = c.leased(fair).acquisitions.Next(name)
					call.Alone = call.Next != nil
				}
				read := func(r redisconn.Reply) (time.Duration, error) {
					asks, err := readReleased(batch, r)
					if asks && !r.Followed {
						lines.Asks(name)
					}
					return 0, err
				}
				return waitqueue.Attempt{Call: call, Read: read}
			},
			MaxBatch: maxBatch, Poll: c.poll, Workers: c.gate.Workers,
			Gather: lines.Gather,
		}),
	}
}

// leased returns the waiting for permits of a Semaphore, or of a FairSemaphore.
func (c *Client) leased(fair bool) *leased {
	if fair {
		return &c.fair
	}
	return &c.plain
}

// acquireCall acquires permits for the first asked waiters of a batch.
func (c *Client) acquireCall(
	name string, fair bool, batch []*waitqueue.Waiter[*acquireRequest], asked int,
) scripts.Call {
	k := batch[0].Value.keys
	more := asked < len(batch) || asked == maxBatch
	declared, other := declaredPermits(name, fair, batch)
	batch = batch[:asked]
	permits := 0
	var longest time.Duration
	for _, w := range batch {
		permits += len(w.Value.ids)
		longest = max(longest, w.Value.lease)
	}
	c.mayBeHeldFor(longest)
	of := func(r **acquireRequest) *acquisition { return &(*r).acquisition }
	args := make([]any, 0, 7+2*len(batch)+permits)
	args = append(args, c.redis.Channels.Verb(), k.channel, fenceMillis, c.idleMillis, permits, declared,
		inLine(c, c.leased(fair).lines, name, batch, more, of))
	for _, w := range batch {
		args = append(args, redisconn.Millis(w.Value.lease), len(w.Value.ids))
		args = appendIDs(args, w.Value.ids)
	}
	return scripts.PermitAcquire.Call([]string{k.permits, k.leases, k.fence, other}, args...)
}

// readGrants reads the reply to the call of acquireCall.
func (c *Client) readGrants(
	name string, fair bool, batch []*waitqueue.Waiter[*acquireRequest], asked int, r redisconn.Reply,
) (again time.Duration) {
	n := 4 + asked
	v, err := r.Integers(n, n+2)
	var reply acquireReply
	var p place
	if err == nil {
		p, err = parsePlace(v[n:])
	}
	if err == nil {
		reply, err = parseAcquireReply(v[:n], asked)
	}
	if err = r.Understood(err); err == nil {
		p.apply(c.leased(fair).lines, name, reply.granted())
	}
	return c.applyAcquireReply(name, fair, batch, asked, r, reply, err)
}

// applyAcquireReply grants or fails the waiters of a batch as the script decided about the first asked of them. If one
// was refused, so are those behind it. It returns the time until the next query.
func (c *Client) applyAcquireReply(
	name string, fair bool, batch []*waitqueue.Waiter[*acquireRequest], asked int,
	r redisconn.Reply, reply acquireReply, err error,
) (again time.Duration) {
	for _, w := range batch[:asked] {
		w.Value.ambiguous = w.Value.ambiguous || r.Ambiguous
	}
	if err != nil {
		of := func(q **acquireRequest) *acquisition { return &(*q).acquisition }
		failed, again := goOn(c, batch, of, r, operationError("acquire", name, err))
		for _, w := range failed {
			if w.Value.ambiguous {
				c.releaseAbandoned(name, fair, w.Value)
			}
		}
		return again
	}
	for _, w := range batch {
		w.Value.trouble.Answered()
	}
	c.comparePermits(name, reply.free+reply.held, batch)
	var refused []*acquisition
	for i, w := range batch {
		n := int64(len(w.Value.ids))
		var refusal error
		switch {
		case i < asked && reply.tokens[i] > 0:
			w.Value.token, w.Value.sentAt = reply.tokens[i], r.SentAt
			w.Grant() // the caller starts the lease, in newGrant
			continue
		case !reply.isSet:
			refusal = fmt.Errorf("%w: %s", ErrNotSet, scripts.Quote(name))
		case i >= asked && len(refused) == 0:
			return waitqueue.AtOnce // the reply says nothing about them
		case n > reply.free+reply.held:
			total := reply.free + reply.held
			refusal = fmt.Errorf("%w: %s: %d of %d", ErrExceedsPermits, scripts.Quote(name), n, total)
		default:
			refused = append(refused, &w.Value.acquisition)
			if w.Value.noWait && w.Value.ambiguous {
				c.releaseAbandoned(name, fair, w.Value)
			}
			continue
		}
		if w.Value.ambiguous {
			c.releaseAbandoned(name, fair, w.Value)
		}
		w.Fail(refusal)
	}
	c.monitor.contendedAll(object{kindOf(fair), name}, refused)
	return lookAfter(reply.nextExpiryMillis)
}

// lookAfter returns the pause before a query for the end of a lease, expiryMillis ahead, or 0 if expiryMillis
// is -1: there is no such end. All processes query. The first query reclaims the permits; the others are
// spread.
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

// idsOf returns the ids of all releases of a batch.
func idsOf(batch []*waitqueue.Waiter[*releaseRequest]) (ids []string) {
	if len(batch) == 1 {
		return batch[0].Value.ids
	}
	for _, w := range batch {
		ids = append(ids, w.Value.ids...)
	}
	return ids
}

// readReleased reads the reply to a batch of releases. asks reports whether the waiter of this process is to ask,
// because it was woken, or may have been by an earlier copy of the call.
func readReleased(batch []*waitqueue.Waiter[*releaseRequest], r redisconn.Reply) (asks bool, err error) {
	results, err := r.Integers(len(idsOf(batch)))
	if err != nil {
		return r.Ambiguous, err
	}
	if asks = results[0] >= toItself; asks {
		results[0] -= toItself
	}
	if slices.ContainsFunc(results, func(result int64) bool { return result != 0 && result != 1 }) {
		return r.Ambiguous, r.Unexpected()
	}
	asks = asks || r.Ambiguous || !slices.Contains(results, 1)
	applyRemoved(batch, results, r.Ambiguous)
	return asks, nil
}

// applyRemoved grants the releases of a batch. removed has 1 for each id that was removed, and 0 for the others.
func applyRemoved(batch []*waitqueue.Waiter[*releaseRequest], removed []int64, ambiguous bool) {
	for _, w := range batch {
		n := len(w.Value.ids)
		for _, one := range removed[:n] {
			w.Value.removed += int(one)
		}
		removed = removed[n:]
		w.Value.ambiguous = ambiguous
		w.Grant()
	}
}
