package semaphore

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// CountingSemaphore is a semaphore whose permits have no holder: a number of free permits in Redis, which any
// process takes from and adds to. It is Redisson's RSemaphore. Redis does not know who took a permit, so the
// permits of a process that dies are lost for good. Use a Semaphore to get them back.
//
// A CountingSemaphore has no state of its own: all values of one name are the same semaphore. It is safe for
// concurrent use.
type CountingSemaphore struct {
	client *Client
	name   string
	config countingConfig
	err    error // of the name or an option
}

// CountingSemaphore returns the counting semaphore with the given name. It does not talk to Redis. The key in
// Redis is the name, as in Redisson, so services in Java that call getSemaphore(name) share the permits.
//
// A name has 1 to 65536 bytes. A name that contains a brace must contain a hash tag such as {user:7}, because
// all keys of a semaphore must be in one cluster slot. If the name or an option is invalid, Err and all
// methods return a *cogwheel.InvalidError.
func (c *Client) CountingSemaphore(name string, opts ...CountingOption) *CountingSemaphore {
	s := &CountingSemaphore{client: c, name: name}
	if s.err = client.CheckName(argument, name); s.err == nil {
		s.config, s.err = newCountingConfig(opts)
	}
	return s
}

// Name returns the name of the semaphore.
func (s *CountingSemaphore) Name() string { return s.name }

// Err returns the *cogwheel.InvalidError of an invalid name or option, or nil.
func (s *CountingSemaphore) Err() error { return s.err }

// Acquire takes n permits, 0 to MaxPermits. It blocks until n permits are free or ctx ends. For n 0 it
// returns at once, without asking Redis. Requests of one process are granted in order, so small requests do
// not starve a large one. Among processes, the order and the place of large requests are those of
// Semaphore.Acquire.
//
// The error matches ErrNotSet, ErrExceedsPermits (with WithMax), ErrClosed, ErrWrongKind or
// cogwheel.ErrInvalid, or wraps an error of ctx or of Redis. A query that fails, after retries, ends the
// wait, unless Redis has found too few permits before: then Acquire waits on through an outage. After an error
// the caller holds nothing: if Redis granted the permits but its reply was lost, the Client releases them in the
// background.
//
// The waiters of a semaphore in one process share one wheel entry, one subscription and one script per query.
func (s *CountingSemaphore) Acquire(ctx context.Context, n int64) error {
	return s.acquire(ctx, n, s.client.counting.Wait)
}

// TryAcquire takes n permits, 0 to MaxPermits, if they are free. Otherwise it returns an error that matches
// ErrNoPermits, and the caller holds nothing. Its other errors are those of Acquire. TryAcquire blocks for
// one round trip, which concurrent calls share. While callers of this process wait for permits of the
// semaphore, TryAcquire does not overtake them and fails at once. It does not take permits that are kept for
// another process either.
func (s *CountingSemaphore) TryAcquire(ctx context.Context, n int64) error {
	return s.acquire(ctx, n, s.client.counting.Try)
}

// AcquireFunc is Acquire without blocking. It calls f exactly once, on a new goroutine, with the error that
// Acquire would return. If the error is nil, the permits must be released by Release. No goroutine runs while
// the call waits.
//
// cancel ends the wait: f is then called with an error that matches context.Canceled. Once the wait has
// ended, cancel does nothing. A panic of f is logged. AcquireFunc panics with a *cogwheel.InvalidError if f
// is nil.
func (s *CountingSemaphore) AcquireFunc(ctx context.Context, n int64, f func(error)) (cancel func()) {
	argument.MustCall(f == nil)
	c := s.client
	a, err := s.begin(ctx, n)
	if err != nil || n == 0 {
		if err == nil {
			c.gate.Leave()
		}
		go c.monitor.callback(func() { f(err) })
		return func() {}
	}
	settle := func(err error) (struct{}, error) { return struct{}{}, err }
	report := func(_ struct{}, err error) { s.report(&a, err) }
	return acquireFunc(ctx, c, c.counting, s.name, a, settle, report, func(_ struct{}, err error) { f(err) })
}

