package redislock

import (
	"context"
	"errors"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// reading is the readers' side of Redisson's RReadWriteLock, which many may hold at a time: a hash with a mode
// and a field for each reader, whose lease is a separate key.
var reading = &kind{
	name: "RWMutex",
	is:   KindRead,
	acquire: func(r *request) scripts.Call {
		keys := []string{r.name(), scripts.ReadTimeout(r.name(), r.id)}
		return scripts.ReadAcquire.Call(keys, r.inLine([]any{r.id, r.mutex.config.millis}, 2)...)
	},
	release: func(c *claim) scripts.Call {
		keys := []string{c.name(), scripts.ReadTimeout(c.name(), c.id)}
		args := []any{c.id, c.verb(), scripts.RWChannel(c.name()), scripts.ReadTimeouts(c.name())}
		return scripts.ReadRelease.Call(keys, args...)
	},
	force: func(c *claim) scripts.Call {
		return forceRW(c, "read")
	},
	channel:   func(name, _ string) string { return scripts.RWChannel(name) },
	lines:     true,
	renew:     scripts.ReadRenew,
	renewKeys: func(name, id string) []string { return []string{name, scripts.ReadTimeout(name, id)} },
	within:    writing,
	view:      hashView,
}

// writing is the writer's side, which one may hold at a time.
var writing = &kind{
	name: "RWMutex",
	is:   KindWrite,
	mark: ":write",
	acquire: func(r *request) scripts.Call {
		keys, args := []string{r.name()}, []any{r.id, r.mutex.config.millis}
		if r.fenced() {
			keys, args = append(keys, scripts.LockFence(r.name())), append(args, r.fenceMillis(), r.handoffsWanted)
		}
		return scripts.WriteAcquire.Call(keys, r.inLine(args, 4)...)
	},
	release: func(c *claim) scripts.Call {
		return c.returningTokens(scripts.WriteRelease, c.id, c.verb(), scripts.RWChannel(c.name()))
	},
	force: func(c *claim) scripts.Call {
		return forceRW(c, "write")
	},
	channel:   func(name, _ string) string { return scripts.RWChannel(name) },
	exclusive: true,
	lines:     true,
	leaveLine: leaveLineOf(1),
	renew:     scripts.LockRenew,
	view:      hashView,
}

func forceRW(c *claim, side string) scripts.Call {
	channel := scripts.RWChannel(c.name())
	return scripts.RWForce.Call([]string{c.name()}, side, c.verb(), channel, scripts.ClientChannel(""))
}

// RWMutex is a lock that any number of readers, or one writer, can hold. It has no state of its own: all
// RWMutex values of one name, in any process, are the same lock. It is safe for concurrent use.
//
// Neither side is preferred: new readers join present readers, so a writer waits for as long as readers keep
// coming. When the last reader or the writer unlocks, the next writer in the line is woken, or all readers are.
type RWMutex struct{ read, write *Mutex }

// RWMutex returns the read/write lock with the given name. It does not talk to Redis. The key in Redis is the
// name, as in Redisson, so services in Java that use getReadWriteLock(name) share the lock. A key that holds
// another kind of lock is refused with ErrWrongKind; the other kinds refuse the key of a read/write lock in the
// same way. The rules for names are those of Mutex. Options apply to readers and writers, but only writers get
// a token of WithFencing, and WithMinHold is refused.
//
// Readers that died delay a writer at most until the longest of their leases ends, whether or not other readers
// are alive. Readers that are alive delay it until they unlock.
func (c *Client) RWMutex(name string, opts ...LockOption) *RWMutex {
	return &RWMutex{read: c.newMutex(reading, name, opts), write: c.newMutex(writing, name, opts)}
}

// Name returns the name of the lock.
func (rw *RWMutex) Name() string { return rw.write.name }

// Err returns the *cogwheel.InvalidError of an invalid name or option, or nil. All other methods return it too.
func (rw *RWMutex) Err() error { return rw.write.Err() }

// Writer returns the writer's side as a Mutex, for LockFunc, Do, State and ForceUnlock. Its Lock is
// RWMutex.Lock. Its State includes readers. Its ForceUnlock frees the lock only if a writer holds it.
func (rw *RWMutex) Writer() *Mutex { return rw.write }

// Reader returns the readers' side as a Mutex. Its Lock is RLock. Its State includes a writer. Its ForceUnlock
// ends the holds of all readers, and does not affect a writer.
func (rw *RWMutex) Reader() *Mutex { return rw.read }

// Lock takes the lock for writing, and waits while others read or write. If the Owner of ctx holds the lock for
// reading, Lock fails with ErrUpgrade: two readers that waited for each other would wait for ever. Otherwise it
// is like Mutex.Lock.
func (rw *RWMutex) Lock(ctx context.Context) (*Lock, error) { return rw.write.Lock(ctx) }

// TryLock takes the lock for writing if it is free. Otherwise it is like Mutex.TryLock; it fails with
// ErrUpgrade as Lock does.
func (rw *RWMutex) TryLock(ctx context.Context) (*Lock, error) { return rw.write.TryLock(ctx) }

// RLock takes the lock for reading, and waits while another caller writes. If the Owner of ctx holds the lock
// for writing, RLock returns another Lock on that hold. Otherwise it is like Mutex.Lock.
func (rw *RWMutex) RLock(ctx context.Context) (*Lock, error) { return rw.read.Lock(ctx) }

// TryRLock takes the lock for reading if no writer holds it. Otherwise it is like Mutex.TryLock.
func (rw *RWMutex) TryRLock(ctx context.Context) (*Lock, error) { return rw.read.TryLock(ctx) }

// Downgrade turns the writer's hold l into a reader's hold and lets waiting readers in. No other writer can get
// the lock in between. Downgrade returns the reader's Lock; l is then unlocked. It blocks for one round trip,
// at most until ctx ends.
//
// The error matches ErrLost, ErrNotHeld or ErrClosed as for Unlock. It matches cogwheel.ErrInvalid if l is not
// a writer's hold of this lock, or an Owner has locked it more than once; then l is unchanged, and so it is if
// ctx has ended before the call. After any other error neither the writer nor the reader holds the lock, and
// the Client releases both in the background.
func (rw *RWMutex) Downgrade(ctx context.Context, l *Lock) (*Lock, error) {
	m := rw.read
	if !l.valid() {
		return nil, ErrNotHeld
	}
	writer := l.body.known()
	if writer.kind() != writing || writer.name() != rw.write.name || writer.client() != m.client() {
		return nil, argument.Error("lock", writer.name(), "is not a writer of "+m.name)
	}
	var owner *Owner
	if e, owned := l.body.(*entry); owned {
		if owner = e.shared.owner; e.shared.entries() > 1 {
			return nil, argument.Error("lock", writer.name(), "its owner has locked it more than once")
		}
	}
	c := m.client()
	if err := m.enter(ctx); err != nil {
		c.monitor.refused(ctx, &c.gate, reading, m.name, err)
		return nil, err
	}
	defer c.gate.Leave()
	a := m.newAcquisition(ctx, true)
	if err := named("downgrade", m.name, rw.downgrade(ctx, l, a)); err != nil {
		c.monitor.failed(ctx, reading, m.name, a.took(), err)
		return nil, err
	}
	c.queues.Kick(m.queueKey(nil))
	c.limit(a.held, a.held.mutex.config.maxHold)
	c.monitor.acquired(ctx, a.held, a.took())
	return owner.register(a.held).handle(), nil
}

func (rw *RWMutex) downgrade(ctx context.Context, l *Lock, a *acquisition) error {
	m, c := rw.read, rw.read.client()
	var writer *held
	switch b := l.body.(type) {
	case *held:
		writer = b
	case *entry:
		if !b.leave(ErrNotHeld) {
			return b.Err()
		}
		b.shared.leave()
		writer = b.shared.held
	}
	if !writer.Close(ErrNotHeld) {
		return writer.Err()
	}
	c.drop(writer)
	r, answered := c.redis.Sender.Do(ctx, calls.Request{
		Key:   m.name,
		Must:  true, // the writer's hold has ended already
		Build: func() scripts.Call { return a.downgradeCall(writer) },
		Late: func(r redisconn.Reply) {
			if a.downgraded(writer, &r) == nil {
				a.held.discard()
			}
		},
	})
	var err error
	if answered {
		err = a.downgraded(writer, &r)
	}
	writer.Report(err)
	switch {
	case errors.Is(err, ErrLost):
		return err
	case !answered:
		return operationError("downgrade", m.name, conventions.Cause(ctx))
	case err != nil:
		return operationError("downgrade", m.name, err)
	}
	return nil
}

// downgradeCall replaces the writer's hold by a reader's hold.
func (a *acquisition) downgradeCall(writer *held) scripts.Call {
	req := a.request
	keys := []string{req.name(), scripts.ReadTimeout(req.name(), req.id)}
	args := []any{writer.id, req.id, req.mutex.config.millis, req.verb(), scripts.RWChannel(req.name())}
	return scripts.Downgrade.Call(keys, args...)
}

// downgraded reads the reply to downgradeCall. After an error, both holds are released.
func (a *acquisition) downgraded(writer *held, r *redisconn.Reply) (err error) {
	c, req := writer.client(), a.request
	defer func() {
		if err != nil {
			writer.ambiguous = writer.ambiguous || a.ambiguous
			writer.ReleaseLater(0)
			c.abandon(&req.claim, a.ambiguous)
		}
	}()
	g, err := readGrant(r, false)
	a.ambiguous = r.Ambiguous
	switch {
	case redisconn.WrongKind(err):
		return lostBefore("downgrade", req.name(), err)
	case err != nil:
		return err
	case !g.taken:
		return lostBefore("downgrade", req.name(), errGone)
	}
	a.held = c.newHeld(req.claim, r.Ambiguous)
	if err = c.startLease(a.held, r.SentAt); err == nil && writer.ambiguous {
		writer.ReleaseLater(cleanup.LateCopy)
	}
	return err
}
