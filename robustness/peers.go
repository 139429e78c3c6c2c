package robustness

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Peers are locks of other libraries, and this library's beside them. Each is used as its documentation shows; where
// that shows no renewal, there is one kind without, and one with a loop of the harness.
//
//   - bsm/redislock promises a lock with a time to live, which the holder can ask for and refresh. It has no
//     renewal, and does not tell its holder of a loss.
//   - redsync implements Redlock: a lock is valid until the time that Until returns. It has no renewal.
//   - rueidislock renews, and cancels the context of a lock "once the KeyMajority is not held anymore".
//
// All have the same lease, the same time limits of the connections, and one server.
func Peers() []*Kind { return peerKinds }

// onObjects matches every call on an object.
const onObjects = "object-"

var peerKinds = []*Kind{
	{Name: "cogwheel mutex", Capacity: 1, Writes: true, Calls: onObjects, New: Kinds[0].New},
	{Name: "cogwheel fenced mutex", Capacity: 1, Fenced: true, Calls: onObjects, New: Kinds[1].New},
	{Name: "bsm/redislock 0.9.4", Capacity: 1, Writes: true, Calls: onObjects, New: newBSM(false)},
	{Name: "bsm/redislock 0.9.4, Refresh loop", Capacity: 1, Writes: true, Calls: onObjects, New: newBSM(true)},
	{Name: "redsync 4.13.0", Capacity: 1, Writes: true, Calls: onObjects, New: newRedsync(false)},
	{Name: "redsync 4.13.0, Extend loop", Capacity: 1, Writes: true, Calls: onObjects, New: newRedsync(true)},
	{Name: "rueidislock 1.0.79", Capacity: 1, Writes: true, Calls: onObjects, New: newRueidis},
	{Name: "SET NX PX, renewal loop", Capacity: 1, Writes: true, Calls: onObjects, New: simple(
		func(l *simpleLocks, _ redis.UniversalClient, _ Settings) { l.endless = true },
	)},
}

// PeerScenarios are the runs in which a kind is compared.
func PeerScenarios(k *Kind, length time.Duration) (all []*Scenario) {
	for seed := uint64(1); seed <= 2; seed++ {
		s := usual(k.Name, Single)
		s.Name, s.Seed = "peers: hangs, stops, cuts, lost replies, kills, restarts", seed
		s.Length, s.MaxHold = length, 100*time.Millisecond
		s.Faults = named("server hangs", "process stopped", "network cut both ways", "requests lost", "replies lost",
			"replies lost after execution", "process killed", "restart with its data")
		all = append(all, s)
	}
	s := usual(k.Name, Single)
	s.Name, s.Seed, s.Faults = "peers: FLUSHALL", 3, named("FLUSHALL")
	s.Length, s.MaxHold = length, 100*time.Millisecond
	return append(all, s)
}

// DoPeer runs a scenario of a peer. It counts, and does not judge: a figure beyond the bounds of this library may be
// one that the peer never promised.
func (s *Scenario) DoPeer(t *testing.T) *Result {
	t.Helper()
	r := s.execute(t)
	r.sleep(s.Lease + time.Second)
	var left []string
	require.NoError(t, r.asClient(func(rdb redis.UniversalClient) (err error) {
		left, err = rdb.Keys(t.Context(), "*"+onObjects+"*").Result()
		return err
	}))
	res := r.judge()
	res.KeysLeft = len(left)
	if !s.kind().Fenced {
		for _, calls := range history.ByObject(history.Calls(r.history.Events())) {
			n := check.Stale(calls)
			res.StaleTried, res.StaleDone = res.StaleTried+n, res.StaleDone+n
		}
	}
	return res
}

// bsmLocks waits as the example of bsm/redislock does, with a back-off from 16 ms on.
type bsmLocks struct {
	*simpleLocks // runs the loops
	client       *redislock.Client
	refreshed    bool
}

func newBSM(refreshed bool) newLocker {
	return func(rdbs []redis.UniversalClient, _ *wheel.Wheel, s Settings) (Locker, error) {
		return &bsmLocks{newSimple(rdbs[0], s, loops(refreshed)), redislock.New(rdbs[0]), refreshed}, nil
	}
}

func (l *bsmLocks) Acquire(ctx context.Context, ask Ask) (Hold, error) {
	retry := redislock.NoRetry()
	if !ask.Try {
		retry = redislock.ExponentialBackoff(16*time.Millisecond, 128*time.Millisecond)
	}
	lock, err := l.client.Obtain(ctx, ask.Object, l.lease, &redislock.Options{RetryStrategy: retry})
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, errors.Join(ErrRefused, err)
	}
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	ttl, err := lock.TTL(ctx)
	if err != nil {
		ttl = 0 // unknown
	}
	var renew func(context.Context) (bool, time.Time, error)
	if l.refreshed {
		renew = func(ctx context.Context) (bool, time.Time, error) {
			sent := time.Now()
			err := lock.Refresh(ctx, l.lease, nil)
			return err == nil, sent.Add(l.lease), ignore(err, redislock.ErrNotObtained)
		}
	}
	return l.watch(asked.Add(ttl), renew, func(ctx context.Context) (bool, error) {
		err := lock.Release(ctx)
		return err == nil, ignore(err, redislock.ErrLockNotHeld)
	}), nil
}

