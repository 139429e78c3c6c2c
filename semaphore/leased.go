package semaphore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/joined"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// Forever is the LeaseTime of a permit that never expires.
const Forever time.Duration = -1

// Leased is a semaphore whose permits have ids and leases: those of a holder that died come back by themselves. It is Redisson's
// RPermitExpirableSemaphore with a watchdog. It is safe for concurrent use and holds no state: any number of Leased values that the same
// constructor made for one name are the same semaphore.
type Leased struct {
	client *Client
	name   string
	fair   bool
	config leasedConfig
	keys   keys
	err    error // of the name or an option
}

// keys of one leased semaphore.
type keys struct{ permits, leases, fence, channel string }

func keysOf(name string, fair bool) keys {
	if fair {
		return keys{
			permits: scripts.SuffixName(name, "fair:permits"), leases: scripts.SuffixName(name, "fair:leases"),
			fence: scripts.SuffixName(name, "fair:fence"), channel: scripts.PrefixName("cogwheel_fair", name),
		}
	}
	return keys{
		permits: name, leases: scripts.SuffixName(name, "timeout"),
		fence: scripts.SuffixName(name, "fence"), channel: scripts.SemChannel(name),
	}
}

// Leased returns the leased semaphore of that name. It does not talk to Redis. The keys in Redis are Redisson's: services in Java that use
// getPermitExpirableSemaphore(name) share the permits. Names are those of Semaphore.
//
// A Semaphore and a Leased must not have the same name: both count in the key of that name, and Redis cannot tell one from the other, so
// that what the one grants the other does not see. A FairLeased of the same name is another semaphore. Whichever of the two is set
// second is refused with ErrWrongKind.
func (c *Client) Leased(name string, opts ...LeasedOption) *Leased {
	return c.newLeased(name, false, opts)
}

// FairLeased returns the leased semaphore of that name that serves the requests of all processes strictly in the order in which they
// reached Redis: a release assigns the permits to the request that came first, and wakes that process alone. It does not talk to
// Redis. A request of a process that died or cannot reach Redis is passed over three poll intervals and a second after its last
// look (see WithPoll), also if permits have been assigned to it meanwhile.
//
// It has keys of its own, {name}:fair:*, which neither Redisson nor Leased uses. Names and options are those of Leased.
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

// Name returns the name.
func (l *Leased) Name() string { return l.name }

// Err returns the *InvalidError of a bad name or option, which every method returns too, or nil.
func (l *Leased) Err() error { return l.err }

// Acquire takes n permits, 0 to MaxGrant, waiting until they are free. ctx bounds the wait; the grant outlives it. n 0 succeeds at once
// without asking Redis. Requests of one process are served in their order; those of a FairLeased of all processes are.
//
// The error matches ErrNotSet, ErrExceedsPermits, ErrClosed, ErrWrongKind, ErrInvalid, or is that of ctx or of Redis. After an error
// nothing is held: what a lost reply granted is given back in the background, and ends with its lease at the latest.
//
// While it waits, Acquire costs its goroutine; all waiters of a semaphore in this process share one wheel entry, one
// subscription and one script per look. They look again when permits are announced, after an interruption of the subscription, when the
// nearest lease ends, and every few seconds in any case.
func (l *Leased) Acquire(ctx context.Context, n int64) (*Grant, error) {
	return l.acquire(ctx, n, l.queue().Wait)
}

// TryAcquire takes n permits if they are free, and fails with ErrNoPermits otherwise. It blocks for one round trip, which it shares
// with others that come at the same time. It does not overtake: while others wait before it, it fails.
func (l *Leased) TryAcquire(ctx context.Context, n int64) (*Grant, error) {
	g, err := l.acquire(ctx, n, func(ctx context.Context, name string, r *request) (*request, error) {
		r.once = true
		return l.queue().Try(ctx, name, r)
	})
	if errors.Is(err, waitqueue.ErrNotServed) {
		return nil, fmt.Errorf("%w: %s", ErrNoPermits, scripts.Quote(l.name))
	}
	return g, err
}

