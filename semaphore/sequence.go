package semaphore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/sender"
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
	// retryTimeout bounds how long the background retries what Redis has not confirmed.
	retryTimeout = 5 * time.Minute

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
// expiry it also keeps how many they are, by which scripts know whether any is held.
func originKey(name string) string { return scripts.SuffixName(name, "origin") }

// countingRelease is one release of a CountingSemaphore's permits.
type countingRelease struct {
	n         int64
	ifExists  bool
	max       int64
	abandoned bool         // no caller learns of a failure and could repeat the release
	early     sender.Early // of the first of those that a call sends

	// Set when the release is sent for the first time.
	seq        uint64
	retryUntil time.Time

	result int64 // what the script returned: 1 added, 0 no semaphore, -1 above max
}

// countingCall is an acquiring call. There is one at a time.
type countingCall struct {
	early          sender.Early
	seq, confirmed uint64
}

func (c *Client) newCountingCall(name string) *countingCall {
	seq := c.lastSequence.Add(1)
	return &countingCall{seq: seq, confirmed: c.unconfirmed.lastConfirmed(name, seq)}
}

// script acquires permits of a CountingSemaphore for a batch of waiters.
func (call *countingCall) script(c *Client, name string, batch []*waitqueue.Waiter[acquisition]) scripts.Call {
	keys := []string{name, c.sequenceKey(name, acquiringCalls)}
	if c.idleMillis > 0 || call.confirmed != call.seq-1 {
		keys = append(keys, originKey(name))
	}
	channel := scripts.SemChannel(name)
	args := []any{call.seq, call.confirmed, sequenceKeyMillis, c.channels.Verb(), channel, c.idleMillis}
	for _, w := range batch {
		args = append(args, w.Value.n)
	}
	return scripts.SemAcquire.Call(keys, args...)
}

// beginCounting sends what attemptCounting sends; see waitqueue.Config.
func (c *Client) beginCounting(
	name string, batch []*waitqueue.Waiter[acquisition], ended <-chan struct{},
) bool {
	if !c.channels.Decided() {
		return false
	}
	call := c.newCountingCall(name)
	batch[0].Value.counting = call
	return call.early.Send(c.sender, call.script(c, name, batch), ended)
}

// attemptCounting acquires permits of a CountingSemaphore for a batch of waiters, which may be empty.
func (c *Client) attemptCounting(name string, batch []*waitqueue.Waiter[acquisition]) (time.Duration, error) {
	c.channels.Decide()
	var call *countingCall
	if len(batch) > 0 {
		call, batch[0].Value.counting = batch[0].Value.counting, nil
	}
	if call == nil {
		call = c.newCountingCall(name)
	}
	confirmed := call.confirmed
	r := call.early.Run(c.sender, func() scripts.Call { return call.script(c, name, batch) }, nil)
	v, err := r.Integers(4)
	if err == nil && (v[0] < 0 || v[0] > int64(len(batch)) || v[1] != 0 && v[1] != 1 || v[3] < -1) {
		err = r.Unexpected()
	}
	if err != nil {
		if r.Ambiguous {
			c.unconfirmed.addAcquisition(name, confirmed)
			c.settleLater(name)
		}
		if err = operationError("acquire", name, err); redisconn.Migrating(r.Err()) {
			return awaitMigration(batch, err), nil
		}
		return 0, err
	}
	c.unconfirmed.removeAcquisitions(name)
	served, isSet := int(v[0]), v[1] == 1
	for i, w := range batch {
		switch {
		case i < served:
			w.Grant()
		case !isSet:
			w.Fail(fmt.Errorf("%w: %s", ErrNotSet, scripts.Quote(name)))
		default:
			c.monitor.contended(object{KindCounting, name}, &w.Value)
		}
	}
	return lookAfter(v[3]), nil
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

// releasesOf returns what a call sends for a batch: first the releases that are unconfirmed, as many as repeated.
func (c *Client) releasesOf(
	name string, batch []*waitqueue.Waiter[*countingRelease],
) (releases []*countingRelease, repeated int) {
	releases = c.unconfirmed.releases(name)
	repeated = len(releases)
	for _, w := range batch {
		if w.Value.seq == 0 {
			w.Value.seq, w.Value.retryUntil = c.lastSequence.Add(1), time.Now().Add(retryTimeout)
		}
		releases = append(releases, w.Value)
	}
	return releases, repeated
}

// beginCountingReleases sends what attemptCountingReleases sends; see waitqueue.Config.
func (c *Client) beginCountingReleases(
	name string, batch []*waitqueue.Waiter[*countingRelease], ended <-chan struct{},
) bool {
	releases, repeated := c.releasesOf(name, batch)
	if repeated > 0 || !c.channels.Decided() {
		return false
	}
	return releases[0].early.Send(c.sender, c.releasingScript(name, releases), ended)
}

// attemptCountingReleases sends the releases of a batch, after those that are unconfirmed.
func (c *Client) attemptCountingReleases(
	name string, batch []*waitqueue.Waiter[*countingRelease],
) (time.Duration, error) {
	c.channels.Decide()
	releases, repeated := c.releasesOf(name, batch)
	for from := 0; from < len(releases); from += maxBatch {
		part := releases[from:min(from+maxBatch, len(releases))]
		results, ambiguous, err := c.sendCountingReleases(name, part)
		if err != nil {
			if redisconn.Permanent(err) && ambiguous { // an unanswered copy of the call may have been executed
				err = fmt.Errorf("%w: %w", ErrUnconfirmed, err)
			}
			c.unconfirmed.setReleases(name, toRepeat(releases[from:], max(repeated-from, 0), err))
			c.settleLater(name)
			return 0, err
		}
		for i, result := range results {
			if at := from + i - repeated; at >= 0 {
				batch[at].Value.result = result
				batch[at].Grant()
			}
		}
	}
	c.unconfirmed.setReleases(name, nil)
	return 0, nil
}

func (c *Client) releasingScript(name string, releases []*countingRelease) scripts.Call {
	keys := []string{name, c.sequenceKey(name, releasingCalls)}
	if c.idleMillis > 0 {
		keys = append(keys, originKey(name))
	}
	args := []any{sequenceKeyMillis, c.channels.Verb(), scripts.SemChannel(name), c.idleMillis}
	for _, release := range releases {
		ifExists := 0
		if release.ifExists {
			ifExists = 1
		}
		args = append(args, release.seq, release.n, ifExists, release.max)
	}
	return scripts.SemRelease.Call(keys, args...)
}

// sendCountingReleases runs the script. ambiguous reports that a copy of the call was not answered.
func (c *Client) sendCountingReleases(
	name string, releases []*countingRelease,
) (results []int64, ambiguous bool, err error) {
	script := func() scripts.Call { return c.releasingScript(name, releases) }
	r := releases[0].early.Run(c.sender, script, nil)
	results, err = r.Integers(len(releases))
	for i, result := range results {
		if result != 1 && !(result == 0 && releases[i].ifExists) && !(result == -1 && releases[i].max > 0) {
			err = r.Unexpected()
		}
	}
	return results, r.Ambiguous, err
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
