package semaphore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// The permits of a Semaphore are a bare number. The number does not tell whether a call whose reply was
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

// originKey returns the key in which Redis keeps when the permits of a Semaphore were set. With an idle expiry it
// also keeps how many they are, by which scripts know whether any is held.
func originKey(name string) string { return scripts.SuffixName(name, "origin") }

// countingRelease is one release of a Semaphore's permits.
type countingRelease struct {
	n         int64
	ifExists  bool
	max       int64
	abandoned bool // no caller learns of a failure and could repeat the release

	// Set when the release is sent for the first time.
	seq        uint64
	retryUntil time.Time

	result int64 // what the script returned: 1 added, 0 no semaphore, -1 above max
}

// attemptCounting acquires permits of a Semaphore for a batch of waiters.
func (c *Client) attemptCounting(name string, batch []*waitqueue.Waiter[acquisition]) (time.Duration, error) {
	seq := c.lastSequence.Add(1)
	confirmed := c.unconfirmed.lastConfirmed(name, seq)
	keys := []string{name, c.sequenceKey(name, acquiringCalls)}
	if c.idleMillis > 0 || confirmed != seq-1 {
		keys = append(keys, originKey(name))
	}
	args := []any{seq, confirmed, sequenceKeyMillis, publishVerb, scripts.SemChannel(name), c.idleMillis}
	for _, w := range batch {
		args = append(args, w.Value.n)
	}
	r := c.run(nil, scripts.SemAcquire, keys, args...)
	v, err := r.Integers(3)
	if err == nil && (v[0] < 0 || v[0] > int64(len(batch)) || v[1] != 0 && v[1] != 1) {
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
	return 0, nil
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

// attemptCountingReleases sends the releases of a batch, after those that are unconfirmed.
func (c *Client) attemptCountingReleases(
	name string, batch []*waitqueue.Waiter[*countingRelease],
) (time.Duration, error) {
	releases := c.unconfirmed.releases(name)
	repeated := len(releases)
	for _, w := range batch {
		if w.Value.seq == 0 {
			w.Value.seq, w.Value.retryUntil = c.lastSequence.Add(1), time.Now().Add(retryTimeout)
		}
		releases = append(releases, w.Value)
	}
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

// sendCountingReleases runs the script. ambiguous reports that a copy of the call was not answered.
func (c *Client) sendCountingReleases(
	name string, releases []*countingRelease,
) (results []int64, ambiguous bool, err error) {
	keys := []string{name, c.sequenceKey(name, releasingCalls)}
	if c.idleMillis > 0 {
		keys = append(keys, originKey(name))
	}
	args := []any{sequenceKeyMillis, publishVerb, scripts.SemChannel(name), c.idleMillis}
	for _, release := range releases {
		ifExists := 0
		if release.ifExists {
			ifExists = 1
		}
		args = append(args, release.seq, release.n, ifExists, release.max)
	}
	r := c.run(nil, scripts.SemRelease, keys, args...)
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
