package ratelimit_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// waiting is the calls of one Client for a name.
type waiting struct {
	allow func(context.Context, int64) (ratelimit.Result, error)
	wait  func(context.Context, int64) error
}

// waitingOf makes them.
type waitingOf func(t *testing.T, c *ratelimit.Client, name string) waiting

// allowOrWait takes what is there at once, or waits.
func (w waiting) allowOrWait(ctx context.Context, n int64) error {
	if r, err := w.allow(ctx, n); err != nil || r.Allowed {
		return err
	}
	return w.wait(ctx, n)
}

// impatience is waiters of several Clients that want one limit and lose patience at random, also while Redis
// decides about them, for its answers take a while.
type impatience struct {
	of       waitingOf
	most     int64 // permits that one asks for
	allow    bool  // it asks for what is there before it waits
	lasts    time.Duration
	patience time.Duration // at most
	delay    time.Duration // of answers
	gusts    bool          // for 200 ms all waiters are cancelled before they could be served; then for 200 ms none is
}

func (s impatience) run(t *testing.T) (grants []oracle.Grant, cancelled int) {
	const clients, each = 3, 12
	w, name, began := newWheel(t), redistest.Name(t), time.Now()
	end := began.Add(s.lasts)
	var mu sync.Mutex
	var all sync.WaitGroup
	once := func(of waiting, rng *rand.Rand) {
		n, patience := 1+rng.Int64N(s.most), time.Duration(rng.Int64N(int64(s.patience)))
		call, ask := time.Now(), of.wait
		if s.allow {
			ask = of.allowOrWait
		}
		if s.gusts && call.Sub(began)%(400*time.Millisecond) > 200*time.Millisecond {
			patience, ask = time.Second, of.allowOrWait
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		timer, err := w.AfterFunc(patience, cancel)
		if err != nil {
			t.Error(err)
		}
		err = ask(ctx, n)
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			grants = append(grants, oracle.Between(call, time.Now(), n))
		} else {
			cancelled++
		}
	}
	for id := range clients {
		d := &redistest.FaultDialer{}
		c := newClient(t, redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = d.Dial }))
		of := s.of(t, c, name)
		d.Delay(0, s.delay)
		for g := range each {
			rng := rand.New(rand.NewPCG(uint64(id), uint64(g)))
			all.Go(func() {
				for time.Now().Before(end) {
					once(of, rng)
				}
			})
		}
	}
	all.Wait()
	return grants, cancelled
}

func ofLimiter(limit ratelimit.Limit, opts ...ratelimit.LimiterOption) waitingOf {
	return func(_ *testing.T, c *ratelimit.Client, name string) waiting {
		k := c.Limiter("storm", limit, opts...)
		return waiting{
			func(ctx context.Context, n int64) (ratelimit.Result, error) { return k.AllowN(ctx, name, n) },
			func(ctx context.Context, n int64) error { return k.WaitN(ctx, name, n) },
		}
	}
}

func ofLog(limit ratelimit.Limit) waitingOf {
	return func(t *testing.T, c *ratelimit.Client, name string) waiting {
		l := c.StoredLimiter(name)
		_, err := l.TrySetRate(t.Context(), limit)
		require.NoError(t, err)
		return waiting{l.AllowN, l.WaitN}
	}
}

// The limits of the replays with waiters that are cancelled.
var (
	oneByOne  = ratelimit.PerSecond(100).WithBurst(1)
	bursty    = ratelimit.PerSecond(100).WithBurst(20)
	bySeconds = ratelimit.PerSecond(100)
	byFifths  = ratelimit.Limit{Rate: 20, Per: 200 * time.Millisecond, Burst: 20}
)

var impatientKinds = map[string]struct {
	of    waitingOf
	limit ratelimit.Limit
	most  int64
	allow bool
	may   oracle.Bound
	use   float64 // of the rate, alone
}{
	"GCRA, burst 1":                {ofLimiter(oneByOne), oneByOne, 1, false, oracle.Limit(oneByOne).BucketBound(), 0.99},
	"GCRA beside Allow":            {ofLimiter(bursty), bursty, 3, true, oracle.Limit(bursty).BucketBound(), 0.99},
	"windows beside Allow":         {ofLimiter(byFifths, ratelimit.WithAlgorithm(ratelimit.FixedWindow)), byFifths, 1, true, oracle.Limit(byFifths).WindowsBound(), 0.99},
	"sliding windows beside Allow": {ofLimiter(bySeconds, bySliding), bySeconds, 1, true, oracle.Limit(bySeconds).BucketBound(), 0.98},
	"sliding windows":              {ofLimiter(bySeconds, bySliding), bySeconds, 3, false, oracle.Limit(bySeconds).BucketBound(), 0.98},
	"GCRA, burst 20":               {ofLimiter(bursty), bursty, 3, false, oracle.Limit(bursty).BucketBound(), 0.99},
	"windows":                      {ofLimiter(byFifths, ratelimit.WithAlgorithm(ratelimit.FixedWindow)), byFifths, 1, false, oracle.Limit(byFifths).WindowsBound(), 0.99},
	"a log":                        {ofLog(byFifths), byFifths, 1, false, oracle.Limit(byFifths).LogBound(), 0.99},
}

