package semaphore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// CountingSemaphore is a counting semaphore: a number of free permits, which any process takes and adds. It is
// Redisson's RSemaphore. Redis does not know which process holds a permit, so the permits of a process that
// dies are lost; those of a Semaphore come back.
//
// A CountingSemaphore holds no state: all CountingSemaphore values of one name are the same semaphore. It is safe
// for concurrent use.
type CountingSemaphore struct {
	client *Client
	name   string
	config countingConfig
	err    error // of the name or an option
}

// CountingSemaphore returns the counting semaphore with the given name. It does not talk to Redis. The key in Redis
// is the name itself, as in Redisson: services in Java that call getSemaphore(name) share the permits.
//
// A name has 1 to 65536 bytes. A name that contains a brace must contain a hash tag such as {user:7},
// because all keys of a semaphore must share a cluster slot. Err and all methods return a
// *cogwheel.InvalidError for a bad name or option.
func (c *Client) CountingSemaphore(name string, opts ...CountingOption) *CountingSemaphore {
	s := &CountingSemaphore{client: c, name: name}
	if s.err = checkName(name); s.err == nil {
		s.config, s.err = newCountingConfig(opts)
	}
	return s
}

// Name returns the name of the semaphore.
func (s *CountingSemaphore) Name() string { return s.name }

// Err returns the *cogwheel.InvalidError of a bad name or option, or nil.
func (s *CountingSemaphore) Err() error { return s.err }

// Acquire takes n permits, 0 to MaxPermits, and blocks until they are free or ctx ends. It grants n 0 at
// once, without asking Redis. Requests of one process are granted in order, so that small requests do not
// starve a large one. There is no order among processes.
//
// The error matches ErrNotSet, ErrExceedsPermits, ErrClosed, ErrWrongKind or cogwheel.ErrInvalid, or is an
// error of ctx or Redis. After an error the caller holds nothing: permits that were granted by a lost reply
// are released in the background.
//
// All waiters of a semaphore in one process share one wheel entry, one subscription and one script per
// look.
func (s *CountingSemaphore) Acquire(ctx context.Context, n int64) error {
	return s.acquire(ctx, n, s.client.counting.Wait)
}

// TryAcquire takes n permits if they are free, and otherwise returns an error that matches ErrNoPermits. It
// blocks for one round trip, which concurrent calls share. While other callers of this process wait, TryAcquire
// does not overtake them and fails at once.
func (s *CountingSemaphore) TryAcquire(ctx context.Context, n int64) error {
	return s.acquire(ctx, n, s.client.counting.Try)
}

// AcquireFunc is like Acquire but does not block: it calls f exactly once, on a goroutine of its own, with
// the error that Acquire would return. After a nil error, f has to see to the release of the permits. No
// goroutine runs while it waits.
//
// cancel ends the wait, and f is called with an error that matches context.Canceled. After the wait has
// ended, cancel does nothing. AcquireFunc panics if f is nil.
func (s *CountingSemaphore) AcquireFunc(ctx context.Context, n int64, f func(error)) (cancel func()) {
	mustCall(f == nil)
	c := s.client
	a, err := s.begin(ctx, n)
	if err != nil || n == 0 {
		if err == nil {
			c.gate.Leave()
		}
		go f(err)
		return func() {}
	}
	finish := func(err error) (struct{}, error) {
		s.report(&a, err)
		return struct{}{}, err
	}
	return acquireFunc(ctx, c, c.counting, s.name, a, finish, func(_ struct{}, err error) { f(err) })
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
	a := acquisition{ctx: ctx, n: n, began: s.client.monitor.now()}
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
	return s.client.begin(ctx, "acquire", s.name)
}

// Release adds n permits, 0 to MaxPermits, and wakes waiters in all processes. It creates a semaphore that
// does not exist. It adds permits that no caller acquired, unless WithMax forbids that (ErrOverRelease). It
// blocks for one round trip, which concurrent releases share.
//
// Release sends its command even if ctx has ended. It returns an error that matches ErrUnconfirmed if Redis
// does not confirm the release, or has not confirmed it one second after the end of ctx. The Client then
// retries the release in the background for up to five minutes. It takes effect at most once, so the caller
// must not repeat it.
func (s *CountingSemaphore) Release(ctx context.Context, n int64) error {
	_, err := s.release(ctx, n, false)
	return err
}

