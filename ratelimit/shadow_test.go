package ratelimit_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// seen collects events.
type seen struct {
	mu     sync.Mutex
	events []ratelimit.Event
	what   []string
}

func (s *seen) hooks() ratelimit.Hooks {
	on := func(what string) func(ratelimit.Event) {
		return func(e ratelimit.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events, s.what = append(s.events, e), append(s.what, what)
		}
	}
	return ratelimit.Hooks{Allowed: on("allowed"), Denied: on("denied"), Failed: on("failed")}
}

// take returns the only event since the last call.
func (s *seen) take(t *testing.T) (what string, e ratelimit.Event) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.events, 1, s.what)
	what, e = s.what[0], s.events[0]
	s.events, s.what = nil, nil
	return what, e
}

// none requires that there were no events.
func (s *seen) none(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.what)
}

// shadowCall is a call of a Limiter or of an All of it.
type shadowCall struct {
	name string
	n    int64 // permits, or requests
	asks bool  // it takes nothing, and has no event
	bare bool  // it has no Result
	do   func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error)
}

// withoutResult is for calls that return only an error.
func withoutResult(err error) (ratelimit.Result, error) {
	if err != nil {
		return ratelimit.Result{}, err
	}
	return ratelimit.Result{Allowed: true, WouldDeny: true}, nil
}

// shadowCalls are the methods that ask for permits.
var shadowCalls = []shadowCall{
	{"Allow", 1, false, false, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return k.Allow(ctx, key)
	}},
	{"AllowN", 3, false, false, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return k.AllowN(ctx, key, 3)
	}},
	{"AllowUpTo", 5, false, false, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return k.AllowUpTo(ctx, key, 5)
	}},
	{"Peek", 0, true, false, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return k.Peek(ctx, key)
	}},
	{"Wait", 1, false, true, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return withoutResult(k.Wait(ctx, key))
	}},
	{"WaitN", 2, false, true, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return withoutResult(k.WaitN(ctx, key, 2))
	}},
	{"WaitFunc", 1, false, true, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return withoutResult(waitFunc(ctx, k, key, 1))
	}},
	{"Reserve", 2, false, true, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		r, err := k.Reserve(ctx, key, 2)
		if err == nil {
			err = atOnce(ctx, r)
		}
		return withoutResult(err)
	}},
	{"All", 1, false, false, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return ratelimit.ClientOf(k).All(k.Part(key)).Allow(ctx)
	}},
	{"All with a cost", 1, false, false, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return ratelimit.ClientOf(k).All(k.Part(key).Cost(3)).Allow(ctx)
	}},
	{"All.Peek", 0, true, false, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return ratelimit.ClientOf(k).All(k.Part(key)).Peek(ctx)
	}},
	{"All.Wait", 1, false, true, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		return withoutResult(ratelimit.ClientOf(k).All(k.Part(key)).Wait(ctx))
	}},
	{"All.WaitFunc", 1, false, true, func(ctx context.Context, k *ratelimit.Limiter, key string) (ratelimit.Result, error) {
		ended := make(chan error, 2)
		ratelimit.ClientOf(k).All(k.Part(key)).WaitFunc(ctx, 1, func(err error) { ended <- err })
		return withoutResult(<-ended)
	}},
}

// waitFunc calls WaitFunc and waits for its end.
func waitFunc(ctx context.Context, k *ratelimit.Limiter, key string, n int64) error {
	ended := make(chan error, 2)
	k.WaitFunc(ctx, key, n, func(err error) { ended <- err })
	return <-ended
}

// atOnce returns an error if a reservation has a delay.
func atOnce(ctx context.Context, r *ratelimit.Reservation) error {
	err := r.Wait(ctx)
	if err == nil && r.Delay() != 0 {
		err = fmt.Errorf("a delay of %v", r.Delay())
	}
	return err
}

var shadowAlgorithms = []ratelimit.Algorithm{ratelimit.GCRA, ratelimit.FixedWindow, ratelimit.SlidingWindow}

// eachShadowCall runs a test for each algorithm and method.
func eachShadowCall(t *testing.T, test func(t *testing.T, a ratelimit.Algorithm, call shadowCall)) {
	t.Helper()
	for _, a := range shadowAlgorithms {
		for _, call := range shadowCalls {
			t.Run(fmt.Sprint(a, " ", call.name), func(t *testing.T) {
				t.Parallel()
				test(t, a, call)
			})
		}
	}
}

