package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/joined"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// maxVoteTimeout bounds how long a caller waits for a majority to answer. With shorter leases it is a
	// third of them.
	maxVoteTimeout = 5 * time.Second

	// maxStuck is how many unanswered calls a server may have. A server with more is not asked until it
	// answers.
	maxStuck = 100

	// splitPause separates two callers neither of which got a majority. It is multiplied by the number of
	// such rounds in a row.
	splitPause = 5 * time.Millisecond
)

var (
	errSlow  = errors.New("redislock: no answer in time")
	errStuck = errors.New("redislock: too many calls without an answer")
)

// Quorum takes locks on a majority of several independent servers. The loss of a minority of the servers,
// including their data, neither frees a lock nor prevents one from being taken. It is safe for concurrent
// use.
//
// The algorithm is the one that Redis describes as Redlock, with a watchdog: a lock has a part on each
// server, and lasts as long as a majority of its parts. The lease of each part counts from before its request
// was sent, less the safety margin. There are no fencing tokens.
type Quorum struct {
	servers []*Client
	stuck   []atomic.Int32 // unanswered calls to each server whose callers have returned
	queues  *waitqueue.Group[queueKey, *quorumAcquisition]
	wheel   *wheel.Wheel
	logger  *slog.Logger
	monitor monitor
	gate    gate.Gate

	mu   sync.Mutex
	held map[*Lock]struct{} // guarded by mu
}

// NewQuorum returns a Quorum of at least three clients of independent servers, preferably an odd number.
// Nodes of one cluster, or a master and its replicas, are not independent. Options are those of New. Fewer
// clients, or the same client twice, are refused. NewQuorum does not talk to Redis. The caller keeps the
// clients open until Close has returned.
//
// A server that has lost its data may grant a lock that is held. Keep a server that restarts empty out of
// reach until the longest lease is over, or let it write each change to disk.
func NewQuorum(rdbs []redis.UniversalClient, opts ...Option) (*Quorum, error) {
	if len(rdbs) < 3 {
		return nil, argument.Error("clients", len(rdbs), "at least 3 are needed")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	q := &Quorum{
		stuck: make([]atomic.Int32, len(rdbs)), wheel: cfg.wheel, logger: cfg.logger,
		monitor: monitor{hooks: cfg.hooks, as: KindQuorum}, held: make(map[*Lock]struct{}),
	}
	// Hooks are called once for a lock of the Quorum, not for each server.
	each := []Option{
		WithWheel(cfg.wheel), WithLogger(cfg.logger), WithHooks(Hooks{Renewed: cfg.hooks.Renewed}), WithPoll(cfg.poll),
		WithLockDefaults(cfg.locks...),
	}
	if cfg.channels != waitqueue.Detect {
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
		c.sender.Retries = 0 // an answer that is lost is lost
		c.monitor.as = KindQuorum
		q.servers = append(q.servers, c)
		c.ids = q.servers[0].ids
	}
	if err != nil {
		for _, c := range q.servers {
			err = joined.Errors(err, c.Close(context.Background()))
		}
		return nil, err
	}
	q.queues = waitqueue.New(cfg.wheel, waitqueue.Config[queueKey, *quorumAcquisition]{
		Attempt: q.attempt, MaxBatch: 1, Poll: cfg.poll, Listen: q.listen,
		GiveBack: func(_ queueKey, granted []*quorumAcquisition) {
			for _, a := range granted {
				_ = a.lock.Unlock(context.Background()) // what fails is retried in the background
			}
		},
	})
	return q, nil
}

// Close closes the Quorum as Client.Close closes a Client.
func (q *Quorum) Close(ctx context.Context) error {
	if ctx == nil {
		return argument.Nil("context")
	}
	ctx, cancel := contexts.ToClose(ctx, q.wheel)
	defer cancel()
	if !q.gate.Close() {
		return q.gate.Wait(ctx)
	}
	errs := make([]error, len(q.servers), len(q.servers)+2)
	errs = append(errs, q.queues.Close(ctx, ErrClosed), q.gate.Wait(ctx))
	q.endAll()
	var closing sync.WaitGroup
	for i, c := range q.servers {
		closing.Go(func() { errs[i] = c.Close(ctx) })
	}
	closing.Wait()
	return joined.Errors(errs...)
}

// endAll ends the locks that are held. Their parts are released by the Close of each server's Client.
func (q *Quorum) endAll() {
	q.mu.Lock()
	held := slices.Collect(maps.Keys(q.held))
	clear(q.held)
	q.mu.Unlock()
	for _, l := range held {
		l.lease.Close(ErrClosed)
		q.monitor.ended(l, l.Err())
	}
}

// keep enters a lock that was granted, whose end is then reported.
func (q *Quorum) keep(l *Lock, c *composite) {
	q.mu.Lock()
	q.held[l] = struct{}{}
	q.mu.Unlock()
	c.report(func(err error) {
		q.monitor.ended(l, err)
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.held, l)
	})
	if q.gate.Closed() { // Close may have looked before the lock was entered
		c.Close(ErrClosed)
	}
}

