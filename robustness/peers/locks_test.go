package peers_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// The libraries.
const (
	cogwheelLib = "cogwheel"
	bsmLib      = "bsm/redislock"
	redsyncLib  = "redsync"
	redisPyLib  = "redis-py"
	node4Lib    = "node-redlock 4"
	node5Lib    = "node-redlock 5"

	// carelessLib is the control: redis-py's commands with a release that does not compare.
	carelessLib = "DEL without comparison"
)

// library takes locks with one library, by one client of Redis.
type library interface {
	// lock waits for the lock. A library that polls pauses between two attempts as its worker is set up.
	lock(ctx context.Context, name string, lease time.Duration, renewed bool) (holder, error)
}

// holder is a hold, as its library tells it.
type holder interface {
	// until returns until when the holder may work, if nothing extends the hold.
	until() instant
	// extend makes the hold last for the lease from now on, and reports whether it was held.
	extend(ctx context.Context) (held bool, err error)
	// release reports whether it was held.
	release(ctx context.Context) (held bool, err error)
}

// newLibrary returns the library, and what closes it.
func newLibrary(name string, rdb *redis.Client, pause func() time.Duration) (library, func(context.Context) error, error) {
	nothing := func(context.Context) error { return nil }
	switch name {
	case cogwheelLib:
		w, err := wheel.New()
		if err != nil {
			return nil, nil, err
		}
		c, err := redislock.New(rdb, redislock.WithWheel(w))
		if err != nil {
			return nil, nil, err
		}
		return cogwheelLocks{c}, func(ctx context.Context) error {
			err := c.Close(ctx)
			_, stopErr := w.Stop(ctx)
			return errors.Join(err, stopErr)
		}, nil
	case bsmLib:
		return bsmLocks{bsm.New(rdb), pause}, nothing, nil
	case redsyncLib:
		return redsyncLocks{redsync.New(goredis.NewPool(rdb)), pause}, nothing, nil
	case redisPyLib, carelessLib:
		return redisPyLocks{rdb, pause, name == carelessLib}, nothing, nil
	}
	return nil, nil, fmt.Errorf("no library %q", name)
}

// cogwheelLocks are those of this library with string keys.
type cogwheelLocks struct{ client *redislock.Client }

func (l cogwheelLocks) lock(ctx context.Context, name string, lease time.Duration, renewed bool) (holder, error) {
	opts := []redislock.LockOption{redislock.WithStringKey(), redislock.WithLease(lease)}
	if !renewed {
		opts = append(opts, redislock.WithoutRenewal())
	}
	held, err := l.client.Mutex(name, opts...).Lock(ctx)
	return cogwheelHold{held}, err
}

type cogwheelHold struct{ *redislock.Lock }

func (h cogwheelHold) until() instant { return fromNow(now(), h.Deadline()) }

// extend has nothing to do: the watchdog extends the hold.
func (h cogwheelHold) extend(context.Context) (held bool, err error) { return h.Valid(), nil }

func (h cogwheelHold) release(ctx context.Context) (held bool, err error) {
	err = h.Unlock(ctx)
	return err == nil, except(err, redislock.ErrLost)
}

// bsmLocks takes locks with bsm/redislock. The library does not say when the successful attempt began, so a claim ends
// after the TTL that the library reports right after the grant.
type bsmLocks struct {
	client *bsm.Client
	pause  func() time.Duration
}

// pauses is a bsm.RetryStrategy.
type pauses func() time.Duration

func (p pauses) NextBackoff() time.Duration { return p() }

func (l bsmLocks) lock(ctx context.Context, name string, lease time.Duration, _ bool) (holder, error) {
	lock, err := l.client.Obtain(ctx, name, lease, &bsm.Options{RetryStrategy: pauses(l.pause), Metadata: " a note"})
	if err != nil {
		return nil, err
	}
	asked := now()
	left, err := lock.TTL(ctx)
	return &bsmHold{lock, lease, asked.add(left)}, err
}

type bsmHold struct {
	*bsm.Lock
	lease time.Duration
	ends  instant
}

func (h *bsmHold) until() instant { return h.ends }

