package main

import (
	"context"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// limit is the one of all limits. It gives no permit back while the tests run.
var limit = ratelimit.Limit{Rate: 10, Per: 1000 * 24 * time.Hour, Burst: 10}

var (
	_ = register("GCRA", func(c *clients, name string) object {
		return keyed(limiter(c, ratelimit.GCRA), name)
	})
	_ = register("fixed window", func(c *clients, name string) object {
		return keyed(limiter(c, ratelimit.FixedWindow), name)
	})
	_ = register("sliding log", func(c *clients, name string) object {
		return stored(c.limits.StoredLimiter(name), ratelimit.Overall)
	})
	_ = register("sliding log per client", func(c *clients, name string) object {
		return stored(c.limits.StoredLimiter(name), ratelimit.PerClient)
	})
	_ = register("All of GCRA and fixed window", func(c *clients, name string) object {
		return all(c, name, ratelimit.GCRA, ratelimit.FixedWindow)
	})
)

func limiter(c *clients, a ratelimit.Algorithm) *ratelimit.Limiter {
	return c.limits.Limiter("limits", limit, ratelimit.WithAlgorithm(a))
}

func keyed(l *ratelimit.Limiter, name string) object {
	return object{
		take: func(ctx context.Context, n int64) (ratelimit.Result, error) { return l.AllowN(ctx, name, n) },
		peek: func(ctx context.Context) (ratelimit.Result, error) { return l.Peek(ctx, name) },
	}
}

func stored(l *ratelimit.StoredLimiter, scope ratelimit.Scope) object {
	return object{
		set: func(ctx context.Context, n int64) (bool, error) {
			return l.TrySetRate(ctx, ratelimit.Limit{Rate: n, Per: limit.Per, Burst: n}, ratelimit.WithScope(scope))
		},
		take: l.AllowN,
		peek: l.Peek,
	}
}

func all(c *clients, name string, algorithms ...ratelimit.Algorithm) object {
	var parts []ratelimit.Part
	for _, a := range algorithms {
		parts = append(parts, limiter(c, a).Part(name))
	}
	a := c.limits.All(parts...)
	return object{take: a.AllowN, peek: a.Peek}
}
