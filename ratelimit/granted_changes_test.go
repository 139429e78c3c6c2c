package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// stops holds commands before they are sent and before their replies return, one stop per command.
type stops struct{ next chan *stop }

type stop struct {
	once                           sync.Once
	arrived, send, executed, reply chan struct{}
}

func (*stops) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*stops) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *stops) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		select {
		case held := <-s.next:
			held.once.Do(func() { close(held.arrived) })
			<-held.send
			err := next(ctx, cmd)
			if redis.HasErrorPrefix(err, "NOSCRIPT") {
				s.next <- held // EVAL follows
				return err
			}
			close(held.executed)
			<-held.reply
			return err
		default:
			return next(ctx, cmd)
		}
	}
}

// add stops the next command.
func (s *stops) add() *stop {
	held := &stop{
		arrived: make(chan struct{}), send: make(chan struct{}), executed: make(chan struct{}), reply: make(chan struct{}),
	}
	s.next <- held
	return held
}

// A change of a key under test, for a waiter that it serves.
type waitedChange struct {
	wait   func(ctx context.Context, f func(error))
	change func(ctx context.Context) error
	ended  error // of the wait; nil is a grant
}

// waitedChanges are all ways in which a process changes a key. Each uses up the key through another client, so that
// the client under test knows nothing of it.
var waitedChanges = map[string]func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange{
	"Reset, GCRA": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		return resetOf(t, c, other, name, ratelimit.GCRA)
	},
	"Reset, FixedWindow": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		return resetOf(t, c, other, name, ratelimit.FixedWindow)
	},
	"Reset, SlidingWindow": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		return resetOf(t, c, other, name, ratelimit.SlidingWindow)
	},
	"Reset, other limit": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		reset := resetOf(t, c, other, name, ratelimit.GCRA)
		k := c.Limiter("k", ratelimit.PerHour(1)).With(perSeconds(1, 7200))
		reset.wait = func(ctx context.Context, f func(error)) { k.WaitFunc(ctx, name, 1, f) }
		return reset
	},
	"Reset, All": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		reset := resetOf(t, c, other, name, ratelimit.FixedWindow)
		window := c.Limiter("k", ratelimit.PerHour(1), ratelimit.WithAlgorithm(ratelimit.FixedWindow)).Part(name)
		all := c.All(window, c.Limiter("k2", ratelimit.PerHour(1)).Part(name))
		reset.wait = func(ctx context.Context, f func(error)) { all.WaitFunc(ctx, 1, f) }
		return reset
	},
	"Cancel": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		limit := perSeconds(1, 6)
		k := c.Limiter("k", limit)
		_, err := other.Limiter("k", limit).Allow(t.Context(), name)
		require.NoError(t, err)
		reserved, err := k.Reserve(t.Context(), name, 1)
		require.NoError(t, err)
		return waitedChange{
			wait: func(ctx context.Context, f func(error)) { k.WaitFunc(ctx, name, 1, f) },
			change: func(ctx context.Context) error {
				given, err := reserved.Cancel(ctx)
				if err == nil && !given {
					return fmt.Errorf("not given back")
				}
				return err
			},
		}
	},
	"SetRate": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		return logChange(t, c, other, name, func(ctx context.Context, l *ratelimit.StoredLimiter, _ ratelimit.Result) error {
			return l.SetRate(ctx, ratelimit.PerHour(1))
		})
	},
	"UpdateRate": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		return logChange(t, c, other, name, func(ctx context.Context, l *ratelimit.StoredLimiter, _ ratelimit.Result) error {
			_, err := l.UpdateRate(ctx, ratelimit.PerHour(2), ratelimit.WithState())
			return err
		})
	},
	"TrySetRate, of a limit that is set": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		return logChange(t, c, other, name, func(ctx context.Context, l *ratelimit.StoredLimiter, _ ratelimit.Result) error {
			if err := other.StoredLimiter(name).SetRate(ctx, ratelimit.PerHour(1)); err != nil {
				return err
			}
			_, err := l.TrySetRate(ctx, ratelimit.PerHour(1)) // is set already
			return err
		})
	},
	"Return": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		return logChange(t, c, other, name, func(ctx context.Context, l *ratelimit.StoredLimiter, granted ratelimit.Result) error {
			_, err := l.Return(ctx, granted)
			return err
		})
	},
	"Delete": func(t *testing.T, c, other *ratelimit.Client, name string) waitedChange {
		deleted := logChange(t, c, other, name, func(ctx context.Context, l *ratelimit.StoredLimiter, _ ratelimit.Result) error {
			_, err := l.Delete(ctx)
			return err
		})
		deleted.ended = ratelimit.ErrNotSet
		return deleted
	},
}

