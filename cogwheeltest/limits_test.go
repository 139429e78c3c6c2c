package cogwheeltest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// A limiter of any kind does on the embedded server what it does on a real one.
func TestLimits(t *testing.T) {
	t.Parallel()
	behaviours := map[string]func(*testing.T, *world){
		"a lost reply costs permits, but grants none twice": limitLostReply,
		"a policy decides while Redis is down":              policies,
		"a StoredLimiter without a rate is an error":        notSet,
		"a StoredLimiter counts PerClient":                  perClient,
		"a StoredLimiter takes back what was granted":       returns,
		"a StoredLimiter changes its rate":                  changesRate,
	}
	for kind, of := range limiters {
		behaviours[kind+" denies what is over the limit, and allows again"] = func(t *testing.T, w *world) { denies(t, w, of) }
		behaviours[kind+" counts both processes"] = func(t *testing.T, w *world) { counts(t, w, of) }
		behaviours[kind+" has waiters wait"] = func(t *testing.T, w *world) { limitWaits(t, w, of) }
		behaviours[kind+" refuses to wait beyond a deadline"] = func(t *testing.T, w *world) { beyondDeadline(t, w, of) }
		if !strings.HasSuffix(kind, "window") { // they have no reservations
			behaviours[kind+" reserves and cancels"] = func(t *testing.T, w *world) { reserves(t, w, of) }
		}
		behaviours[kind+" grants a part"] = func(t *testing.T, w *world) { grantsPart(t, w, of) }
	}
	inBubbles(t, behaviours)
}

// limiter is any kind of limiter, of 5 permits a minute.
type limiter struct {
	full    time.Duration // until used permits are all free again, at most
	allow   func(ctx context.Context, n int64) (ratelimit.Result, error)
	upTo    func(ctx context.Context, n int64) (ratelimit.Result, error)
	wait    func(ctx context.Context, n int64) error
	peek    func(ctx context.Context) (ratelimit.Result, error)
	reserve func(ctx context.Context, n int64) (*ratelimit.Reservation, error)
}

type limiterOf = func(*testing.T, *ratelimit.Client) limiter

var limiters = map[string]limiterOf{
	"GCRA":             byKey(time.Minute),
	"a window":         byKey(time.Minute, ratelimit.WithAlgorithm(ratelimit.FixedWindow)),
	"a sliding window": byKey(2*time.Minute, ratelimit.WithAlgorithm(ratelimit.SlidingWindow)),
	"a StoredLimiter":  limiterWith(ratelimit.Overall),
	"a per-client":     limiterWith(ratelimit.PerClient),
}

func byKey(full time.Duration, opts ...ratelimit.LimiterOption) limiterOf {
	return func(_ *testing.T, c *ratelimit.Client) limiter {
		k := c.Limiter("api", ratelimit.PerMinute(5), opts...)
		return limiter{
			full:  full,
			allow: func(ctx context.Context, n int64) (ratelimit.Result, error) { return k.AllowN(ctx, "user", n) },
			upTo:  func(ctx context.Context, n int64) (ratelimit.Result, error) { return k.AllowUpTo(ctx, "user", n) },
			wait:  func(ctx context.Context, n int64) error { return k.WaitN(ctx, "user", n) },
			peek:  func(ctx context.Context) (ratelimit.Result, error) { return k.Peek(ctx, "user") },
			reserve: func(ctx context.Context, n int64) (*ratelimit.Reservation, error) {
				return k.Reserve(ctx, "user", n)
			},
		}
	}
}

func limiterWith(scope ratelimit.Scope) limiterOf {
	return func(t *testing.T, c *ratelimit.Client) limiter {
		l := c.StoredLimiter("api")
		_, err := l.TrySetRate(t.Context(), ratelimit.PerMinute(5), ratelimit.WithScope(scope))
		require.NoError(t, err)
		return limiter{full: time.Minute, allow: l.AllowN, upTo: l.AllowUpTo, wait: l.WaitN, peek: l.Peek, reserve: l.Reserve}
	}
}

func requireAllowed(t *testing.T, w *world, l limiter, n int64, want bool) ratelimit.Result {
	t.Helper()
	r, err := l.allow(w.ctx, n)
	require.NoError(t, err)
	require.Equal(t, want, r.Allowed)
	return r
}

func denies(t *testing.T, w *world, of limiterOf) {
	l := of(t, w.limits[0])
	requireAllowed(t, w, l, 5, true)
	r := requireAllowed(t, w, l, 5, false)
	require.LessOrEqual(t, r.RetryAfter, l.full+time.Millisecond)
	require.Positive(t, r.RetryAfter)
	w.Advance(r.RetryAfter - 10*time.Millisecond)
	requireAllowed(t, w, l, 5, false)
	w.Advance(20 * time.Millisecond)
	requireAllowed(t, w, l, 5, true)
	r, err := l.peek(w.ctx)
	require.NoError(t, err)
	require.Zero(t, r.Remaining)
}