// stored returns the value of a key in Redis.
func stored(t *testing.T, rdb redis.UniversalClient, k *ratelimit.Limiter, key string) string {
	t.Helper()
	value, err := rdb.Get(t.Context(), k.RedisKey(key)).Result()
	require.NoError(t, err)
	return value
}

// Whoever denies, Redis or this process, the request passes, takes nothing, and counts as denied.
// Guarantees: Q37.
func TestShadow_ADeniedRequestPassesAndTakesNothing(t *testing.T) {
	t.Parallel()
	eachShadowCall(t, func(t *testing.T, a ratelimit.Algorithm, call shadowCall) {
		for _, source := range []ratelimit.Source{ratelimit.SourceRedis, ratelimit.SourceLocal} {
			local := source == ratelimit.SourceLocal
			events, rdb, name := &seen{}, redistest.Shared(t).Client(t), redistest.Name(t)+source.String()
			c := newClient(t, rdb, ratelimit.WithHooks(events.hooks()))
			other := c
			if !local { // then the denial is in the memory of another process
				other = newClient(t, rdb, ratelimit.WithHooks(events.hooks()))
			}
			opts := []ratelimit.LimiterOption{ratelimit.WithAlgorithm(a)}
			enforced := other.Limiter(name, ratelimit.PerDay(3), opts...)
			k := c.Limiter(name, ratelimit.PerDay(3), append(opts, ratelimit.WithShadow())...)
			require.NoError(t, second(enforced.AllowN(t.Context(), "u", 3)))
			events.take(t)
			denied, err := enforced.AllowN(t.Context(), "u", 1) // which the process remembers
			require.NoError(t, err)
			require.False(t, denied.Allowed)
			require.False(t, denied.WouldDeny)
			_, e := events.take(t)
			require.False(t, e.Shadow)
			before, stats := stored(t, rdb, k, "u"), c.Stats()

			r, err := call.do(within(t, patience), k, "u")
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.True(t, r.WouldDeny)
			require.Equal(t, before, stored(t, rdb, k, "u"))
			if !call.bare {
				require.Equal(t, call.n, r.Granted)
				require.Zero(t, r.Remaining)
				require.Positive(t, r.RetryAfter)
				require.Positive(t, r.ResetAfter)
				require.Positive(t, r.Limit+1)
				for _, part := range r.Parts {
					require.True(t, part.Allowed)
					require.True(t, part.WouldDeny)
				}
			}
			if call.asks {
				events.none(t)
				require.Equal(t, stats.Denied, c.Stats().Denied)
				continue
			}
			what, e := events.take(t)
			require.Equal(t, "denied", what)
			require.True(t, e.Shadow)
			require.False(t, e.Result.Allowed)
			require.False(t, e.Result.WouldDeny)
			require.Positive(t, e.Result.RetryAfter)
			require.Equal(t, min(call.n, 3), e.N)
			require.Equal(t, strings.Contains(call.name, "Wait"), e.Waited)
			if call.name != "All" && call.name != "All with a cost" { // an All of several permits has a memory of its own
				require.Equal(t, source, e.Result.Source)
			}
			require.Equal(t, stats.Denied+1, c.Stats().Denied)
			require.EqualValues(t, 1, c.Stats().ShadowDenied)
			require.Equal(t, stats.Failed, c.Stats().Failed)
			require.Equal(t, stats.Allowed, c.Stats().Allowed)
			require.Zero(t, c.Stats().Waiting)
		}
	})
}

