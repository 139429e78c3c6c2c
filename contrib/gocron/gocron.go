package gocron

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/go-co-op/gocron/v2"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Locker returns a gocron.Locker for gocron.WithDistributedLocker. A job runs while its scheduler holds the
// Mutex that has the name of the job, whose lease is renewed however long the job takes. If another process
// holds it, the job is skipped: the error matches redislock.ErrLocked. So give each job a name that is unique
// and the same in all processes, with gocron.WithName. It panics if locks is nil.
func Locker(locks *redislock.Client, opts ...redislock.LockOption) gocron.Locker {
	if locks == nil {
		panic("gocron: nil client")
	}
	return &locker{locks, opts}
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

// ErrNotLeader is the error of Elector.IsLeader in the processes that do not lead.
var ErrNotLeader = errors.New("gocron: another process leads")

// Elector is a gocron.Elector for gocron.WithDistributedElector: the jobs run in the process that leads. It is
// safe for concurrent use.
type Elector struct {
	lock  atomic.Pointer[redislock.Lock] // of the term of this process; nil if it does not lead
	end   context.CancelFunc
	ended chan struct{}
}

// NewElector returns an Elector of the processes that give it the same name. It starts a goroutine that runs
// redislock.Client.Lead until Close, or until locks is closed. It panics if locks is nil, and with the
// *cogwheel.InvalidError of a bad name or option.
func NewElector(locks *redislock.Client, name string, opts ...redislock.LockOption) *Elector {
	if locks == nil {
		panic("gocron: nil client")
	}
	if err := locks.Mutex(name, opts...).Err(); err != nil {
		panic(err)
	}
	ctx, end := context.WithCancel(context.Background())
	e := &Elector{end: end, ended: make(chan struct{})}
	go func() {
		defer close(e.ended)
		// Lead logs what fails. After Close of the Client, IsLeader returns ErrNotLeader.
		_ = locks.Lead(ctx, name, func(ctx context.Context) error {
			e.lock.Store(redislock.FromContext(ctx, name))
			defer e.lock.Store(nil)
			<-ctx.Done()
			return context.Cause(ctx)
		}, opts...)
	}()
	return e
}

// IsLeader returns nil if this process leads, and ErrNotLeader otherwise. It does not block.
func (e *Elector) IsLeader(context.Context) error {
	if e.lock.Load().Valid() {
		return nil
	}
	return ErrNotLeader
}

// Close gives the lead up and returns when another process can lead. Shut the scheduler down before.
func (e *Elector) Close() {
	e.end()
	<-e.ended
}
