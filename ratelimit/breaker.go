package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

const defaultProbe = 250 * time.Millisecond

// Policy says what is decided while Redis is down. The zero Policy is FailClosed.
type Policy struct {
	kind  policyKind
	share int64
}

type policyKind uint8

const (
	failClosed policyKind = iota
	failOpen
	shareLocally
)

// FailClosed refuses with ErrUnavailable; waits go on until Redis is back or their context ends.
func FailClosed() Policy { return Policy{} }

// FailOpen grants everything.
func FailOpen() Policy { return Policy{kind: failOpen} }

// LocalShare grants one n-th of the limit in each process, from its own memory; n is the number of processes. Of a burst
// smaller than n each process grants 1. A Limiter whose limit this process has not seen yet fails closed.
func LocalShare(n int64) Policy { return Policy{kind: shareLocally, share: n} }

// errDown is the reason while nobody asks Redis.
var errDown = errors.New("circuit open")

// breaker stops asking a Redis that does not answer, so that a decision then costs no timeout.
type breaker struct {
	client    *Client
	policy    Policy
	threshold int32
	probe     time.Duration

	down     atomic.Bool
	failures atomic.Int32 // in a row

	mu      sync.Mutex
	timer   wheel.Timer
	stopped bool
	began   time.Time
	tats    map[string]mark // of the local shares
	sweepAt int
}

// refuse returns why Redis is not to be asked now, or nil.
func (b *breaker) refuse() error {
	if b.down.Load() {
		return fmt.Errorf("%w: %w", ErrUnavailable, errDown)
	}
	return nil
}

// heard takes note of how a call ended.
func (b *breaker) heard(err error) {
	if !errors.Is(err, ErrUnavailable) {
		if b.failures.Load() != 0 {
			b.failures.Store(0)
		}
		return
	}
	b.client.stats.failures.Add(1)
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
	timer, err := b.client.wheel.AfterFunc(b.probe, b.try)
	if err != nil {
		b.down.Store(false) // without a wheel nobody would ever look again
		return
	}
	b.timer = timer
}

// try asks Redis whether it is back. It runs in a callback of the wheel, which may block.
func (b *breaker) try() {
	if b.client.enter() != nil {
		return
	}
	defer b.client.leave()
	ctx, cancel := context.WithTimeout(context.Background(), max(b.probe, time.Second))
	defer cancel()
	if err := b.client.rdb.Ping(ctx).Err(); err != nil && explainsDown(err) {
		b.arm()
		return
	}
	b.mu.Lock()
	b.tats = nil
	b.mu.Unlock()
	b.failures.Store(0)
	b.down.Store(false)
	b.client.logger.Info("ratelimit: redis is back")
}

func explainsDown(err error) bool { return errors.Is(explain("", err), ErrUnavailable) }

func (b *breaker) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	b.timer.Stop()
}

// decide is the policy's answer to a request that Redis did not answer because of err.
func (b *breaker) decide(key string, n int64, limit Limit, known bool, err error) (Result, error) {
	switch {
	case !errors.Is(err, ErrUnavailable):
		return Result{}, err
	case b.policy.kind == failOpen:
		return Result{Allowed: true, Granted: n, Limit: limit.Burst, Source: SourceDegraded}, nil
	case b.policy.kind == shareLocally && known:
		return b.local(key, n, limit), nil
	}
	b.client.stats.degraded.Add(1)
	return Result{Source: SourceDegraded}, err
}

// local decides by this process's share of the limit.
func (b *breaker) local(key string, n int64, limit Limit) Result {
	const sweepFrom = 1 << 16
	b.mu.Lock()
	defer b.mu.Unlock()
	share := Limit{Rate: limit.Rate, Per: limit.Per * time.Duration(b.policy.share), Burst: max(1, limit.Burst/b.policy.share)}
	if share.Per/limit.Per != time.Duration(b.policy.share) {
		share.Per = limit.Per // beyond 292 years a share is as good as nothing; see validate
	}
	p := newPace(share)
	if b.tats == nil {
		b.tats, b.began, b.sweepAt = map[string]mark{}, time.Now(), sweepFrom
	}
	now := time.Since(b.began).Microseconds()
	tat, ok := p.take(b.tats[key], now, n)
	if ok && n > 0 {
		b.tats[key] = tat
	}
	if len(b.tats) > b.sweepAt {
		for k, t := range b.tats {
			if t.us < now {
				delete(b.tats, k)
			}
		}
		b.sweepAt = max(sweepFrom, 2*len(b.tats))
	}
	r := Result{Limit: share.Burst, Remaining: p.remaining(tat, now), ResetAfter: p.reset(tat, now), Source: SourceDegraded}
	if ok {
		r.Allowed, r.Granted = n > 0 || r.Remaining > 0, n
	} else {
		r.RetryAfter = p.delay(tat, now, n)
	}
	return r
}
