package ratelimit_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// returning is a client of a separate server, whose network can fail and whose circuit stays closed, with the options of
// redis.Client that docs/operations.md recommends.
type returning struct {
	*ratelimit.Client
	server *redistest.Server
	rdb    *redis.Client
	d      redistest.FaultDialer
}

func newReturning(t *testing.T, opts ...ratelimit.Option) *returning {
	t.Helper()
	c := &returning{server: redistest.Start(t)}
	c.rdb = c.server.Client(t, func(o *redis.Options) {
		o.Dialer, o.MaxRetries, o.DialerRetries = c.d.Dial, 1, 1
		o.PoolSize, o.PipelinePoolSize = 1000, -1 // after as many failed dials, go-redis pauses
	})
	opts = append([]ratelimit.Option{ratelimit.WithTimeout(patience), ratelimit.WithBreaker(1<<30, time.Second)}, opts...)
	c.Client = newClient(t, c.rdb, opts...)
	return c
}

// reconnect makes every call dial, under a fault.
func (c *returning) reconnect(t *testing.T, fault redistest.Fault) {
	t.Helper()
	c.d.Set(redistest.Refuse)
	c.d.Reset()
	for !errors.Is(c.rdb.Ping(t.Context()).Err(), syscall.ECONNREFUSED) { // one of the connections that were cut
	}
	c.d.Set(fault)
}

// returnFaults keep a script from being executed, and prove it. Each begins a fault and returns the end of it.
var returnFaults = map[string]func(t *testing.T, c *returning) (end func()){
	"connection refused": func(t *testing.T, c *returning) func() {
		c.reconnect(t, redistest.Refuse)
		return func() { c.d.Set(redistest.Pass) }
	},
	"OOM":        writesRefused("OOM"),
	"READONLY":   writesRefused("READONLY"),
	"NOREPLICAS": writesRefused("NOREPLICAS"),
}

func writesRefused(code string) func(*testing.T, *returning) func() {
	return func(t *testing.T, c *returning) func() {
		admin := c.server.Client(t)
		writeRefusals[code](t, c.server, admin, true)
		return func() { writeRefusals[code](t, c.server, admin, false) }
	}
}

// A return that certainly was not made can be made by the same call.
// Guarantees: Q22.
func TestReservation_AReturnThatWasNotExecutedCanBeRepeated(t *testing.T) {
	t.Parallel()
	for fault, begin := range returnFaults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			c := newReturning(t)
			ctx, name := t.Context(), redistest.Name(t)
			for what, k := range tryReservers(t, c.Client, name) {
				for call, settle := range map[string]func(*ratelimit.Reservation) (used int64, err error){
					"cancel": func(r *ratelimit.Reservation) (int64, error) { _, err := r.Cancel(ctx); return 0, err },
					"settle": func(r *ratelimit.Reservation) (int64, error) { return 10, r.Settle(ctx, k.used(10)...) },
				} {
					before, err := k.peek(ctx)
					require.NoError(t, err)
					r, err := k.tryReserve(ctx, 30)
					require.NoError(t, err)
					end := begin(t, c)
					_, err = settle(r.Reservation)
					end()
					if fault != "OOM" || what != "log" { // Redis accepts that script, which begins with a removal
						require.ErrorIs(t, err, ratelimit.ErrUnavailable, what)
					}
					used, err := settle(r.Reservation)
					require.NoError(t, err, "%s: %s", what, call)
					after, err := k.peek(ctx)
					require.NoError(t, err)
					require.Equal(t, used, before.Remaining-after.Remaining, "%s: %s", what, call)
				}
			}
		})
	}
}

// Another number counts from what is charged, not from the return that was not made.
func TestReservation_AnotherNumberAfterAReturnThatWasNotExecuted(t *testing.T) {
	t.Parallel()
	c := newReturning(t)
	ctx := t.Context()
	for what, k := range tryReservers(t, c.Client, redistest.Name(t)) {
		for _, used := range []int64{7, 0, 12} {
			before, err := k.peek(ctx)
			require.NoError(t, err)
			r, err := k.tryReserve(ctx, 10)
			require.NoError(t, err)
			end := returnFaults["connection refused"](t, c)
			require.ErrorIs(t, r.Reservation.Settle(ctx, k.used(4)...), ratelimit.ErrUnavailable)
			end()
			require.NoError(t, r.Reservation.Settle(ctx, k.used(used)...))
			after, err := k.peek(ctx)
			require.NoError(t, err)
			require.Equal(t, used, before.Remaining-after.Remaining, "%s: %d instead of 4 of 10", what, used)
		}
	}
}

// The reply that proves it may come when the caller has left.
func TestReservation_AReturnWhoseRefusalCameLateCanBeRepeated(t *testing.T) {
	t.Parallel()
	for what, leaves := range map[string]error{"its context ends": context.Canceled, "its time passes": ratelimit.ErrUnavailable} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			mock := clock.NewMock()
			c := newReturning(t, ratelimit.WithWheel(redistest.Wheel(t, wheel.WithClock(mock))))
			k, name := c.Limiter("k", ratelimit.PerDay(1000)), redistest.Name(t)
			r, err := k.Reserve(t.Context(), name, 900)
			require.NoError(t, err)
			c.reconnect(t, redistest.BlackholeUp)
			dials := c.d.Effects()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			settled := make(chan error, 1)
			go func() { settled <- r.Settle(ctx, 10) }()
			redistest.Poll(t, func() bool { return c.d.Effects() > dials })
			if errors.Is(leaves, context.Canceled) {
				cancel()
			} else {
				mock.Add(patience)
			}
			require.ErrorIs(t, <-settled, leaves)
			require.ErrorContains(t, r.Settle(t.Context(), 10), "not answered", "it may be sent yet")
			c.d.Set(redistest.Refuse) // the dial fails, and the next one
			await(t, "the end of the call", func() bool { return errors.Is(r.Settle(t.Context(), 10), syscall.ECONNREFUSED) })
			c.d.Set(redistest.Pass)
			require.NoError(t, r.Settle(t.Context(), 10))
			require.EqualValues(t, 990, remaining(t, k, name))
		})
	}
}

