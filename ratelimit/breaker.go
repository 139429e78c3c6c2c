package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
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
	every     time.Duration // between two probes

	down     atomic.Bool
	failures atomic.Int32 // in a row
	share    localShare

	mu      sync.Mutex
	timer   wheel.Timer
	stopped bool
	since   time.Time // when down began
	cause   error     // of the last failure
	failed  probe     // for the key of the last failure
}

// probe is the script of a failed decision, without requests: it charges nothing and writes the state of the
// key back as it is. So it needs the rights of decisions only, and fails where they would.
type probe struct {
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

// heard records the outcome of a call. s is the state that failed, if one did.
func (b *breaker) heard(err error, s *keyState) {
	if !errors.Is(err, ErrUnavailable) {
		if b.failures.Load() != 0 {
			b.failures.Store(0)
		}
		return
	}
	b.client.monitor.failures.Add(1)
	b.mu.Lock()
	b.cause, b.failed = cause(err), probe{s.algorithm, s.id.key}
	down := b.failures.Add(1) >= b.threshold && b.down.CompareAndSwap(false, true)
	if down {
		b.since = time.Now()
	}
	b.mu.Unlock()
	if !down {
		return
	}
	b.client.logger.Warn("ratelimit: Redis is down, the policy decides", "error", err)
	if hook := b.client.monitor.hooks.Down; hook != nil {
		hook(Event{Context: context.Background(), Err: err})
	}
	b.arm()
}

// up ends what heard began.
func (b *breaker) up() {
	b.mu.Lock()
	took := time.Since(b.since)
	b.mu.Unlock()
	if hook := b.client.monitor.hooks.Up; hook != nil {
		hook(Event{Context: context.Background(), Took: took})
	}
	b.failures.Store(0)
	b.down.Store(false)
}

// arm schedules the next probe. If the wheel is stopped or full, there will be none: Redis is asked again.
func (b *breaker) arm() {
	if !b.armed() {
		b.up()
	}
}

func (b *breaker) armed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return true
	}
	timer, err := wheelentry.AfterFunc(b.client.wheel, b.every, func(stopped error) {
		if stopped != nil {
			b.up()
			return
		}
		go b.try()
	})
	b.timer = timer
	return err == nil
}

// try sends a probe. Any answer other than an outage closes the circuit. LocalShare keeps its counts, so that
// a circuit that opens again within the period grants no second share.
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
	err := c.run(ctx, failed.algorithm, failed.key, &ask{}).Err()
	if redisconn.Classify(context.Background(), err) == redisconn.Unavailable {
		b.mu.Lock()
		b.cause = err
		b.mu.Unlock()
		b.arm()
		return
	}
	b.up()
	c.logger.Info("ratelimit: Redis is back")
}

func (b *breaker) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	b.timer.Stop()
	b.share.stop()
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
	return Result{Source: SourceDegraded}, err
}
