package httplimit_test

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) { redistest.Main(m, redistest.DefaultWheel) }

func limits(t *testing.T, rdb *redis.Client, opts ...ratelimit.Option) *ratelimit.Client {
	t.Helper()
	w, err := wheel.New()
	require.NoError(t, err)
	c, err := ratelimit.New(rdb, append([]ratelimit.Option{ratelimit.WithWheel(w), ratelimit.WithTimeout(redistest.Patience / 3)}, opts...)...)
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

func byUser(r *http.Request) (string, bool) { return r.Header.Get("User"), true }

func TestMiddleware(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	k := c.Limiter("http", ratelimit.PerMinute(2))
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
	require.Equal(t, http.StatusNoContent, get(h, redistest.Name(t)).StatusCode, "another user has a limit of its own")

	dear := httplimit.New(k, byUser, httplimit.WithName(`a"b`), httplimit.WithCost(func(*http.Request) int64 { return 3 }),
		httplimit.WithDenied(func(w http.ResponseWriter, _ *http.Request, r ratelimit.Result) {
			if r.RetryAfter != 0 {
				t.Errorf("%+v", r)
			}
			w.WriteHeader(http.StatusTeapot)
		}))(ok)
	res = get(dear, user)
	require.Equal(t, http.StatusTeapot, res.StatusCode)
	require.Empty(t, res.Header.Get("Retry-After"), "what costs more than the burst never comes")
	require.Equal(t, `"a\"b";q=2;w=60`, res.Header.Get("RateLimit-Policy"))
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
		res := get(httplimit.New(c.Limiter("policy", limit), byUser)(ok), redistest.Name(t)+want)
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		require.Equal(t, want, res.Header.Get("RateLimit-Policy"))
	}
}

func TestMiddleware_RedisDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	down := func(o *redis.Options) { o.MaxRetries, o.DialTimeout = -1, 100*time.Millisecond }
	closed := limits(t, server.Client(t, down))
	open := limits(t, server.Client(t, down), ratelimit.WithPolicy(ratelimit.FailOpen()))
	server.Kill()
	limit := ratelimit.PerMinute(2)
	require.Equal(t, http.StatusServiceUnavailable, get(httplimit.New(closed.Limiter("h", limit), byUser)(ok), "u").StatusCode)
	for range 10 {
		require.Equal(t, http.StatusNoContent, get(httplimit.New(open.Limiter("h", limit), byUser)(ok), "u").StatusCode)
	}
}

// A response to a denial can tell which limit has denied the request, and when the next one is granted.
func TestMiddleware_DeniedKnowsTheDecision(t *testing.T) {
	t.Parallel()
	c, user := limits(t, redistest.Shared(t).Client(t)), redistest.Name(t)
	var got []ratelimit.Result
	denied := httplimit.WithDenied(func(w http.ResponseWriter, r *http.Request, result ratelimit.Result) {
		got = append(got, result)
		http.Error(w, r.URL.Path, http.StatusTooManyRequests)
	})
	each := c.Limiter("denied", ratelimit.PerMinute(1))
	for _, h := range []http.Handler{
		httplimit.New(each, byUser, denied)(ok),
		httplimit.NewPerKey(each, func(*http.Request) (string, ratelimit.Limit, bool) {
			return user + "2", ratelimit.PerMinute(1), true
		}, denied)(ok),
		httplimit.NewAll(c, func(*http.Request) []ratelimit.Part {
			return []ratelimit.Part{c.Limiter("wide", ratelimit.PerMinute(9)).Part(user), each.Part(user + "3")}
		}, denied)(ok),
	} {
		require.Equal(t, http.StatusNoContent, get(h, user).StatusCode)
		require.Equal(t, http.StatusTooManyRequests, get(h, user).StatusCode)
		last := got[len(got)-1]
		require.False(t, last.Allowed)
		require.Greater(t, last.RetryAfter, 30*time.Second)
	}
	require.Len(t, got, 3)
	require.Len(t, got[2].Parts, 2)
	require.True(t, got[2].Parts[0].Allowed)
	require.False(t, got[2].Parts[1].Allowed)
}

