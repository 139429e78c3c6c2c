package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func limits(t *testing.T, rdb *redis.Client, opts ...ratelimit.Option) *ratelimit.Client {
	t.Helper()
	w, err := wheel.New()
	require.NoError(t, err)
	c, err := ratelimit.New(rdb, append(opts, ratelimit.WithWheel(w))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close(context.Background()))
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	})
	return c
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

func get(h http.Handler, key string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("User", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func byUser(r *http.Request) string { return r.Header.Get("User") }

func TestMiddleware(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	k := c.Keyed("http", ratelimit.PerMinute(2))
	h := httplimit.New(k, byUser)(ok)
	user := redistest.Name(t)

	res := get(h, user)
	require.Equal(t, http.StatusNoContent, res.StatusCode)
	require.Equal(t, `"default";q=2;w=60`, res.Header.Get("RateLimit-Policy"))
	require.Equal(t, `"default";r=1;t=30`, res.Header.Get("RateLimit"))
	require.Empty(t, res.Header.Get("Retry-After"))
	get(h, user)
	res = get(h, user)
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.Contains(t, res.Header.Get("RateLimit"), `"default";r=0;t=`)
	after, err := strconv.Atoi(res.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.Greater(t, after, 20)
	require.LessOrEqual(t, after, 31)
	require.Equal(t, http.StatusNoContent, get(h, redistest.Name(t)).StatusCode, "another user has a limit of his own")
	require.Equal(t, http.StatusNoContent, get(h, "").StatusCode, "no key, no limit")

	dear := httplimit.New(k, byUser, httplimit.WithName(`a"b`), httplimit.WithCost(func(*http.Request) int64 { return 3 }),
		httplimit.WithDenied(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })))(ok)
	res = get(dear, user)
	require.Equal(t, http.StatusTeapot, res.StatusCode)
	require.Empty(t, res.Header.Get("Retry-After"), "what costs more than the burst never comes")
	require.Equal(t, `"a\"b";q=2;w=60`, res.Header.Get("RateLimit-Policy"))

	require.Panics(t, func() { httplimit.New(nil, byUser) })
	require.Panics(t, func() { httplimit.New(k, nil) })
	require.Panics(t, func() { httplimit.WithName("ü") })
}

func TestMiddleware_Policy(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	for want, limit := range map[string]ratelimit.Limit{
		`"default";q=20;w=2`:             ratelimit.PerSecond(10).WithBurst(20),
		`"default";q=25`:                 ratelimit.PerSecond(10).WithBurst(25), // two and a half seconds
		`"default";q=3`:                  {Rate: 7, Per: time.Second, Burst: 3},
		`"default";q=1000000;w=86400`:    {Rate: 1_000_000, Per: 24 * time.Hour, Burst: 1_000_000},
		`"default";q=36500;w=3153600000`: {Rate: 1, Per: 24 * time.Hour, Burst: 36500},
	} {
		res := get(httplimit.New(c.Keyed("policy", limit), byUser)(ok), redistest.Name(t)+want)
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		require.Equal(t, want, res.Header.Get("RateLimit-Policy"))
	}
	bad := httplimit.New(c.Keyed("policy", ratelimit.Limit{}), byUser)(ok)
	require.Equal(t, http.StatusServiceUnavailable, get(bad, "u").StatusCode)
}

func TestMiddleware_RedisDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	down := func(o *redis.Options) { o.MaxRetries, o.DialTimeout = -1, 100*time.Millisecond }
	closed := limits(t, server.Client(t, down))
	open := limits(t, server.Client(t, down), ratelimit.WithPolicy(ratelimit.FailOpen()))
	server.Kill()
	limit := ratelimit.PerMinute(2)
	require.Equal(t, http.StatusServiceUnavailable, get(httplimit.New(closed.Keyed("h", limit), byUser)(ok), "u").StatusCode)
	for range 10 {
		require.Equal(t, http.StatusNoContent, get(httplimit.New(open.Keyed("h", limit), byUser)(ok), "u").StatusCode)
	}
}

func TestByRemoteAddr(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"192.0.2.1:1234":         "192.0.2.1",
		"[2001:db8:1:2::7]:4321": "2001:db8:1:2::",
		"[2001:db8:1:2:3::]:1":   "2001:db8:1:2::",
		"@":                      "@",
	} {
		require.Equal(t, want, httplimit.ByRemoteAddr(&http.Request{RemoteAddr: addr}))
	}
}
