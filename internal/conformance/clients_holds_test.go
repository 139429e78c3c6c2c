package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// process is a service with a redis client and the clients of the library that use it.
type process struct {
	rdb     redis.UniversalClient
	wheel   *wheel.Wheel
	locks   *redislock.Client
	permits *semaphore.Client
	limits  *ratelimit.Client
	delays  *delay.Client
}

// startProcess returns an error if the library refuses the client.
func startProcess(t *testing.T, rdb redis.UniversalClient, w *wheel.Wheel, poll time.Duration) (*process, error) {
	t.Helper()
	t.Cleanup(func() { _ = rdb.Close() })
	p := &process{rdb: rdb, wheel: w}
	var err [4]error
	p.locks, err[0] = redislock.New(rdb, redislock.WithWheel(w), redislock.WithPoll(poll))
	p.permits, err[1] = semaphore.New(rdb, semaphore.WithWheel(w), semaphore.WithPoll(poll))
	p.limits, err[2] = ratelimit.New(rdb, ratelimit.WithWheel(w))
	p.delays, err[3] = delay.New(rdb, delay.WithWheel(w), delay.WithPoll(poll))
	if err := errors.Join(err[:]...); err != nil {
		return nil, err
	}
	for _, closing := range []func(context.Context) error{
		p.locks.Close, p.permits.Close, p.limits.Close, p.delays.Close,
	} {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), redistest.Patience)
			defer cancel()
			_ = closing(ctx) // what a fault has left unconfirmed is an error
			if ctx.Err() != nil {
				t.Error("Close did not return")
			}
		})
	}
	return p, nil
}

// held is what a process holds: it relies on it while valid returns true.
type held struct {
	valid func() bool
	done  <-chan struct{}
	err   func() error // why it was lost
}

// exclusives are the objects that one process may hold at a time. A function waits for the object, calls hold with it,
// and gives it back.
var exclusives = map[string]func(
	ctx context.Context, p *process, name string, lease time.Duration, hold func(held),
) error{
	"Mutex": func(ctx context.Context, p *process, name string, lease time.Duration, hold func(held)) error {
		return lockWith(ctx, p.locks.Mutex(name, redislock.WithLease(lease)), hold)
	},
	"FairMutex": func(ctx context.Context, p *process, name string, lease time.Duration, hold func(held)) error {
		return lockWith(ctx, p.locks.FairMutex(name, redislock.WithLease(lease)), hold)
	},
	"Semaphore": func(ctx context.Context, p *process, name string, lease time.Duration, hold func(held)) error {
		s := p.permits.Semaphore(name, 1, semaphore.WithLease(lease))
		grant, err := s.Acquire(ctx, 1)
		if err != nil {
			return err
		}
		hold(held{grant.Valid, grant.Done(), grant.Err})
		return giveBack(ctx, grant.Release)
	},
	"Queue": func(ctx context.Context, p *process, name string, lease time.Duration, hold func(held)) error {
		q := p.delays.Queue(name, delay.WithLease(lease))
		if err := q.Schedule(ctx, "task", 0, nil, delay.IfAbsent()); err != nil {
			return err
		}
		return q.Serve(ctx, 1, func(ctx context.Context, _ *delay.Task) error {
			hold(held{func() bool { return ctx.Err() == nil }, ctx.Done(), func() error { return context.Cause(ctx) }})
			<-ctx.Done() // a little later, if Serve ends
			return ctx.Err()
		})
	},
}

func lockWith(ctx context.Context, m *redislock.Mutex, hold func(held)) error {
	lock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	hold(held{lock.Valid, lock.Done(), lock.Err})
	return giveBack(ctx, lock.Unlock)
}

// giveBack releases what the process may have lost.
func giveBack(ctx context.Context, release func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = release(ctx)
	return nil
}

// history is who has relied on an object, and when.
type history struct {
	mu      sync.Mutex
	holds   []*span
	changed chan struct{} // closed at the next hold
}

type span struct {
	by           string
	valid        func() bool
	since, until time.Time
	lost         error
	with         []*span // that were valid when this one began
}

// add records a hold until it is over or ctx ends.
func (h *history) add(ctx context.Context, by string, what held) {
	h.mu.Lock()
	hold := &span{by: by, valid: what.valid, since: time.Now()}
	for _, other := range h.holds {
		if other.until.IsZero() && other.valid() {
			hold.with = append(hold.with, other)
		}
	}
	h.holds = append(h.holds, hold)
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
	h.mu.Unlock()
	select {
	case <-what.done:
	case <-ctx.Done():
	}
	h.mu.Lock()
	hold.until, hold.lost = time.Now(), what.err()
	h.mu.Unlock()
}

// await waits for a hold that began after so many others, by another than one. It returns false if ctx ends before.
func (h *history) await(ctx context.Context, others int, than string) (took time.Duration, ok bool) {
	began := time.Now()
	for {
		h.mu.Lock()
		for _, hold := range h.holds[min(others, len(h.holds)):] {
			ok = ok || hold.by != than
		}
		if h.changed == nil {
			h.changed = make(chan struct{})
		}
		changed := h.changed
		h.mu.Unlock()
		if ok {
			return time.Since(began), true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Since(began), false
		}
	}
}