// Each of several handlers tells its limit, under a name that is its own.
func TestMiddleware_NestedHandlersTellAllLimits(t *testing.T) {
	t.Parallel()
	c, user := limits(t, redistest.Shared(t).Client(t)), redistest.Name(t)
	wrap := func(name string, n int64, opts ...httplimit.Option) httplimit.Middleware {
		return httplimit.New(c.Limiter("nested"+name, ratelimit.PerMinute(n)), byUser, opts...)
	}
	all := httplimit.NewAll(c, func(*http.Request) []ratelimit.Part {
		return []ratelimit.Part{c.Limiter("nested-all", ratelimit.PerMinute(6)).Part(user)}
	}, httplimit.WithName("b"))
	h := wrap("1", 60)(wrap("2", 30)(wrap("3", 20)(wrap("4", 15, httplimit.WithName("b-1"))(all(ok)))))
	res := get(h, user)
	require.Equal(t, http.StatusNoContent, res.StatusCode)
	require.Equal(t, []string{
		`"default";q=60;w=60, "default-2";q=30;w=60, "default-3";q=20;w=60, "b-1";q=15;w=60, "b-1-2";q=6;w=60`,
	}, res.Header.Values("RateLimit-Policy"))
	require.Equal(t, []string{
		`"default";r=59;t=1, "default-2";r=29;t=2, "default-3";r=19;t=3, "b-1";r=14;t=4, "b-1-2";r=5;t=10`,
	}, res.Header.Values("RateLimit"))

	// A field for one limit has that with the fewest requests left, or the one that denies.
	x := httplimit.WithFields(httplimit.XRateLimitFields)
	cost := httplimit.WithCost(func(r *http.Request) int64 { return int64(len(r.Header.Get("User"))) })
	for what, c := range map[string]struct {
		h                http.Handler
		limit, remaining string
		status           int
	}{
		"the outer one": {wrap("5", 3, x)(wrap("6", 60, x)(ok)), "3", "2", http.StatusNoContent},
		"the inner one": {wrap("7", 60, x)(wrap("8", 3, x)(ok)), "3", "2", http.StatusNoContent},
		"one that denies": {
			wrap("9", 3, x)(httplimit.New(limitOf{ratelimit.Result{Limit: 9, Remaining: 7}}, byUser, x, cost)(ok)),
			"9", "7", http.StatusTooManyRequests,
		},
	} {
		res := get(c.h, user)
		require.Equal(t, c.status, res.StatusCode, what)
		require.Equal(t, c.limit, res.Header.Get("X-RateLimit-Limit"), what)
		require.Equal(t, c.remaining, res.Header.Get("X-RateLimit-Remaining"), what)
	}
}

// limitOf decides as it is told.
type limitOf struct{ result ratelimit.Result }

func (l limitOf) AllowN(context.Context, string, int64) (ratelimit.Result, error) {
	return l.result, nil
}
func (limitOf) Limit() ratelimit.Limit { return ratelimit.PerHour(1) }

// A share can need more time for a request than any clock counts, and an own Limiter may return any time.
func TestMiddleware_LongTimesDoNotOverflow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := limits(t, server.Client(t, func(o *redis.Options) { o.MaxRetries, o.DialTimeout = -1, 100*time.Millisecond }),
		ratelimit.WithPolicy(ratelimit.LocalShare(100_000)))
	server.Kill()
	long := c.Limiter("long", ratelimit.Limit{Rate: 1, Per: ratelimit.MaxPer, Burst: 10})
	const century = "3153600000"
	res := get(httplimit.New(long, byUser, httplimit.WithCost(func(*http.Request) int64 { return 10 }))(ok), "ada")
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode)
	require.Equal(t, century, res.Header.Get("Retry-After"))

	forever := limitOf{ratelimit.Result{RetryAfter: ratelimit.Never - 1, ResetAfter: math.MaxInt64}}
	res = get(httplimit.New(forever, byUser, httplimit.WithFields(httplimit.XRateLimitFields))(ok), "ada")
	require.Equal(t, "9223372037", res.Header.Get("Retry-After"))
	require.Equal(t, "9223372037", res.Header.Get("X-RateLimit-Reset"))
}

// A client that leaves out what it is counted by is limited all the same, unless the KeyFunc says otherwise.
// Guarantees: Q25.
func TestMiddleware_AMissingKeyIsNoWayAround(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	k := c.Limiter(redistest.Name(t), ratelimit.PerHour(3))
	codes := func(h http.Handler) (granted int) {
		for range 10 {
			if get(h, "").StatusCode == http.StatusNoContent {
				granted++
			}
		}
		return granted
	}
	require.Equal(t, 3, codes(httplimit.New(k, byUser)(ok)))
	exempt := func(*http.Request) (string, bool) { return "", false }
	require.Equal(t, 10, codes(httplimit.New(k, exempt)(ok)))
}

// Guarantees: Q26.
func TestMiddleware_ARequestThatCostsNothingPasses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := limits(t, server.Client(t))
	k := c.Limiter("free", ratelimit.PerHour(1))
	free := httplimit.New(k, byUser, httplimit.WithCost(func(*http.Request) int64 { return 0 }))(ok)
	h := httplimit.New(k, byUser)(ok)
	require.Equal(t, http.StatusNoContent, get(h, "u").StatusCode)
	require.Equal(t, http.StatusTooManyRequests, get(h, "u").StatusCode)
	for range 3 {
		res := get(free, "u")
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		require.NotEmpty(t, res.Header.Get("RateLimit-Policy"))
	}
	server.Kill()
	require.Equal(t, http.StatusNoContent, get(free, "u").StatusCode, "there is nothing to ask")
}

