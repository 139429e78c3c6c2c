package semaphore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// Forever is the Permit.Lease of a permit that never expires.
const Forever time.Duration = -1

// Leased is a semaphore whose permits have ids and leases. When a holder dies, its permits become free at
// the end of their lease. Leased is Redisson's RPermitExpirableSemaphore with renewal.
//
// A Leased holds no state: all Leased values of one name that the same constructor returned are the same
// semaphore. It is safe for concurrent use.
type Leased struct {
	client *Client
	name   string
	fair   bool
	config leasedConfig
	keys   keys
	err    error // of the name or an option
}

// Leased returns the leased semaphore with the given name. It does not talk to Redis. The keys in Redis are
// Redisson's: services in Java that call getPermitExpirableSemaphore(name) share the permits. Names are as
// for CountingSemaphore.
//
// Do not use one name for a CountingSemaphore and a Leased. Both store the number of free permits under that name,
// and Redis cannot tell them apart, so that each would ignore the permits that the other has granted. A
// Leased and a FairLeased of one name are different semaphores; setting the permits of the second fails
// with ErrWrongKind.
func (c *Client) Leased(name string, opts ...LeasedOption) *Leased {
	return c.newLeased(name, false, opts)
}

// FairLeased returns the leased semaphore with the given name that grants the requests of all processes
// strictly in the order in which they reach Redis. A release assigns the permits to the first request and
// wakes its process only. FairLeased does not talk to Redis.
//
// A process that dies or cannot reach Redis loses its turn: its requests, and permits that were assigned to
// them, expire three poll intervals and a second after it last asked (see WithPoll).
//
// The keys in Redis are {name}:fair:*, which neither Redisson nor Leased uses. Names and options are as for
// Leased.
func (c *Client) FairLeased(name string, opts ...LeasedOption) *Leased {
	return c.newLeased(name, true, opts)
}

func (c *Client) newLeased(name string, fair bool, opts []LeasedOption) *Leased {
	l := &Leased{client: c, name: name, fair: fair}
	if l.err = checkName(name); l.err == nil {
		l.config, l.err = newLeasedConfig(opts)
		if l.err == nil {
			l.err = c.checkLease("WithLease", l.config.lease)
		}
		l.keys = keysOf(name, fair)
	}
	return l
}

// Name returns the name of the semaphore.
func (l *Leased) Name() string { return l.name }

// Err returns the *cogwheel.InvalidError of a bad name or option, or nil.
func (l *Leased) Err() error { return l.err }

// Acquire takes n permits, 0 to MaxGrant, and blocks until they are free or ctx ends. The grant does not
// end with ctx. Acquire grants n 0 at once, without asking Redis. Requests of one process are granted in
// order; with FairLeased, those of all processes are.
//
// The error matches ErrNotSet, ErrExceedsPermits, ErrClosed, ErrWrongKind or cogwheel.ErrInvalid, or is an
// error of ctx or Redis. After an error the caller holds nothing: permits that were granted by a lost reply
// are released in the background, and end with their lease at the latest.
//
// All waiters of a semaphore in one process share one wheel entry, one subscription and one script per query.
// They ask when permits are announced, when their subscription was interrupted, when the next lease ends, and
// at their poll.
func (l *Leased) Acquire(ctx context.Context, n int64) (*Grant, error) {
	return l.acquire(ctx, n, l.queue().Wait)
}

// TryAcquire takes n permits if they are free, and otherwise returns an error that matches ErrNoPermits. It
// blocks for one round trip, which concurrent calls share. While other callers of this process wait, or
// other processes wait for a FairLeased, TryAcquire does not overtake them and fails.
func (l *Leased) TryAcquire(ctx context.Context, n int64) (*Grant, error) {
	try := func(ctx context.Context, name string, r *acquireRequest) (*acquireRequest, error) {
		r.noWait = true
		return l.queue().Try(ctx, name, r)
	}
	return l.acquire(ctx, n, try)
}

// AcquireFunc is like Acquire but does not block: it calls f exactly once, on a goroutine of its own, with
// the results that Acquire would return. No goroutine runs while it waits.
//
// cancel ends the wait, and f is called with an error that matches context.Canceled. After the wait has
// ended, cancel does nothing. AcquireFunc panics if f is nil.
func (l *Leased) AcquireFunc(ctx context.Context, n int64, f func(*Grant, error)) (cancel func()) {
	mustCall(f == nil)
	c := l.client
	a, err := l.begin(ctx, n)
	if err != nil {
		go f(nil, err)
		return func() {}
	}
	if n == 0 {
		c.gate.Leave()
		go f(l.emptyGrant(), nil)
		return func() {}
	}
	r := newAcquireRequest(a, l.config.lease)
	finish := func(err error) (*Grant, error) { return l.finish(r, err) }
	return acquireFunc(ctx, c, l.queue(), l.name, r, finish, f)
}

