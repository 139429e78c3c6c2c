package ratelimit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// hanging returns a client of a Redis that answered until now and hangs, with the redis client's own timeouts
// of seconds.
func hanging(t *testing.T, before func(c *ratelimit.Client), opts ...ratelimit.Option) *ratelimit.Client {
	t.Helper()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t), opts...)
	before(c)
	server.Pause()
	t.Cleanup(server.Resume)
	return c
}

// soon is well below the timeouts of a redis client, and above what scheduling takes.
const soon = 1500 * time.Millisecond

// Guarantees: Q5.
func TestTimeout_ThePolicyDecidesWhenItIsOver(t *testing.T) {
	t.Parallel()
	limit := ratelimit.PerHour(1000)
	for what, policy := range map[string]ratelimit.Policy{"open": ratelimit.FailOpen(), "closed": ratelimit.FailClosed()} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := hanging(t, func(c *ratelimit.Client) {
				await(t, "an answer within the timeout", func() bool {
					r, err := c.Limiter("k", limit).Allow(t.Context(), "u")
					return err == nil && r.Source == ratelimit.SourceRedis
				})
			}, ratelimit.WithPolicy(policy), ratelimit.WithTimeout(100*time.Millisecond))
			k := c.Limiter("k", limit)
			check := func(allow func() (ratelimit.Result, error)) {
				t.Helper()
				var r ratelimit.Result
				var err error
				require.Less(t, redistest.Running(t, func() { r, err = allow() }), soon)
				if what == "closed" {
					require.ErrorIs(t, err, ratelimit.ErrUnavailable)
					return
				}
				require.NoError(t, err)
				require.True(t, r.Allowed)
				require.Equal(t, ratelimit.SourceDegraded, r.Source)
			}
			for range 3 {
				check(func() (ratelimit.Result, error) { return k.Allow(t.Context(), "u") })
				check(func() (ratelimit.Result, error) { return k.AllowUpTo(t.Context(), "u", 5) })
			}
			require.True(t, c.Stats().Down, "each of them counts as a failure")
		})
	}
}

// A first decision needs a connection, two greetings on it, and its script twice. All of that takes one timeout together,
// or two if the process was paused. This holds for a context that cannot end too.
func TestTimeout_AFirstDecisionTakesOne(t *testing.T) {
	t.Parallel()
	for _, bounded := range []bool{false, true} {
		t.Run(fmt.Sprint("contexts bound calls: ", bounded), func(t *testing.T) {
			t.Parallel()
			const timeout = 500 * time.Millisecond
			d := &redistest.FaultDialer{}
			rdb := redistest.Start(t).Client(t, func(o *redis.Options) {
				o.Dialer, o.ReadTimeout, o.ContextTimeoutEnabled = d.Dial, timeout, bounded
			})
			d.Delay(0, timeout*4/5)
			c := newClient(t, rdb, ratelimit.WithTimeout(timeout), ratelimit.WithPolicy(ratelimit.FailOpen()))
			require.Less(t, redistest.Running(t, func() {
				r, err := c.Limiter("k", ratelimit.PerHour(10)).Allow(context.Background(), "u")
				require.NoError(t, err)
				require.Equal(t, ratelimit.SourceDegraded, r.Source)
			}), 5*timeout/2)
		})
	}
}

// The deadline of a request is often shorter than the timeout of the limiter.
// Guarantees: Q5.
func TestTimeout_ADeadlineThatPassesEarlierIsAnOutage(t *testing.T) {
	t.Parallel()
	for what, policy := range map[string]ratelimit.Policy{"open": ratelimit.FailOpen(), "closed": ratelimit.FailClosed()} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			limit := ratelimit.PerHour(1000)
			c := hanging(t, func(c *ratelimit.Client) {
				_, err := c.Limiter("k", limit).Allow(t.Context(), "u")
				require.NoError(t, err)
			}, ratelimit.WithPolicy(policy), ratelimit.WithBreaker(100, time.Second))
			k := c.Limiter("k", limit)
			for _, allow := range []func(context.Context) (ratelimit.Result, error){
				func(ctx context.Context) (ratelimit.Result, error) { return k.Allow(ctx, "u") },
				func(ctx context.Context) (ratelimit.Result, error) { return k.AllowUpTo(ctx, "u", 3) },
				func(ctx context.Context) (ratelimit.Result, error) { return c.StoredLimiter("l").Allow(ctx) },
				c.All(k.Part("u"), k.Part("v")).Allow,
			} {
				var r ratelimit.Result
				var err error
				require.Less(t, redistest.Running(t, func() { r, err = allow(within(t, 300*time.Millisecond)) }), soon)
				if what == "open" {
					require.NoError(t, err)
					require.True(t, r.Allowed)
					require.Equal(t, ratelimit.SourceDegraded, r.Source)
				} else {
					require.ErrorIs(t, err, ratelimit.ErrUnavailable)
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
			}
			// A context that has no time left, or is cancelled, says nothing about Redis. It makes no
			// difference that the caller hears of its deadline late, as in a process that stood still.
			for _, late := range []time.Duration{0, 50 * time.Millisecond} {
				_, err := k.Allow(endsLate(t, time.Millisecond, late), "u")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
				_, err = k.AllowUpTo(endsLate(t, time.Millisecond, late), "u", 3)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := k.Allow(ctx, "u")
				done <- err
			}()
			require.NoError(t, newWheel(t).Sleep(t.Context(), 30*time.Millisecond))
			cancel()
			err := <-done
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
		})
	}
}

