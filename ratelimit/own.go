package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

const (
	// askEvery is how often the limit of the scope PerClient is looked up while it is used.
	askEvery = time.Second
	// maxUnseen is how long such a limit without a keep-alive is kept to while Redis does not answer.
	maxUnseen = time.Hour
)

// own is a count of the scope PerClient. It is this Client's alone, so it is kept in memory, and Redis is asked for the limit only: by
// whoever comes when it was not looked up for a while, and in the background as long as somebody comes.
//
// Ground rules. It belongs to a lane, whose mu guards it.
type own struct {
	log       memoryLog
	keepAlive time.Duration
	seen      time.Time // when the limit was asked for that log has; zero if it is to be asked for first
	next      time.Time // before, nobody asks
	armed     bool      // an entry of the wheel asks at next, or is asking
	used      bool      // since the limit was asked for: its keep-alive begins anew
}

// ownLimit is what Redis says about a limit of the scope PerClient. As a view it says nothing: what is known is in the log.
type ownLimit struct {
	rate                int64
	interval, keepAlive time.Duration
	overall             bool // it is not of that scope any more
}

func newOwnLimit(reply []int64) *ownLimit {
	return &ownLimit{
		rate: reply[0], interval: micros(reply[1] * 1000), keepAlive: micros(max(0, reply[2]) * 1000),
		overall: len(reply) > 3 && reply[3] == int64(Overall),
	}
}

func (*ownLimit) deny(int64, time.Duration) (Result, bool)        { return Result{}, false }
func (*ownLimit) wait(total int64, _ time.Duration) time.Duration { return 0 }

// pause is how long the limit is good for before it is looked up again.
func (o *own) pause() time.Duration {
	if o.keepAlive > 0 {
		return min(askEvery, max(o.keepAlive/3, time.Millisecond))
	}
	return askEvery
}

// stale reports whether the limit is not to be kept to any more even if Redis does not answer: by then it may be gone.
func (o *own) stale(now time.Time) bool {
	most := maxUnseen
	if o.keepAlive > 0 {
		most = o.keepAlive
	}
	return o.seen.IsZero() || now.Sub(o.seen) > most
}

// trusted reports whether the lane decides by itself, and sees to it that the limit is looked up in time. It wants mu.
func (l *lane) trusted(now time.Time) bool {
	o := l.own
	if o == nil || o.stale(now) || !o.armed && !now.Before(o.next) {
		return false
	}
	l.arm(now)
	return true
}

// arm has the limit looked up when it is time. It wants mu.
func (l *lane) arm(now time.Time) {
	o := l.own
	if o.armed {
		return
	}
	_, err := l.client.wheel.AfterFunc(o.next.Sub(now), func() { l.lookUp(o) })
	o.armed = err == nil // otherwise whoever comes then asks
}

// lookUp asks for the limit, unless the count has begun anew since. It runs in a callback of the wheel, which may block.
func (l *lane) lookUp(o *own) {
	c := l.client
	if c.enter() != nil {
		return
	}
	defer c.leave()
	l.mu.Lock()
	if l.own != o {
		l.mu.Unlock()
		return
	}
	used, rate, interval := o.used, o.log.rate, o.log.interval
	o.used = false
	l.mu.Unlock()

	sentAt := time.Now()
	err := c.breaker.refuse()
	var found *ownLimit
	if err == nil {
		found, err = c.limitOf(l.key, used)
		c.breaker.heard(err)
	}
	l.mu.Lock()
	changed := false
	if l.own == o {
		now := time.Now()
		o.armed = false
		switch {
		case errors.Is(err, ErrUnavailable):
			if l.goOn(now) && l.waiting.Load() > 0 {
				l.arm(now)
			}
		case err != nil:
			o.seen, changed = time.Time{}, true // let the next one find out
		default:
			l.learn(found, sentAt)
			changed = found.overall || o.log.rate != rate || o.log.interval != interval
		}
	}
	l.mu.Unlock()
	if changed {
		c.logs.line.Kick(l.key)
	}
}

// limitOf asks Redis for a limit, and has its keep-alive begin anew if it was used.
func (c *Client) limitOf(key string, used bool) (*ownLimit, error) {
	renew := 0
	if used {
		renew = 1
	}
	reply, err := ints(scripts.RateLimit.Run(context.Background(), c.rdb, []string{key}, renew), 4, nil)
	if err != nil {
		return nil, explain(key, err)
	}
	return newOwnLimit(reply), nil
}