// holder returns who relies on the object now, and how many holds there have been.
func (h *history) holder() (by string, holds int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, hold := range h.holds {
		if hold.until.IsZero() && hold.valid() && by == "" {
			by = hold.by
		}
	}
	return by, len(h.holds)
}

// firstLasts reports whether the first hold goes on. Another may have got one at a primary that was replaced, which a
// client that holds nothing learns of late; see shared.
func (h *history) firstLasts() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.holds) > 0 && h.holds[0].until.IsZero() && h.holds[0].valid()
}

// shared returns the longest time for which two relied on the object, and until when that was so.
func (h *history) shared() (longest time.Duration, last time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := func(hold *span) time.Time {
		if hold.until.IsZero() {
			return time.Now()
		}
		return hold.until
	}
	for _, hold := range h.holds {
		for _, other := range hold.with {
			until := end(hold)
			if end(other).Before(until) {
				until = end(other)
			}
			longest = max(longest, until.Sub(hold.since))
			if until.After(last) {
				last = until
			}
		}
	}
	return longest, last
}

// describe tells the holds, with times since an instant.
func (h *history) describe(from time.Time) (text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := func(t time.Time) string {
		if t.IsZero() {
			return "now"
		}
		return t.Sub(from).Round(10 * time.Millisecond).String()
	}
	for _, hold := range h.holds {
		text += fmt.Sprintf("\n%s from %s to %s", hold.by, at(hold.since), at(hold.until))
		if hold.lost != nil {
			text += ": " + hold.lost.Error()
		}
	}
	return text
}

// contender asks for an object, again and again, and keeps it for as long as it can.
type contender struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

func (c *contender) stop() {
	c.cancel()
	<-c.ended
}

// contend starts a contender.
func contend(t *testing.T, h *history, by, kind string, p *process, name string, lease time.Duration) *contender {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &contender{cancel, make(chan struct{})}
	t.Cleanup(c.stop)
	go func() {
		defer close(c.ended)
		for ctx.Err() == nil {
			err := exclusives[kind](ctx, p, name, lease, func(what held) { h.add(ctx, by, what) })
			if err != nil { // Redis is away
				_ = p.wheel.Sleep(ctx, 50*time.Millisecond)
			}
		}
	}()
	return c
}

// decisions records how a limiter is decided.
type decisions struct {
	mu      sync.Mutex
	asked   int
	failed  time.Time // since when Redis does not decide; zero while it does
	outages []outage
}

// outage is a time in which Redis did not decide.
type outage struct {
	from, to time.Time
	cause    error
}

// decide asks a limiter until the test ends.
func decide(t *testing.T, p *process, name string) *decisions {
	t.Helper()
	d := &decisions{}
	ctx, cancel := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		asking.Wait()
	})
	asking.Go(func() {
		limiter := limiterOf(p, name)
		for ctx.Err() == nil {
			r, err := limiter.Allow(context.Background(), name)
			d.add(err, err == nil && r.Source != ratelimit.SourceDegraded)
			_ = p.wheel.Sleep(ctx, 20*time.Millisecond)
		}
	})
	return d
}

func (d *decisions) add(err error, byRedis bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.asked++
	switch {
	case byRedis:
		d.failed = time.Time{}
		return
	case d.failed.IsZero():
		d.failed = now
		d.outages = append(d.outages, outage{from: now})
	}
	last := &d.outages[len(d.outages)-1]
	last.to, last.cause = now, err
}

// judge returns an error if there was an outage of more than most from an instant on.
func (d *decisions) judge(from time.Time, most time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked == 0 {
		return errors.New("no decision")
	}
	for _, o := range d.outages {
		if o.from.Before(from) {
			o.from = from
		}
		if d := o.to.Sub(o.from); d > most {
			return fmt.Errorf("no decision by Redis for %v: %w", d, o.cause)
		}
	}
	return nil
}

// permitsOfLimit is more than a process asks for in a test.
const permitsOfLimit = 10_000

func limiterOf(p *process, name string) *ratelimit.Limiter {
	return p.limits.Limiter(name, ratelimit.PerHour(1).WithBurst(permitsOfLimit), ratelimit.WithHashTag(name))
}

// until calls a function until it succeeds or ctx ends, and returns how long that took.
func until(ctx context.Context, w *wheel.Wheel, call func(context.Context) error) (time.Duration, error) {
	began := time.Now()
	for {
		err := call(ctx)
		if err == nil || w.Sleep(ctx, 10*time.Millisecond) != nil {
			return time.Since(began), err
		}
	}
}

// check returns the reports of all clients of the library.
func (p *process) check(r *run, name string) (reports []*cogwheel.Report) {
	r.t.Helper()
	ctx := redistest.Within(r.t, redistest.Patience)
	for _, check := range []func() (*cogwheel.Report, error){
		func() (*cogwheel.Report, error) { return p.locks.Check(ctx, p.locks.Mutex(name)) },
		func() (*cogwheel.Report, error) { return p.permits.Check(ctx, p.permits.Semaphore(name, 0)) },
		func() (*cogwheel.Report, error) { return p.limits.Check(ctx, limiterOf(p, name)) },
		func() (*cogwheel.Report, error) { return p.delays.Check(ctx, p.delays.Queue(name)) },
	} {
		report, err := check()
		if err != nil {
			r.t.Error(err)
			continue
		}
		reports = append(reports, report)
	}
	return reports
}
