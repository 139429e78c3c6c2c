package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// combine returns limits of two algorithms, of so many permits an hour each, and what is left of them.
func combine(t *testing.T, c *ratelimit.Client, name string, user, service, partner int64) (all *ratelimit.All, left func() [3]int64) {
	t.Helper()
	users := c.Limiter("user", ratelimit.PerHour(user), ratelimit.WithHashTag(name))
	services := c.Limiter("service", ratelimit.PerHour(service), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	partners := c.Limiter("partner", ratelimit.PerHour(partner))
	all = c.All(users.Part("ada"), services.Part(name), partners.Part(name))
	require.NoError(t, all.Err())
	return all, func() (left [3]int64) {
		for i, peek := range []func() (ratelimit.Result, error){
			func() (ratelimit.Result, error) { return users.Peek(t.Context(), "ada") },
			func() (ratelimit.Result, error) { return services.Peek(t.Context(), name) },
			func() (ratelimit.Result, error) { return partners.Peek(t.Context(), name) },
		} {
			r, err := peek()
			require.NoError(t, err)
			left[i] = r.Remaining
		}
		return left
	}
}

// Guarantees: Q28.
func TestAll_TakesAllOrNone(t *testing.T) {
	t.Parallel()
	for denies, limits := range [][3]int64{{3, 10, 10}, {10, 3, 10}, {10, 10, 3}} {
		t.Run(fmt.Sprint("limit ", denies), func(t *testing.T) {
			t.Parallel()
			c, rdb, _, name := shared(t)
			all, left := combine(t, c, name, limits[0], limits[1], limits[2])
			for i := range int64(3) {
				r, err := all.Allow(t.Context())
				require.NoError(t, err)
				require.True(t, r.Allowed)
				require.EqualValues(t, 1, r.Granted)
				require.Equal(t, 2-i, r.Remaining)
				require.EqualValues(t, 3, r.Limit)
				require.Zero(t, r.RetryAfter)
				require.Len(t, r.Parts, 3)
				for at, part := range r.Parts {
					require.True(t, part.Allowed)
					require.Equal(t, limits[at]-1-i, part.Remaining)
					require.Equal(t, limits[at], part.Limit)
				}
			}
			for i := range 6 {
				if i > 2 { // one that has to ask Redis
					all, _ = combine(t, newClient(t, rdb), name, limits[0], limits[1], limits[2])
				}
				r, err := all.Allow(t.Context())
				require.NoError(t, err)
				require.Equal(t, i > 2, r.Source == ratelimit.SourceRedis)
				require.False(t, r.Allowed)
				require.Zero(t, r.Granted)
				require.Positive(t, r.RetryAfter)
				require.Len(t, r.Parts, 3)
				for at, part := range r.Parts {
					require.Equal(t, at != denies, part.Allowed, "limit %d", at)
					require.Equal(t, at == denies, part.RetryAfter > 0)
				}
			}
			want := [3]int64{7, 7, 7}
			want[denies] = 0
			require.Equal(t, want, left(), "the others were not charged")
		})
	}
}

// Guarantees: Q28.
func TestAll_CostsAndPeek(t *testing.T) {
	t.Parallel()
	c, _, trips, name := shared(t)
	ctx := t.Context()
	requests, bytes := c.Limiter("requests", ratelimit.PerHour(100)), c.Limiter("bytes", ratelimit.PerHour(10_000))
	partner := c.Limiter("partner", ratelimit.PerHour(50), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
	all := c.All(requests.Part(name), bytes.Part(name).Cost(3000), partner.Part(name).Cost(2))
	r, err := all.Peek(ctx)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.Zero(t, r.Granted)
	require.EqualValues(t, 3, r.Remaining)
	require.EqualValues(t, 1, trips.trips(func() { r, err = all.AllowN(ctx, 3) }))
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.EqualValues(t, 3, r.Granted)
	require.EqualValues(t, 97, r.Parts[0].Remaining)
	require.EqualValues(t, 1000, r.Parts[1].Remaining)
	require.EqualValues(t, 44, r.Parts[2].Remaining)
	r, err = all.Peek(ctx)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.False(t, r.Parts[1].Allowed)
	require.True(t, r.Parts[0].Allowed)
	r, err = all.AllowN(ctx, 0)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, all.WaitN(ctx, 0))
	_, err = all.AllowN(ctx, 4)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.ErrorContains(t, err, "bytes:{"+name[:20])
	_, err = c.All(requests.Part(name), partner.Part(name).Cost(51)).Allow(ctx)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.ErrorIs(t, c.All(requests.Part(name), partner.Part(name).Cost(51)).Wait(ctx), ratelimit.ErrExceedsLimit)
	_, err = c.All(partner.Part(name), bytes.Part(name).Cost(ratelimit.MaxRate)).AllowN(ctx, ratelimit.MaxRate)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)

	one := c.All(bytes.Part(name + "1").Cost(4000))
	r, err = c.All(bytes.Part(name+"2")).AllowN(ctx, 10_000)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.EqualValues(t, 10_000, r.Parts[0].Granted)
	_, err = c.All(bytes.Part(name+"2")).AllowN(ctx, 10_001)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	r, err = one.AllowN(ctx, 2)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.EqualValues(t, 2, r.Granted)
	require.Len(t, r.Parts, 1)
	require.EqualValues(t, 8000, r.Parts[0].Granted)
	require.EqualValues(t, 0, r.Remaining)
	require.EqualValues(t, 2, r.Limit)
	_, err = one.AllowN(ctx, 3)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	r, err = one.Peek(ctx)
	require.NoError(t, err)
	require.False(t, r.Allowed, "2000 are left of 4000")
	require.EqualValues(t, 2000, r.Parts[0].Remaining)
}