// Guarantees: Q9, Q10.
func TestReplay_CancelledWaitersKeepTheLimitAndUseItUp(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for what, c := range impatientKinds {
		t.Run(what, func(t *testing.T) {
			// Beside other tests, this shows that the permits of cancelled waiters are used at all; alone, how well.
			lasts, want := fleetDuration(), 0.05
			if testsize.Alone() {
				want = c.use
			} else {
				t.Parallel()
			}
			grants, cancelled := impatience{
				of: c.of, most: c.most, allow: c.allow, lasts: lasts, patience: 40 * time.Millisecond, delay: 2 * time.Millisecond,
			}.run(t)
			require.LessOrEqual(t, oracle.Excess(grants, c.may), 0.0)
			require.Greater(t, cancelled, len(grants), "most lose patience")
			granted := int64(0)
			for _, g := range grants {
				granted += g.N
			}
			use := float64(granted) / (float64(c.limit.Rate) * float64(lasts) / float64(c.limit.Per))
			t.Logf("%d permits granted, %d waiters cancelled, %.4f of the rate", granted, cancelled, use)
			require.GreaterOrEqual(t, use, want)
		})
	}
}

func TestReplay_WhatCancelledWaitersLeaveIsNotGrantedOnTop(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	gusts := impatience{most: 1, lasts: 2 * time.Second, patience: 5 * time.Millisecond, delay: 10 * time.Millisecond, gusts: true}
	for what, c := range impatientKinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := gusts
			s.of = c.of
			for all := 0; all <= 50; { // a slow machine takes longer
				grants, cancelled := s.run(t)
				require.Positive(t, cancelled)
				require.LessOrEqual(t, oracle.Excess(grants, c.may), 0.0)
				all += cancelled
			}
		})
	}

	t.Run("and if it is, that is found (control)", func(t *testing.T) {
		t.Parallel()
		s := gusts
		s.of = func(t *testing.T, c *ratelimit.Client, name string) waiting {
			stock := &stocking{limiter: ofLimiter(bursty)(t, c, name), w: newWheel(t)}
			return waiting{stock.allow, stock.wait}
		}
		// A gust that a busy machine stretches leaves no excess.
		found := 0.0
		for run := 0; run < 25 && found <= 2; run++ {
			grants, _ := s.run(t)
			found = oracle.Excess(grants, oracle.Limit(bursty).BucketBound())
			t.Logf("%d granted, %.0f too many", len(grants), found)
		}
		require.Greater(t, found, 2.0)
	})
}

// stocking waits as it must not be done: what was granted to waiters that had gone is kept for a second, for
// any that come.
type stocking struct {
	limiter waiting
	w       *wheel.Wheel

	mu    sync.Mutex
	stock int64
	until time.Time
}

func (s *stocking) allow(ctx context.Context, n int64) (ratelimit.Result, error) {
	s.mu.Lock()
	found := s.stock >= n && time.Now().Before(s.until)
	if found {
		s.stock -= n
	}
	s.mu.Unlock()
	if found {
		return ratelimit.Result{Allowed: true, Granted: n}, nil
	}
	return s.limiter.allow(ctx, n)
}

func (s *stocking) wait(ctx context.Context, n int64) error {
	for ctx.Err() == nil {
		decided := make(chan ratelimit.Result, 1)
		go func() {
			r, _ := s.limiter.allow(context.Background(), n)
			if ctx.Err() != nil && r.Allowed {
				s.mu.Lock()
				s.stock, s.until = s.stock+n, time.Now().Add(time.Second)
				s.mu.Unlock()
			}
			decided <- r
		}()
		select {
		case r := <-decided:
			if r.Allowed && ctx.Err() == nil {
				return nil
			}
			_ = s.w.Sleep(ctx, r.RetryAfter)
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}