// endsLate returns a context whose deadline is in d, and which ends that much later.
func endsLate(t *testing.T, d, late time.Duration) context.Context {
	t.Helper()
	return promised{Context: within(t, d+late), deadline: time.Now().Add(d)}
}

// A promised context has the deadline that it says, whenever it ends.
type promised struct {
	context.Context
	deadline time.Time
}

func (p promised) Deadline() (time.Time, bool) { return p.deadline, true }

// Whatever is asked, a context that ends lets its caller go.
// Guarantees: Q14.
func TestHang_EveryCallEndsWithItsContext(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	limit := perSeconds(5, 3600)
	var reserved *ratelimit.Reservation
	var granted ratelimit.Result
	c := hanging(t, func(c *ratelimit.Client) {
		ctx, l, k := t.Context(), c.StoredLimiter("l"), c.Limiter("k", limit)
		require.NoError(t, l.SetRate(ctx, limit))
		var err error
		granted, err = l.Allow(ctx)
		require.NoError(t, err)
		_, err = k.AllowN(ctx, "u", 5)
		require.NoError(t, err)
		reserved, err = c.Limiter("r", perSeconds(1, 30).WithBurst(1)).Reserve(ctx, "u", 1)
		require.NoError(t, err)
		reserved, err = c.Limiter("r", perSeconds(1, 30).WithBurst(1)).Reserve(ctx, "u", 1)
		require.NoError(t, err)
		require.Positive(t, reserved.Delay())
	}, ratelimit.WithBreaker(1000, time.Second)) // so that each call asks
	k, l := c.Limiter("k", limit), c.StoredLimiter("l")
	all := c.All(k.Part("v"), c.Limiter("also", limit).Part("v"))
	for what, call := range map[string]func(context.Context) error{
		"Limiter.Reserve":          func(ctx context.Context) error { _, err := k.Reserve(ctx, "v", 1); return err },
		"Limiter.Reset":            func(ctx context.Context) error { return k.Reset(ctx, "u") },
		"Limiter.Peek":             func(ctx context.Context) error { _, err := k.Peek(ctx, "v"); return err },
		"Limiter.Wait":             func(ctx context.Context) error { return k.Wait(ctx, "v") },
		"StoredLimiter.Reserve":    func(ctx context.Context) error { _, err := l.Reserve(ctx, 1); return err },
		"StoredLimiter.Wait":       l.Wait,
		"StoredLimiter.TrySetRate": func(ctx context.Context) error { _, err := l.TrySetRate(ctx, limit); return err },
		"StoredLimiter.SetRate":    func(ctx context.Context) error { return l.SetRate(ctx, limit) },
		"StoredLimiter.UpdateRate": func(ctx context.Context) error { _, err := l.UpdateRate(ctx, limit); return err },
		"StoredLimiter.Config":     func(ctx context.Context) error { _, err := l.Config(ctx); return err },
		"StoredLimiter.Delete":     func(ctx context.Context) error { _, err := l.Delete(ctx); return err },
		"StoredLimiter.Return":     func(ctx context.Context) error { _, err := l.Return(ctx, granted); return err },
		"Reservation.Cancel":       func(ctx context.Context) error { _, err := reserved.Cancel(ctx); return err },
		"Reservation.Wait":         reserved.Wait,
		"All.Wait":                 all.Wait,
		"All.Peek":                 func(ctx context.Context) error { _, err := all.Peek(ctx); return err },
	} {
		t.Run(what, func(t *testing.T) {
			if !strings.HasPrefix(what, "Reservation") { // whose time comes
				t.Parallel()
			}
			var err error
			require.Less(t, redistest.Running(t, func() { err = call(within(t, 100*time.Millisecond)) }), soon)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			requireOneLine(t, err)
			if what == "Reservation.Cancel" {
				given, err := reserved.Cancel(t.Context())
				require.ErrorIs(t, err, context.DeadlineExceeded, "whether the first call was executed is not known")
				require.False(t, given)
				return
			}
			ctx, cancel := context.WithCancel(t.Context())
			stop := time.AfterFunc(50*time.Millisecond, cancel)
			defer stop.Stop()
			require.Less(t, redistest.Running(t, func() { err = call(ctx) }), soon)
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

// Guarantees: Q15.
func TestClose_EndsEverythingAlthoughItsContextHasEnded(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	limit := ratelimit.PerHour(1)
	done := make(chan error, 60)
	c := hanging(t, func(c *ratelimit.Client) {
		for _, prefix := range []string{"a", "b", "c"} {
			for _, key := range []string{"1", "2"} {
				k := c.Limiter(prefix, limit)
				_, err := k.Allow(t.Context(), key)
				require.NoError(t, err)
				for range 10 {
					k.WaitFunc(t.Context(), key, 1, func(err error) { done <- err })
				}
			}
		}
	})
	// A call that Redis does not answer is under way.
	go func() { _ = c.Limiter("a", limit).Reset(t.Context(), "3") }()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(ended); err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
	for range 60 {
		require.ErrorIs(t, answer(t, done), ratelimit.ErrClosed)
	}
	_, err := c.Limiter("a", limit).Allow(t.Context(), "1")
	require.ErrorIs(t, err, ratelimit.ErrClosed)
}

// A user may have the rights for the scripts alone.
// Guarantees: Q20.
func TestBreaker_ClosesForAUserWithFewRights(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	limit := perSeconds(1000, 3600)
	for what, subject := range map[string]struct {
		rights []string
		allow  func(*ratelimit.Client, context.Context) error
	}{
		"GCRA": {[]string{"+time", "+get", "+set"}, func(c *ratelimit.Client, ctx context.Context) error {
			_, err := c.Limiter("k", limit).Allow(ctx, "u")
			return err
		}},
		"windows": {[]string{"+get", "+set", "+pttl"}, func(c *ratelimit.Client, ctx context.Context) error {
			_, err := c.Limiter("k", limit, ratelimit.WithAlgorithm(ratelimit.FixedWindow)).Allow(ctx, "u")
			return err
		}},
		"sliding windows": {[]string{"+time", "+get", "+set"}, func(c *ratelimit.Client, ctx context.Context) error {
			_, err := c.Limiter("k", limit, bySliding).Allow(ctx, "u")
			return err
		}},
		"StoredLimiter": {
			[]string{
				"+hmget", "+time", "+get", "+set", "+zmscore", "+zrangebyscore", "+zrange", "+zcount", "+zcard", "+zadd", "+zremrangebyrank",
				"+zremrangebyscore", "+zrem", "+pttl", "+pexpire", "+exists", "+persist",
			},
			func(c *ratelimit.Client, ctx context.Context) error {
				_, err := c.StoredLimiter("l").Allow(ctx)
				return err
			},
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			ctx := t.Context()
			require.NoError(t, server.Client(t).HSet(ctx, "l", "rate", 1000, "interval", 3600_000, "type", 0, "keepAliveTime", 0).Err())
			login := server.User(t, "limits", append(subject.rights, "~*", "+evalsha", "+eval")...)
			rdb := server.Client(t, login, impatient)
			require.ErrorContains(t, server.Client(t, login).Ping(ctx).Err(), "NOPERM")
			c := newClient(t, rdb, ratelimit.WithBreaker(2, 20*time.Millisecond))
			require.NoError(t, subject.allow(c, ctx))
			server.Pause()
			for !c.Stats().Down {
				require.ErrorIs(t, subject.allow(c, ctx), ratelimit.ErrUnavailable)
			}
			server.Resume()
			await(t, "the client to see that Redis is back", func() bool { return !c.Stats().Down })
			require.NoError(t, subject.allow(c, ctx))
		})
	}
}

// Guarantees: Q20.
func TestBreaker_TheErrorKeepsItsCause(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t, impatient), ratelimit.WithBreaker(1, time.Hour))
	k := c.Limiter("k", ratelimit.PerHour(10))
	_, err := k.Allow(t.Context(), "u")
	require.NoError(t, err)
	server.Kill()
	_, first := k.Allow(t.Context(), "u")
	require.ErrorIs(t, first, ratelimit.ErrUnavailable)
	require.True(t, c.Stats().Down)
	for range 3 {
		_, err = k.Allow(t.Context(), "v")
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.ErrorContains(t, err, "circuit open: ")
		require.Regexp(t, "EOF|connection refused|connection reset|broken pipe", err.Error())
		requireOneLine(t, err)
	}
}

// requireOneLine requires that an error reads well in a log.
func requireOneLine(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.Regexp(t, `^ratelimit: [a-z ]+ "[^"]+"(\.\.\.)?: [^\n]+$`, err.Error())
	require.NotRegexp(t, `[0-9a-f]{40}|user_script|ratelimit: .*ratelimit: `, err.Error())
}