func (l *Leased) queue() *waitqueue.Group[string, *acquireRequest] {
	if l.fair {
		return l.client.fair
	}
	return l.client.leased
}

func (l *Leased) acquire(
	ctx context.Context, n int64,
	wait func(context.Context, string, *acquireRequest) (*acquireRequest, error),
) (*Grant, error) {
	a, err := l.begin(ctx, n)
	if err != nil {
		return nil, err
	}
	defer l.client.gate.Leave()
	if n == 0 {
		return l.emptyGrant(), nil
	}
	r := newAcquireRequest(a, l.config.lease)
	_, err = wait(ctx, l.name, r)
	return l.finish(r, acquireError(ctx, l.name, err))
}

// begin checks a request and enters the gate.
func (l *Leased) begin(ctx context.Context, n int64) (acquisition, error) {
	a := acquisition{ctx: ctx, n: n, began: l.client.monitor.now()}
	err := l.enter(ctx, n)
	if err != nil {
		l.client.monitor.refused(&l.client.gate, l.object(), &a, err)
	}
	return a, err
}

func (l *Leased) object() object { return object{kindOf(l.fair), l.name} }

func (l *Leased) enter(ctx context.Context, n int64) error {
	if l.err != nil {
		return l.err
	}
	if ctx == nil {
		return argument.Nil("context")
	}
	if err := checkCount(n, 0, MaxGrant); err != nil {
		return err
	}
	return l.client.begin(ctx, "acquire", l.name)
}

// finish returns what the caller of a request gets: a Grant, unless err says that it was not granted.
func (l *Leased) finish(r *acquireRequest, err error) (*Grant, error) {
	var g *Grant
	if err == nil {
		g, err = l.newGrant(r)
	}
	monitor := &l.client.monitor
	if err == nil {
		monitor.acquired(&r.acquisition, g)
		return g, nil
	}
	if errors.Is(err, ErrNoPermits) {
		monitor.contended(l.object(), &r.acquisition)
	}
	monitor.failed(l.object(), &r.acquisition, err)
	return nil, err
}

// newGrant returns the Grant of a request that was granted.
func (l *Leased) newGrant(r *acquireRequest) (*Grant, error) {
	c := l.client
	g := &Grant{
		client: c, name: l.name, fair: l.fair, madeAt: c.monitor.now(),
		ids: r.ids, token: r.token, ttl: r.lease, ambiguous: r.ambiguous,
	}
	if err := g.startLease(l.config.renew, r.sentAt); err != nil {
		l.client.releaseAbandoned(l.name, g.fair, r)
		return nil, operationError("acquire", l.name, err)
	}
	l.client.addGrant(g)
	if g.Err() != nil { // lost before it was added
		l.client.removeGrant(g)
	}
	return g, nil
}

// emptyGrant returns a grant of no permits.
func (l *Leased) emptyGrant() *Grant {
	return &Grant{client: l.client, name: l.name, lease: newUnlimitedLease()}
}

// Release releases permits by their ids, as Grant.IDs and Redisson report them. It releases all of them, or
// none: it returns an error that matches ErrNotHeld if an id is unknown or has expired. Release the grants of
// this process by Grant.Release, which also ends their renewal. Release blocks for one round trip, at most
// until ctx ends. After an error of ctx or of the connection the permits may have been released; repeating
// the call may then return ErrNotHeld.
func (l *Leased) Release(ctx context.Context, ids ...string) error {
	if l.err != nil {
		return l.err
	}
	raw, err := parseIDs(ids)
	if err != nil || len(raw) == 0 {
		return err
	}
	args := appendIDs([]any{publishVerb, l.keys.channel, 1, l.client.idleMillis}, raw)
	scriptKeys := []string{l.keys.permits, l.keys.leases}
	r, err := l.client.call(ctx, "release", l.name, scripts.PermitRelease, scriptKeys, args...)
	if err != nil {
		return err
	}
	l.assignFreePermits()
	removed, err := r.Flags(len(raw))
	if err != nil {
		return operationError("release", l.name, err)
	}
	if !removed[0] && !r.Ambiguous { // otherwise an earlier copy of the call has released them
		return fmt.Errorf("%w: %s: %d permits", ErrNotHeld, scripts.Quote(l.name), len(ids))
	}
	return nil
}

// TrySetPermits sets the number of permits, 0 to MaxPermits, if it has never been set, and reports whether it
// did. The semaphore does not expire unless the Client has WithIdleExpiry. Remaining leases of an earlier
// semaphore of that name end. TrySetPermits blocks for one round trip, at most until ctx ends. After an error
// of ctx or of the connection the change may have been made.
func (l *Leased) TrySetPermits(ctx context.Context, n int64) (bool, error) {
	if err := checkCount(n, 0, MaxPermits); err != nil {
		return false, err
	}
	return l.edit(ctx, "try", n)
}