// What the limit grants, it charges, as without WithShadow, and to the same state.
// Guarantees: Q37.
func TestShadow_AGrantedRequestIsChargedOnce(t *testing.T) {
	t.Parallel()
	eachShadowCall(t, func(t *testing.T, a ratelimit.Algorithm, call shadowCall) {
		events, rdb, name := &seen{}, redistest.Shared(t).Client(t), redistest.Name(t)
		c := newClient(t, rdb, ratelimit.WithHooks(events.hooks()))
		enforced := c.Limiter(name, ratelimit.PerDay(9), ratelimit.WithAlgorithm(a))
		k := c.Limiter(name, ratelimit.PerDay(9), ratelimit.WithAlgorithm(a), ratelimit.WithShadow())
		require.Equal(t, enforced.RedisKey("u"), k.RedisKey("u"))
		r, err := call.do(within(t, patience), k, "u")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		charged := call.n
		if call.name == "All with a cost" {
			charged = 3
		}
		if !call.bare {
			require.Equal(t, call.n, r.Granted)
			require.False(t, r.WouldDeny)
			require.Zero(t, r.RetryAfter)
		}
		r, err = enforced.Peek(t.Context(), "u")
		require.NoError(t, err)
		require.Equal(t, 9-charged, r.Remaining)
		require.Zero(t, c.Stats().Denied)
		require.Zero(t, c.Stats().ShadowDenied)
		if call.asks {
			events.none(t)
			return
		}
		what, e := events.take(t)
		require.Equal(t, "allowed", what)
		require.True(t, e.Shadow)
		require.True(t, e.Result.Allowed)
		require.EqualValues(t, 1, c.Stats().Allowed)
	})
}

// An error of the limiter refuses no request either. It is reported.
// Guarantees: Q37.
func TestShadow_ARequestWhoseDecisionFailsPasses(t *testing.T) {
	t.Parallel()
	eachShadowCall(t, func(t *testing.T, a ratelimit.Algorithm, call shadowCall) {
		oom, noRight := error(refused("OOM command not allowed when used memory > 'maxmemory'.")), error(refused("NOPERM no"))
		for _, failure := range []struct {
			want error
			with *error // of all commands
		}{
			{ratelimit.ErrUnavailable, &oom},
			{ratelimit.ErrMisconfigured, &noRight},
			{ratelimit.ErrWrongKind, nil},
			{ratelimit.ErrExceedsLimit, nil},
		} {
			fault, events, rdb := &failing{}, &seen{}, redistest.Shared(t).Client(t)
			rdb.AddHook(fault)
			name := fmt.Sprint(redistest.Name(t), failure.want)
			c := newClient(t, rdb, ratelimit.WithHooks(events.hooks()), ratelimit.WithBreaker(1000, time.Second))
			limit := ratelimit.PerDay(3)
			if failure.want == ratelimit.ErrExceedsLimit { //nolint:errorlint // it is the one of the table
				if call.n < 2 && call.name != "All with a cost" || call.name == "AllowUpTo" {
					continue // it cannot exceed a limit
				}
				limit = ratelimit.PerDay(1)
			}
			k := c.Limiter(name, limit, ratelimit.WithAlgorithm(a), ratelimit.WithShadow())
			if failure.want == ratelimit.ErrWrongKind { //nolint:errorlint // it is the one of the table
				require.NoError(t, rdb.SAdd(t.Context(), k.RedisKey("u"), "a set").Err())
			}
			fault.with.Store(failure.with)
			r, err := call.do(within(t, patience), k, "u")
			fault.with.Store(nil)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.True(t, r.WouldDeny)
			if !call.bare {
				require.Equal(t, call.n, r.Granted)
				require.Zero(t, r.Limit)
				for _, part := range r.Parts {
					require.True(t, part.Allowed && part.WouldDeny)
				}
				require.Equal(t, strings.HasPrefix(call.name, "All") && !strings.HasPrefix(call.name, "Allow"), len(r.Parts) == 1)
			}
			if call.asks {
				events.none(t)
				continue
			}
			what, e := events.take(t)
			require.Equal(t, "failed", what)
			require.ErrorIs(t, e.Err, failure.want)
			require.True(t, e.Shadow)
			require.EqualValues(t, 1, c.Stats().Failed)
			require.Zero(t, c.Stats().ShadowDenied)
		}
	})
}

