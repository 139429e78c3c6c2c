package semaphore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// Forever is the Permit.Lease of a permit that does not expire. Only services in Java acquire such permits.
const Forever time.Duration = -1

// Semaphore is a number of permits that processes share. Each held permit has an id and a lease. A Grant
// renews the leases of its permits; when its process dies, the permits become free at the end of the lease.
// Semaphore is Redisson's RPermitExpirableSemaphore with renewal.
//
// A Semaphore has no state of its own: all values of one name that were returned by the same method of a
// Client, Semaphore or FairSemaphore, are the same semaphore. It is safe for concurrent use.
type Semaphore struct {
	client *Client
	name   string
	fair   bool
	config semaphoreConfig
	keys   keys
	err    error // of the name or an option
}

// Semaphore returns the semaphore with the given name. permits is the number to set if Redis has none: a number that is
// set stays. To change it, call SetPermits and change the argument. Semaphore does not talk to Redis. The keys in Redis
// are Redisson's, so services in Java that call getPermitExpirableSemaphore(name) share the permits. The rules for
// names are those of CountingSemaphore.
//
// permits is 1 to MaxPermits. Acquire, TryAcquire and AcquireFunc set it, in the round trip that acquires, at the first
// use, after Delete, and after Redis has lost its data. With 0, they fail with ErrNotSet until TrySetPermits,
// SetPermits or AddPermits has set a number. A Client that finds another number than its own logs a warning, once for
// each of up to a thousand names.
//
// Do not use one name for a CountingSemaphore and a Semaphore. Both store the number of free permits under
// that name, and Redis cannot tell them apart: each would ignore the permits that the other has granted.
// Neither can share its name with a FairSemaphore, so that a name has one limit: while the permits of one are set,
// calls that would set those of the other fail with ErrWrongKind.
func (c *Client) Semaphore(name string, permits int64, opts ...SemaphoreOption) *Semaphore {
	return c.newSemaphore(name, permits, false, opts)
}

// FairSemaphore returns the fair semaphore with the given name, which shares no permits with Client.Semaphore(name) or
// services in Java. It grants the requests of all processes in the order in which they came, to a millisecond and the
// time of a message to Redis. Nobody overtakes, even if permits are free that those before cannot use yet.
// FairSemaphore does not talk to Redis.
//
// A process that does not answer within 50 ms when it is its turn is passed over, and keeps its place. A user without
// the right to the line of those who wait, {name}:fair:waiting, is refused.
//
// The keys in Redis are {name}:fair:*, which neither Redisson nor Client.Semaphore uses. The rules for names, permits
// and options are those of Client.Semaphore.
func (c *Client) FairSemaphore(name string, permits int64, opts ...SemaphoreOption) *Semaphore {
	return c.newSemaphore(name, permits, true, opts)
}

func (c *Client) newSemaphore(name string, permits int64, fair bool, opts []SemaphoreOption) *Semaphore {
	s := &Semaphore{client: c, name: name, fair: fair}
	if s.err = client.CheckName(argument, name); s.err == nil {
		s.config, s.err = newSemaphoreConfig(permits, opts)
		if s.err == nil {
			s.err = c.redis.CheckLease("WithLease", s.config.lease)
		}
		s.keys = keysOf(name, fair)
	}
	return s
}

// Name returns the name of the semaphore.
func (s *Semaphore) Name() string { return s.name }

// Err returns the *cogwheel.InvalidError of an invalid name or option, or nil.
func (s *Semaphore) Err() error { return s.err }

// Acquire takes n permits, 0 to MaxGrant. It blocks until n permits are free or ctx ends. The grant does not
// end with ctx. For n 0 it returns at once, without asking Redis. Requests of one process are granted in
// order; with FairSemaphore, those of all processes are.
//
// The processes that wait stand in a line, in the order in which the first request of each came. A release wakes as
// many as it may serve, and nobody else. A caller that has just come may overtake them until the first has waited for
// 4 ms; from then on, and with FairSemaphore at once, permits are kept for those that are woken, for up to 50 ms. A
// request for more permits than are free keeps the others behind it, once it is the first; they are served before it
// only if its process does not answer. Services in Java and earlier versions stand in no line.
//
// The error matches ErrNotSet (with permits 0), ErrExceedsPermits, ErrClosed, ErrWrongKind or cogwheel.ErrInvalid, or
// wraps an error of ctx or of Redis. It matches ErrLost if the reply took longer than the lease. A query that fails,
// after retries, ends the wait, unless Redis has found too few permits before: then Acquire waits on through an outage,
// and for up to 30 s (DefaultLease) through a refused login, as while a password is rotated. After an error the caller
// holds nothing: if Redis granted the permits but its reply was lost or came too late, the Client releases them in the
// background, and they end with their lease at the latest.
//
// The waiters of a semaphore in one process share one wheel entry, one subscription and one script per query.
// They query when they are woken, when their subscription was interrupted, after each poll interval, and, if they are
// first in the line, when the next lease ends.
func (s *Semaphore) Acquire(ctx context.Context, n int64) (*Grant, error) {
	return s.acquire(ctx, n, s.queue().Wait)
}

