package robustness

import (
	"cmp"
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/robustness/history"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// simpleLocks are locks as one writes them at first: a key with a random value, which is set if it is absent, expires
// after the lease, and is renewed by a goroutine. Waiters poll. Controls and peers change parts of it.
type simpleLocks struct {
	lease, poll time.Duration
	closed      context.Context
	close       context.CancelFunc
	renewals    sync.WaitGroup

	acquire func(ctx context.Context, key, value string) (ok bool, token int64, err error)
	renew   func(ctx context.Context, key, value string) (held bool, err error) // nil for a lock without renewal
	release func(ctx context.Context, key, value string) (held bool, err error)
	values  func(Ask) string

	interval    time.Duration // of renewals
	endless     bool          // valid until a renewal fails, however long that takes
	stopOnError bool          // the first renewal that fails is the last, and nothing is said
	outlive     bool          // renewals go on after the release
	silent      bool          // the holder is told nothing
	tellOnError bool          // a renewal that fails is the last
}

var (
	setIfAbsent = redis.NewScript(`return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0`)
	expireIfOwn = redis.NewScript(
		`return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0`)
	deleteIfOwn = redis.NewScript(`return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0`)
)

// newSimple makes such locks, and applies a change to them.
func newSimple(rdb redis.UniversalClient, s Settings, change func(*simpleLocks)) *simpleLocks {
	l := &simpleLocks{lease: s.Lease, poll: cmp.Or(s.Pause, 10*time.Millisecond), interval: s.Lease / 3}
	l.values = func(Ask) string { return rand.Text() }
	l.closed, l.close = context.WithCancel(context.Background())
	yes := func(script *redis.Script) func(context.Context, string, string) (bool, error) {
		return func(ctx context.Context, key, value string) (bool, error) {
			n, err := script.Run(ctx, rdb, []string{key}, value, l.lease.Milliseconds()).Int()
			return n == 1, err
		}
	}
	set := yes(setIfAbsent)
	l.acquire = func(ctx context.Context, key, value string) (bool, int64, error) {
		ok, err := set(ctx, key, value)
		return ok, 0, err
	}
	l.renew, l.release = yes(expireIfOwn), yes(deleteIfOwn)
	if change != nil {
		change(l)
	}
	return l
}

// simple returns the constructor of simple locks with a change.
func simple(change func(l *simpleLocks, rdb redis.UniversalClient, s Settings)) newLocker {
	return func(rdbs []redis.UniversalClient, _ *wheel.Wheel, s Settings) (Locker, error) {
		return newSimple(rdbs[0], s, func(l *simpleLocks) { change(l, rdbs[0], s) }), nil
	}
}

func (l *simpleLocks) Close(context.Context) error {
	l.close()
	l.renewals.Wait()
	return nil
}

func (l *simpleLocks) Acquire(ctx context.Context, ask Ask) (Hold, error) {
	value := l.values(ask)
	for {
		sent := time.Now()
		ok, token, err := l.acquire(ctx, ask.Object, value)
		switch {
		case ok:
			return l.hold(ask.Object, value, token, sent), nil
		case err != nil:
			_, _ = l.release(context.WithoutCancel(ctx), ask.Object, value)
			return nil, err
		case ask.Try:
			return nil, ErrRefused
		}
		select {
		case <-time.After(l.poll):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// simpleHold is a hold of a simple lock.
type simpleHold struct {
	locks    *simpleLocks
	token    int64
	told     chan struct{}
	tell     func()
	deadline *time.Timer
	stop     context.CancelFunc
	renew    func(ctx context.Context) (held bool, until time.Time, err error) // nil for none
	release  func(ctx context.Context) (held bool, err error)

	mu    sync.Mutex
	until time.Time
}

func (l *simpleLocks) hold(key, value string, token int64, sent time.Time) *simpleHold {
	h := &simpleHold{locks: l, token: token, until: sent.Add(l.validity())}
	h.release = func(ctx context.Context) (bool, error) { return l.release(ctx, key, value) }
	if l.renew != nil {
		h.renew = func(ctx context.Context) (bool, time.Time, error) {
			sent := time.Now()
			held, err := l.renew(ctx, key, value)
			return held, sent.Add(l.validity()), err
		}
	}
	h.begin()
	return h
}

func (h *simpleHold) begin() {
	l := h.locks
	h.told = make(chan struct{})
	h.tell = sync.OnceFunc(func() { close(h.told) })
	h.deadline = time.AfterFunc(time.Until(h.until), func() {
		if !l.endless {
			h.tell()
		}
	})
	ctx, stop := context.WithCancel(l.closed)
	h.stop = stop
	if h.renew != nil {
		l.renewals.Go(func() { h.renewals(ctx) })
	}
}

// validity is less than the lease by as much as the clocks may differ.
func (l *simpleLocks) validity() time.Duration { return l.lease * 99 / 100 }

func (h *simpleHold) renewals(ctx context.Context) {
	l := h.locks
	for pause := l.interval; ; {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		held, until, err := h.renew(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && held:
			h.mu.Lock()
			h.until = until
			h.deadline.Reset(time.Until(h.until))
			h.mu.Unlock()
			pause = l.interval
		case err != nil && l.stopOnError:
			return
		case err == nil, l.endless, l.tellOnError:
			h.tell()
			return
		default:
			pause = l.lease / 20
		}
	}
}

func (h *simpleHold) Valid() bool {
	select {
	case <-h.told:
		return false
	default:
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.locks.endless || time.Now().Before(h.until)
}

func (h *simpleHold) Told() <-chan struct{} {
	if h.locks.silent {
		return nil
	}
	return h.told
}

func (h *simpleHold) Token() int64 { return h.token }

func (h *simpleHold) Release(ctx context.Context) (history.Step, error) {
	h.deadline.Stop()
	if !h.locks.outlive {
		h.stop()
	}
	held, err := h.release(ctx)
	switch {
	case err != nil:
		return history.Open, err
	case !held:
		return history.Lost, nil
	default:
		return history.Released, nil
	}
}
