package ratelimit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxBatch   = 256         // requests in one script
	maxScripts = 2           // of one lane under way, the second only for
	crowd      = 28          // requests or more, who then do not wait out the first; fewer cost the server less in the next one
	maxDenyFor = time.Second // how long an answer of Redis is trusted: another process may give permits back or raise the limit
	keepFor    = time.Second // how long permits are kept whose waiter has gone
)

// call is one request for n permits.
type call struct {
	n    int64
	res  Result
	err  error
	done chan struct{} // buffered
}

var callPool = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

// lane is where the requests of this process for one key meet. Of those that do not wait one script is under way,
// and callers that arrive meanwhile join the next one, which a crowd does not put off. Those that wait stand in the
// registry's line; while there are any, the
// others are denied without a script. Its scripts travel by a sender, which lanes of one node share.
//
// Ground rules. mu guards every field below it. flights counts the jobs of those who do not wait that are with the sender, who
// composes the next one in the place of each until nobody is left. A view is replaced by what was asked for later only. Nothing that blocks runs under mu. refs is guarded by the registry's shard.
type lane struct {
	client *Client
	engine engine
	key    string
	out    *sender
	extra  int64 // permits to charge in advance with a grant, and
	within time.Duration

	refs    int
	waiting atomic.Int64

	mu      sync.Mutex
	flights int
	next    []*call
	own     *own // the count, if it is of the scope PerClient
	view    view
	sentAt  time.Time // when the request was sent that the view is the answer to, and
	took    time.Duration
	stock   int64 // permits charged in advance, usable until
	until   time.Time

	changed time.Time // when this Client changed the limit last
}

// known answers from memory: by this process's own count, by what Redis said last, or from the stock. It wants mu.
func (l *lane) known(n int64) (r Result, ok bool, err error) {
	waiting := l.waiting.Load() > 0
	if l.own != nil {
		if now := time.Now(); l.trusted(now) {
			r, err = l.answer(now, n, waiting)
			return r, true, err
		}
	}
	r, ok = l.remembered(n, waiting)
	return r, ok, nil
}

// remembered answers from what Redis said last, or from the stock. It wants mu.
func (l *lane) remembered(n int64, waiting bool) (Result, bool) {
	if n == 0 || l.view == nil && l.stock == 0 && !waiting {
		return Result{}, false
	}
	now := time.Now()
	passed := now.Sub(l.sentAt)
	switch {
	case waiting:
		// He may not overtake.
		if l.view != nil {
			if r, denied := l.view.deny(n, passed); denied {
				return l.local(r), true
			}
		}
		return Result{RetryAfter: time.Millisecond, Source: SourceLocal}, true
	case n <= l.stock && now.Before(l.until):
		l.stock -= n
		r := Result{Allowed: true, Granted: n, Remaining: l.stock, Source: SourcePrefetch}
		if limit, ok := l.engine.local(l.view); ok {
			r.Limit = limit.Burst
		}
		return r, true
	case l.view == nil || passed > maxDenyFor:
		return Result{}, false
	}
	r, denied := l.view.deny(n, passed)
	return l.local(r), denied
}

// local marks a denial. Redis may have looked at its clock as late as just before it answered: whoever comes back must not
// count from earlier. It wants mu.
func (l *lane) local(r Result) Result {
	r.RetryAfter += l.took
	r.Source = SourceLocal
	return r
}

// decide asks for n permits without waiting for them; n = 0 looks.
func (l *lane) decide(ctx context.Context, n int64) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if l.client.gate.Closed() {
		return Result{}, ErrClosed
	}
	l.mu.Lock()
	if r, ok, err := l.known(n); ok {
		l.mu.Unlock()
		if err == nil {
			l.client.count(r)
		}
		return r, err
	}
	c := callPool.Get().(*call)
	c.n = n
	if err := l.join(ctx, c); err != nil {
		return Result{}, err
	}
	select {
	case <-c.done:
	default:
		select {
		case <-c.done:
		case <-ctx.Done():
			return Result{}, ctx.Err() // what was granted stays charged
		}
	}
	r, err := c.res, c.err
	*c = call{done: c.done}
	callPool.Put(c)
	return r, err
}

// upTo asks for as many of n permits as there are, as one script of requests each for half of what is left to ask: whatever
// there is, is a sum of some of them, and taking them in order finds it.
func (l *lane) upTo(ctx context.Context, n int64) (r Result, err error) {
	if n == 0 {
		return l.decide(ctx, 0)
	}
	if l.client.gate.Closed() {
		return r, ErrClosed
	}
	if r, ok := l.upToKnown(n); ok {
		l.client.count(r)
		return r, nil
	}
	if err := l.client.enter(); err != nil {
		return r, err
	}
	var calls []*call
	for ; n > 0; n /= 2 {
		calls = append(calls, &call{n: (n + 1) / 2})
	}
	if err := l.out.do(ctx, &job{lane: l, calls: calls}); err != nil {
		return r, err
	}
	for _, c := range calls {
		switch {
		case c.res.Allowed:
			r.Granted += c.n
			r.grant = append(r.grant, c.res.grant...)
		case c.err != nil && !errors.Is(c.err, ErrExceedsLimit):
			return c.res, c.err
		}
	}
	last := calls[len(calls)-1].res // for one permit, which never exceeds the limit
	r.Limit, r.Remaining, r.ResetAfter, r.Source = last.Limit, last.Remaining, last.ResetAfter, last.Source
	if r.Allowed = r.Granted > 0; !r.Allowed {
		r.RetryAfter = last.RetryAfter
	}
	l.client.count(r)
	return r, nil
}