// A client that goes away while Redis hangs is not the limiter's failure.
// Guarantees: Q26.
func TestMiddleware_ACancelledRequestIsNoFailure(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := limits(t, server.Client(t), ratelimit.WithTimeout(10*time.Second))
	k := c.Limiter("gone", ratelimit.PerHour(100))
	_, err := k.Peek(t.Context(), "u")
	require.NoError(t, err)
	served, failed := false, false
	h := httplimit.New(k, byUser, httplimit.WithFailed(func(http.ResponseWriter, *http.Request, error) { failed = true }))(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }))
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithCancel(t.Context())
	stop := time.AfterFunc(50*time.Millisecond, cancel)
	defer stop.Stop()
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.False(t, served)
	require.False(t, failed)
	require.Equal(t, 499, w.Code)
}

// A limit with WithShadow refuses no request: a field tells that it would have.
func TestMiddleware_Shadow(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	user := redistest.Name(t)
	k := c.Limiter("shadow", ratelimit.PerMinute(1), ratelimit.WithShadow())
	cost := func(n int64) httplimit.Option { return httplimit.WithCost(func(*http.Request) int64 { return n }) }
	fields := func(h http.Handler) map[string]string {
		t.Helper()
		res := get(h, user)
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		got := map[string]string{}
		for name := range res.Header {
			got[name] = res.Header.Get(name)
		}
		return got
	}
	marked := map[string]string{"Ratelimit-Would-Deny": "true"}
	h := httplimit.New(k, byUser)(ok)
	require.Empty(t, fields(h))
	require.Equal(t, marked, fields(h), "a client does not obey a limit on trial")
	require.Equal(t, marked, fields(httplimit.New(k, byUser, cost(2))(ok)), "a cost above the burst")
	require.Equal(t, marked, fields(httplimit.New(k, byUser, httplimit.WithFields(httplimit.XRateLimitFields))(ok)))
	require.Empty(t, fields(httplimit.New(k, byUser, httplimit.WithFields(httplimit.NoFields))(ok)))
	plan := func(r *http.Request) (string, ratelimit.Limit, bool) { return user, ratelimit.PerHour(1), true }
	require.Equal(t, marked, fields(httplimit.NewPerKey(k, plan)(ok)))

	both := httplimit.XRateLimitFields | httplimit.RateLimitFields
	enforced := httplimit.New(c.Limiter("enforced", ratelimit.PerMinute(100)), byUser, httplimit.WithFields(both))
	require.Equal(t, map[string]string{
		"Ratelimit-Policy": `"default";q=100;w=60`, "Ratelimit": `"default";r=99;t=1`, "Ratelimit-Would-Deny": "true",
		"X-Ratelimit-Limit": "100", "X-Ratelimit-Remaining": "99", "X-Ratelimit-Reset": "1",
	}, fields(enforced(httplimit.New(k, byUser, httplimit.WithFields(both))(ok))), "those of the enforced limit stay")

	h = httplimit.NewAll(c, func(*http.Request) []ratelimit.Part {
		return []ratelimit.Part{c.Limiter("other", ratelimit.PerMinute(1), ratelimit.WithShadow()).Part(user), k.Part(user)}
	})(ok)
	require.Equal(t, marked, fields(h))
}

// While Redis is down, a limit with WithShadow refuses nothing, whatever the policy is.
// settling serves a request with the cost of 5 permits, of which it uses 2 of each limit.
func settling(t *testing.T, limits int) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reservation := ratelimit.ReservationFromContext(r.Context())
		if err := reservation.Settle(context.WithoutCancel(r.Context()), slices.Repeat([]int64{2}, limits)...); reservation == nil || err != nil {
			t.Errorf("reservation %v, error %v", reservation, err)
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

func TestMiddleware_AHandlerSettlesItsReservation(t *testing.T) {
	t.Parallel()
	c, user := limits(t, redistest.Shared(t).Client(t)), redistest.Name(t)
	cost := httplimit.WithCost(func(*http.Request) int64 { return 5 })
	limiter := func(name string) *ratelimit.Limiter { return c.Limiter(name, ratelimit.PerDay(10)) }
	parts := func(*http.Request) []ratelimit.Part {
		return []ratelimit.Part{limiter("all").Part(user), limiter("all2").Part(user)}
	}
	for what, m := range map[string]httplimit.Middleware{
		"New": httplimit.New(limiter("new"), byUser, cost, httplimit.WithReservation()),
		"NewPerKey": httplimit.NewPerKey(limiter("plan"), func(r *http.Request) (string, ratelimit.Limit, bool) {
			return user, ratelimit.PerDay(10), true
		}, cost, httplimit.WithReservation()),
		"NewAll": httplimit.NewAll(c, parts, cost, httplimit.WithReservation()),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			of := 1
			if what == "NewAll" {
				of = 2
			}
			h := m(settling(t, of))
			for _, remaining := range []string{"r=5;", "r=3;", "r=1;"} { // while the request is served
				res := get(h, user)
				require.Equal(t, http.StatusNoContent, res.StatusCode)
				require.Contains(t, res.Header.Get("RateLimit"), remaining)
			}
			require.Equal(t, http.StatusTooManyRequests, get(h, user).StatusCode, "4 are left, not 5")

			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("User", user+"2")
			if what != "New" {
				return
			}
			require.True(t, m.Decide(httptest.NewRecorder(), r))
			require.NoError(t, ratelimit.ReservationFromContext(r.Context()).Settle(t.Context(), 9))
			state, err := limiter("new").Peek(t.Context(), user+"2")
			require.NoError(t, err)
			require.EqualValues(t, 1, state.Remaining)
		})
	}
	require.Nil(t, ratelimit.ReservationFromContext(t.Context()))
	get(httplimit.New(limiter("plain"), byUser)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if ratelimit.ReservationFromContext(r.Context()) != nil {
			t.Error("a reservation without the option")
		}
	})), user)
}