func resetOf(t *testing.T, c, other *ratelimit.Client, name string, a ratelimit.Algorithm) waitedChange {
	t.Helper()
	r, err := other.Limiter("k", ratelimit.PerHour(1), ratelimit.WithAlgorithm(a)).Allow(t.Context(), name)
	require.True(t, err == nil && r.Allowed, "%v", err)
	k := c.Limiter("k", ratelimit.PerHour(1), ratelimit.WithAlgorithm(a))
	return waitedChange{
		wait:   func(ctx context.Context, f func(error)) { k.WaitFunc(ctx, name, 1, f) },
		change: func(ctx context.Context) error { return k.Reset(ctx, name) },
	}
}

func logChange(
	t *testing.T, c, other *ratelimit.Client, name string,
	change func(context.Context, *ratelimit.StoredLimiter, ratelimit.Result) error,
) waitedChange {
	t.Helper()
	require.NoError(t, other.StoredLimiter(name).SetRate(t.Context(), ratelimit.PerHour(1)))
	granted, err := other.StoredLimiter(name).Allow(t.Context())
	require.True(t, err == nil && granted.Allowed, "%v", err)
	l := c.StoredLimiter(name)
	return waitedChange{
		wait:   func(ctx context.Context, f func(error)) { l.WaitFunc(ctx, 1, f) },
		change: func(ctx context.Context) error { return change(ctx, l, granted) },
	}
}

// A waiter gets the permits that Redis granted it, in whichever order the reply to its script and the reply to a
// change of the key come in. Otherwise it would sleep until the limit grants again, for an hour.
// Guarantees: Q11.
func TestChanges_AGrantInFlightIsNotLost(t *testing.T) {
	t.Parallel()
	orders := map[string]func(t *testing.T, look, change *stop, done <-chan error, changed <-chan error) error{
		"granted after the change, told before it": func(t *testing.T, look, change *stop, done, changed <-chan error) error {
			close(change.send)
			<-change.executed
			close(look.send)
			<-look.executed
			close(look.reply)
			timer := time.NewTimer(200 * time.Millisecond) // a client that drops the grant goes on as well
			defer timer.Stop()
			select {
			case err := <-done:
				close(change.reply)
				require.NoError(t, <-changed)
				return err
			case <-timer.C:
			}
			close(change.reply)
			require.NoError(t, <-changed)
			return answer(t, done)
		},
		"granted after the change, told after it": func(t *testing.T, look, change *stop, done, changed <-chan error) error {
			close(change.send)
			<-change.executed
			close(look.send)
			<-look.executed
			close(change.reply)
			require.NoError(t, <-changed)
			close(look.reply)
			return answer(t, done)
		},
		"denied before the change, told after it": func(t *testing.T, look, change *stop, done, changed <-chan error) error {
			close(look.send)
			<-look.executed
			close(change.send)
			<-change.executed
			close(change.reply)
			require.NoError(t, <-changed)
			close(look.reply)
			return answer(t, done)
		},
		"denied before the change, told before it": func(t *testing.T, look, change *stop, done, changed <-chan error) error {
			close(look.send)
			<-look.executed
			close(change.send)
			<-change.executed
			close(look.reply)
			close(change.reply)
			require.NoError(t, <-changed)
			return answer(t, done)
		},
	}
	for what, setup := range waitedChanges {
		for order, play := range orders {
			for _, own := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %s, own process %v", what, order, own), func(t *testing.T) {
					t.Parallel()
					rdb, held := redistest.Shared(t).Client(t), &stops{make(chan *stop, 2)}
					rdb.AddHook(held)
					c, other, name := newClient(t, rdb), newClient(t, redistest.Shared(t).Client(t)), redistest.Name(t)
					changing := setup(t, c, other, name)
					waiting := changing
					if !own { // the same wait in another process
						rdb := redistest.Shared(t).Client(t)
						rdb.AddHook(held)
						waiting.wait = setupWait(what, newClient(t, rdb), name)
					}
					done, changed := make(chan error, 1), make(chan error, 1)
					look := held.add()
					waiting.wait(t.Context(), func(err error) { done <- err })
					<-look.arrived
					change := held.add()
					go func() { changed <- changing.change(t.Context()) }()
					<-change.arrived
					require.ErrorIs(t, play(t, look, change, done, changed), changing.ended)
				})
			}
		}
	}
}

