package gocron

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/go-co-op/gocron/v2"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Locker returns a gocron.Locker for gocron.WithDistributedLocker. While a job runs, its scheduler holds the Mutex
// with the name of the job. So give each job a name that is unique and the same in all processes, with
// gocron.WithName. The lease is renewed however long the job takes. Jobs with an interval need an Elector instead.
//
// A scheduler that cannot take the Mutex at once skips the job: if another process holds it, the error matches
// redislock.ErrLocked; while Redis is down, it is the error of Mutex.TryLock. gocron does not log these errors; it
// passes them to the listeners of gocron.AfterLockError.
//
// Locker panics if locks is nil, and with the *cogwheel.InvalidError of a bad option.
func Locker(locks *redislock.Client, opts ...redislock.LockOption) gocron.Locker {
	check(locks, "job", opts)
	return &locker{locks, opts}
}

// check panics if the client is nil, or if the Mutex with this name and these options is invalid.
func check(locks *redislock.Client, name string, opts []redislock.LockOption) {
	if locks == nil {
		panic("gocron: nil client")
	}
	if err := locks.Mutex(name, opts...).Err(); err != nil {
		panic(err)
	}
}

type locker struct {
	locks *redislock.Client
	opts  []redislock.LockOption
}

// Lock takes the lock if it is free.
func (l *locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock, err := l.locks.Mutex(key, l.opts...).TryLock(ctx)
	if err != nil {
		return nil, err // not a nil *redislock.Lock, which is no nil gocron.Lock
	}
	return lock, nil
}

// ErrNotLeader is the error of Elector.IsLeader in a process that does not lead: another one does, none leads yet,
// Redis does not answer, or the Elector or its Client is closed.
var ErrNotLeader = errors.New("gocron: not the leader")

// Elector is a gocron.Elector for gocron.WithDistributedElector: the jobs run in the process that leads. It is
// safe for concurrent use.
type Elector struct {
	lock  atomic.Pointer[redislock.Lock] // of the term of this process; nil if it does not lead
	end   context.CancelFunc
	ended chan struct{}
}

// NewElector returns an Elector for the processes that pass the same name. It starts a goroutine that runs
// redislock.Mutex.Lead until Close is called or locks is closed. If the leader dies, another process leads when its
// lease has ended. NewElector panics if locks is nil, and with the *cogwheel.InvalidError of a bad name or option.
func NewElector(locks *redislock.Client, name string, opts ...redislock.LockOption) *Elector {
	check(locks, name, opts)
	ctx, end := context.WithCancel(context.Background())
	e, leader := &Elector{end: end, ended: make(chan struct{})}, locks.Mutex(name, opts...)
	go func() {
		defer close(e.ended)
		// Lead logs what fails. After Close of the Client, IsLeader returns ErrNotLeader.
		_ = leader.Lead(ctx, func(ctx context.Context) error {
			e.lock.Store(leader.FromContext(ctx))
			defer e.lock.Store(nil)
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	return e
}

// IsLeader returns nil if this process leads. Otherwise, and after Close, it returns ErrNotLeader. It does not block.
func (e *Elector) IsLeader(context.Context) error {
	if e.lock.Load().Valid() {
		return nil
	}
	return ErrNotLeader
}

// Close gives up the lead, so that another process can lead. Shut the scheduler down before. Close blocks for a round
// trip to Redis. If Redis does not answer, Close returns after about a second, and another process can lead when the
// lease has ended. Close may be called more than once.
func (e *Elector) Close() {
	e.end()
	<-e.ended
}
