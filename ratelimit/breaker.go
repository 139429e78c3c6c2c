package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const defaultProbe = 250 * time.Millisecond

// errDown is why Redis is not asked.
var errDown = errors.New("circuit open")

// breaker stops asking a Redis that does not answer, so that a decision then costs no timeout.
type breaker struct {
	client    *Client
	policy    Policy
	threshold int32
	probe     time.Duration

	down     atomic.Bool
	failures atomic.Int32 // in a row
	share    localShare

	mu      sync.Mutex
	timer   wheel.Timer
	stopped bool
	cause   error       // of the last failure
	failed  probeScript // what it was about
}

// probeScript is a script that changes nothing, for a key.
type probeScript struct {
	algorithm algorithm
	key       string
}

// refuse returns why Redis is not to be asked now, or nil.
func (b *breaker) refuse() error {
	if !b.down.Load() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return unavailable(fmt.Errorf("%w: %w", errDown, b.cause))
}

// heard takes note of how a call ended, which was about the key of s.
func (b *breaker) heard(err error, s *keyState) {
	if !errors.Is(err, ErrUnavailable) {
		if b.failures.Load() != 0 {
			b.failures.Store(0)
		}
		return
	}
	b.client.stats.failures.Add(1)
	b.mu.Lock()
	b.cause, b.failed = cause(err), probeScript{s.algorithm, s.id.key}
	b.mu.Unlock()
	if b.failures.Add(1) < b.threshold || !b.down.CompareAndSwap(false, true) {
		return
	}
	b.client.logger.Warn("ratelimit: redis is down, deciding by policy", "error", err)
	b.arm()
}

// arm schedules the next probe.
func (b *breaker) arm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return
	}
	timer, err := b.client.wheel.AfterFunc(b.probe, func() { go b.try() })
	if err != nil {
		b.down.Store(false) // without a wheel there are no probes
		return
	}
	b.timer = timer
}

// try asks Redis whether it is back, by a script as those that failed: other commands may be forbidden. Any
// answer will do that is not about an outage.
func (b *breaker) try() {
	c := b.client
	if c.enter() != nil {
		return
	}
	defer c.leave()
	b.mu.Lock()
	failed := b.failed
	b.mu.Unlock()
	ctx, cancel := c.wheel.WithTimeout(context.Background(), max(c.timeout, time.Second))
	defer cancel()
	call := failed.algorithm.encode(failed.key, &ask{})
	err := failed.algorithm.script().Run(ctx, c.rdb, call.Keys, call.Args...).Err()
	if redisconn.Classify(context.Background(), err) == redisconn.Unavailable {
		b.mu.Lock()
		b.cause = err
		b.mu.Unlock()
		b.arm()
		return
	}
	b.share.forget()
	b.failures.Store(0)
	b.down.Store(false)
	c.logger.Info("ratelimit: redis is back")
}

func (b *breaker) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	b.timer.Stop()
}

// decide is the policy's answer to a request that Redis did not answer because of err.
func (b *breaker) decide(id stateID, n int64, limit Limit, known bool, err error) (Result, error) {
	switch {
	case !errors.Is(err, ErrUnavailable):
		return Result{}, err
	case b.policy.kind == failOpen:
		return Result{Allowed: true, Granted: n, Limit: limit.Burst, Source: SourceDegraded}, nil
	case b.policy.kind == shareLocally && known:
		return b.share.decide(id, n, b.policy.part(limit)), nil
	}
	b.client.stats.degraded.Add(1)
	return Result{Source: SourceDegraded}, err
}