// upToKnown is upTo from memory: by this process's own count, or a denial by what Redis said last.
func (l *lane) upToKnown(n int64) (Result, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := l.waiting.Load() > 0
	if l.own != nil {
		if now := time.Now(); l.trusted(now) {
			n = max(1, min(n, l.own.log.left(now.Sub(l.client.began))))
			r, err := l.answer(now, n, waiting)
			return r, err == nil
		}
	}
	if l.stock > 0 {
		return Result{}, false
	}
	return l.remembered(1, waiting)
}

// join enters a call into the next script, and has that sent if nobody else does. It wants mu, and unlocks it.
func (l *lane) join(ctx context.Context, c *call) error {
	if l.flights > 0 && (l.flights == maxScripts || len(l.next)+1 < crowd || l.extra > 0) {
		l.next = append(l.next, c)
		l.mu.Unlock()
		return nil
	}
	if err := l.client.enter(); err != nil {
		l.mu.Unlock()
		return err
	}
	l.flights++
	j := &job{lane: l, one: [1]*call{c}}
	j.calls = j.one[:]
	if len(l.next) > 0 {
		j.calls, l.next = append(l.next, c), nil
	}
	l.mu.Unlock()
	l.out.submit(ctx, j)
	return nil
}

// compose returns the next batch. If there is none the flight is over.
func (l *lane) compose() []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	var batch []*call
	for len(l.next) > 0 && len(batch) < maxBatch {
		c := l.next[0]
		l.next[0], l.next = nil, l.next[1:]
		if r, ok, err := l.known(c.n); ok {
			if c.res, c.err = r, err; err == nil {
				l.client.count(r)
			}
			c.done <- struct{}{}
			continue
		}
		if batch == nil {
			batch = make([]*call, 0, min(len(l.next)+1, maxBatch))
		}
		batch = append(batch, c)
	}
	if batch == nil {
		l.flights--
		l.next = nil
	}
	return batch
}

// settle gives each call of a job its result: that of Redis, or if err is set that of the policy.
func (l *lane) settle(j *job, v view, err error, sentAt time.Time) {
	l.mu.Lock()
	now := time.Now()
	found, own := v.(*ownLimit)
	switch {
	case own:
		l.learn(found, sentAt)
	case err == nil && sentAt.Before(l.changed): // of the limit before
	case err == nil && sentAt.Before(l.sentAt): // another script has told what was later
	case err == nil:
		l.own, l.view, l.sentAt, l.took = nil, v, sentAt, now.Sub(sentAt)
		if j.ahead != nil && j.ahead.res.Allowed {
			l.stock, l.until = j.ahead.n, sentAt.Add(l.within)
		}
	default:
		l.lost(err)
		own = errors.Is(err, ErrUnavailable) && l.goOn(now)
	}
	limit, known := l.engine.local(j.last)
	if l.own != nil {
		limit, known = l.own.log.limit(), true
	}
	if own {
		l.decideOwn(now, j.calls, j.fifo)
	}
	l.mu.Unlock()
	if err != nil && !own {
		for _, c := range j.calls {
			c.res, c.err = l.client.breaker.decide(l.key, c.n, limit, known, err)
		}
	}
	for _, c := range j.calls {
		if c.err == nil && (j.done == nil || j.fifo && c.res.Allowed) {
			l.client.count(c.res)
		}
	}
}

// keep puts permits that are charged and not wanted into the stock.
func (l *lane) keep(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Before(l.until) {
		l.stock += n
	} else {
		l.stock = n
		l.until = now.Add(keepFor)
	}
}

// remembers is for how long the lane can still answer by itself.
func (l *lane) remembers() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own != nil {
		return l.remembersOwn(time.Now())
	}
	if v, ok := l.view.(*logView); ok {
		return time.Until(v.counted.Add(recount))
	}
	if l.stock == 0 {
		if l.view == nil {
			return 0
		}
		if _, denied := l.view.deny(1, 0); !denied {
			return 0 // nor later
		}
	}
	now := time.Now()
	passed := now.Sub(l.sentAt)
	if l.stock > 0 && now.Before(l.until) {
		return l.until.Sub(now)
	}
	if l.view == nil || passed >= maxDenyFor {
		return 0
	}
	r, denied := l.view.deny(1, passed)
	if !denied {
		return 0
	}
	return min(r.RetryAfter, maxDenyFor-passed)
}

// forget drops what is known about the key, because this process has just changed it.
func (r *registry) forget(l *lane) {
	l.mu.Lock()
	l.view, l.stock = nil, 0
	l.mu.Unlock()
	r.line.Kick(l.key)
}