// What the caller does wrong or ends is an error as always.
func TestShadow_ErrorsOfTheCallerAreReturned(t *testing.T) {
	t.Parallel()
	eachShadowCall(t, func(t *testing.T, a ratelimit.Algorithm, call shadowCall) {
		c, _, _, name := shared(t)
		k := c.Limiter(name, ratelimit.PerDay(3), ratelimit.WithAlgorithm(a), ratelimit.WithShadow())
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, second(call.do(gone, k, "u")), context.Canceled)
		require.ErrorIs(t, second(call.do(nil, k, "u")), cogwheel.ErrInvalid)
		require.ErrorIs(t, second(call.do(t.Context(), c.Limiter("", ratelimit.PerDay(3), ratelimit.WithShadow()), "u")), cogwheel.ErrInvalid)
		require.ErrorIs(t, second(call.do(t.Context(), k.With(ratelimit.Limit{}), "u")), cogwheel.ErrInvalid)
		require.NoError(t, c.Close(t.Context()))
		require.ErrorIs(t, second(call.do(t.Context(), k, "u")), ratelimit.ErrClosed)
		require.Zero(t, c.Stats().ShadowDenied)
	})
	c, _, _, name := shared(t)
	k := c.Limiter(name, ratelimit.PerDay(3), ratelimit.WithShadow())
	for _, err := range []error{
		second(k.AllowN(t.Context(), "u", -1)), second(k.AllowUpTo(t.Context(), "u", -1)), k.WaitN(t.Context(), "u", -1),
		waitFunc(t.Context(), k, "u", -1), second(k.Reserve(t.Context(), "u", -1)),
		second(c.All(k.Part("u")).AllowN(t.Context(), -1)),
		second(c.All(k.Part("u"), k.Part("u")).Allow(t.Context())),
	} {
		require.ErrorIs(t, err, cogwheel.ErrInvalid)
	}
}

func TestShadow_NoPermitsAreGrantedAtOnce(t *testing.T) {
	t.Parallel()
	c, _, trips, name := shared(t)
	k := c.Limiter(name, ratelimit.PerDay(1), ratelimit.WithShadow())
	require.NoError(t, second(k.Allow(t.Context(), "u")))
	require.Zero(t, trips.trips(func() {
		require.NoError(t, k.WaitN(t.Context(), "u", 0))
		require.NoError(t, waitFunc(t.Context(), k, "u", 0))
		require.NoError(t, second(k.Reserve(t.Context(), "u", 0)))
	}))
	r, err := k.AllowN(t.Context(), "u", 0)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.False(t, r.WouldDeny)
}

// AllowUpTo takes what there is, and passes all.
func TestShadow_AllowUpToTakesWhatThereIs(t *testing.T) {
	t.Parallel()
	for _, a := range shadowAlgorithms {
		c, _, _, name := shared(t)
		k := c.Limiter(name+a.String(), ratelimit.PerDay(3), ratelimit.WithAlgorithm(a), ratelimit.WithShadow())
		for _, want := range []struct {
			n, left int64
			would   bool
		}{{2, 1, false}, {2, 0, true}, {1, 0, true}} {
			r, err := k.AllowUpTo(t.Context(), "u", want.n)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, want.n, r.Granted)
			require.Equal(t, want.would, r.WouldDeny)
			require.Equal(t, want.left, r.Remaining)
		}
		require.EqualValues(t, 1, c.Stats().ShadowDenied, "a grant of a part is no denial")
		r, err := k.AllowUpTo(t.Context(), "other", 5)
		require.NoError(t, err)
		require.EqualValues(t, 5, r.Granted)
		require.True(t, r.WouldDeny, "the limit never grants as many")
		require.Zero(t, r.Remaining)
	}
}

// A call leaves no more in memory than one of an enforced Limiter.
func TestShadow_CallsLeaveNoState(t *testing.T) {
	t.Parallel()
	eachShadowCall(t, func(t *testing.T, a ratelimit.Algorithm, call shadowCall) {
		c, _, _, name := shared(t)
		require.NoError(t, second(call.do(within(t, patience), c.Limiter(name, ratelimit.PerDay(9), ratelimit.WithAlgorithm(a), ratelimit.WithShadow()), "u")))
		redistest.Poll(t, func() bool { return c.Stats().Keys == 0 })
	})
}

func TestShadow_WithKeepsIt(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	k := c.Limiter(name, ratelimit.PerDay(9), ratelimit.WithShadow()).With(ratelimit.PerDay(1))
	for _, denied := range []bool{false, true} {
		r, err := k.Allow(t.Context(), "u")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, denied, r.WouldDeny)
	}
	require.Equal(t, 1, ratelimit.States(c.Limiter(name, ratelimit.PerDay(1))), "one state for both kinds")
	require.EqualValues(t, 1, c.Stats().ShadowDenied, "also without hooks")
}

