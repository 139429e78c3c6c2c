package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/joined"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// maxVote bounds how long a caller waits for a majority to answer; shorter leases allow a third of them.
	maxVote = 5 * time.Second

	// maxStuck is how many unanswered calls a server may have before it is not asked any more until it answers.
	maxStuck = 100

	// splitPause separates two callers neither of whom got a majority. It is multiplied by the number of such draws in a row.
	splitPause = 5 * time.Millisecond
)

var (
	errSlow  = errors.New("redislock: no answer in time")
	errStuck = errors.New("redislock: too many calls without an answer")
)

// Quorum takes locks on a majority of several servers that do not know of each other, so that the loss of a minority of them, data
// included, neither frees a lock nor keeps anybody from taking one. It is safe for concurrent use.
//
// It is the algorithm that Redis describes as Redlock, with a watchdog: a lock lasts as long as a majority of its parts do, each of
// which counts from before its request was sent, less the margin of every lease here. It gives no fencing tokens.
type Quorum struct {
	servers []*Client
	stuck   []atomic.Int32 // calls to each server that nobody waits for any more
	queues  *waitqueue.Group[*bid]
	wheel   *wheel.Wheel
	logger  *slog.Logger
	hooks   Hooks
	gate    calls.Gate
}

// NewQuorum returns a Quorum over at least three clients of independent servers, an odd number for good measure: not nodes of one
// cluster, nor a master and its replicas. Options are those of New. It does not talk to Redis yet. The caller keeps the clients
// open until Close has returned.
//
// A server that has lost its data may join in giving away a lock that another holds: keep one that restarts empty out of reach
// until the longest lease is over, or have it write each change to disk.
func NewQuorum(rdbs []redis.UniversalClient, opts ...Option) (*Quorum, error) {
	if len(rdbs) < 3 {
		return nil, argument.Error("clients", len(rdbs), "at least 3 are needed")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	q := &Quorum{
		stuck: make([]atomic.Int32, len(rdbs)), wheel: cfg.wheel, logger: cfg.logger, hooks: cfg.hooks,
	}
	// Those who hold a lock of the Quorum are told once, not by each server.
	each := []Option{
		WithWheel(cfg.wheel), WithLogger(cfg.logger), WithHooks(Hooks{Renewed: cfg.hooks.Renewed}), WithPoll(cfg.poll),
		WithLockDefaults(cfg.locks...),
	}
	if cfg.channels != waitqueue.FindOut {
		each = append(each, WithShardedChannels(cfg.channels == waitqueue.Sharded))
	}
	for i, rdb := range rdbs {
		if slices.Contains(rdbs[:i], rdb) {
			err = argument.Error("clients", i, "is the same as an earlier one")
			break
		}
		var c *Client
		if c, err = New(rdb, each...); err != nil {
			break
		}
		c.retries = 0 // a vote that is lost is lost
		q.servers = append(q.servers, c)
	}
	if err != nil {
		for _, c := range q.servers {
			err = joined.Errors(err, c.Close(context.Background()))
		}
		return nil, err
	}
	q.queues = waitqueue.New(cfg.wheel, waitqueue.Config[*bid]{
		Attempt: q.attempt, MaxBatch: 1, Poll: cfg.poll, Listen: q.listen,
		GiveBack: func(_ string, granted []*bid) {
			for _, b := range granted {
				_ = b.lock.Unlock(context.Background()) // what fails is retried in the background
			}
		},
	})
	return q, nil
}

// Close releases the locks that are held, ends waiting calls with ErrClosed and returns when nothing of the Quorum is left running, or
// when ctx ends, as Client.Close does. Closing twice is harmless.
func (q *Quorum) Close(ctx context.Context) error {
	if !q.gate.Close() {
		return q.gate.Wait(ctx)
	}
	errs := make([]error, len(q.servers), len(q.servers)+2)
	errs = append(errs, q.queues.Close(ctx, ErrClosed), q.gate.Wait(ctx))
	var closing sync.WaitGroup
	for i, c := range q.servers {
		closing.Go(func() { errs[i] = c.Close(ctx) })
	}
	closing.Wait()
	return joined.Errors(errs...)
}

func (q *Quorum) majority() int { return len(q.servers)/2 + 1 }

// QuorumMutex is a lock on a majority of servers. It holds no state of its own and is safe for concurrent use.
type QuorumMutex struct {
	quorum *Quorum
	name   string
	parts  []*Mutex // one for each server
	err    error
}

// Mutex returns the lock of that name. It does not talk to Redis. On each server it is the lock that Client.Mutex returns there. Names
// and options are those of Client.Mutex, except that WithFencing and WithReplicas are refused; WithHandoff has no effect.
func (q *Quorum) Mutex(name string, opts ...LockOption) *QuorumMutex {
	m := &QuorumMutex{quorum: q, name: name}
	for _, c := range q.servers {
		part := c.Mutex(name, opts...)
		m.parts, m.err = append(m.parts, part), part.err
	}
	switch config := m.parts[0].config; {
	case m.err != nil:
	case config.fenced:
		m.err = argument.Error("option", "WithFencing", "independent servers have no common order of tokens")
	case config.replicas.n > 0:
		m.err = argument.Error("option", "WithReplicas", "a quorum does not count replicas")
	}
	return m
}

// Name returns the name.
func (m *QuorumMutex) Name() string { return m.name }

// Err returns the *InvalidError of a bad name or option, which every method returns too, or nil.
func (m *QuorumMutex) Err() error { return m.err }

// TryLock takes the lock if a majority of servers gives it. It asks all of them at the same time and blocks until a majority has
// decided, at most until ctx ends, a third of the lease is over, or 5 seconds: a server that is slow or hangs delays nobody as long as
// enough others answer. If others hold it, the error is a *LockedError, which matches ErrLocked; if no majority answered it
// matches ErrNoQuorum. After an error nothing is held: what single servers have given is released.
//
// The Lock is held while a majority of servers renews it. Done is closed before fewer of them hold it for sure; its Deadline is when
// that would be without renewals: its validity time. Unlock releases it everywhere and returns when a majority has confirmed.
func (m *QuorumMutex) TryLock(ctx context.Context) (*Lock, error) {
	if err := admit(ctx, &m.quorum.gate, m.name, m.err); err != nil {
		return nil, err
	}
	defer m.quorum.gate.Leave()
	b := &bid{mutex: m, began: time.Now()}
	err := b.ask(ctx.Done())
	return m.finish(ctx, b, err)
}

// Lock takes the lock, waiting while others hold it. ctx bounds the wait only. Callers of one process stand in line, and only the first
// asks the servers: when one of them announces an unlock, when the leases in its way run out, and every few seconds in any
// case. If no majority of servers answers, Lock fails with ErrNoQuorum at once; otherwise errors are those of Mutex.Lock.
func (m *QuorumMutex) Lock(ctx context.Context) (*Lock, error) {
	if err := admit(ctx, &m.quorum.gate, m.name, m.err); err != nil {
		return nil, err
	}
	q := m.quorum
	defer q.gate.Leave()
	b := &bid{mutex: m, began: time.Now()}
	_, err := q.queues.Wait(ctx, m.parts[0].queue, b)
	return m.finish(ctx, b, err)
}

// LockFunc is Lock without a goroutine while it waits: it returns at once, and f is called exactly once, on a goroutine of its
// own, with what Lock would have returned. cancel ends the wait, and calls f with an error that matches context.Canceled,
// unless it is decided already; what single servers give all the same is released. cancel may be called any number of times. LockFunc
// panics if f is nil.
func (m *QuorumMutex) LockFunc(ctx context.Context, f func(*Lock, error)) (cancel func()) {
	mustCall(f == nil)
	q := m.quorum
	if err := admit(ctx, &q.gate, m.name, m.err); err != nil {
		go f(nil, err)
		return func() {}
	}
	b := &bid{mutex: m, began: time.Now()}
	drop := q.queues.WaitFunc(ctx, m.parts[0].queue, b, func(_ *bid, err error) {
		l, err := m.finish(ctx, b, err)
		q.gate.Leave()
		f(l, err)
	})
	return func() {
		if drop() {
			q.gate.Leave()
			go f(nil, operationError("lock", m.name, context.Canceled))
		}
	}
}

// Do runs f while holding the lock, as Mutex.Do does.
func (m *QuorumMutex) Do(ctx context.Context, f func(context.Context) error) error {
	return do(ctx, m.quorum.logger, m.Lock, f)
}

// patience is how long a call waits for servers that do not answer.
func (m *QuorumMutex) patience() time.Duration { return min(m.parts[0].config.lease/3, maxVote) }

func (m *QuorumMutex) finish(ctx context.Context, b *bid, err error) (*Lock, error) {
	q := m.quorum
	switch {
	case err == nil:
		q.hooks.acquired(b.lock, time.Since(b.began))
		return b.lock, nil
	case errors.Is(err, ErrClosed):
		return nil, ErrClosed
	case ctx.Err() != nil:
		err = waitEnded(calls.Ended(ctx), b.locked.Load())
	case errors.Is(err, ErrLocked):
		return nil, err
	}
	return nil, operationError("lock", m.name, err)
}

// listen wakes a queue by what any server announces.
func (q *Quorum) listen(queue string, kick func()) (stop func()) {
	stops := make([]func(), len(q.servers))
	for i, c := range q.servers {
		stops[i] = c.channels.Listen(channelOf)(queue, kick)
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// attempt asks on behalf of the head of a queue.
func (q *Quorum) attempt(_ string, batch []*waitqueue.Waiter[*bid]) (again time.Duration, err error) {
	b := batch[0].Value
	if b.splits > 0 { // two who did not get a majority must not meet again
		most := splitPause * time.Duration(min(b.splits, 10))
		if err := q.wheel.Sleep(context.Background(), rand.N(most)); err != nil {
			return 0, err
		}
	}
	err = b.ask(nil)
	locked, is := errors.AsType[*LockedError](err)
	switch {
	case err == nil:
		batch[0].Grant()
		return 0, nil
	case !is:
		return 0, err
	case b.splits > 0:
		return splitPause, nil
	}
	return max(locked.TTL+time.Millisecond, 0), nil
}

// bid is a call for the lock of a Quorum: what waits in its queues. An attempt owns splits and lock.
type bid struct {
	mutex  *QuorumMutex
	began  time.Time
	splits int // how often in a row some servers gave the lock, and too few
	lock   *Lock
	locked atomic.Pointer[LockedError]
}

// ask holds one ballot.
func (b *bid) ask(cancelled <-chan struct{}) error {
	m := b.mutex
	q := m.quorum
	vote := newBallot(q, m)
	limit, err := q.wheel.AfterFunc(m.patience(), func() { vote.end(errSlow) })
	if err != nil {
		return err
	}
	defer limit.Stop()
	vote.open()
	select {
	case <-vote.decided:
	case <-cancelled:
		vote.end(context.Canceled)
	}
	if vote.won != nil {
		b.lock, b.splits = m.granted(vote.won), 0
		return nil
	}
	if locked, ok := errors.AsType[*LockedError](vote.err); ok {
		if b.locked.Swap(locked) == nil {
			q.hooks.contended(locked)
		}
		if vote.split {
			b.splits++
		} else {
			b.splits = 0
		}
	}
	return vote.err
}

// granted makes a Lock of a joint and has the hooks told of its end.
func (m *QuorumMutex) granted(j *joint) *Lock {
	q := m.quorum
	l := q.servers[0].join(m.name, j)
	context.AfterFunc(j.ctx, func() {
		if err := j.Err(); errors.Is(err, ErrLost) {
			q.hooks.lost(l, err)
		} else {
			q.hooks.released(l)
		}
	})
	return l
}

// noQuorum explains why too few servers gave the lock.
func noQuorum(errs []error) error {
	err := joined.Errors(errs...)
	if errors.Is(err, ErrClosed) {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrNoQuorum, err)
}
