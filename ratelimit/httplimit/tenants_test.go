package httplimit_test

import (
	"maps"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
)

// fields are those that tell clients where they stand.
func fields(res *http.Response) map[string]string {
	found := map[string]string{}
	for _, name := range []string{
		"RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
	} {
		if value := res.Header.Get(name); value != "" {
			found[name] = value
		}
	}
	return found
}

func TestMiddleware_Fields(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	draft := map[string]string{"RateLimit-Policy": `"default";q=1;w=60`, "RateLimit": `"default";r=0;t=60`}
	legacy := map[string]string{"X-RateLimit-Limit": "1", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60"}
	both := map[string]string{}
	for _, from := range []map[string]string{draft, legacy} {
		maps.Copy(both, from)
	}
	for what, of := range map[string]struct {
		opts []httplimit.Option
		want map[string]string
	}{
		"by default": {nil, draft},
		"draft":      {[]httplimit.Option{httplimit.WithFields(httplimit.RateLimitFields)}, draft},
		"legacy":     {[]httplimit.Option{httplimit.WithFields(httplimit.XRateLimitFields)}, legacy},
		"both":       {[]httplimit.Option{httplimit.WithFields(httplimit.XRateLimitFields | httplimit.RateLimitFields)}, both},
		"none":       {[]httplimit.Option{httplimit.WithFields(httplimit.NoFields)}, map[string]string{}},
	} {
		h := httplimit.New(c.Limiter("fields", ratelimit.PerMinute(1)), byUser, of.opts...)(ok)
		user := redistest.Name(t) + what
		res := get(h, user)
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		require.Equal(t, of.want, fields(res), what)
		require.Empty(t, res.Header.Get("Retry-After"))
		res = get(h, user)
		require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
		require.Len(t, fields(res), len(of.want), what)
		require.NotEmpty(t, res.Header.Get("Retry-After"), "always")
	}
	require.Panics(t, func() { httplimit.WithFields(4) })
}

func TestMiddleware_ALimitForEachTenant(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	plans := map[string]ratelimit.Limit{"free": ratelimit.PerHour(1), "gold": ratelimit.PerHour(3)}
	name := redistest.Name(t)
	k := c.Limiter(name, ratelimit.PerHour(10))
	h := httplimit.New(k, byUser, httplimit.WithLimit(func(r *http.Request) ratelimit.Limit {
		return plans[r.Header.Get("User")]
	}))(ok)
	for plan, limit := range plans {
		for range limit.Burst {
			res := get(h, plan)
			require.Equal(t, http.StatusNoContent, res.StatusCode)
			require.Contains(t, res.Header.Get("RateLimit-Policy"), ";q="+string(rune('0'+limit.Burst))+";w=3600")
		}
		require.Equal(t, http.StatusTooManyRequests, get(h, plan).StatusCode)
	}
	require.Equal(t, http.StatusServiceUnavailable, get(h, "unknown").StatusCode, "the zero limit is refused")
	require.Panics(t, func() { httplimit.WithLimit(nil) })
	require.Panics(t, func() {
		httplimit.New(plainLimiter{k}, byUser, httplimit.WithLimit(func(*http.Request) ratelimit.Limit { return plans["gold"] }))
	})
}

// plainLimiter has no method that takes a limit.
type plainLimiter struct{ httplimit.Limiter }

func TestNewAll(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	name := redistest.Name(t)
	users, service := c.Limiter("user", ratelimit.PerMinute(2)), c.Limiter("sérvice", ratelimit.PerMinute(3))
	partner := c.Limiter("partner", ratelimit.PerMinute(100), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	h := httplimit.NewAll(c, func(r *http.Request) []ratelimit.Part {
		switch user := r.Header.Get("User"); user {
		case "":
			return nil
		case "bad":
			return []ratelimit.Part{users.Part(user), users.Part(user)}
		default:
			return []ratelimit.Part{users.Part(name + user), service.Part(name), partner.Part(name)}
		}
	}, httplimit.WithFields(httplimit.RateLimitFields|httplimit.XRateLimitFields))(ok)

	res := get(h, "ada")
	require.Equal(t, http.StatusNoContent, res.StatusCode)
	require.Equal(t, `"user";q=2;w=60, "s?rvice";q=3;w=60, "partner";q=100;w=60`, res.Header.Get("RateLimit-Policy"))
	require.Regexp(t, `^"user";r=1;t=30, "s\?rvice";r=2;t=20, "partner";r=99;t=60$`, res.Header.Get("RateLimit"))
	require.Equal(t, "2", res.Header.Get("X-RateLimit-Limit"))
	require.Equal(t, "1", res.Header.Get("X-RateLimit-Remaining"))
	require.Equal(t, http.StatusNoContent, get(h, "ada").StatusCode)
	res = get(h, "ada")
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.NotEmpty(t, res.Header.Get("Retry-After"))
	require.Equal(t, http.StatusNoContent, get(h, "bob").StatusCode, "what ada was denied, the service was not charged for")
	require.Equal(t, http.StatusTooManyRequests, get(h, "bob").StatusCode, "now the service denies")
	res = get(h, "")
	require.Equal(t, http.StatusNoContent, res.StatusCode, "not limited")
	require.Empty(t, fields(res))
	require.Equal(t, http.StatusServiceUnavailable, get(h, "bad").StatusCode)
	require.Panics(t, func() { httplimit.NewAll(nil, func(*http.Request) []ratelimit.Part { return nil }) })
	require.Panics(t, func() { httplimit.NewAll(c, nil) })
}