// ReleaseIfExists is like Release but does not create a semaphore. It reports whether the
// semaphore existed.
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
		return false, ErrClosed
	}
	defer c.gate.Leave()
	began := time.Now()
	request := &countingRelease{n: n, ifExists: ifExists, max: s.config.max}
	err := awaitRelease(ctx, c, c.countingReleases, s.name, request, func(err error) error {
		return releaseError(s.name, err)
	})
	if n > 0 && (errors.Is(err, ErrUnconfirmed) || err == nil && request.result == 1) {
		c.monitor.returned(ctx, s.name, n, time.Since(began))
	}
	switch {
	case err != nil:
		return false, err
	case request.result < 0:
		return false, fmt.Errorf("%w: %s: at most %d", ErrOverRelease, scripts.Quote(s.name), s.config.max)
	}
	return request.result == 1, nil
}

// TrySetPermits sets the number of permits, 0 to MaxPermits, if it has never been set, and reports whether it
// did. The semaphore does not expire unless the Client has WithIdleExpiry. TrySetPermits blocks for one round
// trip, at most until ctx ends. After an error of ctx or of the connection the change may have been made.
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

// AddPermits adds n to the number of free permits, -MaxPermits to MaxPermits. The number may fall below 0;
// releases then raise it again. The semaphore keeps its expiry. AddPermits blocks for one round trip, at most
// until ctx ends. After an error of ctx or of the connection the change may have been made.
func (s *CountingSemaphore) AddPermits(ctx context.Context, n int64) error {
	if err := checkCount(n, -MaxPermits, MaxPermits); err != nil {
		return err
	}
	_, err := s.edit(ctx, "add", n)
	return err
}

// Drain takes all free permits and returns their number, which is negative after a negative AddPermits. It
// sets the number of free permits to 0. It blocks for one round trip, at most until ctx ends. After an error
// of ctx or of the connection the permits may have been taken, and their number is lost.
func (s *CountingSemaphore) Drain(ctx context.Context) (int64, error) { return s.edit(ctx, "drain", 0) }

// edit runs a script that takes effect once per record key.
func (s *CountingSemaphore) edit(ctx context.Context, op string, n int64) (int64, error) {
	if s.err != nil {
		return 0, s.err
	}
	keys := []string{s.name, s.client.recordKey(s.name), keysOf(s.name, true).permits, originKey(s.name)}
	r, err := s.client.call(ctx, op+" permits", s.name, scripts.SemEdit, keys, op, n,
		publishVerb, scripts.SemChannel(s.name), recordMillis, s.client.idleMillis, sequenceKeyMillis)
	if err != nil {
		return 0, err
	}
	free, err := r.Integer()
	if err != nil {
		return 0, operationError(op+" permits", s.name, err)
	}
	return free, nil
}

// Delete deletes the semaphore and reports whether its permits were set. Callers that wait for permits, in any
// process, fail with ErrNotSet.
//
// Redis does not know the holders of permits. Delete a semaphore that has none: a later Release would create
// the semaphore again, or add to one that was set since, as would an earlier one that is not confirmed yet.
// Records of calls stay in Redis for up to ten minutes.
//
// Delete blocks for one round trip, at most until ctx ends. After an error of ctx or of the connection the
// semaphore may have been deleted.
func (s *CountingSemaphore) Delete(ctx context.Context) (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	existed, err := s.client.deleteKeys(ctx, s.name, s.name, scripts.SemChannel(s.name), false, originKey(s.name))
	if err == nil {
		s.client.counting.Kick(s.name)
	}
	return existed, err
}

// Available returns the number of free permits: 0 if they were never set, and less than 0 after a negative
// AddPermits. It blocks for one round trip.
func (s *CountingSemaphore) Available(ctx context.Context) (int64, error) {
	if s.err != nil {
		return 0, s.err
	}
	r, err := s.client.await(ctx, "available", s.name, func() redisconn.Reply {
		get := redis.NewCmd(context.Background(), "get", s.name)
		_ = s.client.rdb.Process(context.Background(), get) // the error is in the command
		return redisconn.Reply{Cmd: get}
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