func (q *Quorum) majority() int { return len(q.servers)/2 + 1 }

// QuorumMutex is a lock on a majority of servers. It has no state of its own and is safe for concurrent use.
type QuorumMutex struct {
	quorum *Quorum
	name   string
	parts  []*Mutex // one for each server
	err    error
}

// Mutex returns the lock of that name. It does not talk to Redis. Its parts are the locks that Client.Mutex
// returns on each server. Names and options are those of Client.Mutex. WithFencing and WithReplicas are
// refused, also as defaults; WithHandoff has no effect.
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

// Err returns the *cogwheel.InvalidError of a bad name or option, which every method returns too, or nil.
func (m *QuorumMutex) Err() error { return m.err }

// TryLock takes the lock if a majority of servers grants it. It asks all servers at the same time and blocks
// until a majority has decided, at most until ctx ends, a third of the lease is over, or 5 seconds. A server
// that is slow or hangs does not delay it as long as enough others answer. If others hold the lock, or
// callers that try at the same time have split the servers among them, the error is a *LockedError, which
// matches ErrLocked. If no majority answered, it matches ErrNoQuorum. After an error nothing is held: what
// single servers have granted is released.
//
// The Lock is held while a majority of servers renews it. Done is closed before the leases of a majority can
// end. Deadline is the validity time: the instant at which Done closes unless parts are renewed before.
// Unlock releases the lock on all servers, and returns when a majority has confirmed.
func (m *QuorumMutex) TryLock(ctx context.Context) (*Lock, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.quorum.gate.Leave()
	a := m.newAcquisition(ctx)
	err := a.ask(ctx.Done())
	return m.finish(ctx, a, err)
}

// Lock takes the lock, waiting while others hold it or have split the servers. ctx bounds the wait only.
// Callers of one process form a queue, and only the first asks the servers: when one of them announces an
// unlock, when the leases in its way run out, and at its poll. If no majority of servers answers in the time
// that TryLock allows, Lock fails with ErrNoQuorum, also if it has waited before. Otherwise errors are those
// of Mutex.Lock.
func (m *QuorumMutex) Lock(ctx context.Context) (*Lock, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	q := m.quorum
	defer q.gate.Leave()
	a := m.newAcquisition(ctx)
	_, err := q.queues.Wait(ctx, m.parts[0].queueKey(nil), a)
	return m.finish(ctx, a, err)
}

// LockFunc is Lock without a goroutine while it waits, as Mutex.LockFunc is. After cancel, locks that single
// servers still grant are released.
func (m *QuorumMutex) LockFunc(ctx context.Context, f func(*Lock, error)) (cancel func()) {
	mustCall(f == nil)
	q := m.quorum
	if err := m.begin(ctx); err != nil {
		go f(nil, err)
		return func() {}
	}
	a := m.newAcquisition(ctx)
	drop := q.queues.WaitFunc(ctx, m.parts[0].queueKey(nil), a, func(_ *quorumAcquisition, err error) {
		l, err := m.finish(ctx, a, err)
		q.gate.Leave()
		f(l, err)
	})
	return func() {
		if drop() {
			err := operationError("lock", m.name, context.Canceled)
			q.monitor.failed(ctx, multi, m.name, time.Since(a.began), err)
			q.gate.Leave()
			go f(nil, err)
		}
	}
}

// Do calls f while it holds the lock, as Mutex.Do does.
func (m *QuorumMutex) Do(ctx context.Context, f func(context.Context) error) error {
	return do(ctx, m.quorum.logger, m.Lock, f)
}