// Guarantees: Q28.
func TestAll_RefusesBadParts(t *testing.T) {
	t.Parallel()
	c, rdb, trips, name := shared(t)
	other := newClient(t, rdb)
	k := c.Limiter("k", ratelimit.PerHour(10))
	bad := c.Limiter("", ratelimit.PerHour(10))
	many := make([]ratelimit.Part, 17)
	for i := range many {
		many[i] = k.Part(fmt.Sprint(i))
	}
	require.Zero(t, trips.trips(func() {
		for what, parts := range map[string][]ratelimit.Part{
			"no parts":            nil,
			"too many":            many,
			"a part of nothing":   {{}},
			"one of another":      {k.Part(name), other.Limiter("l", ratelimit.PerHour(1)).Part(name)},
			"a bad prefix":        {k.Part(name), bad.Part(name)},
			"a cost of nothing":   {k.Part(name).Cost(0)},
			"too high a cost":     {k.Part(name).Cost(ratelimit.MaxRate + 1)},
			"the same key":        {k.Part(name), k.With(ratelimit.PerMinute(5)).Part(name)},
			"too short for a tag": {c.Limiter("k", ratelimit.PerHour(10), ratelimit.WithHashTag("")).Part(name)},
		} {
			all := c.All(parts...)
			require.ErrorIs(t, all.Err(), cogwheel.ErrInvalid, what)
			_, err := all.Allow(t.Context())
			require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
			_, err = all.Peek(t.Context())
			require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
			require.ErrorIs(t, all.Wait(t.Context()), cogwheel.ErrInvalid, what)
		}
	}))
	all := c.All(k.Part(name), k.Part(name+"2"))
	_, err := all.AllowN(t.Context(), -1)
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	_, err = all.Allow(nil) //nolint:staticcheck // that is refused
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	require.Panics(t, func() { all.WaitFunc(t.Context(), 1, nil) })
}

// In a cluster, a hash tag puts the keys into one slot. Parts that do not share one are refused before
// anything is sent.
// Guarantees: Q28.
func TestAll_OnACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	c, name := newClient(t, rdb), redistest.Name(t)
	all, left := combine(t, c, name, 3, 10, 10)
	for i := range 5 {
		r, err := all.Allow(t.Context())
		require.NoError(t, err)
		require.Equal(t, i < 3, r.Allowed)
	}
	require.Equal(t, [3]int64{0, 7, 7}, left())
	k := c.Limiter("k", ratelimit.PerHour(10))
	_, err := c.All(k.Part(name+"a"), k.Part(name+"b")).Allow(t.Context())
	require.ErrorIs(t, err, cogwheel.ErrInvalid)
	for _, key := range []string{name + "a", name + "b"} {
		slot := rdb.ClusterKeySlot(t.Context(), "k:{"+key+"}").Val()
		require.ErrorContains(t, err, fmt.Sprintf(`%q in slot %d`, "k:{"+key+"}", slot))
		require.Zero(t, rdb.Exists(t.Context(), "k:{"+key+"}").Val())
	}
}