func TestMiddleware_ShadowWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := limits(t, server.Client(t))
	server.Kill()
	for range 5 {
		res := get(httplimit.New(c.Limiter("shadow", ratelimit.PerMinute(1), ratelimit.WithShadow()), byUser)(ok), "ada")
		require.Equal(t, http.StatusNoContent, res.StatusCode)
		require.Equal(t, "true", res.Header.Get("RateLimit-Would-Deny"))
		require.Empty(t, res.Header.Get("RateLimit"))
	}
}

// The request's own deadline is often shorter than the limiter's timeout.
func TestMiddleware_FailOpenHoldsForRequestsWithADeadline(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := limits(t, server.Client(t), ratelimit.WithPolicy(ratelimit.FailOpen()), ratelimit.WithBreaker(1000, time.Second))
	k := c.Limiter("open", ratelimit.PerHour(100))
	_, err := k.Peek(t.Context(), "u")
	require.NoError(t, err)
	h := httplimit.New(k, byUser)(ok)
	server.Pause()
	defer server.Resume()
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		cancel()
		require.Equal(t, http.StatusNoContent, w.Code)
	}
}

// What could only fail for each request fails when the middleware is made.
// onlyAllows is a Limiter without TryReserve.
type onlyAllows struct{ httplimit.Limiter }

// Guarantees: A1.
func TestNew_RefusesWhatCouldOnlyFailLater(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	k := c.Limiter("http", ratelimit.PerMinute(2))
	plan := func(*http.Request) (string, ratelimit.Limit, bool) { return "", ratelimit.Limit{}, true }
	for what, f := range map[string]func(){
		"a nil limiter":            func() { httplimit.New(nil, byUser) },
		"a nil key function":       func() { httplimit.New(k, nil) },
		"a nil limit function":     func() { httplimit.NewPerKey(k, nil) },
		"NewPerKey of no limiter":  func() { httplimit.NewPerKey(nil, plan) },
		"and of one refused":       func() { httplimit.NewPerKey(c.Limiter("{", ratelimit.PerMinute(2)), plan) },
		"a nil option":             func() { httplimit.New(k, byUser, nil) },
		"a nil handler":            func() { httplimit.New(k, byUser)(nil) },
		"WithName":                 func() { httplimit.WithName("\u00fc") },
		"WithCost(nil)":            func() { httplimit.WithCost(nil) },
		"WithDenied(nil)":          func() { httplimit.WithDenied(nil) },
		"WithFailed(nil)":          func() { httplimit.WithFailed(nil) },
		"a limit without a period": func() { httplimit.New(c.Limiter("http", ratelimit.Limit{Rate: 1}), byUser) },
		"a prefix that is refused": func() { httplimit.New(c.Limiter("{", ratelimit.PerMinute(2)), byUser) },
		"no TryReserve":            func() { httplimit.New(onlyAllows{k}, byUser, httplimit.WithReservation()) },
		"no limit at all":          func() { httplimit.New(another{}, byUser) },
		"a network without bits":   func() { httplimit.ByForwarded(netip.Prefix{}) },
	} {
		func() {
			defer func() {
				err, _ := recover().(error)
				require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
			}()
			f()
		}()
	}
}

// another is a limiter of another make.
type another struct{}

func (another) AllowN(context.Context, string, int64) (ratelimit.Result, error) {
	return ratelimit.Result{}, nil
}

func (another) Limit() ratelimit.Limit { return ratelimit.Limit{} }