// AcquireFunc is Acquire without a goroutine while it waits: f is called exactly once, on a goroutine of its own, with what Acquire
// would have returned. cancel ends the wait, and calls f with an error that matches context.Canceled, unless it is decided
// already.
func (l *Leased) AcquireFunc(ctx context.Context, n int64, f func(*Grant, error)) (cancel func()) {
	mustCall(f == nil)
	c := l.client
	never := func() {}
	err := l.check(ctx, n)
	if err == nil {
		err = c.begin(ctx, "acquire", l.name)
	}
	if err != nil {
		go f(nil, err)
		return never
	}
	if n == 0 {
		c.gate.Leave()
		go f(l.nothing(), nil)
		return never
	}
	stop := l.queue().WaitFunc(ctx, l.name, newRequest(n, l.config.lease), func(r *request, err error) {
		g, err := l.granted(ctx, r, err)
		c.gate.Leave()
		f(g, err)
	})
	return func() {
		if stop() {
			c.gate.Leave()
			go f(nil, operationError("acquire", l.name, context.Canceled))
		}
	}
}

func (l *Leased) queue() *waitqueue.Group[string, *request] {
	if l.fair {
		return l.client.fair
	}
	return l.client.leased
}

func (l *Leased) acquire(ctx context.Context, n int64, wait func(context.Context, string, *request) (*request, error)) (*Grant, error) {
	if err := l.check(ctx, n); err != nil {
		return nil, err
	}
	if err := l.client.begin(ctx, "acquire", l.name); err != nil {
		return nil, err
	}
	defer l.client.gate.Leave()
	if n == 0 {
		return l.nothing(), nil
	}
	r, err := wait(ctx, l.name, newRequest(n, l.config.lease))
	return l.granted(ctx, r, err)
}

func (l *Leased) check(ctx context.Context, n int64) error {
	switch {
	case l.err != nil:
		return l.err
	case ctx == nil:
		return argument.Nil("context")
	case n < 0 || n > MaxGrant:
		return argument.Error("n", n, "must be 0 to 10000")
	}
	return nil
}

// Release gives back permits by their ids, as Grant.IDs or Redisson report them: all of them, or none and ErrNotHeld if
// one is unknown or has expired. Grants of this process are released by Grant.Release, which also ends their renewal.
func (l *Leased) Release(ctx context.Context, ids ...string) error {
	if l.err != nil {
		return l.err
	}
	raw, err := parseIDs(ids)
	if err != nil || len(raw) == 0 {
		return err
	}
	args := []any{publish, l.keys.channel, 1}
	for _, id := range raw {
		args = append(args, id)
	}
	ks := []string{l.keys.permits, l.keys.leases}
	r, err := l.client.call(ctx, "release", l.name, scripts.PermitRelease, ks, args...)
	if err != nil {
		return err
	}
	l.nudge()
	removed, err := r.Int64Slice()
	if err != nil {
		return operationError("release", l.name, err)
	}
	if removed[0] == 0 && !r.Ambiguous { // an unanswered first copy has released them
		return fmt.Errorf("%w: %s: %d permits", ErrNotHeld, scripts.Quote(l.name), len(ids))
	}
	return nil
}

// TrySetPermits sets the number of permits, 0 to MaxPermits, if it was never set, and reports whether it did. With a ttl, up to 365 days, the
// semaphore disappears after that time, and its permits are lost; without one, or with 0, it stays. It blocks for one round trip.
func (l *Leased) TrySetPermits(ctx context.Context, n int64, ttl ...time.Duration) (bool, error) {
	if n < 0 || n > MaxPermits {
		return false, argument.Error("n", n, "must be 0 to 2147483647")
	}
	expiry, err := checkTTL(ttl)
	if err != nil {
		return false, err
	}
	return l.edit(ctx, "try", n, expiry)
}

// SetPermits sets the number of permits, 0 to MaxPermits, held ones included. If more are held, nobody loses any: Available is below
// 0 until enough have been released. It blocks for one round trip.
func (l *Leased) SetPermits(ctx context.Context, n int64) error {
	if n < 0 || n > MaxPermits {
		return argument.Error("n", n, "must be 0 to 2147483647")
	}
	_, err := l.edit(ctx, "set", n, 0)
	return err
}

