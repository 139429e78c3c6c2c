package redislock

import (
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

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/signals"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// maxVoteTimeout bounds how long a caller waits for the answers of a majority. For a lease shorter than
	// three times that, the bound is a third of the lease.
	maxVoteTimeout = 5 * time.Second

	// maxStuck is the number of unanswered calls after which a server is not asked until it answers.
	maxStuck = 100

	// splitPause separates two callers of which neither got a majority. It is multiplied by the number of such
	// rounds in a row.
	splitPause = 5 * time.Millisecond
)

var (
	errSlow  = errors.New("redislock: no answer in time")
	errStuck = errors.New("redislock: too many calls without an answer")
)

// Quorum acquires locks on a majority of several independent servers. If a minority of the servers is lost,
// even with their data, held locks stay held and other locks can still be acquired. It is safe for concurrent
// use.
//
// The algorithm is Redlock, as Redis describes it, with a watchdog: a lock has a part on each server, and is
// held as long as a majority of its parts is held. The lease of each part counts from before its request was
// sent, less the safety margin. There are no fencing tokens.
//
// While a lock has a valid majority, the Quorum asks again for each missing part: one that its server has lost, or
// did not grant at first. It takes no part again that was freed by force, and none of a lock WithoutRenewal. A lock
// that is lost as a whole is never acquired again.
type Quorum struct {
	servers []*Client
	stuck   []atomic.Int32 // calls to each server that are unanswered and whose callers have returned
	queues  *waitqueue.Group[queueKey, *quorumAcquisition]
	wheel   *wheel.Wheel
	logger  *slog.Logger
	monitor monitor
	gate    gate.Gate

	mu   sync.Mutex
	held map[*composite]struct{} // guarded by mu
}