// setupWait returns the wait of a waitedChange for another client, without a change.
func setupWait(what string, c *ratelimit.Client, name string) func(context.Context, func(error)) {
	window := ratelimit.WithAlgorithm(ratelimit.FixedWindow)
	limiter := func(k *ratelimit.Limiter) func(context.Context, func(error)) {
		return func(ctx context.Context, f func(error)) { k.WaitFunc(ctx, name, 1, f) }
	}
	switch what {
	case "Reset, GCRA":
		return limiter(c.Limiter("k", ratelimit.PerHour(1)))
	case "Reset, FixedWindow":
		return limiter(c.Limiter("k", ratelimit.PerHour(1), window))
	case "Reset, SlidingWindow":
		return limiter(c.Limiter("k", ratelimit.PerHour(1), bySliding))
	case "Reset, other limit":
		return limiter(c.Limiter("k", perSeconds(1, 7200)))
	case "Cancel":
		return limiter(c.Limiter("k", perSeconds(1, 6)))
	case "Reset, All":
		all := c.All(c.Limiter("k", ratelimit.PerHour(1), window).Part(name), c.Limiter("k2", ratelimit.PerHour(1)).Part(name))
		return func(ctx context.Context, f func(error)) { all.WaitFunc(ctx, 1, f) }
	}
	return func(ctx context.Context, f func(error)) { c.StoredLimiter(name).WaitFunc(ctx, 1, f) }
}

// A grant whose reply comes after the timeout, and after a change of the key, serves the waiter.
// Guarantees: Q11.
func TestChanges_ALateGrantIsNotLost(t *testing.T) {
	t.Parallel()
	for what, a := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rdb, held := redistest.Shared(t).Client(t), &stops{make(chan *stop, 2)}
			rdb.AddHook(held)
			c := newClient(t, rdb, ratelimit.WithTimeout(300*time.Millisecond), ratelimit.WithBreaker(1000, time.Second))
			name, done := redistest.Name(t), make(chan error, 1)
			changing := resetOf(t, c, newClient(t, redistest.Shared(t).Client(t)), name, a)
			look := held.add()
			changing.wait(t.Context(), func(err error) { done <- err })
			<-look.arrived
			change, changed := held.add(), make(chan error, 1)
			go func() { changed <- changing.change(t.Context()) }()
			<-change.arrived
			close(change.send)
			<-change.executed
			close(look.send)
			<-look.executed
			await(t, "the timeout", func() bool { return c.Stats().Failures > 0 })
			close(change.reply)
			require.NoError(t, <-changed)
			close(look.reply)
			require.NoError(t, answer(t, done))
		})
	}
}