// begin checks the arguments and enters the gate.
func (m *QuorumMutex) begin(ctx context.Context) error {
	q := m.quorum
	err := admit(ctx, &q.gate, m.name, m.err)
	q.monitor.refused(ctx, &q.gate, multi, m.name, err)
	return err
}

// voteTimeout returns how long a call waits for servers that do not answer.
func (m *QuorumMutex) voteTimeout() time.Duration {
	return min(m.parts[0].config.lease/3, maxVoteTimeout)
}

func (m *QuorumMutex) finish(ctx context.Context, a *quorumAcquisition, err error) (*Lock, error) {
	q, took := m.quorum, time.Since(a.began)
	switch {
	case err == nil:
		q.keep(a.lock, a.won)
		q.monitor.acquired(ctx, a.lock, took)
		return a.lock, nil
	case errors.Is(err, ErrClosed):
		err = ErrClosed
	case ctx.Err() != nil:
		err = operationError("lock", m.name, waitEnded(contexts.Error(ctx), a.refusal.Load()))
	case !errors.Is(err, ErrLocked):
		err = operationError("lock", m.name, err)
	}
	q.monitor.failed(ctx, multi, m.name, took, err)
	return nil, err
}

// listen wakes a queue when any server publishes a release.
func (q *Quorum) listen(key queueKey, kick func()) (stop func()) {
	stops := make([]func(), len(q.servers))
	for i, c := range q.servers {
		stops[i] = waitqueue.Listen(c.channels, queueKey.channel)(key, kick)
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// attempt asks on behalf of the head of a queue.
func (q *Quorum) attempt(_ queueKey, batch []*waitqueue.Waiter[*quorumAcquisition]) (again time.Duration, err error) {
	a := batch[0].Value
	if a.splits > 0 { // two callers that did not get a majority must not meet again
		most := splitPause * time.Duration(min(a.splits, 10))
		if err := q.wheel.Sleep(context.Background(), rand.N(most)); err != nil {
			return 0, err
		}
	}
	err = a.ask(nil)
	locked, is := errors.AsType[*LockedError](err)
	switch {
	case err == nil:
		batch[0].Grant()
		return 0, nil
	case !is:
		return 0, err
	case a.splits > 0:
		return splitPause, nil
	}
	return max(locked.TTL+time.Millisecond, 0), nil
}

// quorumAcquisition is one call for the lock of a Quorum. It is what waits in its queues. An attempt owns
// splits and lock.
type quorumAcquisition struct {
	mutex   *QuorumMutex
	ctx     context.Context // of the call
	began   time.Time
	splits  int // how often in a row some servers granted the lock, but too few
	lock    *Lock
	won     *composite                  // the lease of lock
	refusal atomic.Pointer[LockedError] // the last one
}

func (m *QuorumMutex) newAcquisition(ctx context.Context) *quorumAcquisition {
	return &quorumAcquisition{mutex: m, ctx: ctx, began: time.Now()}
}

// ask asks all servers once.
func (a *quorumAcquisition) ask(cancelled <-chan struct{}) error {
	m := a.mutex
	q := m.quorum
	round := newQuorumRound(a.ctx, q, m)
	limit, err := wheelentry.AfterFunc(q.wheel, m.voteTimeout(), func(stopped error) {
		round.end(cmp.Or(stopped, errSlow))
	})
	if err != nil {
		return err
	}
	defer limit.Stop()
	round.start()
	select {
	case <-round.decided:
	case <-cancelled:
		round.end(context.Canceled)
	}
	if round.won != nil {
		a.lock, a.won, a.splits = q.servers[0].compositeLock(m.name, round.won), round.won, 0
		a.lock.id, a.lock.mutex.config = round.id, m.parts[0].config
		return nil
	}
	if locked, ok := errors.AsType[*LockedError](round.err); ok {
		if a.refusal.Swap(locked) == nil {
			q.monitor.contended(a.ctx, multi, locked, time.Since(a.began))
		}
		if round.split {
			a.splits++
		} else {
			a.splits = 0
		}
	}
	return round.err
}

// noQuorum explains why too few servers granted the lock.
func noQuorum(errs []error) error {
	err := joined.Errors(errs...)
	if errors.Is(err, ErrClosed) {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrNoQuorum, err)
}