// TryAcquire takes n permits, 0 to MaxGrant, if they are free. Otherwise it returns an error that matches
// ErrNoPermits, and the caller holds nothing. Its other errors are those of Acquire. TryAcquire blocks for
// one round trip, which concurrent calls share. While callers of this process wait for permits of the
// semaphore, or with FairSemaphore callers of any process, TryAcquire does not overtake them and fails. It does
// not take permits that are kept for another process either.
func (s *Semaphore) TryAcquire(ctx context.Context, n int64) (*Grant, error) {
	try := func(ctx context.Context, name string, r *acquireRequest) (*acquireRequest, error) {
		r.noWait = true
		return s.queue().Try(ctx, name, r)
	}
	return s.acquire(ctx, n, try)
}

// AcquireFunc is Acquire without blocking. It calls f exactly once, on a new goroutine, with the results that
// Acquire would return. No goroutine runs while the call waits.
//
// cancel ends the wait: f is then called with an error that matches context.Canceled. Once the wait has
// ended, cancel does nothing. A panic of f is logged. AcquireFunc panics with a *cogwheel.InvalidError if f
// is nil.
func (s *Semaphore) AcquireFunc(ctx context.Context, n int64, f func(*Grant, error)) (cancel func()) {
	argument.MustCall(f == nil)
	c := s.client
	a, err := s.begin(ctx, n)
	if err != nil {
		go c.monitor.callback(func() { f(nil, err) })
		return func() {}
	}
	if n == 0 {
		c.gate.Leave()
		go c.monitor.callback(func() { f(s.emptyGrant(), nil) })
		return func() {}
	}
	r := s.newRequest(a)
	settle := func(err error) (*Grant, error) { return s.grantOf(r, err) }
	report := func(g *Grant, err error) { s.report(r, g, err) }
	return acquireFunc(ctx, c, s.queue(), s.name, r, settle, report, f)
}

func (s *Semaphore) queue() *waitqueue.Group[string, *acquireRequest] {
	return s.client.leased(s.fair).acquisitions
}

func (s *Semaphore) acquire(
	ctx context.Context, n int64,
	wait func(context.Context, string, *acquireRequest) (*acquireRequest, error),
) (*Grant, error) {
	a, err := s.begin(ctx, n)
	if err != nil {
		return nil, err
	}
	defer s.client.gate.Leave()
	if n == 0 {
		return s.emptyGrant(), nil
	}
	r := s.newRequest(a)
	_, err = wait(ctx, s.name, r)
	g, err := s.grantOf(r, acquireError(ctx, s.name, err))
	s.report(r, g, err)
	return g, err
}

// begin checks a request and enters the gate.
func (s *Semaphore) begin(ctx context.Context, n int64) (acquisition, error) {
	a := acquisition{ctx: ctx, n: n, began: s.client.monitor.clock.Now()}
	err := s.enter(ctx, n)
	if err != nil {
		s.client.monitor.refused(&s.client.gate, s.object(), &a, err)
	}
	return a, err
}

func (s *Semaphore) object() object { return object{kindOf(s.fair), s.name} }

func (s *Semaphore) enter(ctx context.Context, n int64) error {
	if s.err != nil {
		return s.err
	}
	if ctx == nil {
		return argument.Nil("context")
	}
	if err := checkCount(n, 0, MaxGrant); err != nil {
		return err
	}
	return s.client.admit(ctx, "acquire", s.name)
}

// grantOf returns the result for the caller of a request: a Grant, unless err says that it was not granted.
func (s *Semaphore) grantOf(r *acquireRequest, err error) (*Grant, error) {
	if err != nil {
		return nil, err
	}
	return s.newGrant(r)
}