// The waiters of a process are served by its Resets, one by each, and those of another process too.
// Guarantees: Q11.
func TestReset_ServesWaitersEveryTime(t *testing.T) {
	t.Parallel()
	for what, a := range kinds {
		for _, processes := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, waiters in %d processes", what, processes), func(t *testing.T) {
				t.Parallel()
				c, other := newClient(t, redistest.Shared(t).Client(t)), newClient(t, redistest.Shared(t).Client(t))
				clients := []*ratelimit.Client{c, other}[:processes]
				var all sync.WaitGroup
				name := redistest.Name(t)
				for i := range 100 {
					all.Go(func() {
						key := fmt.Sprint(name, i)
						reset := resetOf(t, c, other, key, a)
						done := make(chan error, processes)
						for _, waiting := range clients {
							k := waiting.Limiter("k", ratelimit.PerHour(1), ratelimit.WithAlgorithm(a))
							k.WaitFunc(t.Context(), key, 1, func(err error) { done <- err })
						}
						for range clients {
							require.NoError(t, reset.change(t.Context()))
							require.NoError(t, answer(t, done))
						}
					})
				}
				all.Wait()
			})
		}
	}
}

// stillClock is a clock that stands still, so that permits in memory do not expire.
type stillClock struct{ now time.Time }

func (c stillClock) Now() time.Time                     { return c.now }
func (stillClock) After(time.Duration) <-chan time.Time { return nil }

// Permits that are in memory when a change of the key begins are of the old state: a change that succeeds drops
// them, so that the new burst is not exceeded. All other permits in memory stay.
// Guarantees: Q11.
func TestReset_DropsPermitsOfTheOldStateOnly(t *testing.T) {
	t.Parallel()
	// setup lets Redis grant three permits to a waiter that has left, so that two remain in memory.
	setup := func(t *testing.T, during func(k *ratelimit.Limiter, held *stops, name string, granted func())) (
		k *ratelimit.Limiter, name string, fault *failing, fromMemory func() bool,
	) {
		rdb, held := redistest.Shared(t).Client(t), &stops{make(chan *stop, 2)}
		fault = &failing{}
		rdb.AddHook(fault)
		rdb.AddHook(held)
		w, err := wheel.New(wheel.WithClock(stillClock{time.Now()}))
		require.NoError(t, err)
		t.Cleanup(func() {
			_, err := w.Stop(context.Background())
			require.NoError(t, err)
		})
		c, name := newClient(t, rdb, ratelimit.WithWheel(w)), redistest.Name(t)
		k = c.Limiter("k", ratelimit.PerHour(100), ratelimit.WithAlgorithm(ratelimit.FixedWindow))
		left := make(chan error, 1)
		look := held.add()
		leave := k.WaitFunc(t.Context(), name, 3, func(err error) { left <- err })
		<-look.arrived
		during(k, held, name, func() {
			leave()
			require.ErrorIs(t, answer(t, left), context.Canceled)
			close(look.send)
			<-look.executed
			close(look.reply)
			require.NoError(t, k.Wait(t.Context(), name)) // by the reply
		})
		return k, name, fault, func() bool {
			before := c.Stats().Scripts
			require.NoError(t, k.Wait(t.Context(), name))
			return c.Stats().Scripts == before
		}
	}
	t.Run("a Reset drops them", func(t *testing.T) {
		t.Parallel()
		k, name, _, _ := setup(t, func(_ *ratelimit.Limiter, _ *stops, _ string, granted func()) { granted() })
		require.NoError(t, k.Reset(t.Context(), name))
		for i := range 101 {
			r, err := k.Allow(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, i < 100, r.Allowed, i)
		}
	})
	t.Run("a Reset that fails keeps them", func(t *testing.T) {
		t.Parallel()
		k, name, fault, fromMemory := setup(t, func(_ *ratelimit.Limiter, _ *stops, _ string, granted func()) { granted() })
		fault.with.Store(&failures["OOM"][0])
		require.ErrorIs(t, k.Reset(t.Context(), name), ratelimit.ErrUnavailable)
		fault.with.Store(nil)
		require.True(t, fromMemory())
	})
	t.Run("permits that come during a Reset stay", func(t *testing.T) {
		t.Parallel()
		_, _, _, fromMemory := setup(t, func(k *ratelimit.Limiter, held *stops, name string, granted func()) {
			change, changed := held.add(), make(chan error, 1)
			go func() { changed <- k.Reset(t.Context(), name) }()
			<-change.arrived
			close(change.send)
			<-change.executed
			granted()
			close(change.reply)
			require.NoError(t, <-changed)
		})
		require.True(t, fromMemory())
	})
}