// loops are the settings of the loops that the harness adds: each renews at half of the lease until that fails once.
func loops(with bool) func(*simpleLocks) {
	return func(l *simpleLocks) { l.silent, l.tellOnError, l.interval = !with, true, l.lease/2 }
}

// watch makes a hold that is valid until a time. Renew, if it is not nil, is called in a loop.
func (l *simpleLocks) watch(
	until time.Time, renew func(context.Context) (bool, time.Time, error), release func(context.Context) (bool, error),
) Hold {
	h := &simpleHold{locks: l, until: until, renew: renew, release: release}
	h.begin()
	return h
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// redsyncLocks are those of redsync on one server.
type redsyncLocks struct {
	*simpleLocks
	rs       *redsync.Redsync
	extended bool
}

func newRedsync(extended bool) newLocker {
	return func(rdbs []redis.UniversalClient, _ *wheel.Wheel, s Settings) (Locker, error) {
		return &redsyncLocks{
			newSimple(rdbs[0], s, loops(extended)), redsync.New(goredis.NewPool(rdbs[0])), extended,
		}, nil
	}
}

func (l *redsyncLocks) Acquire(ctx context.Context, ask Ask) (Hold, error) {
	m := l.rs.NewMutex(ask.Object, redsync.WithExpiry(l.lease), redsync.WithTries(1000))
	lock := m.LockContext
	if ask.Try {
		lock = m.TryLockContext
	}
	if err := lock(ctx); err != nil {
		if _, taken := errors.AsType[*redsync.ErrTaken](err); taken {
			return nil, errors.Join(ErrRefused, err)
		}
		return nil, err
	}
	var renew func(context.Context) (bool, time.Time, error)
	if l.extended {
		renew = func(ctx context.Context) (bool, time.Time, error) {
			ok, err := m.ExtendContext(ctx)
			return ok, m.Until(), err
		}
	}
	return l.watch(m.Until(), renew, func(ctx context.Context) (bool, error) {
		ok, err := m.UnlockContext(ctx)
		var taken *redsync.ErrTaken
		if errors.Is(err, redsync.ErrLockAlreadyExpired) || errors.As(err, &taken) {
			return false, nil
		}
		return ok, err
	}), nil
}

// rueidisLocks are those of rueidislock on one server.
type rueidisLocks struct{ locker rueidislock.Locker }

func newRueidis(rdbs []redis.UniversalClient, _ *wheel.Wheel, s Settings) (Locker, error) {
	options := rdbs[0].(*redis.Client).Options()
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{
			InitAddress: []string{options.Addr}, ConnWriteTimeout: readTimeout,
			Username: user, Password: secret, SelectDB: options.DB,
			DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return options.Dialer(ctx, "tcp", addr)
			},
		},
		KeyMajority: 1, NoLoopTracking: true, KeyValidity: s.Lease,
	})
	return rueidisLocks{l}, err
}

func (l rueidisLocks) Close(context.Context) error {
	l.locker.Close()
	return nil
}

func (l rueidisLocks) Acquire(ctx context.Context, ask Ask) (Hold, error) {
	// The context of the lock descends from that of the call, which must outlive the call.
	parent, cancel := context.WithCancel(context.WithoutCancel(ctx))
	giveUp := context.AfterFunc(ctx, cancel)
	acquire := l.locker.WithContext
	if ask.Try {
		acquire = l.locker.TryWithContext
	}
	held, release, err := acquire(parent, ask.Object)
	if !giveUp() && err == nil {
		release()
		err = ctx.Err()
	}
	if errors.Is(err, rueidislock.ErrNotLocked) {
		err = errors.Join(ErrRefused, err)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return rueidisHold{held, release, cancel}, nil
}

type rueidisHold struct {
	held    context.Context //nolint:containedctx // it is how rueidislock tells
	release context.CancelFunc
	cancel  context.CancelFunc
}

func (h rueidisHold) Valid() bool           { return h.held.Err() == nil }
func (h rueidisHold) Told() <-chan struct{} { return h.held.Done() }
func (h rueidisHold) Token() int64          { return 0 }

// Release cannot say whether it succeeded.
func (h rueidisHold) Release(context.Context) (history.Step, error) {
	valid := h.Valid()
	h.release()
	h.cancel()
	if !valid {
		return history.Lost, nil
	}
	return history.Open, nil
}