// AddPermits changes the number of permits by n, which may be negative. It blocks for one round trip.
func (l *Leased) AddPermits(ctx context.Context, n int64) error {
	if n < -MaxPermits || n > MaxPermits {
		return argument.Error("n", n, "must be -2147483647 to 2147483647")
	}
	_, err := l.edit(ctx, "add", n, 0)
	return err
}

// Available is the number of free permits, 0 if they were never set. It takes back what has expired. It blocks for one round trip.
func (l *Leased) Available(ctx context.Context) (int64, error) {
	v, err := l.state(ctx, "available")
	return v[1], err
}

// Acquired is the number of permits that are held. It blocks for one round trip.
func (l *Leased) Acquired(ctx context.Context) (int64, error) {
	v, err := l.state(ctx, "acquired")
	return v[2], err
}

// Total is the number of permits, held or free. It blocks for one round trip.
func (l *Leased) Total(ctx context.Context) (int64, error) {
	v, err := l.state(ctx, "total")
	return v[1] + v[2], err
}

// LeaseTime is the time until the permit expires unless it is renewed, or Forever. It is ErrNotHeld for an id that is unknown or has
// expired. It blocks for one round trip.
func (l *Leased) LeaseTime(ctx context.Context, id string) (time.Duration, error) {
	raw, err := parseIDs([]string{id})
	if err != nil {
		return 0, err
	}
	v, err := l.state(ctx, "lease time", raw[0])
	switch {
	case err != nil:
		return 0, err
	case v[3] == -2:
		return 0, fmt.Errorf("%w: %s: %s", ErrNotHeld, scripts.Quote(l.name), id)
	case v[3] == -1:
		return Forever, nil
	}
	return time.Duration(v[3]) * time.Millisecond, nil
}

// UpdateLease sets the time until the permit expires, 1 ms to 365 days from now, whoever holds it. It is ErrNotHeld for an id that
// is unknown or has expired. Unlike Grant.Extend, which is for grants of this process, it may make the time shorter. It blocks for one
// round trip.
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
	r, err := l.client.call(ctx, "update lease", l.name, scripts.PermitRenew, []string{l.keys.leases}, "XX", calls.Millis(d), 1, raw[0])
	if err != nil {
		return err
	}
	if held, err := r.Int64Slice(); err != nil || held[0] == 0 {
		return joined.Errors(fmt.Errorf("%w: %s: %s", ErrNotHeld, scripts.Quote(l.name), id), err)
	}
	return nil
}

func (l *Leased) edit(ctx context.Context, op string, n int64, ttl time.Duration) (bool, error) {
	if l.err != nil {
		return false, l.err
	}
	ks := []string{l.keys.permits, l.keys.leases, l.client.record(l.name), keysOf(l.name, !l.fair).permits}
	r, err := l.client.call(ctx, op+" permits", l.name, scripts.PermitEdit, ks,
		op, n, publish, l.keys.channel, recordMillis, calls.Millis(ttl))
	if err != nil {
		return false, err
	}
	l.nudge()
	done, err := r.Int64()
	return done == 1, err
}

func (l *Leased) state(ctx context.Context, operation string, id ...any) (v [4]int64, err error) {
	if l.err != nil {
		return v, l.err
	}
	ks := []string{l.keys.permits, l.keys.leases}
	r, err := l.client.call(ctx, operation, l.name, scripts.PermitState, ks, append([]any{publish, l.keys.channel}, id...)...)
	if err != nil {
		return v, err
	}
	got, err := r.Int64Slice()
	if err != nil || len(got) != len(v) {
		return v, operationError(operation, l.name, fmt.Errorf("unexpected reply %v: %w", got, err))
	}
	return [4]int64(got), nil
}

// nudge has the permits of a fair semaphore assigned that have just become free.
func (l *Leased) nudge() {
	if l.fair {
		l.client.cleanup.Add(pendingRelease{name: l.name, fair: true}, 0, lateFor, false)
	}
}

func parseIDs(ids []string) ([]string, error) {
	raw := make([]string, len(ids))
	for i, id := range ids {
		b, err := hex.DecodeString(id)
		if err != nil || len(b) != 16 {
			return nil, fmt.Errorf("%w: %w", ErrNotHeld, argument.Error("id", fmt.Sprintf("%.40q", id), "must be 32 hex digits"))
		}
		raw[i] = string(b)
	}
	return raw, nil
}