// report reports the outcome of a request.
func (s *Semaphore) report(r *acquireRequest, g *Grant, err error) {
	monitor := &s.client.monitor
	switch {
	case err == nil:
		monitor.acquired(&r.acquisition, &g.held)
		return
	case errors.Is(err, ErrNoPermits):
		monitor.contended(s.object(), &r.acquisition)
	}
	monitor.failed(s.object(), &r.acquisition, err)
}

// newGrant returns the Grant of a request that was granted.
func (s *Semaphore) newGrant(r *acquireRequest) (*Grant, error) {
	c := s.client
	g := &Grant{held{
		Hold:   hold.Hold{Client: &c.holding},
		client: c, name: s.name, fair: s.fair, madeAt: c.monitor.clock.Now(),
		ids: r.ids, token: r.token, ttl: r.lease, ambiguous: r.ambiguous,
	}}
	h := &g.held
	if err := h.start(s.config.renew, r.sentAt); err != nil {
		c.releaseAbandoned(s.name, s.fair, r)
		return nil, operationError("acquire", s.name, err)
	}
	c.addHeld(h)
	if h.Err() != nil { // lost before it was added
		h.Drop()
	}
	return g, nil
}

// emptyGrant returns a grant of no permits.
func (s *Semaphore) emptyGrant() *Grant {
	return &Grant{held{client: s.client, name: s.name, fair: s.fair, unlimited: new(conventions.End)}}
}

// ReleaseIDs releases permits by their ids, as Grant.IDs and Redisson report them, for example on behalf of
// another process. It releases all of them or none: the error matches ErrNotHeld if an id is malformed or
// unknown, is given twice or has expired. Without ids it does nothing. The holder learns of the loss at its
// next renewal. To release a grant of this process, use Grant.Release, which also ends its renewal.
//
// ReleaseIDs blocks for one round trip, at most until ctx ends. After an error of ctx or of the connection the
// permits may have been released; a second call may then return ErrNotHeld.
func (s *Semaphore) ReleaseIDs(ctx context.Context, ids ...string) error {
	if s.err != nil {
		return s.err
	}
	raw, err := parseIDs(ids)
	if err != nil || len(raw) == 0 {
		return err
	}
	c := s.client
	r, err := c.call(ctx, "release", s.name, func() scripts.Call {
		args := appendIDs([]any{c.redis.Channels.Verb(), s.keys.channel, 1, c.idleMillis}, raw)
		return scripts.PermitRelease.Call([]string{s.keys.permits, s.keys.leases}, args...)
	})
	if err != nil {
		return err
	}
	removed, err := r.Flags(len(raw))
	if err != nil {
		return operationError("release", s.name, err)
	}
	if !removed[0] && !r.Ambiguous { // else an earlier copy of the call has released them
		return fmt.Errorf("%w: %s: %d permits", ErrNotHeld, scripts.Quote(s.name), len(ids))
	}
	return nil
}

// TrySetPermits sets the number of permits to n, 0 to MaxPermits, if it is not set, and reports whether it did. The
// number includes held permits, unlike that of a CountingSemaphore. The semaphore does not expire, unless the Client
// has WithIdleExpiry. Remaining leases of an earlier semaphore of that name end. TrySetPermits blocks for one round
// trip, at most until ctx ends. After an error of ctx or of the connection the number may have been set.
func (s *Semaphore) TrySetPermits(ctx context.Context, n int64) (bool, error) {
	if err := checkCount(n, 0, MaxPermits); err != nil {
		return false, err
	}
	return s.edit(ctx, "try", n)
}

// SetPermits sets the number of permits to n, 0 to MaxPermits, including those that are held, also if it is
// not set yet. It does not end grants: while more than n permits are held, Available is negative.
// SetPermits blocks for one round trip, at most until ctx ends. After an error of ctx or of the connection
// the number may have been set.
func (s *Semaphore) SetPermits(ctx context.Context, n int64) error {
	if err := checkCount(n, 0, MaxPermits); err != nil {
		return err
	}
	_, err := s.edit(ctx, "set", n)
	return err
}

// AddPermits adds n, -MaxPermits to MaxPermits, to the number of permits, held ones included, or sets it to n if it is
// not set.
// The sum may exceed MaxPermits, or be negative. It does not end grants: the number of free permits may
// become negative. AddPermits blocks for one round trip, at most until ctx ends. After an error of ctx or
// of the connection the permits may have been added; a second call may add them twice.
func (s *Semaphore) AddPermits(ctx context.Context, n int64) error {
	if err := checkCount(n, -MaxPermits, MaxPermits); err != nil {
		return err
	}
	_, err := s.edit(ctx, "add", n)
	return err
}

