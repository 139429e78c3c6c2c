package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// This file is what a child of the sweep does: clients that take permits over a network that loses replies, and report each instant
// at which they rely on them. Child, parent and Redis share a machine, so that all of them read the server's clock.

// kinds of a sweep.
const (
	kindLeased   = "leased"
	kindFair     = "fair"
	kindCounting = "counting"
	kindDeaf     = "deaf" // leases that are not renewed, by a client that does not look whether it still holds them: the negative control
)

const (
	sweepPermits = 5
	sweepLease   = 900 * time.Millisecond
	sweepPoll    = 250 * time.Millisecond
	perChild     = 8
)

// sweeper is one client of a child.
type sweeper struct {
	wheel *wheel.Wheel
	rnd   *rand.Rand
	kind  string
	plain *semaphore.Semaphore
	held  *semaphore.Leased
	id    func() uint64
	say   func(string, ...any)
	over  <-chan struct{}
}

func runSweeper(ctx context.Context, w *wheel.Wheel, addr, name, kind string, seed uint64) error {
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	var out sync.Mutex
	say := func(format string, args ...any) {
		out.Lock()
		defer out.Unlock()
		_, _ = fmt.Fprintf(os.Stdout, format+"\n", args...) // unbuffered: what is said survives a kill
	}
	var holds atomic.Uint64
	id := func() uint64 { return seed<<20 + holds.Add(1) }
	var all sync.WaitGroup
	errs := make([]error, perChild)
	for i := range perChild {
		all.Go(func() {
			errs[i] = sweepClient(ctx, addr, name, &sweeper{
				wheel: w, rnd: rand.New(rand.NewPCG(seed, uint64(i))), kind: kind, id: id, say: say, over: over,
			})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// sweepClient works until the sweep is over, and closes in peace.
func sweepClient(ctx context.Context, addr, name string, s *sweeper) (err error) {
	d := &redistest.FaultDialer{Timeout: 200 * time.Millisecond}
	rdb := redis.NewClient(&redis.Options{
		Addr: addr, Dialer: d.Dial, PoolSize: 4,
		ReadTimeout: 200 * time.Millisecond, MaxRetries: []int{-1, 1, 3}[s.rnd.IntN(3)],
	})
	defer rdb.Close()
	c, err := semaphore.New(rdb, semaphore.WithWheel(s.wheel), semaphore.WithPoll(sweepPoll))
	if err != nil {
		return err
	}
	defer func() {
		closed := c.Close(ctx)
		if s.kind == kindCounting { // others' permits end with their lease, should the machine be too busy to confirm
			err = errors.Join(err, closed)
		}
	}()
	s.plain = c.Semaphore(name)
	switch s.kind {
	case kindFair:
		s.held = c.FairLeased(name, semaphore.WithLease(sweepLease))
	case kindDeaf:
		s.held = c.Leased(name, semaphore.WithLease(100*time.Millisecond), semaphore.WithoutRenewal())
	default:
		s.held = c.Leased(name, semaphore.WithLease(sweepLease))
	}
	for !s.isOver() {
		if s.kind != kindDeaf && s.rnd.IntN(8) == 0 {
			d.LoseReply("evalsha", 1+s.rnd.IntN(3), []redistest.Loss{redistest.Cut, redistest.Swallow}[s.rnd.IntN(2)])
		}
		if err := s.once(ctx); err != nil {
			return err
		}
	}
	for range 16 { // the network is sound again: replies that were still to be lost are these
		_ = rdb.EvalSha(ctx, "none", nil).Err()
	}
	return nil
}

func (s *sweeper) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// once takes permits, relies on them for a while and gives them back. Errors of Redis are what the sweep is about; a refusal
// for another reason fails it.
func (s *sweeper) once(parent context.Context) error {
	n := int64(1)
	if s.rnd.IntN(6) == 0 {
		n += s.rnd.Int64N(sweepPermits)
	}
	timeout := 2 * time.Second
	if s.rnd.IntN(4) == 0 {
		timeout = time.Duration(s.rnd.IntN(30)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(parent, timeout)
	defer cancel()
	hold := time.Duration(s.rnd.IntN(40)) * time.Millisecond
	if s.rnd.IntN(20) == 0 {
		hold = sweepLease * 3 / 2 // lives by renewal
	}
	if s.kind == kindCounting {
		if err := s.plain.Acquire(ctx, n); err != nil {
			return s.failed(parent, err)
		}
		s.rely(parent, n, min(hold, 100*time.Millisecond), func() bool { return true })
		if err := s.plain.Release(ctx, n); err != nil && !errors.Is(err, semaphore.ErrUnconfirmed) {
			return s.failed(parent, err)
		}
		return nil
	}
	g, err := s.held.Acquire(ctx, n)
	if err != nil {
		return s.failed(parent, err)
	}
	valid := g.Valid
	if s.kind == kindDeaf {
		valid, hold = func() bool { return true }, 500*time.Millisecond
	}
	s.rely(parent, n, hold, valid)
	_ = g.Release(ctx) // unconfirmed or lost: both are what it should be able to stand
	return nil
}

// failed tells the network's errors from refusals, which nothing here may cause.
func (s *sweeper) failed(ctx context.Context, err error) error {
	for _, refusal := range []error{
		semaphore.ErrNotSet, semaphore.ErrExceedsPermits, semaphore.ErrWrongKind, semaphore.ErrInvalid, semaphore.ErrClosed, semaphore.ErrOverRelease,
	} {
		if errors.Is(err, refusal) {
			return err
		}
	}
	return s.wheel.Sleep(ctx, time.Duration(1+s.rnd.IntN(10))*time.Millisecond)
}

// rely reports a hold and every few milliseconds that it is still relied on. What is reported is the instant before the look: who holds
// at the look held then, and at any instant since the grant.
func (s *sweeper) rely(ctx context.Context, n int64, d time.Duration, valid func() bool) {
	id, began := s.id(), time.Now()
	for {
		now := time.Now()
		if !valid() {
			break
		}
		s.say("%d %d %d %d", id, n, began.UnixMicro(), now.UnixMicro())
		if now.Sub(began) > d || s.isOver() || s.wheel.Sleep(ctx, 3*time.Millisecond) != nil {
			break
		}
	}
	s.say("%d end", id)
}