func counts(t *testing.T, w *world, of limiterOf) {
	first, second := of(t, w.limits[0]), of(t, w.limits[1])
	requireAllowed(t, w, first, 3, true)
	r := requireAllowed(t, w, second, 2, true)
	if r.Remaining == 3 {
		return // each process counts for itself
	}
	requireAllowed(t, w, first, 1, false)
	requireAllowed(t, w, second, 1, false)
}

func limitWaits(t *testing.T, w *world, of limiterOf) {
	l := of(t, w.limits[0])
	requireAllowed(t, w, l, 5, true)
	done := calling(func() error { return l.wait(w.ctx, 2) })
	w.Advance(10 * time.Second)
	requireWaiting(t, done)
	w.Advance(l.full)
	requireDone(t, done)
}

func beyondDeadline(t *testing.T, w *world, of limiterOf) {
	l := of(t, w.limits[0])
	requireAllowed(t, w, l, 5, true)
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	began := time.Now()
	require.ErrorIs(t, l.wait(ctx, 5), ratelimit.ErrWouldExceedDeadline)
	require.Less(t, time.Since(began), 10*time.Second)
}

func reserves(t *testing.T, w *world, of limiterOf) {
	l := of(t, w.limits[0])
	r, err := l.reserve(w.ctx, 5)
	require.NoError(t, err)
	require.Zero(t, r.Delay())
	requireAllowed(t, w, l, 5, false)
	if given, err := r.Cancel(w.ctx); given {
		require.NoError(t, err)
		requireAllowed(t, w, l, 5, true)
	}
}

func grantsPart(t *testing.T, w *world, of limiterOf) {
	l := of(t, w.limits[0])
	requireAllowed(t, w, l, 2, true)
	r, err := l.upTo(w.ctx, 5)
	require.NoError(t, err)
	require.EqualValues(t, 3, r.Granted)
}

func limitLostReply(t *testing.T, w *world) {
	k := w.limits[0].Limiter("api", ratelimit.PerMinute(5))
	w.DropReplies(1, "user")
	r, err := k.Allow(w.ctx, "user") // sent again, as a new connection works
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.Zero(t, w.PendingFaults())
	r, err = w.limits[1].Limiter("api", ratelimit.PerMinute(5)).Peek(w.ctx, "user")
	require.NoError(t, err)
	require.EqualValues(t, 3, r.Remaining, "charged twice")
}

func policies(t *testing.T, w *world) {
	open := w.Limits(ratelimit.WithPolicy(ratelimit.FailOpen())).Limiter("api", ratelimit.PerMinute(5))
	closed := w.limits[0].Limiter("api", ratelimit.PerMinute(5))
	for fault, mend := range map[*func()]func(){
		new(w.Hang): w.Resume,
		new(w.Stop): w.Restart,
		new(func() { w.Refuse(cogwheeltest.OutOfMemory, cogwheeltest.Always) }): w.ClearFaults,
		new(func() { w.Refuse(cogwheeltest.Loading, cogwheeltest.Always) }):     w.ClearFaults,
	} {
		(*fault)()
		r, err := open.Allow(w.ctx, "user")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, ratelimit.SourceDegraded, r.Source)
		_, err = closed.Allow(w.ctx, "user")
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		mend()
		w.Advance(time.Minute)
		r, err = closed.Allow(w.ctx, "user")
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
	w.Refuse(cogwheeltest.NoPermission, 1)
	_, err := open.Allow(w.ctx, "user")
	require.ErrorIs(t, err, ratelimit.ErrMisconfigured)
}

func notSet(t *testing.T, w *world) {
	_, err := w.limits[0].StoredLimiter("none").Allow(w.ctx)
	require.ErrorIs(t, err, ratelimit.ErrNotSet)
}

func perClient(t *testing.T, w *world) {
	l := [2]limiter{limiterWith(ratelimit.PerClient)(t, w.limits[0]), limiterWith(ratelimit.PerClient)(t, w.limits[1])}
	for range 2 {
		requireAllowed(t, w, l[0], 5, true)
		requireAllowed(t, w, l[0], 1, false)
		requireAllowed(t, w, l[1], 5, true)
		requireAllowed(t, w, l[1], 1, false)
		w.Advance(time.Minute + time.Millisecond)
	}
}

func returns(t *testing.T, w *world) {
	l := limiterWith(ratelimit.Overall)(t, w.limits[0])
	r := requireAllowed(t, w, l, 5, true)
	given, err := w.limits[0].StoredLimiter("api").Return(w.ctx, r)
	require.NoError(t, err)
	require.True(t, given)
	requireAllowed(t, w, l, 5, true)
}

func changesRate(t *testing.T, w *world) {
	l := limiterWith(ratelimit.Overall)(t, w.limits[0])
	requireAllowed(t, w, l, 5, true)
	ok, err := w.limits[0].StoredLimiter("api").UpdateRate(w.ctx, ratelimit.PerMinute(8))
	require.NoError(t, err)
	require.True(t, ok)
	c, err := w.limits[1].StoredLimiter("api").Config(w.ctx)
	require.NoError(t, err)
	require.EqualValues(t, 8, c.Limit.Rate)
	deleted, err := w.limits[0].StoredLimiter("api").Delete(w.ctx)
	require.NoError(t, err)
	require.True(t, deleted)
}
