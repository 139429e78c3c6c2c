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

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// This file is a child of the sweep: its clients acquire permits over a network that loses replies, and
// report each instant at which they rely on them. Child, parent and Redis share the clock of one machine.

// The kinds of sweeps.
const (
	kindSemaphore = "semaphore"
	kindFair      = "fair"
	kindCounting  = "counting"
	kindUnchecked = "unchecked" // leases without renewal, by a client that does not check Valid: the negative control
)

const (
	sweepPermits = 5
	sweepLease   = 900 * time.Millisecond // short: holders check Valid
	sweepPoll    = 250 * time.Millisecond
	perChild     = 8
)

// sweeper is one client of a child.
type sweeper struct {
	wheel *wheel.Wheel
	rnd   *rand.Rand
	kind  string
	plain *semaphore.CountingSemaphore
	held  *semaphore.Semaphore
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
		_, _ = fmt.Fprintf(os.Stdout, format+"\n", args...) // unbuffered: it survives a kill
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

// sweepClient works until the sweep is over, and closes its Client.
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
		if s.kind == kindCounting { // the permits of the other kinds end with their lease
			err = errors.Join(err, closed)
		}
	}()
	s.plain = c.CountingSemaphore(name)
	switch s.kind {
	case kindFair:
		s.held = c.FairSemaphore(name, 0, semaphore.WithLease(sweepLease))
	case kindUnchecked:
		s.held = c.Semaphore(name, 0, semaphore.WithLease(100*time.Millisecond), semaphore.WithoutRenewal())
	default:
		s.held = c.Semaphore(name, 0, semaphore.WithLease(sweepLease))
	}
	for !s.isOver() {
		if s.kind != kindUnchecked && s.rnd.IntN(8) == 0 {
			d.LoseReply("evalsha", 1+s.rnd.IntN(3), []redistest.Loss{redistest.Cut, redistest.Swallow}[s.rnd.IntN(2)])
		}
		if err := s.once(ctx); err != nil {
			return err
		}
	}
	for range 16 { // use up the replies that are still to be lost
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

// once acquires permits, relies on them for a while and releases them. Errors of the network are expected;
// any other error fails the sweep.
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
		hold = sweepLease * 3 / 2 // needs renewals
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
	if s.kind == kindUnchecked {
		valid, hold = func() bool { return true }, 500*time.Millisecond
	}
	s.rely(parent, n, hold, valid)
	_ = g.Release(ctx) // may be unconfirmed or lost
	return nil
}

// failed returns refusals, which nothing here may cause. After an error of the network it pauses and
// returns nil.
func (s *sweeper) failed(ctx context.Context, err error) error {
	for _, refusal := range []error{
		semaphore.ErrNotSet, semaphore.ErrExceedsPermits, semaphore.ErrWrongKind,
		cogwheel.ErrInvalid, semaphore.ErrClosed, semaphore.ErrOverRelease,
	} {
		if errors.Is(err, refusal) {
			return err
		}
	}
	return s.wheel.Sleep(ctx, time.Duration(1+s.rnd.IntN(10))*time.Millisecond)
}

// rely reports a hold, and every few milliseconds that it lasts. It reports the instant before it checks
// valid: a grant that is valid at the check was held then, and at any instant since it was granted.
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