// Guarantees: Q7.
func TestAll_Wait(t *testing.T) {
	t.Parallel()
	c, rdb, trips, name := shared(t)
	ctx := within(t, patience)
	fast := c.Limiter("fast", ratelimit.PerSecond(100).WithBurst(10))
	slow := c.Limiter("slow", ratelimit.PerSecond(20).WithBurst(2))
	all := c.All(fast.Part(name), slow.Part(name))
	stalled, began := redistest.Stalls(t), time.Now()
	sent := trips.trips(func() {
		for range 12 {
			require.NoError(t, all.Wait(ctx))
		}
	})
	took := time.Since(began)
	require.GreaterOrEqual(t, took, 10*50*time.Millisecond, "ten of them one after the other")
	require.Less(t, took-stalled(), 5*time.Second, "it does not wait for the look that comes once a second")
	require.LessOrEqual(t, sent, int64(40), "it asks when they are likely to grant")

	order := make(chan int, 20)
	for i := range 20 {
		all.WaitFunc(ctx, 1, func(err error) {
			if err == nil {
				order <- i
			}
		})
	}
	r, err := all.Allow(ctx)
	require.NoError(t, err)
	require.False(t, r.Allowed, "it does not overtake")
	last := -1
	for range 20 {
		at := <-order
		require.Less(t, at-last, 4, "roughly in order: each function has a goroutine of its own")
		last = max(last, at)
	}

	day := c.Limiter("day", ratelimit.Limit{Rate: 1, Per: 24 * time.Hour, Burst: 1})
	never := c.All(fast.Part(name), day.Part(name))
	require.NoError(t, never.Wait(ctx))
	short, cancel := newWheel(t).WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.ErrorIs(t, never.Wait(short), ratelimit.ErrWouldExceedDeadline)
	failed := make(chan error, 1)
	stop := never.WaitFunc(t.Context(), 1, func(err error) { failed <- err })
	stop()
	require.ErrorIs(t, <-failed, context.Canceled)

	// What another process gives back is seen within about a second.
	waited := make(chan error, 1)
	never.WaitFunc(context.Background(), 1, func(err error) { waited <- err })
	require.NoError(t, rdb.Del(ctx, "day:{"+name+"}").Err())
	require.NoError(t, <-waited)
}

// Guarantees: Q18.
func TestAll_NothingIsKeptForCombinations(t *testing.T) {
	t.Parallel()
	c, _, _, name := shared(t)
	k, l := c.Limiter("user", ratelimit.PerHour(1_000_000)), c.Limiter("service", ratelimit.PerHour(1_000_000))
	for i := range int64(2000) {
		r, err := c.All(k.With(ratelimit.PerHour(1_000_000+i)).Part(fmt.Sprint(name, i)), l.Part(name)).Allow(t.Context())
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
	redistest.Poll(t, func() bool { return ratelimit.Kept(c) == 0 })
}

// Guarantees: Q28.
func TestAll_ByPolicy(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	quick := func(o *redis.Options) { o.MaxRetries, o.DialTimeout = -1, 100*time.Millisecond }
	breaker := ratelimit.WithBreaker(1, time.Hour)
	closed := newClient(t, server.Client(t, quick), breaker)
	open := newClient(t, server.Client(t, quick), breaker, ratelimit.WithPolicy(ratelimit.FailOpen()))
	local := newClient(t, server.Client(t, quick), breaker, ratelimit.WithPolicy(ratelimit.LocalShare(2)))
	server.Kill()
	make3 := func(c *ratelimit.Client) (*ratelimit.All, *ratelimit.Limiter) {
		users, services := c.Limiter("user", ratelimit.PerHour(6)), c.Limiter("service", ratelimit.PerHour(100))
		return c.All(users.Part("ada"), services.Part("api").Cost(2)), services
	}
	all, _ := make3(closed)
	_, err := all.Allow(t.Context())
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	all, _ = make3(open)
	for range 10 {
		r, err := all.Allow(t.Context())
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Len(t, r.Parts, 2)
		require.Equal(t, ratelimit.SourceDegraded, r.Source)
	}
	require.NoError(t, all.Wait(t.Context()))
	all, services := make3(local)
	for i := range 5 {
		r, err := all.Allow(t.Context())
		require.NoError(t, err)
		require.Equal(t, i < 3, r.Allowed, "half of six")
		require.Equal(t, i < 3, r.Parts[0].Allowed)
		require.True(t, r.Parts[1].Allowed)
	}
	r, err := services.Peek(t.Context(), "api")
	require.NoError(t, err)
	require.EqualValues(t, 50-6, r.Remaining, "the share of the service is one count, and none of it was taken by what was denied")
	require.NoError(t, local.Close(t.Context()))
	_, err = all.Allow(t.Context())
	require.ErrorIs(t, err, ratelimit.ErrClosed)
}