// The policy decides as always.
func TestShadow_WouldDenyWhatThePolicyDenies(t *testing.T) {
	t.Parallel()
	oom := error(refused("OOM command not allowed when used memory > 'maxmemory'."))
	for _, policy := range []struct {
		ratelimit.Policy
		would []bool
	}{
		{ratelimit.FailOpen(), []bool{false, false}},
		{ratelimit.LocalShare(1), []bool{false, true}},
		{ratelimit.FailClosed(), []bool{true, true}},
	} {
		fault, rdb := &failing{}, redistest.Shared(t).Client(t)
		rdb.AddHook(fault)
		c := newClient(t, rdb, ratelimit.WithPolicy(policy.Policy), ratelimit.WithBreaker(1, time.Hour))
		fault.with.Store(&oom)
		k := c.Limiter(redistest.Name(t), ratelimit.PerDay(1), ratelimit.WithShadow())
		for _, would := range policy.would {
			r, err := k.Allow(t.Context(), "u")
			require.NoError(t, err)
			require.True(t, r.Allowed)
			require.Equal(t, would, r.WouldDeny, policy)
			require.Equal(t, ratelimit.SourceDegraded, r.Source)
		}
		require.NoError(t, k.Wait(within(t, patience), "u"), "under FailClosed, others go on waiting")
		require.NoError(t, second(k.Reserve(t.Context(), "u", 1)))
	}
}

// Requests that pass all the same stand in no line, and let those that wait go first.
func TestShadow_DoesNotOvertakeWaiters(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	enforced := c.Limiter(name, ratelimit.PerDay(1))
	require.NoError(t, second(enforced.Allow(t.Context(), "u")))
	cancel := enforced.WaitFunc(t.Context(), "u", 1, func(error) {})
	defer cancel()
	k := c.Limiter(name, ratelimit.PerDay(1), ratelimit.WithShadow())
	require.NoError(t, k.Wait(within(t, patience), "u"))
	r, err := k.Allow(t.Context(), "u")
	require.NoError(t, err)
	require.True(t, r.WouldDeny)
	require.Equal(t, 1, c.Stats().Waiting)
}

// WaitFunc calls f once also if the call is cancelled, a hook panics, or the Client is closed.
func TestShadow_WaitFuncCallsFOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t), ratelimit.WithHooks(ratelimit.Hooks{
		Denied: func(ratelimit.Event) { panic("a hook") },
	}))
	k := c.Limiter("k", ratelimit.PerDay(1), ratelimit.WithShadow())
	require.NoError(t, second(k.Allow(t.Context(), "u")))
	require.NoError(t, waitFunc(t.Context(), k, "u", 1), "the hook panics")

	server.Pause()
	ended := make(chan error, 2)
	cancel := k.WaitFunc(t.Context(), "other", 1, func(err error) { ended <- err })
	cancel()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	server.Resume()
	cancel = k.WaitFunc(t.Context(), "other", 1, func(err error) { ended <- err })
	require.NoError(t, <-ended)
	cancel()
	require.NoError(t, c.Close(t.Context()))
	require.Empty(t, ended)
	require.ErrorIs(t, waitFunc(t.Context(), k, "u", 1), ratelimit.ErrClosed)
}

// An All is tried as a whole: a part that would deny the request charges none, and takes none of the others.
// Guarantees: Q37.
func TestShadow_AllIsTriedAsAWhole(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what          string
		user, service int64 // limits, of which 2 are used
		would         [2]bool
		left          [2]int64
		event         string
	}{
		{"all grant", 5, 5, [2]bool{}, [2]int64{2, 1}, "allowed"},
		{"one would deny", 5, 3, [2]bool{false, true}, [2]int64{3, 1}, "denied"},
		{"both would deny", 2, 3, [2]bool{true, true}, [2]int64{0, 1}, "denied"},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			events, name := &seen{}, redistest.Name(t)
			c := newClient(t, redistest.Shared(t).Client(t), ratelimit.WithHooks(events.hooks()))
			users := c.Limiter("user", ratelimit.PerDay(test.user), ratelimit.WithShadow())
			services := c.Limiter("service", ratelimit.PerDay(test.service), bySliding, ratelimit.WithShadow())
			all := c.All(users.Part(name), services.Part(name).Cost(2))
			require.NoError(t, second(users.AllowN(t.Context(), name, 2)))
			events.take(t)
			require.NoError(t, second(services.AllowN(t.Context(), name, 2)))
			events.take(t)

			would := test.would != [2]bool{}
			for _, ask := range []func(context.Context) (ratelimit.Result, error){all.Peek, all.Allow} {
				r, err := ask(t.Context())
				require.NoError(t, err)
				require.True(t, r.Allowed)
				require.Equal(t, would, r.WouldDeny)
				for i := range r.Parts {
					require.Equal(t, test.would[i], r.Parts[i].WouldDeny)
				}
				require.True(t, r.Parts[0].Allowed && r.Parts[1].Allowed)
			}
			require.Equal(t, test.left[0], remaining(t, users, name))
			require.Equal(t, test.left[1], remaining(t, services, name))
			what, e := events.take(t)
			require.Equal(t, test.event, what)
			require.True(t, e.Shadow)
			require.Equal(t, !would, e.Result.Allowed)
			require.Equal(t, would, c.Stats().ShadowDenied == 1)
		})
	}
}

