package conformance_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// FuzzReplies_Limits answers the calls of ratelimit with arbitrary replies.
func FuzzReplies_Limits(f *testing.F) {
	open := func(rdb redis.UniversalClient, w *wheel.Wheel) (*ratelimit.Client, error) {
		return ratelimit.New(rdb, ratelimit.WithWheel(w), ratelimit.WithLogger(slog.New(slog.DiscardHandler)),
			ratelimit.WithPolicy(ratelimit.FailOpen()))
	}
	const aDay = 24 * time.Hour
	perDay := ratelimit.Limit{Rate: 5, Per: aDay, Burst: 5}
	perMax := ratelimit.Limit{Rate: 5, Per: ratelimit.MaxPer, Burst: 5}
	byWindows, bySliding := ratelimit.WithAlgorithm(ratelimit.FixedWindow), ratelimit.WithAlgorithm(ratelimit.SlidingWindow)

	type call = func(c *ratelimit.Client, next func()) (bool, error)
	// within makes a call that waits for at most a minute.
	within := func(use func(ctx context.Context, c *ratelimit.Client) (bool, error)) call {
		return func(c *ratelimit.Client, _ func()) (bool, error) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			return use(ctx, c)
		}
	}
	allowed := func(r ratelimit.Result, err error) (bool, error) {
		if r.Remaining < 0 || r.Granted < 0 || r.Granted > 3 || r.Allowed && r.RetryAfter > 0 {
			return true, errors.New("an impossible result")
		}
		return r.Allowed || r.Granted > 0, err
	}
	limiter := func(opts ...ratelimit.LimiterOption) call {
		return within(func(ctx context.Context, c *ratelimit.Client) (bool, error) {
			return allowed(c.Limiter("k", perDay, opts...).AllowN(ctx, "key", 2))
		})
	}
	waiting := func(limit ratelimit.Limit, opts ...ratelimit.LimiterOption) call {
		return within(func(ctx context.Context, c *ratelimit.Client) (bool, error) {
			return done(c.Limiter("k", limit, opts...).WaitN(ctx, "key", 2))
		})
	}
	settling := func(opts ...ratelimit.LimiterOption) call {
		return within(func(ctx context.Context, c *ratelimit.Client) (bool, error) {
			r, err := c.Limiter("k", perDay, opts...).Reserve(ctx, "key", 2)
			if err == nil && r.Settle(ctx, 1) == nil {
				err = r.Settle(ctx, 3)
			}
			return r != nil, err
		})
	}
	all := func(use func(ctx context.Context, a *ratelimit.All) (bool, error), opts ...ratelimit.LimiterOption) call {
		return within(func(ctx context.Context, c *ratelimit.Client) (bool, error) {
			return use(ctx, c.All(c.Limiter("a", perDay).Part("key"), c.Limiter("b", perDay, opts...).Part("key")))
		})
	}
	allowedByAll := func(ctx context.Context, a *ratelimit.All) (bool, error) { return allowed(a.AllowN(ctx, 2)) }
	stored := func(use func(ctx context.Context, l *ratelimit.StoredLimiter) (bool, error)) call {
		return within(func(ctx context.Context, c *ratelimit.Client) (bool, error) { return use(ctx, c.StoredLimiter("l")) })
	}

	const exact = 1 << 53
	between := func(n, least, most int64) bool { return least <= n && n <= most }
	gcra := func(n []int64) bool {
		return len(n) == 5 && between(n[0], 0, exact) && between(n[1], -exact, exact) && n[2] >= 0 && between(n[3], 0, exact) && n[4] == 1 &&
			(n[1] >= n[0]+2*aDay.Microseconds()/5 || n[3] > 0 && n[1] >= n[0])
	}
	window := func(n []int64) bool {
		return len(n) == 4 && between(n[0], 0, exact) && between(n[1], -exact, exact) && between(n[2], -exact, exact) && n[2] > 0 && n[3] == 1
	}
	sliding := func(n []int64) bool {
		return len(n) == 5 && between(n[0], 0, exact) && between(n[1], 0, exact) && between(n[2], 0, exact) && n[3] < n[2] && n[4] == 1
	}
	// A reply about two limits begins with the time and whether both grant.
	both := func(size int) func(n []int64) bool {
		return func(n []int64) bool { return len(n) == size && n[1] == 1 }
	}

	fuzzReplies(f, open, []replyCall[*ratelimit.Client]{
		{"Limiter.AllowN", "", limiter(), decides(gcra)},
		{"Limiter.AllowN, fixed windows", "", limiter(byWindows), decides(window)},
		{"Limiter.AllowN, sliding windows", "", limiter(bySliding), decides(sliding)},
		{"Limiter.AllowUpTo", "", within(func(ctx context.Context, c *ratelimit.Client) (bool, error) {
			return allowed(c.Limiter("k", perDay).AllowUpTo(ctx, "key", 3))
		}), decides(nil)},
		{"Limiter.WaitN", "", waiting(perDay), decides(nil)},
		{"Limiter.WaitN, fixed windows", "", waiting(perMax, byWindows), decides(nil)},
		{"Limiter.WaitN, sliding windows", "", waiting(perMax, bySliding), decides(nil)},
		{"Limiter.Reserve", "", within(func(ctx context.Context, c *ratelimit.Client) (bool, error) {
			return got(c.Limiter("k", perDay).Reserve(ctx, "key", 2))
		}), decides(nil)},
		{"Limiter.Reserve, fixed windows", "", settling(byWindows), decides(nil)},
		{"Limiter.Reserve, sliding windows", "", settling(bySliding), decides(nil)},
		{"Limiter.Peek", "", within(func(ctx context.Context, c *ratelimit.Client) (bool, error) {
			return allowed(c.Limiter("k", perDay).Peek(ctx, "key"))
		}), decides(nil)},
		{"StoredLimiter.AllowN", "", stored(func(ctx context.Context, l *ratelimit.StoredLimiter) (bool, error) {
			return allowed(l.AllowN(ctx, 2))
		}), decides(nil)},
		{"StoredLimiter.AllowUpTo", "", stored(func(ctx context.Context, l *ratelimit.StoredLimiter) (bool, error) {
			return allowed(l.AllowUpTo(ctx, 3))
		}), decides(nil)},
		{"StoredLimiter.WaitN", "", stored(func(ctx context.Context, l *ratelimit.StoredLimiter) (bool, error) {
			return done(l.WaitN(ctx, 2))
		}), decides(nil)},
		{"StoredLimiter.TrySetRate", "", stored(func(ctx context.Context, l *ratelimit.StoredLimiter) (bool, error) {
			return l.TrySetRate(ctx, perDay)
		}), means(oneFlag)},
		{"StoredLimiter.Config", "", stored(func(ctx context.Context, l *ratelimit.StoredLimiter) (bool, error) {
			cfg, err := l.Config(ctx)
			if err == nil && (cfg.Limit.Rate < 1 || cfg.Limit.Per < time.Millisecond || cfg.KeepAlive < 0 ||
				cfg.Scope != ratelimit.Overall && cfg.Scope != ratelimit.PerClient) {
				return true, errors.New("an impossible limit")
			}
			return false, err
		}), consistent},
		{"All.AllowN", "", all(allowedByAll, byWindows), decides(both(8))},
		{"All.AllowN, sliding windows", "", all(allowedByAll, bySliding), decides(both(9))},
		{"All.WaitN", "", all(func(ctx context.Context, a *ratelimit.All) (bool, error) { return done(a.WaitN(ctx, 2)) }), decides(nil)},
	},
		"nil", "( )", "( nil )", "1", "0", "7", "( 1 )", "( 0 )", "( ~1.0 ~2.5 )", "inf", "!", "!OOM_no|memory", "!NOTCONFIGURED_no", "true",
		"( 1000000 1000000 0 0 1 )", "( 1000000 1000000 0 0 0 )", "( 1000000 1000000 0 0 9223372036854775807 )", "( 1000000 1000000 -5 0 1 )",
		"( 1000000 -9223372036854775808 0 0 1 )", "( 9223372036854775807 -5 9223372036854775807 0 0 )", "( 1000000 9007199254740992 0 0 0 )",
		"( 1000000 34561000000 0 0 1 )", "( 1000000 69121000000 0 0 1 )", "( 0 0 86400000 1 )", "( 5 0 86400000 0 )", "( 0 0 86400000 9223372036854775807 )", "( -9 -9 -9 1 )", "( 5 0 9223372036854775807 0 )",
		"( 5 86400000 5 0 0 0 )", "( 5 86400000 0 0 0 -1000002 )", "( 5 86400000 0 0 0 -1 )", "( 0 86400000 0 0 0 -5 )", "( 5 0 0 0 0 0 )", "( 5 86400000 0 0 0 0 2 )", "( 5 86400000 0 0 0 0 4 )", "( 5 86400000 0 0 0 -90 1 )",
		"( 0 0 0 0 0 0 )", "( 1 9223372036854775807 -9007199254740992 0 0 -9223372036854775808 )", "( 5 86400000 0 )", "( 0 0 0 )", "( -5 86400000 -3 )",
		"( 5 0 86400000 43200000 1 )", "( 5 5 86400000 0 0 )", "( 0 5 0 -90 0 )", "( 5 0 86400000 86400000 1 )", "( 5 0 0 0 1 )",
		"( 8589934590 8589934590 315360000000 0 0 )", "( 1 0 86400000 -172800000000 1 )", "( 1000000 1 1000000 0 0 1 1 86400000 5 )",
		"( 1000000 1 1000000 0 0 0 0 86400000 )", "( 1000000 0 1000000 0 0 5 0 86400000 )",
		"( 1000000 1 1000000 0 1000000 0 )", "( 1000000 0 1000000 0 0 0 0 0 )", "( rate 5 interval 86400000 type 0 )",
		"( rate 5 interval 9223372036854775807 type 1 keepAliveTime -7 )", "( rate 5 interval 1 type x )",
	)
}