// A return that may have been made is not made again.
// Guarantees: Q22.
func TestReservation_AReturnThatMayHaveBeenExecutedIsNotRepeated(t *testing.T) {
	t.Parallel()
	c := newReturning(t)
	ctx, name := t.Context(), redistest.Name(t)
	for what, k := range tryReservers(t, c.Client, name) {
		r, err := k.tryReserve(ctx, 30)
		require.NoError(t, err)
		require.NoError(t, r.Reservation.Settle(ctx, k.used(10)...), "Redis knows the script now")
		before, err := k.peek(ctx)
		require.NoError(t, err)
		r, err = k.tryReserve(ctx, 30)
		require.NoError(t, err)
		c.d.LoseReply("evalsha", 1, redistest.Cut)
		require.ErrorIs(t, r.Reservation.Settle(ctx, k.used(10)...), ratelimit.ErrUnavailable)
		_ = r.Reservation.Settle(ctx, k.used(10)...)
		after, err := k.peek(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 10, before.Remaining-after.Remaining, what)
	}
}

// leavers are calls for 50 of 1000 permits that leave while Redis has charged them and the reply is on its way.
var leavers = map[string]func(ctx context.Context, c *ratelimit.Client, name string) error{
	"a waiter of GCRA": func(ctx context.Context, c *ratelimit.Client, name string) error {
		return c.Limiter("k", ratelimit.PerDay(1000)).WaitN(ctx, name, 50)
	},
	"a reservation of GCRA": func(ctx context.Context, c *ratelimit.Client, name string) error {
		return second(c.Limiter("k", ratelimit.PerDay(1000)).Reserve(ctx, name, 50))
	},
	"a waiter of a log": func(ctx context.Context, c *ratelimit.Client, name string) error {
		return c.StoredLimiter(name).WaitN(ctx, 50)
	},
	"a reservation of a log": func(ctx context.Context, c *ratelimit.Client, name string) error {
		return second(c.StoredLimiter(name).Reserve(ctx, 50))
	},
}

// leave makes a call leave, and returns the permits that are free then. The reply comes with release.
func leave(t *testing.T, c *returning, leaver string) (free func() int64, release func()) {
	t.Helper()
	held, name, log := &replies{make(chan heldReply, 1)}, redistest.Name(t), strings.HasSuffix(leaver, "log")
	c.rdb.AddHook(held)
	free = func() int64 {
		if log {
			r, err := c.StoredLimiter(name).Peek(t.Context())
			require.NoError(t, err)
			return r.Remaining
		}
		return remaining(t, c.Limiter("k", ratelimit.PerDay(1000)), name)
	}
	if log {
		require.NoError(t, c.StoredLimiter(name).SetRate(t.Context(), ratelimit.PerDay(1000)))
	}
	require.EqualValues(t, 1000, free(), "Redis knows the script now")
	executed, release := held.hold()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- leavers[leaver](ctx, c.Client, name) }()
	<-executed
	cancel()
	require.ErrorIs(t, <-left, context.Canceled)
	return free, release
}

// Permits that a call leaves behind are given back when Redis takes them again.
// Guarantees: Q14.
func TestLeavers_GiveBackWhenRedisIsBack(t *testing.T) {
	t.Parallel()
	for leaver := range leavers {
		for fault, begin := range returnFaults {
			if fault == "OOM" && strings.HasSuffix(leaver, "log") {
				continue // Redis accepts that script, which begins with a removal
			}
			for circuit, opts := range map[string][]ratelimit.Option{
				"closed": nil, "open": {ratelimit.WithBreaker(1, 10*time.Millisecond)},
			} {
				t.Run(leaver+", "+fault+", circuit "+circuit, func(t *testing.T) {
					t.Parallel()
					c := newReturning(t, opts...)
					free, release := leave(t, c, leaver)
					end := begin(t, c)
					release()
					redistest.Poll(t, func() bool { return c.Stats().Failures > 0 })
					end()
					await(t, "the circuit to close", func() bool { return !c.Stats().Down })
					await(t, "the permits", func() bool { return free() == 1000 })
				})
			}
		}
	}
}

// Permits that may have been given back are not given back again, except to a log, where that does nothing.
// Guarantees: Q14.
func TestLeavers_GiveBackOnce(t *testing.T) {
	t.Parallel()
	for leaver := range leavers {
		t.Run(leaver, func(t *testing.T) {
			t.Parallel()
			mock := clock.NewMock()
			w := redistest.Wheel(t, wheel.WithClock(mock))
			c := newReturning(t, ratelimit.WithWheel(w))
			free, release := leave(t, c, leaver)
			lost := c.d.LoseReply("evalsha", 1, redistest.Cut)
			release()
			redistest.Poll(t, func() bool { mock.Add(20 * time.Millisecond); return isClosed(lost) && c.Stats().Failures > 0 })
			scripts := c.Stats().Scripts
			passed := make(chan struct{})
			_, err := w.AfterFunc(2*time.Minute, func() { close(passed) }) // after the pause before a repetition
			require.NoError(t, err)
			mock.Add(3 * time.Minute)
			<-passed
			require.EqualValues(t, 1000, free())
			if !strings.HasSuffix(leaver, "log") {
				require.Equal(t, scripts+1, c.Stats().Scripts)
			}
		})
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