// report reports the outcome of a call for permits.
func (s *CountingSemaphore) report(a *acquisition, err error) {
	monitor := &s.client.monitor
	switch {
	case err == nil:
		monitor.taken(s.object(), a)
		return
	case errors.Is(err, ErrNoPermits):
		monitor.contended(s.object(), a)
	}
	monitor.failed(s.object(), a, err)
}

func (s *CountingSemaphore) acquire(
	ctx context.Context, n int64, wait func(context.Context, string, acquisition) (acquisition, error),
) error {
	a, err := s.begin(ctx, n)
	if err != nil {
		return err
	}
	defer s.client.gate.Leave()
	if n == 0 {
		return nil
	}
	decided, err := wait(ctx, s.name, a)
	a.contended = decided.contended
	err = acquireError(ctx, s.name, err)
	s.report(&a, err)
	return err
}

// begin checks a request and enters the gate.
func (s *CountingSemaphore) begin(ctx context.Context, n int64) (acquisition, error) {
	a := acquisition{ctx: ctx, n: n, began: s.client.monitor.clock.Now()}
	err := s.enter(ctx, n)
	if err != nil {
		s.client.monitor.refused(&s.client.gate, s.object(), &a, err)
	}
	return a, err
}

func (s *CountingSemaphore) object() object { return object{KindCounting, s.name} }

func (s *CountingSemaphore) enter(ctx context.Context, n int64) error {
	if s.err != nil {
		return s.err
	}
	if ctx == nil {
		return argument.Nil("context")
	}
	if err := checkCount(n, 0, MaxPermits); err != nil {
		return err
	}
	if s.config.max > 0 && n > s.config.max {
		return fmt.Errorf("%w: %s: %d of %d", ErrExceedsPermits, scripts.Quote(s.name), n, s.config.max)
	}
	return s.client.admit(ctx, "acquire", s.name)
}

// Release adds n permits, 0 to MaxPermits, and wakes waiters in all processes. It creates the semaphore if
// it does not exist, with these permits alone, and TrySetPermits then finds it set: use ReleaseIfExists if
// Redis may lose its data. Release cannot tell whether the permits were acquired before; only WithMax limits
// their number (ErrOverRelease). It blocks for one round trip, which concurrent releases share. For n 0 it
// does nothing.
//
// Release sends its command even if ctx has ended. The error matches ErrUnconfirmed if Redis did not
// confirm the release, or did not confirm it within a second after the end of ctx. The Client then retries
// in the background for up to five minutes, or a day if Redis has refused every copy or none was sent, as with a
// wrong password; if it gives up, it logs a warning, and the permits may be lost.
// The release takes effect at most once, and the caller must not repeat it.
func (s *CountingSemaphore) Release(ctx context.Context, n int64) error {
	_, err := s.release(ctx, n, false)
	return err
}

// ReleaseIfExists is Release, except that it does not create the semaphore. It reports whether the
// semaphore existed, also for n 0. If it did not, no permits were added. With an error it reports false.
func (s *CountingSemaphore) ReleaseIfExists(ctx context.Context, n int64) (bool, error) {
	return s.release(ctx, n, true)
}

func (s *CountingSemaphore) release(ctx context.Context, n int64, ifExists bool) (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	if ctx == nil {
		return false, argument.Nil("context")
	}
	if err := checkCount(n, 0, MaxPermits); err != nil {
		return false, err
	}
	if n == 0 && !ifExists {
		return false, nil
	}
	c := s.client
	if !c.gate.Enter() {
		return false, operationError("release", s.name, ErrClosed)
	}
	defer c.gate.Leave()
	began := c.monitor.clock.Now()
	request := &countingRelease{n: n, ifExists: ifExists, max: s.config.max}
	err := queueRelease(ctx, c, c.countingReleases, s.name, request, func(err error) error {
		return releaseError(s.name, err)
	})
	if n > 0 && (errors.Is(err, ErrUnconfirmed) || err == nil && request.result == 1) {
		c.monitor.returned(ctx, s.name, n, c.monitor.clock.Since(began))
	}
	switch {
	case err != nil:
		return false, err
	case request.result < 0:
		return false, fmt.Errorf("%w: %s: at most %d", ErrOverRelease, scripts.Quote(s.name), s.config.max)
	}
	return request.result == 1, nil
}

