package semaphore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// The permits of a CountingSemaphore are a bare number. The number does not tell whether a call whose reply was
// lost has been executed. This file makes each acquisition and each release take effect exactly once.
//
// For each process and semaphore, Redis keeps two sequence keys. One holds the sequence number of the last
// acquiring call and what it took; the other holds the number of the last releasing call and its results.
// At most one call of each kind is in flight, so that a script
//
//   - answers a repeated call from the sequence key and changes nothing;
//   - refuses an acquiring call that arrives after a later one;
//   - gives back what was taken by calls after the last one that this process confirmed.
//
// A release that Redis has not confirmed travels again, under its own sequence number, with the next
// releasing call. settle.go makes such a call if no caller does.

const (
	// retryTimeout bounds how long the background retries a call that Redis may have executed and has not confirmed.
	retryTimeout = 5 * time.Minute

	// refusedTimeout bounds how long the background retries a release of which every copy was refused or not sent, as
	// after the password was changed: nothing else frees its permits.
	refusedTimeout = 24 * time.Hour

	// sequenceKeyMillis is how long Redis keeps a sequence key after its last call: well beyond
	// retryTimeout.
	sequenceKeyMillis = 600_000
)

// The kinds of sequence keys.
const (
	acquiringCalls = "acquiring"
	releasingCalls = "releasing"
)

// sequenceKey returns the key in which Redis keeps the last call of this process on a semaphore.
func (c *Client) sequenceKey(name, kind string) string {
	return scripts.SuffixName(name, kind+":"+c.owner)
}

// originKey returns the key in which Redis keeps when the permits of a CountingSemaphore were set. With an idle
// expiry it also keeps their number, by which scripts know whether any is held.
func originKey(name string) string { return scripts.SuffixName(name, "origin") }

// countingRelease is one release of a CountingSemaphore's permits.
type countingRelease struct {
	n         int64
	ifExists  bool
	max       int64
	abandoned bool // no caller learns of a failure and could repeat the release

	// Set when the release is sent for the first time.
	seq        uint64
	retryUntil time.Time
	ambiguous  bool // a copy may have executed

	result int64 // what the script returned: 1 added, 0 no semaphore, -1 above max
}

// releasingCall has the releases that a call sends, up to maxBatch, and those that must follow: first the
// repeated releases that are unconfirmed, then the releases of a batch.
type releasingCall struct {
	releases []*countingRelease
	repeated int
}

// part returns the releases that the call sends.
func (call releasingCall) part() []*countingRelease {
	return call.releases[:min(maxBatch, len(call.releases))]
}

// acquiringCall identifies an acquiring call. There is one at a time.
type acquiringCall struct{ seq, confirmed uint64 }

func (c *Client) newAcquiringCall(name string) acquiringCall {
	seq := c.lastSequence.Add(1)
	return acquiringCall{seq: seq, confirmed: c.unconfirmed.lastConfirmed(name, seq)}
}

// acquireScript acquires permits of a CountingSemaphore for a batch of waiters, which may be empty. place is the result
// of inLine.
func (c *Client) acquireScript(
	name string, call acquiringCall, batch []*waitqueue.Waiter[acquisition], place string,
) scripts.Call {
	keys := []string{name, c.sequenceKey(name, acquiringCalls)}
	if c.idleMillis > 0 || call.confirmed != call.seq-1 {
		keys = append(keys, originKey(name))
	}
	channel := scripts.SemChannel(name)
	args := []any{call.seq, call.confirmed, sequenceKeyMillis, c.redis.Channels.Verb(), channel, c.idleMillis, place}
	for _, w := range batch {
		args = append(args, w.Value.n)
	}
	return scripts.SemAcquire.Call(keys, args...)
}

// buildCounting acquires permits of a CountingSemaphore for a batch of waiters.
func (c *Client) buildCounting(name string, batch []*waitqueue.Waiter[acquisition]) waitqueue.Attempt {
	id := c.newAcquiringCall(name)
	asked := c.countingLines.Most(name, len(batch))
	more := asked < len(batch) || asked == maxBatch
	place := inLine(c, c.countingLines, name, batch[:asked], more, func(a *acquisition) *acquisition { return a })
	return waitqueue.Attempt{
		Call: calls.Call{Call: c.acquireScript(name, id, batch[:asked], place)},
		Read: func(r redisconn.Reply) (time.Duration, error) { return c.readAcquired(name, id, batch, asked, r), nil },
	}
}

