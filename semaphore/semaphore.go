package semaphore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// Semaphore is a counting semaphore: a number of free permits, which anybody takes and adds. It is Redisson's RSemaphore.
// Nobody knows who holds what, so permits of a process that died are gone; see Leased for permits that come back. It is safe
// for concurrent use and holds no state: any number of Semaphore values of one name are the same semaphore.
type Semaphore struct {
	client *Client
	name   string
	config semaphoreConfig
	err    error // of the name or an option
}

// Semaphore returns the counting semaphore of that name. It does not talk to Redis. The key in Redis is the name itself, as
// Redisson has it: services in Java that use getSemaphore(name) share the permits.
//
// A name is any 1 to 65536 bytes whose derived keys share a cluster slot: if it contains a brace, it must contain a
// hash tag such as {user:7}. A bad name or option is reported by every method as an *InvalidError.
func (c *Client) Semaphore(name string, opts ...SemaphoreOption) *Semaphore {
	s := &Semaphore{client: c, name: name}
	if s.err = checkName(name); s.err == nil {
		s.config, s.err = newSemaphoreConfig(opts)
	}
	return s
}

// Name returns the name.
func (s *Semaphore) Name() string { return s.name }

// Err returns the *InvalidError of a bad name or option, which every method returns too, or nil.
func (s *Semaphore) Err() error { return s.err }

// Acquire takes n permits, waiting until they are free. ctx bounds the wait. n 0 succeeds at once without asking
// Redis. Requests of one process are served in their order, so that a large one is not starved by small ones; there is
// no order among processes.
//
// The error matches ErrNotSet, ErrExceedsPermits, ErrClosed, ErrWrongKind, ErrInvalid, or is that of ctx or of Redis. After an error
// nothing is held: permits that a lost reply granted are given back in the background.
//
// While it waits, Acquire costs its goroutine; all waiters of a semaphore in this process share one wheel entry, one
// subscription and one script per look.
func (s *Semaphore) Acquire(ctx context.Context, n int64) error {
	return s.acquire(ctx, n, s.client.plain.Wait)
}

// TryAcquire takes n permits if they are free, and reports whether it did. It blocks for one round trip, which it shares with others
// that come at the same time. It does not overtake: while others of this process wait, it reports false at once.
func (s *Semaphore) TryAcquire(ctx context.Context, n int64) (bool, error) {
	err := s.acquire(ctx, n, s.client.plain.Try)
	if errors.Is(err, waitqueue.ErrNotServed) {
		return false, nil
	}
	return err == nil, err
}

// AcquireFunc is Acquire without a goroutine while it waits: f is called exactly once, on a goroutine of its own, with what Acquire
// would have returned; after nil the permits are f's to release. cancel ends the wait, and calls f with an error that matches
// context.Canceled, unless it is decided already.
func (s *Semaphore) AcquireFunc(ctx context.Context, n int64, f func(error)) (cancel func()) {
	mustCall(f == nil)
	if done, err := s.check(ctx, n); done {
		go f(err)
		return func() {}
	}
	c := s.client
	if err := c.begin(ctx, "acquire", s.name); err != nil {
		go f(err)
		return func() {}
	}
	stop := c.plain.WaitFunc(ctx, s.name, n, func(_ int64, err error) {
		c.gate.Leave()
		f(s.explain(ctx, err))
	})
	return func() {
		if stop() {
			c.gate.Leave()
			go f(operationError("acquire", s.name, context.Canceled))
		}
	}
}

func (s *Semaphore) acquire(ctx context.Context, n int64, wait func(context.Context, string, int64) (int64, error)) error {
	if done, err := s.check(ctx, n); done {
		return err
	}
	if err := s.client.begin(ctx, "acquire", s.name); err != nil {
		return err
	}
	defer s.client.gate.Leave()
	_, err := wait(ctx, s.name, n)
	return s.explain(ctx, err)
}

// explain adds to an error of the queue what it does not know.
func (s *Semaphore) explain(ctx context.Context, err error) error {
	if err != nil && err == ctx.Err() { //nolint:errorlint // only the bare error of the queue
		return operationError("acquire", s.name, calls.Ended(ctx))
	}
	return err
}

// check reports whether a request can be answered without asking.
func (s *Semaphore) check(ctx context.Context, n int64) (done bool, err error) {
	switch {
	case s.err != nil:
		return true, s.err
	case ctx == nil:
		return true, argument.Nil("context")
	case n < 0 || n > MaxPermits:
		return true, argument.Error("n", n, "must be 0 to 2147483647")
	case s.config.max > 0 && n > s.config.max:
		return true, fmt.Errorf("%w: %s: %d of %d", ErrExceedsPermits, scripts.Quote(s.name), n, s.config.max)
	case n == 0:
		if ctx.Err() != nil {
			return true, operationError("acquire", s.name, calls.Ended(ctx))
		}
		if s.client.gate.Closed() {
			return true, ErrClosed
		}
		return true, nil
	}
	return false, nil
}