// TrySetPermits sets the number of free permits to n, 0 to MaxPermits, if the semaphore does not exist, and
// reports whether it did. The semaphore does not expire, unless the Client has WithIdleExpiry. TrySetPermits
// blocks for one round trip, at most until ctx ends. After an error of ctx or of the connection the number
// may have been set.
func (s *CountingSemaphore) TrySetPermits(ctx context.Context, n int64) (bool, error) {
	if err := checkCount(n, 0, MaxPermits); err != nil {
		return false, err
	}
	set, err := s.edit(ctx, "set", n)
	if err == nil && set != 0 && set != 1 {
		err = operationError("set permits", s.name, scripts.Unexpected(set))
	}
	return set == 1, err
}

// AddPermits adds n, -MaxPermits to MaxPermits, to the number of free permits, and creates the semaphore if
// it does not exist. The sum may exceed MaxPermits, or be negative; releases then raise it again. An expiry
// of the key is kept. AddPermits blocks for one round trip, at most until ctx ends. After an error of ctx
// or of the connection the permits may have been added; a second call may add them twice.
func (s *CountingSemaphore) AddPermits(ctx context.Context, n int64) error {
	if err := checkCount(n, -MaxPermits, MaxPermits); err != nil {
		return err
	}
	_, err := s.edit(ctx, "add", n)
	return err
}

// Drain takes all free permits and returns their number. The number of free permits is 0 afterwards, also
// if it was negative (see AddPermits): then the result is negative. The result is 0 if the semaphore does
// not exist; Drain does not create it. Drain blocks for one round trip, at most until ctx ends. After an
// error of ctx or of the connection the permits may have been taken, and their number is unknown.
func (s *CountingSemaphore) Drain(ctx context.Context) (int64, error) { return s.edit(ctx, "drain", 0) }

// edit runs a script that takes effect once per record key.
func (s *CountingSemaphore) edit(ctx context.Context, op string, n int64) (int64, error) {
	if s.err != nil {
		return 0, s.err
	}
	c := s.client
	keys := []string{s.name, c.recordKey(s.name), permitsKey(s.name, true), originKey(s.name)}
	r, err := c.call(ctx, op+" permits", s.name, func() scripts.Call {
		return scripts.SemEdit.Call(keys, op, n,
			c.redis.Channels.Verb(), scripts.SemChannel(s.name), recordMillis, c.idleMillis, sequenceKeyMillis)
	})
	if err != nil {
		return 0, err
	}
	free, err := r.Integer()
	if err != nil {
		return 0, operationError(op+" permits", s.name, err)
	}
	return free, nil
}

// Delete deletes the semaphore and reports whether it existed. Callers that wait for its permits, in any
// process, fail with ErrNotSet.
//
// Redis does not know who holds permits, so delete a semaphore only when nobody does: a later Release creates
// the semaphore again, or adds to one that was set in the meantime. An earlier Release that is not confirmed
// yet may do the same. Records of calls stay in Redis for up to ten minutes.
//
// Delete blocks for one round trip, at most until ctx ends. After an error of ctx or of the connection the
// semaphore may have been deleted.
func (s *CountingSemaphore) Delete(ctx context.Context) (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	existed, err := s.client.deleteKeys(ctx, s.name, s.name, scripts.SemChannel(s.name), originKey(s.name))
	if err == nil {
		s.client.counting.Kick(s.name)
	}
	return existed, err
}

// Available returns the number of free permits. It is 0 if the semaphore does not exist, and may be negative
// after AddPermits with a negative number. Available changes nothing. It blocks for one round trip, at most
// until ctx ends.
func (s *CountingSemaphore) Available(ctx context.Context) (int64, error) {
	if s.err != nil {
		return 0, s.err
	}
	r, err := s.client.do(ctx, "available", calls.Request{
		Key: s.name,
		Send: func(ctx context.Context) *redis.Cmd {
			get := redis.NewCmd(ctx, "get", s.name)
			_ = s.client.redis.Client.Process(ctx, get) // the error is in the command
			return get
		},
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