// NewQuorum returns a Quorum for the clients of at least three independent servers, preferably an odd number.
// The nodes of one cluster, or a master and its replicas, are not independent. The options are those of New.
// Fewer clients, the same client twice, or a client that New refuses return an error that matches
// cogwheel.ErrInvalid. NewQuorum does not talk to Redis. The caller must keep the clients open until Close has
// returned.
//
// A server that has lost its data may grant a lock that is held. Keep a server that restarts empty out of reach
// until the longest lease has ended, or make it write each change to disk.
func NewQuorum(rdbs []redis.UniversalClient, opts ...Option) (*Quorum, error) {
	if len(rdbs) < 3 {
		return nil, argument.Error("clients", len(rdbs), "at least 3 are needed")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	q := &Quorum{
		stuck: make([]atomic.Int32, len(rdbs)), wheel: cfg.Wheel, logger: cfg.Logger,
		monitor: monitor{
			hooks: cfg.hooks, logger: cfg.Logger, failures: signals.Failures{Closed: ErrClosed}, as: KindQuorum,
		},
		held: make(map[*composite]struct{}),
	}
	// Hooks are called once for a lock of the Quorum, not once for each server.
	each := cfg
	each.hooks = Hooks{Renewed: cfg.hooks.Renewed}
	for i, rdb := range rdbs {
		if slices.Contains(rdbs[:i], rdb) {
			err = argument.Error("clients", i, "is the same as an earlier one")
			break
		}
		var c *Client
		if c, err = newClient(rdb, each); err != nil {
			break
		}
		c.redis.Sender.Retries = 0 // a lost reply is no answer
		c.monitor.as = KindQuorum
		q.servers = append(q.servers, c)
		c.ids = q.servers[0].ids
	}
	if err != nil {
		for _, c := range q.servers {
			err = conventions.Join(err, c.Close(context.Background()))
		}
		return nil, err
	}
	q.queues = waitqueue.New(cfg.Wheel, waitqueue.Config[queueKey, *quorumAcquisition]{
		Submit: q.submit, Build: q.build, MaxBatch: 1, Poll: cfg.Poll, Listen: q.listen,
		GiveBack: func(_ queueKey, granted []*quorumAcquisition) {
			for _, a := range granted {
				go func() { _ = a.won.unlock(context.Background()) }() // a failure is retried in the background
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
	var longest time.Duration
	for _, c := range q.servers {
		longest = max(longest, c.longest.Load())
	}
	ctx, cancel := hold.ToClose(ctx, q.wheel, longest)
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
	return conventions.Join(errs...)
}

// endAll ends the held locks. The Close of each server's Client releases their parts.
func (q *Quorum) endAll() {
	q.mu.Lock()
	held := slices.Collect(maps.Keys(q.held))
	clear(q.held)
	q.mu.Unlock()
	for _, c := range held {
		c.close(ErrClosed)
		q.monitor.ended(&c.identity, c.Err())
	}
}

// keep registers a lock that was granted, and reports its end.
func (q *Quorum) keep(c *composite) {
	q.mu.Lock()
	q.held[c] = struct{}{}
	q.mu.Unlock()
	c.report(func(err error) {
		q.monitor.ended(&c.identity, err)
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.held, c)
	})
	if q.gate.Closed() { // Close may have run before the lock was registered
		c.close(ErrClosed)
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

// Mutex returns the lock with the given name. It does not talk to Redis. Its parts are the locks that Client.Mutex
// returns on each server. The rules for names and options are those of Client.Mutex, except that WithFencing,
// WithJavaFencing, WithReplicas, WithMinHold and WithStringKey are refused, also as defaults, and WithHandoff has no
// effect.
func (q *Quorum) Mutex(name string, opts ...LockOption) *QuorumMutex {
	m := &QuorumMutex{quorum: q, name: name}
	for _, c := range q.servers {
		part := c.Mutex(name, opts...)
		m.parts, m.err = append(m.parts, part), part.Err()
	}
	switch config := m.parts[0].config; {
	case m.err != nil:
	case config.fenced:
		m.err = argument.Error("option", "WithFencing", "independent servers have no common order of tokens")
	case config.replicas.n > 0:
		m.err = argument.Error("option", "WithReplicas", "a quorum does not count replicas")
	case config.minHold > 0:
		m.err = errMinHold
	case config.stringKey:
		m.err = errStringKey
	}
	return m
}

// Name returns the name of the lock.
func (m *QuorumMutex) Name() string { return m.name }

// Err returns the *cogwheel.InvalidError of an invalid name or option, or nil. All other methods return it too.
func (m *QuorumMutex) Err() error { return m.err }

// TryLock takes the lock if a majority of servers grants it. It asks all servers at the same time and blocks
// until a majority has decided, at most until ctx ends, a third of the lease has passed, or 5 seconds have
// passed. A server that is slow or hangs does not delay it if enough others answer.
//
// If others hold the lock, or concurrent callers got some servers each and none a majority, the error is a
// *LockedError, which matches ErrLocked. If no majority answered, the error matches ErrNoQuorum. After an error
// the caller holds nothing: the parts that single servers granted are released in the background.
//
// The Lock is held while a majority of servers renews it. Done is closed before the leases of a majority can
// end. Deadline is the time at which Done closes unless parts are renewed before. Unlock releases the lock on
// all servers, and returns when a majority has confirmed the release.
func (m *QuorumMutex) TryLock(ctx context.Context) (*Lock, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.quorum.gate.Leave()
	a := m.newAcquisition(ctx)
	decided := make(chan error, 1)
	round := a.ask(func(err error) { decided <- err })
	var err error
	select {
	case err = <-decided:
	case <-ctx.Done():
		round.end(context.Canceled)
		err = <-decided
	}
	return m.finish(ctx, a, err)
}

// Lock takes the lock, and waits while others hold it or while concurrent callers have split the servers. ctx bounds
// only the wait. Callers of one process form a queue, and only the first asks the servers: when one of them announces
// an unlock, when the leases of the holders end, and at its poll. If no majority of servers answers in the time that
// TryLock allows, Lock fails with ErrNoQuorum, also if it has already waited: unlike Mutex.Lock, it does not wait
// through an outage of a majority. The other errors are those of Mutex.Lock.
func (m *QuorumMutex) Lock(ctx context.Context) (*Lock, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	q := m.quorum
	defer q.gate.Leave()
	a := m.newAcquisition(ctx)
	_, err := q.queues.Wait(ctx, m.parts[0].queueKey(nil), a)
	return m.finish(ctx, a, err)
}

// LockFunc is Lock without blocking, as Mutex.LockFunc is. After cancel, parts that single servers still grant
// are released.
func (m *QuorumMutex) LockFunc(ctx context.Context, f func(*Lock, error)) (cancel func()) {
	argument.MustCall(f == nil)
	q := m.quorum
	if err := m.enter(ctx); err != nil {
		go q.monitor.callback(func() { f(nil, err) })
		return func() {}
	}
	a := m.newAcquisition(ctx)
	drop := q.queues.WaitFunc(ctx, m.parts[0].queueKey(nil), a, func(_ *quorumAcquisition, err error) {
		l, err := m.finish(ctx, a, err)
		q.gate.Leave()
		q.monitor.callback(func() { f(l, err) })
	})
	return func() {
		if drop() {
			err := operationError("lock", m.name, context.Canceled)
			q.monitor.failed(ctx, multi, m.name, q.wheel.Now().Sub(a.began), err)
			q.gate.Leave()
			go q.monitor.callback(func() { f(nil, err) })
		}
	}
}

// Do calls f while it holds the lock, as Mutex.Do does.
func (m *QuorumMutex) Do(ctx context.Context, f func(context.Context) error) error {
	return do(ctx, m.quorum.servers[0], m.Lock, f)
}

// FromContext returns the Lock of a QuorumMutex of this name whose Do or Context made ctx, or nil, as
// Mutex.FromContext does.
func (m *QuorumMutex) FromContext(ctx context.Context) *Lock {
	return hold.From[Lock](ctx, hold.Name{Sort: majority, Name: m.name})
}

// enter checks the arguments and enters the gate.
func (m *QuorumMutex) enter(ctx context.Context) error {
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
	q, took := m.quorum, m.quorum.wheel.Now().Sub(a.began)
	switch {
	case err == nil:
		q.keep(a.won)
		q.monitor.acquired(ctx, a.won, took)
		return a.won.handle(), nil
	case errors.Is(err, ErrClosed):
		err = ErrClosed
	case ctx.Err() != nil:
		err = operationError("lock", m.name, waitEnded(conventions.Cause(ctx), a.refusal.Load()))
	case !errors.Is(err, ErrLocked):
		err = operationError("lock", m.name, err)
	}
	q.monitor.failed(ctx, multi, m.name, took, err)
	return nil, err
}

// listen wakes a queue when any server publishes a release.
func (q *Quorum) listen(key queueKey, wake func(time.Duration)) (stop func()) {
	stops := make([]func(), len(q.servers))
	for i, c := range q.servers {
		stops[i] = pubsub.Listen(c.redis.Channels, queueKey.channel)(key, wake)
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// submit starts the attempt of a queue, outside of the send queues: it asks several servers. No goroutine waits for
// their answers.
func (q *Quorum) submit(user context.Context, _ *calls.Job, c calls.Caller, _ queueKey) {
	start := func() {
		if call, ok := c.Build(); ok {
			call.Start(func(cmd *redis.Cmd) { c.Apply(redisconn.Reply{Cmd: cmd}) })
		}
	}
	if user != calls.Nobody {
		start()
	} else { // Build takes a lock that the caller may hold
		go start()
	}
}

// build makes the call that asks the servers on behalf of the head of a queue.
func (q *Quorum) build(_ queueKey, batch []*waitqueue.Waiter[*quorumAcquisition]) (attempt waitqueue.Attempt) {
	a := batch[0].Value
	attempt.Read = func(r redisconn.Reply) (time.Duration, error) { return a.read(batch[0], r) }
	attempt.Call.Start = func(done func(*redis.Cmd)) {
		decided := func(err error) { done(calls.Failed(err)) }
		if a.splits == 0 {
			a.ask(decided)
			return
		}
		// Two callers that split the servers must not meet again.
		most := splitPause * time.Duration(min(a.splits, 10))
		_, err := wheelentry.AfterFunc(q.wheel, rand.N(most), func(stopped error) {
			if stopped != nil {
				decided(stopped)
			} else {
				a.ask(decided)
			}
		})
		if err != nil {
			decided(err)
		}
	}
	return attempt
}

// read gives the decision of the servers to the head.
func (a *quorumAcquisition) read(
	head *waitqueue.Waiter[*quorumAcquisition], r redisconn.Reply,
) (again time.Duration, err error) {
	err = r.Err()
	locked, is := errors.AsType[*LockedError](err)
	switch {
	case err == nil:
		head.Grant()
		return 0, nil
	case !is:
		return 0, err
	case a.splits > 0:
		return splitPause, nil
	}
	return max(locked.TTL+time.Millisecond, 0), nil
}

// quorumAcquisition is one call for the lock of a Quorum, and the element of its queues. An attempt owns splits
// and won.
type quorumAcquisition struct {
	mutex   *QuorumMutex
	ctx     context.Context // of the call
	began   time.Time
	splits  int // rounds in a row in which some servers granted the lock, but too few
	won     *composite
	refusal atomic.Pointer[LockedError] // the last refusal
}

func (m *QuorumMutex) newAcquisition(ctx context.Context) *quorumAcquisition {
	return &quorumAcquisition{mutex: m, ctx: ctx, began: m.quorum.wheel.Now()}
}

// ask asks all servers once, and calls done with the outcome: when the servers have decided, when their time is
// over, or when the round that ask returns is ended. done must not block.
func (a *quorumAcquisition) ask(done func(error)) *quorumRound {
	m := a.mutex
	round := newQuorumRound(a.ctx, m, func(r *quorumRound) { done(a.decided(r)) })
	round.start(m.voteTimeout())
	return round
}

// decided takes over the outcome of a round.
func (a *quorumAcquisition) decided(round *quorumRound) error {
	m := a.mutex
	q := m.quorum
	if round.won != nil {
		a.won, a.splits = round.won, 0
		return nil
	}
	if locked, ok := errors.AsType[*LockedError](round.err); ok {
		if a.refusal.Swap(locked) == nil {
			q.monitor.contended(a.ctx, multi, locked, q.wheel.Now().Sub(a.began))
		}
		if round.split {
			a.splits++
		} else {
			a.splits = 0
		}
	}
	return round.err
}

// noQuorum returns the error of a round in which too few servers answered.
func noQuorum(errs []error) error {
	err := conventions.Join(errs...)
	if errors.Is(err, ErrClosed) {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrNoQuorum, err)
}
