package redislock

import (
	"context"
	"errors"

	"github.com/cogwheel-go/cogwheel/internal/cleanup"
	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// reading is the half of Redisson's RReadWriteLock that many hold at a time: a hash with a mode and a field
// for each reader, whose lease is a key beside it.
var reading = &kind{
	name: "RWMutex",
	is:   KindRead,
	acquire: func(r *request) scripts.Call {
		keys := []string{r.name(), scripts.ReadTimeout(r.name(), r.id)}
		return scripts.ReadAcquire.Call(keys, r.id, r.mutex.config.millis)
	},
	release: func(r *request) scripts.Call {
		keys := []string{r.name(), scripts.ReadTimeout(r.name(), r.id)}
		args := []any{r.id, r.verb(), scripts.RWChannel(r.name()), scripts.ReadTimeouts(r.name())}
		return scripts.ReadRelease.Call(keys, args...)
	},
	force: func(r *request) scripts.Call {
		return forceRW(r, "read")
	},
	channel:   func(name, _ string) string { return scripts.RWChannel(name) },
	renew:     scripts.ReadRenew,
	renewKeys: func(name, id string) []string { return []string{name, scripts.ReadTimeout(name, id)} },
	within:    writing,
}

// writing is the half that one holds alone.
var writing = &kind{
	name: "RWMutex",
	is:   KindWrite,
	mark: ":write",
	acquire: func(r *request) scripts.Call {
		if r.fenced() {
			keys := []string{r.name(), scripts.LockFence(r.name())}
			args := []any{r.id, r.mutex.config.millis, r.fenceMillis(), r.handoffsWanted}
			return scripts.WriteAcquire.Call(keys, args...)
		}
		return scripts.WriteAcquire.Call([]string{r.name()}, r.id, r.mutex.config.millis)
	},
	release: func(r *request) scripts.Call {
		return r.returningTokens(scripts.WriteRelease, scripts.RWChannel(r.name()))
	},
	force: func(r *request) scripts.Call {
		return forceRW(r, "write")
	},
	channel:   func(name, _ string) string { return scripts.RWChannel(name) },
	exclusive: true,
	renew:     scripts.LockRenew,
}

func forceRW(r *request, side string) scripts.Call {
	channel := scripts.RWChannel(r.name())
	return scripts.RWForce.Call([]string{r.name()}, side, r.verb(), channel, scripts.ClientChannel(""))
}

// RWMutex is a lock that any number of readers hold together, or one writer alone. It has no state of its own
// and is safe for concurrent use.
//
// Neither side is preferred: new readers join present ones, so a writer waits for as long as readers keep
// coming. When the last reader or the writer unlocks, all waiters are woken.
type RWMutex struct{ read, write *Mutex }

// RWMutex returns the read/write lock of that name. It does not talk to Redis. The key in Redis is the name
// itself, as Redisson has it: services in Java that use getReadWriteLock(name) share it. A key of that name
// that is another kind of lock is refused with ErrWrongKind, as that of a read/write lock is by the other
// kinds. Names are those of Mutex. Options apply to readers and writers; a token of WithFencing goes to
// writers only.
//
// If readers die, a writer waits at most for the longest of their leases, whether or not other readers live.
func (c *Client) RWMutex(name string, opts ...LockOption) *RWMutex {
	return &RWMutex{read: c.newMutex(reading, name, opts), write: c.newMutex(writing, name, opts)}
}

// Name returns the name.
func (rw *RWMutex) Name() string { return rw.write.name }

// Err returns the *cogwheel.InvalidError of a bad name or option, which every method returns too, or nil.
func (rw *RWMutex) Err() error { return rw.write.err }

// Writer is the writer's side, for all that a Mutex can do: LockFunc, Do, State, ForceUnlock. Its Lock is
// RWMutex.Lock, its State shows readers too, and its ForceUnlock frees the lock of a writer and leaves
// readers alone.
func (rw *RWMutex) Writer() *Mutex { return rw.write }

// Reader is the readers' side. Its Lock is RLock, its State shows a writer too, and its ForceUnlock frees the
// lock of all readers and leaves a writer alone.
func (rw *RWMutex) Reader() *Mutex { return rw.read }

// Lock takes the lock for writing, waiting while others read or write. Otherwise it is like Mutex.Lock. With
// a context whose Owner reads, it fails with ErrUpgrade: two readers that each waited for the other would
// wait for ever.
func (rw *RWMutex) Lock(ctx context.Context) (*Lock, error) { return rw.write.Lock(ctx) }

// TryLock takes the lock for writing if it is free. Otherwise it is like Mutex.TryLock.
func (rw *RWMutex) TryLock(ctx context.Context) (*Lock, error) { return rw.write.TryLock(ctx) }

// RLock takes the lock for reading, waiting while another writes. Otherwise it is like Mutex.Lock. With a
// context whose Owner writes, it returns another Lock on the writer's hold.
func (rw *RWMutex) RLock(ctx context.Context) (*Lock, error) { return rw.read.Lock(ctx) }

// TryRLock takes the lock for reading if no writer has it. Otherwise it is like Mutex.TryLock.
func (rw *RWMutex) TryRLock(ctx context.Context) (*Lock, error) { return rw.read.TryLock(ctx) }

// Downgrade makes the writer l a reader and lets waiting readers in. No other writer can get the lock in
// between. It returns the reader's Lock; l is unlocked. It blocks for one round trip, at most until ctx ends.
//
// The error matches ErrLost, ErrNotHeld or ErrClosed as with Unlock. It matches cogwheel.ErrInvalid if l is
// not a writer of this lock or an Owner has locked it more than once; then, and if ctx has ended before, l is
// unchanged. After any other error neither of the two is held, and what Redis has of them is released in the
// background.
func (rw *RWMutex) Downgrade(ctx context.Context, l *Lock) (*Lock, error) {
	m := rw.read
	switch {
	case !l.valid():
		return nil, ErrNotHeld
	case l.kind() != writing || l.name() != rw.write.name || l.client() != m.client:
		return nil, argument.Error("lock", l.name(), "is not a writer of "+m.name)
	case l.entries() > 1:
		return nil, argument.Error("lock", l.name(), "its owner has locked it more than once")
	}
	c := m.client
	if err := m.begin(ctx); err != nil {
		c.monitor.refused(ctx, &c.gate, reading, m.name, err)
		return nil, err
	}
	defer c.gate.Leave()
	a, owner := m.newAcquisition(ctx, true), l.owner()
	if err := rw.downgrade(ctx, l, a); err != nil {
		c.monitor.failed(ctx, reading, m.name, a.took(), err)
		return nil, err
	}
	c.limit(a.lock)
	c.monitor.acquired(ctx, a.lock, a.took())
	return owner.took(a.lock), nil
}

func (rw *RWMutex) downgrade(ctx context.Context, l *Lock, a *acquisition) error {
	m, c := rw.read, rw.read.client
	if e, ok := l.lease.(*entry); ok {
		if !e.Close(ErrNotHeld) {
			return e.Err()
		}
		e.hold.leave()
		l = e.hold.lock
	}
	if !l.lease.Close(ErrNotHeld) {
		return l.Err()
	}
	c.drop(l)
	downgrade := func() error { return a.downgrade(l, ctx.Done()) }
	err, answered := gate.Await(&c.gate, ctx.Done(), downgrade, func(err error) {
		if err == nil {
			a.lock.discard()
		}
	})
	c.monitor.ended(l, err)
	switch {
	case errors.Is(err, ErrLost):
		return err
	case !answered:
		return operationError("downgrade", m.name, contexts.Error(ctx))
	case err != nil:
		return operationError("downgrade", m.name, err)
	}
	return nil
}

// downgrade exchanges the writer's hold for a reader's. If it fails, both are released.
func (a *acquisition) downgrade(writer *Lock, ended <-chan struct{}) (err error) {
	c, req := writer.client(), a.request
	c.channels.Decide()
	defer func() {
		if err != nil {
			writer.releaseLater(0, a.ambiguous || writer.ambiguous)
			c.abandon(req, a.ambiguous)
		}
	}()
	keys := []string{req.name(), scripts.ReadTimeout(req.name(), req.id)}
	args := []any{writer.id, req.id, req.mutex.config.millis, req.verb(), scripts.RWChannel(req.name())}
	r := c.sender.Run(scripts.Downgrade.Call(keys, args...), ended)
	g, err := readGrant(&r, false)
	a.ambiguous = r.Ambiguous
	switch {
	case redisconn.WrongKind(err):
		return lostBefore("downgrade", req.name(), err)
	case err != nil:
		return err
	case !g.taken:
		return lostBefore("downgrade", req.name(), errGone)
	}
	a.lock = &Lock{request: *req, ambiguous: r.Ambiguous}
	if err = c.watch(a.lock, r.SentAt); err == nil && writer.ambiguous {
		writer.releaseLater(cleanup.LateCopy, true)
	}
	return err
}
