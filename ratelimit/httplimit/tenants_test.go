package httplimit_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
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

// Guarantees: Q27.
func TestMiddleware_ALimitForEachTenant(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	plans := map[string]ratelimit.Limit{"free": ratelimit.PerHour(1), "gold": ratelimit.PerHour(3)}
	name := redistest.Name(t)
	k := c.Limiter(name, ratelimit.PerHour(10))
	lookups := 0
	h := httplimit.NewPerKey(k, func(r *http.Request) (string, ratelimit.Limit, bool) {
		lookups++
		tenant := r.Header.Get("User")
		plan, isTenant := plans[tenant]
		if tenant == "default" {
			plan = k.Limit()
		}
		return tenant, plan, isTenant || tenant != "exempt"
	})(ok)
	for plan, limit := range plans {
		for range limit.Burst {
			res := get(h, plan)
			require.Equal(t, http.StatusNoContent, res.StatusCode)
			require.Contains(t, res.Header.Get("RateLimit-Policy"), ";q="+string(rune('0'+limit.Burst))+";w=3600")
		}
		require.Equal(t, http.StatusTooManyRequests, get(h, plan).StatusCode)
	}
	require.Equal(t, 6, lookups, "one for each request")
	require.Equal(t, `"default";q=10;w=3600`, get(h, "default").Header.Get("RateLimit-Policy"), "that of the Limiter")
	res := get(h, "exempt")
	require.Equal(t, http.StatusNoContent, res.StatusCode)
	require.Empty(t, fields(res))
	plans["bad"] = ratelimit.Limit{Rate: 1}
	require.Equal(t, http.StatusServiceUnavailable, get(h, "bad").StatusCode, "a limit without a period")
	require.Equal(t, http.StatusServiceUnavailable, get(h, "missing").StatusCode, "a row that is missing admits nobody")
}

// Permits used under one plan count under the next, and a denial under one is no answer under the other.
// Guarantees: Q27.
func TestMiddleware_ATenantWhosePlanChanges(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	var plan ratelimit.Limit
	tenant := redistest.Name(t)
	h := httplimit.NewPerKey(c.Limiter("plans", ratelimit.PerHour(1)), func(*http.Request) (string, ratelimit.Limit, bool) {
		return tenant, plan, true
	})(ok)
	const served, denied = http.StatusNoContent, http.StatusTooManyRequests
	retryAfter := map[string]int{}
	for _, step := range []struct {
		plan string
		ratelimit.Limit
		codes []int
	}{
		{"gold", ratelimit.PerHour(4), []int{served, served}},    // half of it is used
		{"free", ratelimit.PerHour(2), []int{served, denied}},    // half of two is left
		{"silver", ratelimit.PerHour(20), []int{denied, denied}}, // asks Redis, not the denial that this process knows
		{"free again", ratelimit.PerHour(2), []int{denied}},      // at once, too
		{"a day", ratelimit.PerDay(100), []int{served, served}},  // an hour is little of a day
		{"gold again", ratelimit.PerHour(4), []int{denied}},      // more than an hour is used
	} {
		plan = step.Limit
		for _, want := range step.codes {
			res := get(h, "")
			require.Equal(t, want, res.StatusCode, step.plan)
			require.Contains(t, res.Header.Get("RateLimit-Policy"), fmt.Sprintf(";q=%d;", step.Rate), step.plan)
			if want == denied {
				var err error
				retryAfter[step.plan], err = strconv.Atoi(res.Header.Get("Retry-After"))
				require.NoError(t, err)
			}
		}
	}
	require.Less(t, retryAfter["silver"], 200, "a twentieth of an hour")
	require.Greater(t, retryAfter["free again"], 1700, "half an hour")
	require.NoError(t, c.Limiter("plans", ratelimit.PerHour(1)).Reset(t.Context(), tenant))
	plan = ratelimit.PerHour(50)
	require.Equal(t, `"default";r=49;t=72`, get(h, "").Header.Get("RateLimit"), "Reset frees the whole of a larger plan")
}

// A router that has no http.Handler to call next asks for the decision alone, and gets the response of a denial.
// A tenant whose limit is 0 gets status 429 without Retry-After, because there is no time to come back.
func TestMiddleware_ABlockedTenant(t *testing.T) {
	t.Parallel()
	c, user := limits(t, redistest.Shared(t).Client(t)), redistest.Name(t)
	blocked := c.Limiter("blocked", ratelimit.PerDay(0))
	for what, m := range map[string]httplimit.Middleware{
		"New": httplimit.New(blocked, byUser),
		"NewPerKey": httplimit.NewPerKey(c.Limiter("tenant", ratelimit.PerDay(1)), func(r *http.Request) (string, ratelimit.Limit, bool) {
			return user, ratelimit.PerHour(0), true
		}),
		"NewAll": httplimit.NewAll(c, func(*http.Request) []ratelimit.Part {
			return []ratelimit.Part{blocked.Part(user), c.Limiter("service", ratelimit.PerMinute(9)).Part(user)}
		}, httplimit.WithReservation()),
	} {
		res := get(m(ok), user)
		require.Equal(t, http.StatusTooManyRequests, res.StatusCode, what)
		require.Empty(t, res.Header.Values("Retry-After"), what)
		want := map[string]string{}
		if what == "NewAll" {
			want["RateLimit-Policy"] = `"default-2";q=9;w=60`
		}
		require.Equal(t, want, fields(res), what)
	}
	require.EqualValues(t, 3, c.Stats().Denied)
}

func TestMiddleware_DecideIsTheMiddleware(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := limits(t, server.Client(t))
	m := httplimit.New(c.Limiter("decide", ratelimit.PerHour(1)), func(r *http.Request) (string, bool) {
		return r.Header.Get("User"), r.Header.Get("User") != "exempt"
	}, httplimit.WithFailed(func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusTeapot) }))
	decide := func(user string) (serve bool, res *http.Response) {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("User", user)
		serve = m.Decide(w, r)
		require.Equal(t, serve, !w.Flushed && w.Body.Len() == 0 && w.Code == http.StatusOK, "written only if denied")
		return serve, w.Result()
	}
	serve, res := decide("ada")
	require.True(t, serve)
	require.NotEmpty(t, res.Header.Get("RateLimit"))
	serve, res = decide("ada")
	require.False(t, serve)
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.NotEmpty(t, res.Header.Get("Retry-After"))
	serve, res = decide("exempt")
	require.True(t, serve)
	require.Empty(t, fields(res))
	server.Kill()
	serve, res = decide("bob")
	require.False(t, serve, "no decision, and FailClosed")
	require.Equal(t, http.StatusTeapot, res.StatusCode)
}

// Guarantees: Q28.
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
	require.Equal(t, `"default-1";q=2;w=60, "default-2";q=3;w=60, "default-3";q=100;w=60`, res.Header.Get("RateLimit-Policy"))
	require.Regexp(t, `^"default-1";r=1;t=30, "default-2";r=2;t=20, "default-3";r=99;t=60$`, res.Header.Get("RateLimit"))
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