func (h *bsmHold) extend(ctx context.Context) (held bool, err error) {
	asked := now()
	err = h.Refresh(ctx, h.lease, nil)
	if err == nil {
		h.ends = asked.add(h.lease)
	}
	return err == nil, except(err, bsm.ErrNotObtained)
}

func (h *bsmHold) release(ctx context.Context) (held bool, err error) {
	err = h.Release(ctx)
	return err == nil, except(err, bsm.ErrLockNotHeld)
}

// redsyncLocks are those of redsync on one pool.
type redsyncLocks struct {
	redsync *redsync.Redsync
	pause   func() time.Duration
}

func (l redsyncLocks) lock(ctx context.Context, name string, lease time.Duration, _ bool) (holder, error) {
	m := l.redsync.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(1<<30),
		redsync.WithTimeoutFactor(0.9), // by default an attempt that takes a twentieth of the lease has failed
		redsync.WithRetryDelayFunc(func(int) time.Duration { return l.pause() }))
	err := m.LockContext(ctx)
	if ctx.Err() != nil && errors.Is(err, redsync.ErrFailed) {
		err = ctx.Err()
	}
	return redsyncHold{m}, err
}

type redsyncHold struct{ *redsync.Mutex }

func (h redsyncHold) until() instant { return fromNow(now(), h.Until()) }

func (h redsyncHold) extend(ctx context.Context) (held bool, err error) {
	held, err = h.ExtendContext(ctx)
	return held, h.exceptEnded(err)
}

func (h redsyncHold) release(ctx context.Context) (held bool, err error) {
	held, err = h.UnlockContext(ctx)
	return held, h.exceptEnded(err)
}

func (redsyncHold) exceptEnded(err error) error {
	if _, taken := errors.AsType[*redsync.ErrTaken](err); taken {
		return nil
	}
	return except(except(err, redsync.ErrLockAlreadyExpired), redsync.ErrExtendFailed)
}

// redisPyLocks sends what the class Lock of redis-py sends, as of its versions 3 to 6: SET NX PX, and scripts that
// compare the value before they remove the key, or give it its timeout anew (reacquire). It is no code of redis-py.
type redisPyLocks struct {
	rdb      *redis.Client
	pause    func() time.Duration
	careless bool
}

var (
	pyRelease = redis.NewScript(`
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then redis.call('DEL', KEYS[1]) return 1 end
return 0`)
	pyReacquire = redis.NewScript(`
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end
return 0`)
)

func (l redisPyLocks) lock(ctx context.Context, name string, lease time.Duration, _ bool) (holder, error) {
	token := rand.Text()
	for {
		asked := now()
		err := l.rdb.SetArgs(ctx, name, token, redis.SetArgs{Mode: "NX", TTL: lease}).Err()
		if !errors.Is(err, redis.Nil) {
			return &redisPyHold{l, name, token, lease, asked.add(lease)}, err
		}
		if err := sleep(ctx, l.pause()); err != nil {
			return nil, err
		}
	}
}

type redisPyHold struct {
	redisPyLocks
	name, token string
	lease       time.Duration
	ends        instant
}

func (h *redisPyHold) until() instant { return h.ends }

func (h *redisPyHold) extend(ctx context.Context) (held bool, err error) {
	asked := now()
	held, err = pyReacquire.Run(ctx, h.rdb, []string{h.name}, h.token, h.lease.Milliseconds()).Bool()
	if held {
		h.ends = asked.add(h.lease)
	}
	return held, err
}

func (h *redisPyHold) release(ctx context.Context) (held bool, err error) {
	if h.careless {
		return true, h.rdb.Del(ctx, h.name).Err()
	}
	return pyRelease.Run(ctx, h.rdb, []string{h.name}, h.token).Bool()
}

// fromNow returns a time of package time on the clock of instants, of which asked is a reading before.
func fromNow(asked instant, t time.Time) instant { return asked.add(time.Until(t)) }

// except returns err, or nil if it matches target.
func except(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// sleep is a pause that belongs to the work of a process, such as that between two attempts of a library that polls.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// slept reports whether the pause was not cut short.
func slept(ctx context.Context, d time.Duration) bool { return sleep(ctx, d) == nil }

// between returns a duration of min to max at random.
func between(minimum, maximum time.Duration) time.Duration {
	return minimum + mathrand.N(maximum-minimum+1)
}