// learn takes note of a limit that was asked for at the given time. It wants mu.
func (l *lane) learn(found *ownLimit, sentAt time.Time) {
	if found.overall {
		if !sentAt.Before(l.changed) {
			l.own = nil
		}
		return
	}
	l.view, l.stock = nil, 0
	if l.own == nil {
		l.own = &own{}
	}
	o := l.own
	newer := !sentAt.Before(l.changed) && !sentAt.Before(o.seen)
	if newer || o.log.rate == 0 {
		o.log.set(found.rate, found.interval)
		o.keepAlive = found.keepAlive
	}
	if newer {
		o.seen, o.next = sentAt, sentAt.Add(o.pause())
	}
	if l.waiting.Load() > 0 && !o.seen.IsZero() {
		l.arm(time.Now())
	}
}

// goOn reports whether the lane decides by itself although Redis does not answer. It wants mu.
func (l *lane) goOn(now time.Time) bool {
	if l.own == nil || l.own.stale(now) {
		return false
	}
	l.own.next = now.Add(l.own.pause())
	return true
}

// lost takes note of an error that is about the limit. It wants mu.
func (l *lane) lost(err error) {
	if l.own != nil && errors.Is(err, ErrNotConfigured) {
		l.own.seen = time.Time{}
	}
}

// unlearn has the limit asked for again, because this Client has changed it, and drops what was granted if it begins anew.
func (l *lane) unlearn(anew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = time.Now()
	switch {
	case anew:
		l.own = nil
	case l.own != nil:
		l.own.seen = time.Time{}
	}
}

// remembersOwn is for how long it is worth while to keep the count: until its log is empty, and the limit for some time more, for
// Redis may go down. It wants mu.
func (l *lane) remembersOwn(now time.Time) time.Duration {
	c, o := l.client, l.own
	d := max(o.log.reset(now.Sub(c.began)), c.idleFor-now.Sub(o.seen))
	if d <= 0 && c.breaker.down.Load() && !o.stale(now) {
		return c.idleFor
	}
	return d
}

// byMemory decides those who wait as a script would, if the count is in memory: the first denial denies the rest.
func (l *lane) byMemory(calls []*call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.trusted(now) {
		return false
	}
	l.decideOwn(now, calls, true)
	for _, c := range calls {
		if c.err == nil && c.res.Allowed {
			l.client.count(c.res)
		}
	}
	return true
}

// decideOwn sets the results of calls. It wants mu.
func (l *lane) decideOwn(now time.Time, calls []*call, fifo bool) {
	denied := false
	for _, c := range calls {
		c.res, c.err = l.answer(now, c.n, denied)
		denied = denied || fifo && c.err == nil && !c.res.Allowed
	}
}

// answer decides a request for n permits, which is denied in any case if others are before it. It wants mu.
func (l *lane) answer(now time.Time, n int64, denied bool) (Result, error) {
	at, log := now.Sub(l.client.began), &l.own.log
	if n > log.rate {
		return Result{}, ErrExceedsLimit
	}
	l.own.used = l.own.used || n > 0
	r := Result{Limit: log.rate, Source: SourceLocal}
	if n > 0 && !denied {
		if s, ok := log.take(at, n); ok {
			r.Allowed, r.Granted, r.grant = true, n, []entry{{stamp: s}}
		}
	}
	left := log.left(at)
	r.Remaining, r.ResetAfter = max(0, left), log.reset(at)
	switch {
	case n == 0:
		r.Allowed = left > 0
	case !r.Allowed:
		if r.RetryAfter = log.from(at, n) - at; r.RetryAfter == 0 {
			r.RetryAfter = time.Millisecond // he may not overtake
		}
	}
	return r, nil
}

// reserveOwn enters a reservation into the memory, where the count has to be. It wants mu.
func (l *lane) reserveOwn(n int64, ahead time.Duration) (delay time.Duration, cancel cancelFunc, err error) {
	at, log := time.Since(l.client.began), &l.own.log
	if n > log.rate {
		return 0, nil, ErrExceedsLimit
	}
	s, ok := log.reserve(at, n, ahead)
	if !ok {
		return 0, nil, ErrWouldExceedDeadline
	}
	l.own.used = true
	return s.at - at, func(context.Context) (bool, error) { return l.giveBackOwn(s), nil }, nil
}

// giveBackOwn takes an entry out of the memory.
func (l *lane) giveBackOwn(s stamp) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own != nil && l.own.log.giveBack(time.Since(l.client.began), s)
}
