package semaphore

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
)

// This file finds out the outcome of calls on a CountingSemaphore that Redis has not confirmed. Every acquiring
// and every releasing call settles the calls before it; see sequence.go. While callers make no calls, the
// background makes calls of no permits.

const (
	settlePause    = 250 * time.Millisecond // before the first call of no permits; doubled after each, up to
	maxSettlePause = 5 * time.Second
)

// settleLater makes settling calls in the background until nothing is unconfirmed.
func (c *Client) settleLater(name string) {
	if c.unconfirmed.startPolling(name) {
		c.settleAfter(name, settlePause)
	}
}

// settleAfter pauses by a context, which keeps its time even if the wheel is stopped.
func (c *Client) settleAfter(name string, pause time.Duration) {
	ctx, cancel := c.wheel.WithTimeout(context.Background(), pause/2+rand.N(pause/2))
	context.AfterFunc(ctx, func() {
		defer cancel()
		if !c.gate.Enter() {
			return // Close settles
		}
		if c.unconfirmed.removeExpired(name, c.wheel.Now()) {
			c.logger.LogAttrs(context.Background(), slog.LevelWarn, "semaphore: gave up confirming calls",
				slog.String("name", name))
		}
		c.settle(name, func() {
			if !c.unconfirmed.stopPollingIfEmpty(name) {
				c.settleAfter(name, min(2*pause, maxSettlePause))
			}
		})
	})
}

// settle makes one settling call of each kind that is needed. After the calls it calls done and leaves the
// gate.
func (c *Client) settle(name string, done func()) {
	ctx := context.Background()
	acquisitions, releases := c.unconfirmed.has(name)
	end := func() {
		defer c.gate.Leave()
		done()
	}
	release := func() {
		if !releases {
			end()
			return
		}
		c.countingReleases.TryFunc(ctx, name, &countingRelease{ifExists: true}, func(*countingRelease, error) { end() })
	}
	if !acquisitions {
		release()
		return
	}
	// Behind waiters it fails at once, but their queries settle.
	c.counting.TryFunc(ctx, name, acquisition{}, func(acquisition, error) { release() })
}

// settleAll settles every semaphore during Close, when the queue of acquisitions is already closed. It tries a
// few times, because nothing after it would give the permits back.
func (c *Client) settleAll(ctx context.Context) error {
	pause := 100 * time.Millisecond
	for {
		for _, name := range c.unconfirmed.names() {
			if ctx.Err() != nil {
				break
			}
			c.settleAcquisitions(ctx, name)
			_, _ = c.countingReleases.Try(ctx, name, &countingRelease{ifExists: true})
		}
		names := c.unconfirmed.names()
		if len(names) == 0 {
			return nil
		}
		if pause > time.Second || wheelentry.Sleep(ctx, c.wheel, pause) != nil {
			return fmt.Errorf("calls on %d semaphores: %w", len(names), ErrUnconfirmed)
		}
		pause *= 2
	}
}

// settleAcquisitions makes an acquiring call without a caller.
func (c *Client) settleAcquisitions(ctx context.Context, name string) {
	id := c.newAcquiringCall(name)
	r, answered := c.redis.Sender.Do(ctx, calls.Request{
		Key: name, Build: func() scripts.Call { return c.acquireScript(name, id, nil, "") },
	})
	if answered {
		c.readAcquired(name, id, nil, 0, r)
	}
}

// unconfirmedCalls holds, by semaphore, the calls of this process whose outcome is unknown. It is safe for
// concurrent use. The zero value is empty.
type unconfirmedCalls struct {
	mu       sync.Mutex
	acquired map[string]unconfirmedAcquisitions
	released map[string][]*countingRelease
	polling  map[string]bool // a wheel entry or a running call settles
}

// unconfirmedAcquisitions stands for all acquiring calls after the last confirmed one.
type unconfirmedAcquisitions struct {
	lastConfirmed uint64
	retryUntil    time.Time
}

// lastConfirmed returns the sequence number of the last acquiring call before seq whose outcome is known.
func (u *unconfirmedCalls) lastConfirmed(name string, seq uint64) uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if a, ok := u.acquired[name]; ok {
		return a.lastConfirmed
	}
	return seq - 1
}

// addAcquisition adds an acquiring call. Earlier ones keep their lastConfirmed.
func (u *unconfirmedCalls) addAcquisition(name string, lastConfirmed uint64, retryUntil time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, ok := u.acquired[name]; ok {
		return
	}
	if u.acquired == nil {
		u.acquired = make(map[string]unconfirmedAcquisitions)
	}
	u.acquired[name] = unconfirmedAcquisitions{lastConfirmed, retryUntil}
}

func (u *unconfirmedCalls) removeAcquisitions(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.acquired, name)
}

// releases returns a copy of the unconfirmed releases, in the order in which they were made.
func (u *unconfirmedCalls) releases(name string) []*countingRelease {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.released[name])
}

func (u *unconfirmedCalls) setReleases(name string, releases []*countingRelease) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.setReleasesLocked(name, releases)
}

func (u *unconfirmedCalls) setReleasesLocked(name string, releases []*countingRelease) {
	if len(releases) == 0 {
		delete(u.released, name)
		return
	}
	if u.released == nil {
		u.released = make(map[string][]*countingRelease)
	}
	u.released[name] = releases
}

// removeExpired removes the releases that were retried for too long, and reports whether there were any.
func (u *unconfirmedCalls) removeExpired(name string, now time.Time) (expired bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if a, ok := u.acquired[name]; ok && now.After(a.retryUntil) {
		delete(u.acquired, name)
		expired = true
	}
	var keep []*countingRelease
	for _, release := range u.released[name] {
		if now.After(release.retryUntil) {
			expired = true
		} else {
			keep = append(keep, release)
		}
	}
	u.setReleasesLocked(name, keep)
	return expired
}

// mayHaveExecuted bounds the retries of releases whose call may have executed: Redis does not keep their numbers for
// longer.
func (u *unconfirmedCalls) mayHaveExecuted(releases []*countingRelease, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, release := range releases {
		if !release.ambiguous {
			release.ambiguous, release.retryUntil = true, now.Add(retryTimeout)
		}
	}
}

// has reports which kinds of calls are unconfirmed.
func (u *unconfirmedCalls) has(name string) (acquisitions, releases bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.hasLocked(name)
}

func (u *unconfirmedCalls) hasLocked(name string) (acquisitions, releases bool) {
	_, acquisitions = u.acquired[name]
	return acquisitions, len(u.released[name]) > 0
}

// names returns the semaphores with unconfirmed calls.
func (u *unconfirmedCalls) names() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	names := slices.Collect(maps.Keys(u.acquired))
	for name := range u.released {
		if _, both := u.acquired[name]; !both {
			names = append(names, name)
		}
	}
	return names
}

// startPolling reports whether the caller must settle, because nothing else does.
func (u *unconfirmedCalls) startPolling(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.polling[name] {
		return false
	}
	if u.polling == nil {
		u.polling = make(map[string]bool)
	}
	u.polling[name] = true
	return true
}

// stopPollingIfEmpty reverts startPolling if no call is unconfirmed, and reports whether it did.
func (u *unconfirmedCalls) stopPollingIfEmpty(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if acquisitions, releases := u.hasLocked(name); acquisitions || releases {
		return false
	}
	delete(u.polling, name)
	return true
}