// readAcquired grants or fails the waiters of a batch, which may be empty, as the script decided about the first asked
// of them. If one was refused, so are those behind it.
func (c *Client) readAcquired(
	name string, call acquiringCall, batch []*waitqueue.Waiter[acquisition], asked int, r redisconn.Reply,
) (again time.Duration) {
	v, err := r.Integers(4, 6)
	var p place
	if err == nil {
		p, err = parsePlace(v[4:])
		err = r.Understood(err)
	}
	if err == nil && (v[0] < 0 || v[0] > int64(asked) || v[1] != 0 && v[1] != 1 || v[3] < -1) {
		err = r.Unexpected()
	}
	if err != nil {
		if r.Ambiguous {
			c.unconfirmed.addAcquisition(name, call.confirmed, c.wheel.Now().Add(retryTimeout))
			c.settleLater(name)
		}
		of := func(a *acquisition) *acquisition { return a }
		_, again = goOn(c, batch, of, r, operationError("acquire", name, err))
		return again
	}
	for _, w := range batch {
		w.Value.trouble.Answered()
	}
	c.unconfirmed.removeAcquisitions(name)
	served, isSet := int(v[0]), v[1] == 1
	p.apply(c.countingLines, name, served)
	var refused []*acquisition
	for i, w := range batch {
		switch {
		case i < served:
			w.Grant()
		case !isSet:
			w.Fail(fmt.Errorf("%w: %s", ErrNotSet, scripts.Quote(name)))
		case served == asked:
			return waitqueue.AtOnce
		default:
			refused = append(refused, &w.Value)
		}
	}
	c.monitor.contendedAll(object{KindCounting, name}, refused)
	return lookAfter(v[3])
}

// giveBackCounting releases permits that were granted to waiters that had left.
func (c *Client) giveBackCounting(name string, granted []acquisition) {
	var sum int64
	for _, a := range granted {
		sum += a.n
	}
	if sum > 0 {
		release := &countingRelease{n: sum, abandoned: true}
		c.gate.EnterInside()
		c.countingReleases.WaitFunc(context.Background(), name, release, func(*countingRelease, error) {
			c.gate.Leave()
		})
	}
}

// buildCountingReleases sends the releases of a batch after the unconfirmed releases.
func (c *Client) buildCountingReleases(
	name string, batch []*waitqueue.Waiter[*countingRelease],
) waitqueue.Attempt {
	call := releasingCall{releases: c.unconfirmed.releases(name)}
	call.repeated = len(call.releases)
	for _, w := range batch {
		if w.Value.seq == 0 {
			w.Value.seq, w.Value.retryUntil = c.lastSequence.Add(1), c.wheel.Now().Add(refusedTimeout)
		}
		call.releases = append(call.releases, w.Value)
	}
	waiter := c.countingLines.Releases(name)
	sent := calls.Call{Call: c.releasingScript(name, call.part(), waiter)}
	if c.countingLines.Next(name) {
		sent.Next = c.counting.Next(name)
	}
	return waitqueue.Attempt{
		Call: sent,
		Read: func(r redisconn.Reply) (time.Duration, error) { return c.readReleases(name, call, batch, r) },
	}
}

// readReleases reads the reply to a call. Releases for which the call had no room follow at once.
func (c *Client) readReleases(
	name string, call releasingCall, batch []*waitqueue.Waiter[*countingRelease], r redisconn.Reply,
) (again time.Duration, err error) {
	part := call.part()
	results, err := r.Integers(len(part))
	asks := r.Ambiguous
	for i, result := range results {
		if result == 1+toItself {
			results[i], result, asks = 1, 1, true
		}
		if result != 1 && !(result == 0 && part[i].ifExists) && !(result == -1 && part[i].max > 0) {
			err = r.Unexpected()
		}
	}
	if asks && !r.Followed {
		c.countingLines.Asks(name)
	}
	if err != nil {
		if redisconn.Permanent(err) && r.Ambiguous { // a copy of the call whose reply was lost may have executed
			err = fmt.Errorf("%w: %w", ErrUnconfirmed, err)
		}
		if r.Ambiguous {
			c.unconfirmed.mayHaveExecuted(part, c.wheel.Now())
		}
		unconfirmed := toRepeat(call.releases, call.repeated, err)
		if len(unconfirmed) > 0 {
			c.monitor.repeated(err)
		}
		c.unconfirmed.setReleases(name, unconfirmed)
		c.settleLater(name)
		return 0, err
	}
	for i, result := range results {
		if at := i - call.repeated; at >= 0 {
			batch[at].Value.result = result
			batch[at].Grant()
		}
	}
	c.unconfirmed.setReleases(name, call.releases[min(len(part), call.repeated):call.repeated])
	if len(part) < len(call.releases) {
		again = waitqueue.AtOnce
	}
	return again, nil
}

// releasingScript sends releases. waiter is that of this process in the line, or "".
func (c *Client) releasingScript(name string, releases []*countingRelease, waiter string) scripts.Call {
	keys := []string{name, c.sequenceKey(name, releasingCalls)}
	if c.idleMillis > 0 {
		keys = append(keys, originKey(name))
	}
	args := []any{sequenceKeyMillis, c.redis.Channels.Verb(), scripts.SemChannel(name), c.idleMillis, waiter}
	for _, release := range releases {
		ifExists := 0
		if release.ifExists {
			ifExists = 1
		}
		args = append(args, release.seq, release.n, ifExists, release.max)
	}
	return scripts.SemRelease.Call(keys, args...)
}

// toRepeat returns the releases that the background repeats after err. The first of them, repeated in
// number, were unconfirmed before. A caller whose release was refused gets the error and may repeat the
// release itself.
func toRepeat(releases []*countingRelease, repeated int, err error) (again []*countingRelease) {
	refused := redisconn.Permanent(err) && !errors.Is(err, ErrUnconfirmed)
	for i, release := range releases {
		if release.n > 0 && (i < repeated || release.abandoned || !refused) {
			again = append(again, release)
		}
	}
	return again
}
