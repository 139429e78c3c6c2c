package recipes_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/examples/recipes"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func newLimits(t *testing.T) *ratelimit.Client {
	t.Helper()
	limits, err := ratelimit.New(redistest.Shared(t).Client(t), ratelimit.WithTimeout(time.Minute)) // for slow machines
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, limits.Close(context.Background())) })
	return limits
}

func TestLogin_CountsWrongPasswordsOnly(t *testing.T) {
	t.Parallel()
	name := redistest.Name(t)
	logins := newLimits(t).Limiter("login", ratelimit.Limit{Rate: 40, Per: time.Hour, Burst: 40}, ratelimit.WithDebt(280))
	// atOnce logs in n times, all before any check ends, and returns how many passwords were checked.
	atOnce := func(key string, n int, right bool) int64 {
		var checked atomic.Int64
		var all, begun sync.WaitGroup
		begun.Add(n)
		for range n {
			all.Go(func() {
				first := sync.OnceFunc(begun.Done)
				defer first()
				_, _ = recipes.Login(t.Context(), logins, key, func(context.Context) (bool, error) {
					checked.Add(1)
					first()
					begun.Wait()
					return right, nil
				})
			})
		}
		all.Wait()
		return checked.Load()
	}
	require.EqualValues(t, 40, atOnce(name+"right", 40, true))
	// If more than 16 attempts end at the same time, some of their permits may stay charged.
	require.Greater(t, atOnce(name+"right", 40, true), int64(5), "right passwords cost little")
	for range 50 {
		_, err := recipes.Login(t.Context(), logins, name+"steady", func(context.Context) (bool, error) { return true, nil })
		require.NoError(t, err, "one after the other they cost nothing")
	}

	wrong := func(context.Context) (bool, error) { return false, nil }
	for range 5 {
		right, err := recipes.Login(t.Context(), logins, name+"wrong", wrong)
		require.NoError(t, err)
		require.False(t, right)
	}
	_, err := recipes.Login(t.Context(), logins, name+"wrong", wrong)
	require.ErrorContains(t, err, "too many wrong passwords")

	require.EqualValues(t, 40, atOnce(name+"attack", 100, false), "more than 5, but they are owed")
	r, err := logins.Peek(t.Context(), name+"attack")
	require.NoError(t, err)
	require.Greater(t, r.RetryAfter, 6*time.Hour, "(320-40) permits at 40 an hour, and one more")

	_, err = recipes.Login(t.Context(), logins, name+"down", func(context.Context) (bool, error) { return false, context.Canceled })
	require.ErrorIs(t, err, context.Canceled)
	r, err = logins.Peek(t.Context(), name+"down")
	require.NoError(t, err)
	require.EqualValues(t, 40, r.Remaining, "an error is no wrong password")
}

func TestAllowOrBlock_BlocksOnceForLonger(t *testing.T) {
	t.Parallel()
	limits, other, name := newLimits(t), newLimits(t), redistest.Name(t)
	limiter := func(c *ratelimit.Client) *ratelimit.Limiter {
		return c.Limiter("attempts", ratelimit.PerMinute(5), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	}
	for range 5 {
		r, err := recipes.AllowOrBlock(t.Context(), limiter(limits), name)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
	last := 15 * time.Minute
	for _, c := range []*ratelimit.Client{limits, limits, other, other} {
		r, err := recipes.AllowOrBlock(t.Context(), limiter(c), name)
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Greater(t, r.RetryAfter, 10*time.Minute)
		require.LessOrEqual(t, r.RetryAfter, last+time.Second, "further requests do not make the block longer")
		last = r.RetryAfter
	}
}

func TestDaily_BeginsAtMidnight(t *testing.T) {
	t.Parallel()
	zone, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	now := time.Date(2026, 10, 25, 0, 30, 0, 0, zone) // a day of 25 hours
	daily := recipes.Daily{
		newLimits(t).Limiter("daily", ratelimit.Per(2, 26*time.Hour), ratelimit.WithAlgorithm(ratelimit.FixedWindow)),
		func() time.Time { return now },
	}
	user := redistest.Name(t)
	h := httplimit.New(daily, func(*http.Request) (string, bool) { return user, true })(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w
	}
	for range 2 {
		require.Equal(t, http.StatusOK, get().Code)
	}
	now = now.Add(24 * time.Hour) // it is half past eleven in the evening of the same day
	w := get()
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "1800", w.Header().Get("Retry-After"))
	now = now.Add(30 * time.Minute)
	require.Equal(t, http.StatusOK, get().Code)
}

func TestWaitAndTell_TellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	exports, name := newLimits(t).Limiter("exports", ratelimit.Limit{Rate: 1, Per: 2 * time.Second, Burst: 1}), redistest.Name(t)
	var mu sync.Mutex
	var told []time.Duration
	tell := func(left time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, left)
	}
	require.NoError(t, recipes.WaitAndTell(t.Context(), wheel.Default(), exports, name, tell))
	require.NoError(t, recipes.WaitAndTell(t.Context(), wheel.Default(), exports, name, tell))
	mu.Lock()
	require.GreaterOrEqual(t, len(told), 2)
	require.Zero(t, told[0])
	require.Greater(t, told[0]+2*time.Second, told[1])
	require.LessOrEqual(t, told[len(told)-1], told[1], "time passes")
	mu.Unlock()

	ctx, cancel := context.WithCancel(t.Context())
	err := recipes.WaitAndTell(ctx, wheel.Default(), exports, name+"other", func(time.Duration) {})
	require.NoError(t, err)
	err = recipes.WaitAndTell(ctx, wheel.Default(), exports, name+"other", func(time.Duration) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
}