// Some parts on trial would delay the others, or fail with them: they are asked in a call of their own.
// Guarantees: Q37.
func TestShadow_AnAllIsNotTriedInPart(t *testing.T) {
	t.Parallel()
	c, _, trips, name := shared(t)
	enforced, tried := c.Limiter("enforced", ratelimit.PerDay(5)), c.Limiter("tried", ratelimit.PerDay(5), ratelimit.WithShadow())
	for _, parts := range [][]ratelimit.Part{
		{enforced.Part(name), tried.Part(name)},
		{tried.Part(name), enforced.Part(name)},
		{tried.Part(name), tried.Part("other"), enforced.Part(name).Cost(2)},
	} {
		all := c.All(parts...)
		require.ErrorIs(t, all.Err(), cogwheel.ErrInvalid)
		require.ErrorContains(t, all.Err(), "WithShadow")
		require.Zero(t, trips.trips(func() {
			for _, err := range []error{
				second(all.Allow(t.Context())), second(all.TryReserve(t.Context(), 1)), second(all.Peek(t.Context())),
				all.Wait(t.Context()),
			} {
				require.Equal(t, all.Err(), err)
			}
		}))
	}
}

// A limit on trial beside others delays, refuses and changes nothing of their request: Redis hangs, or the key is none.
// Guarantees: Q37.
func TestShadow_ALimitBesideOthersHarmsNothing(t *testing.T) {
	t.Parallel()
	server, apart := redistest.Start(t), redistest.Start(t)
	events := &seen{}
	c := newClient(t, server.Client(t))
	trial := newClient(t, apart.Client(t), ratelimit.WithHooks(events.hooks()))
	enforced, tried := c.Limiter("enforced", ratelimit.PerDay(5)), trial.Limiter("tried", ratelimit.PerDay(1), ratelimit.WithShadow())
	apart.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := enforced.Allow(ctx, "u")
	require.NoError(t, err)
	ended := make(chan error, 1)
	tried.WaitFunc(context.WithoutCancel(ctx), "u", 1, func(err error) { ended <- err })
	cancel() // the request is over
	require.Empty(t, ended)
	require.Equal(t, []any{true, false, int64(4), 0}, []any{r.Allowed, r.WouldDeny, r.Remaining, len(r.Parts)})
	require.NoError(t, <-ended)
	what, e := events.take(t)
	require.Equal(t, "failed", what)
	require.ErrorIs(t, e.Err, ratelimit.ErrUnavailable)
	apart.Resume()
}

// The Event of a hook keeps the decision of the limits after the call has returned.
func TestShadow_AHookKeepsTheDecisionOfEachPart(t *testing.T) {
	t.Parallel()
	var kept ratelimit.Event
	hooks := ratelimit.Hooks{Denied: func(e ratelimit.Event) { kept = e }}
	name := redistest.Name(t)
	c := newClient(t, redistest.Shared(t).Client(t), ratelimit.WithHooks(hooks))
	all := c.All(
		c.Limiter(name, ratelimit.PerDay(1), ratelimit.WithShadow()).Part("u"),
		c.Limiter(name+"2", ratelimit.PerDay(2), ratelimit.WithShadow()).Part("u"),
	)
	for range 2 {
		r, err := all.Allow(t.Context())
		require.NoError(t, err)
		require.True(t, r.Parts[0].Allowed && r.Parts[1].Allowed)
	}
	require.False(t, kept.Result.Parts[0].Allowed)
	require.True(t, kept.Result.Parts[1].Allowed)
}