// SetPermits sets the number of permits, 0 to MaxPermits, including those that are held. It does not end
// grants: while more than n permits are held, Available is negative. SetPermits blocks for one round trip, at
// most until ctx ends. After an error of ctx or of the connection the change may have been made.
func (l *Leased) SetPermits(ctx context.Context, n int64) error {
	if err := checkCount(n, 0, MaxPermits); err != nil {
		return err
	}
	_, err := l.edit(ctx, "set", n)
	return err
}

// AddPermits adds n to the number of permits, -MaxPermits to MaxPermits. It blocks for one round trip, at
// most until ctx ends. After an error of ctx or of the connection the permits may have been added; a second
// call may add them twice.
func (l *Leased) AddPermits(ctx context.Context, n int64) error {
	if err := checkCount(n, -MaxPermits, MaxPermits); err != nil {
		return err
	}
	_, err := l.edit(ctx, "add", n)
	return err
}

// edit runs a script that takes effect once per record key.
func (l *Leased) edit(ctx context.Context, op string, n int64) (bool, error) {
	if l.err != nil {
		return false, l.err
	}
	scriptKeys := []string{
		l.keys.permits, l.keys.leases, l.client.recordKey(l.name), keysOf(l.name, !l.fair).permits,
	}
	r, err := l.client.call(ctx, op+" permits", l.name, scripts.PermitEdit, scriptKeys,
		op, n, publishVerb, l.keys.channel, recordMillis, l.client.idleMillis)
	if err != nil {
		return false, err
	}
	l.assignFreePermits()
	done, err := r.Flag()
	if err != nil {
		return false, operationError(op+" permits", l.name, err)
	}
	return done, nil
}

// Delete deletes the semaphore and reports whether its permits were set. Callers that wait for permits, in any
// process, fail with ErrNotSet. Holders learn of the loss at their next renewal, after a third of their lease
// at the latest. Until then they rely on their permits, although TrySetPermits may have set new ones: delete a
// semaphore that is not in use. A record of the call stays in Redis for a minute, and the last token for a
// day, so that tokens go on to rise.
//
// Delete blocks for one round trip, at most until ctx ends. After an error of ctx or of the connection the
// semaphore may have been deleted.
func (l *Leased) Delete(ctx context.Context) (bool, error) {
	if l.err != nil {
		return false, l.err
	}
	others := []string{l.keys.leases}
	if l.fair {
		others = append(others, fairKey(l.name, "queue"), fairKey(l.name, "alive"), fairKey(l.name, "needs"))
	}
	existed, err := l.client.deleteKeys(ctx, l.name, l.keys.permits, l.keys.channel, l.fair, others...)
	if err == nil {
		l.queue().Kick(l.name)
	}
	return existed, err
}

// assignFreePermits assigns free permits of a fair semaphore to its waiters, in the background.
func (l *Leased) assignFreePermits() {
	if l.fair {
		l.client.cleanup.Add(pendingRelease{name: l.name, fair: true}, 0, retryTimeout, false)
	}
}

// Available returns the number of free permits, or 0 if it was never set. It reclaims expired permits. It
// blocks for one round trip.
func (l *Leased) Available(ctx context.Context) (int64, error) {
	if l.err != nil {
		return 0, l.err
	}
	scriptKeys := []string{l.keys.permits, l.keys.leases}
	r, err := l.client.call(ctx, "available", l.name, scripts.PermitState, scriptKeys, publishVerb, l.keys.channel)
	if err != nil {
		return 0, err
	}
	free, err := r.Integer()
	if err == nil && !isCount(free) {
		err = r.Unexpected()
	}
	if err != nil {
		return 0, operationError("available", l.name, err)
	}
	return free, nil
}

// UpdateLease sets the time until a permit expires to d from now, 1 ms to 365 days, for a permit of any
// process. Unlike Grant.Extend, it may shorten the lease. The error matches ErrNotHeld for an id that is
// unknown or has expired. UpdateLease blocks for one round trip, at most until ctx ends. After an error of
// ctx or of the connection the change may have been made.
func (l *Leased) UpdateLease(ctx context.Context, id string, d time.Duration) error {
	if l.err != nil {
		return l.err
	}
	if err := checkLease("lease", d); err != nil {
		return err
	}
	raw, err := parseIDs([]string{id})
	if err != nil {
		return err
	}
	r, err := l.client.call(ctx, "update lease", l.name, scripts.PermitRenew, l.client.renewalKeys(l.name, l.fair),
		"XX", l.client.idleMillis, redisconn.Millis(d), 1, raw[0])
	if err != nil {
		return err
	}
	held, err := r.Flags(1)
	switch {
	case err != nil:
		return operationError("update lease", l.name, err)
	case !held[0]:
		return fmt.Errorf("%w: %s: %s", ErrNotHeld, scripts.Quote(l.name), id)
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