// Release adds n permits and wakes those who wait, in all processes. It creates the semaphore where there is none, and adds
// permits that nobody acquired, unless WithMax forbids it (ErrOverRelease). Releases of one process that come at the
// same time share a script. It blocks for one round trip.
//
// A release does not depend on ctx: it is sent even if ctx has ended. If Redis fails to confirm it, or ctx ended a second ago, the
// error matches ErrUnconfirmed; the release then goes on in the background for up to five minutes and takes effect once.
func (s *Semaphore) Release(ctx context.Context, n int64) error {
	_, err := s.release(ctx, n, false)
	return err
}

// ReleaseIfExists is Release for a semaphore that exists, and reports whether it did.
func (s *Semaphore) ReleaseIfExists(ctx context.Context, n int64) (bool, error) {
	return s.release(ctx, n, true)
}

func (s *Semaphore) release(ctx context.Context, n int64, ifExists bool) (bool, error) {
	switch {
	case s.err != nil:
		return false, s.err
	case ctx == nil:
		return false, argument.Nil("context")
	case n < 0 || n > MaxPermits:
		return false, argument.Error("n", n, "must be 0 to 2147483647")
	case n == 0 && !ifExists:
		return false, nil
	}
	if !s.client.gate.Enter() {
		return false, ErrClosed
	}
	defer s.client.gate.Leave()
	code, err := s.client.add(ctx, s.name, &addition{n: n, ifExists: ifExists, max: s.config.max})
	switch {
	case err != nil:
		return false, err
	case code < 0:
		return false, fmt.Errorf("%w: %s: at most %d", ErrOverRelease, scripts.Quote(s.name), s.config.max)
	}
	return code == 1, nil
}

// TrySetPermits sets the number of permits, 0 to MaxPermits, if it was never set, and reports whether it did. With a ttl, up to 365 days, the
// semaphore disappears after that time, whether permits are held or not; without one, or with 0, it stays. It blocks for one round trip.
func (s *Semaphore) TrySetPermits(ctx context.Context, n int64, ttl ...time.Duration) (bool, error) {
	if n < 0 || n > MaxPermits {
		return false, argument.Error("n", n, "must be 0 to 2147483647")
	}
	expiry, err := checkTTL(ttl)
	if err != nil {
		return false, err
	}
	set, err := s.edit(ctx, "set", n, expiry)
	return set == 1, err
}

// checkTTL returns the one ttl that may be given, or 0.
func checkTTL(ttl []time.Duration) (time.Duration, error) {
	switch {
	case len(ttl) == 0:
		return 0, nil
	case len(ttl) > 1:
		return 0, argument.Error("ttl", len(ttl), "must be one")
	case ttl[0] < 0 || ttl[0] > renewal.MaxTTL:
		return 0, argument.Error("ttl", ttl[0], "must be 0 to 8760h")
	}
	return ttl[0], nil
}

// AddPermits changes the number of free permits by n, which may be negative: the permits may then fall below 0, and
// releases first repay the debt. An expiry is kept. It blocks for one round trip.
func (s *Semaphore) AddPermits(ctx context.Context, n int64) error {
	if n < -MaxPermits || n > MaxPermits {
		return argument.Error("n", n, "must be -2147483647 to 2147483647")
	}
	_, err := s.edit(ctx, "add", n, 0)
	return err
}

// Drain takes all free permits and returns how many there were, below 0 if they were owed. It blocks for one round trip.
func (s *Semaphore) Drain(ctx context.Context) (int64, error) { return s.edit(ctx, "drain", 0, 0) }

// Available is the number of free permits, 0 if they were never set, below 0 if they are owed. It blocks for one round trip.
func (s *Semaphore) Available(ctx context.Context) (int64, error) {
	if s.err != nil {
		return 0, s.err
	}
	r, err := s.client.await(ctx, "available", s.name, func() calls.Reply {
		get := redis.NewCmd(context.Background(), "get", s.name)
		_ = s.client.rdb.Process(context.Background(), get) // the error is in the command
		return calls.Reply{Cmd: get}
	})
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := r.Int64()
	if err != nil {
		return 0, fmt.Errorf("%w: available %s: %w", ErrWrongKind, scripts.Quote(s.name), err)
	}
	return n, nil
}

// edit runs a script whose repeated execution under one record changes nothing.
func (s *Semaphore) edit(ctx context.Context, op string, n int64, ttl time.Duration) (int64, error) {
	if s.err != nil {
		return 0, s.err
	}
	keys := []string{s.name, s.client.record(s.name), keysOf(s.name, true).permits}
	r, err := s.client.call(ctx, op+" permits", s.name, scripts.SemEdit, keys,
		op, n, calls.Millis(ttl), publish, scripts.SemChannel(s.name), recordMillis)
	if err != nil {
		return 0, err
	}
	return r.Int64()
}