// edit runs a script that takes effect once per record key.
func (s *Semaphore) edit(ctx context.Context, op string, n int64) (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	c := s.client
	scriptKeys := []string{s.keys.permits, s.keys.leases, c.recordKey(s.name), permitsKey(s.name, !s.fair)}
	r, err := c.call(ctx, op+" permits", s.name, func() scripts.Call {
		verb := c.redis.Channels.Verb()
		return scripts.PermitEdit.Call(scriptKeys, op, n, verb, s.keys.channel, recordMillis, c.idleMillis)
	})
	if err != nil {
		return false, err
	}
	done, err := r.Flag()
	if err != nil {
		return false, operationError(op+" permits", s.name, err)
	}
	return done, nil
}

// Delete deletes the semaphore and reports whether its permits were set. Callers that wait for its permits,
// in any process, fail with ErrNotSet; those that name a number of permits set it again. Holders learn of the loss
// at their next renewal, within a third of their lease, and those without renewal at their Deadline. Until
// then they rely on their permits, although TrySetPermits may have set new ones: delete a semaphore only when
// it is not in use. A record of the call stays in Redis for a minute, and the last token for a day, so that
// tokens continue to rise.
//
// Delete blocks for one round trip, at most until ctx ends. After an error of ctx or of the connection the
// semaphore may have been deleted.
func (s *Semaphore) Delete(ctx context.Context) (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	existed, err := s.client.deleteKeys(ctx, s.name, s.keys.permits, s.keys.channel, s.keys.leases)
	if err == nil {
		s.queue().Kick(s.name)
	}
	return existed, err
}

// Available returns the number of free permits: 0 if the number of permits is not set, and a negative
// number if more are held than exist. It reclaims expired permits, for which it writes (SET, ZREMRANGEBYSCORE);
// State only reads. It blocks for one round trip, at most until ctx ends.
func (s *Semaphore) Available(ctx context.Context) (int64, error) {
	if s.err != nil {
		return 0, s.err
	}
	r, err := s.client.call(ctx, "available", s.name, func() scripts.Call {
		scriptKeys := []string{s.keys.permits, s.keys.leases}
		return scripts.PermitState.Call(scriptKeys, s.client.redis.Channels.Verb(), s.keys.channel)
	})
	if err != nil {
		return 0, err
	}
	free, err := r.Integer()
	if err == nil && !isCount(free) {
		err = r.Unexpected()
	}
	if err != nil {
		return 0, operationError("available", s.name, err)
	}
	return free, nil
}

// UpdateLease makes a permit expire d from now, 1 ms to 365 days, whichever process holds it. Unlike Grant.Extend, it
// may shorten the lease. The holder is not notified: if the lease has ended by its next renewal, that renewal notices
// the loss, and Grant.Valid is true until then; otherwise the renewal may prolong the lease again. The error matches
// ErrNotHeld if the id is malformed or unknown, or has expired. UpdateLease blocks for one round trip, at most until
// ctx ends. After an error of ctx or of the connection the lease may have been changed.
func (s *Semaphore) UpdateLease(ctx context.Context, id string, d time.Duration) error {
	if s.err != nil {
		return s.err
	}
	if err := checkLease("lease", d); err != nil {
		return err
	}
	raw, err := parseIDs([]string{id})
	if err != nil {
		return err
	}
	c := s.client
	r, err := c.call(ctx, "update lease", s.name, func() scripts.Call {
		scriptKeys := c.renewalKeys(s.name, s.fair)
		return scripts.PermitRenew.Call(scriptKeys, "XX", c.idleMillis, redisconn.Millis(d), 1, raw[0])
	})
	if err != nil {
		return err
	}
	held, err := r.Flags(1)
	switch {
	case err != nil:
		return operationError("update lease", s.name, err)
	case !held[0]:
		return fmt.Errorf("%w: %s: %s", ErrNotHeld, scripts.Quote(s.name), id)
	}
	return nil
}

func parseIDs(ids []string) ([]string, error) {
	raw := make([]string, len(ids))
	for i, id := range ids {
		b, err := hex.DecodeString(id)
		if err != nil || len(b) != idLen {
			return nil, fmt.Errorf("%w: %w", ErrNotHeld,
				argument.Error("id", fmt.Sprintf("%.40q", id), "must be 32 hex digits"))
		}
		raw[i] = string(b)
	}
	return raw, nil
}
