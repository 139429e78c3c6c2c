package waitqueue_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
)

// line holds attempts until a test sends them.
type line struct {
	queued []calls.Caller
	last   calls.Caller      // that was queued
	users  []context.Context // on whose goroutines the attempts began, or nil
	values []context.Context
}

// holds has a line hold the attempts of a Group.
func (l *line) holds(c *waitqueue.Config[string, int]) {
	c.Submit = func(user context.Context, _ *calls.Job, caller calls.Caller, _ string) {
		l.queued, l.users, l.last = append(l.queued, caller), append(l.users, user), caller
	}
}

// next returns the attempt that has been queued longest.
func (l *line) next(t *testing.T) calls.Caller {
	t.Helper()
	synctest.Wait()
	require.NotEmpty(t, l.queued)
	caller := l.queued[0]
	l.queued = l.queued[1:]
	return caller
}

// build sends the next attempt, but holds back its reply.
func (l *line) build(t *testing.T) calls.Caller {
	t.Helper()
	caller := l.next(t)
	call, ok := caller.Build()
	require.True(t, ok)
	l.values = append(l.values, call.Values)
	return caller
}

func TestGroup_Build(t *testing.T) {
	t.Run("a caller that leaves before is never part of the attempt", func(t *testing.T) {
		s, l := &server{free: 5}, &line{}
		bubble(t, s, l.holds, func(t *testing.T, g *waitqueue.Group[string, int]) {
			left, stays := start(g, 1), start(g, 2)
			left.stop()
			require.True(t, left.ended())
			l.build(t).Apply(redisconn.Reply{})
			require.True(t, stays.ended())
			require.NoError(t, stays.err)
			require.Equal(t, [][]int{{2}}, s.attempts)
			require.Empty(t, s.back)
		})
	})

	t.Run("nothing is sent if all have left", func(t *testing.T) {
		s, l := &server{free: 5}, &line{}
		bubble(t, s, l.holds, func(t *testing.T, g *waitqueue.Group[string, int]) {
			for range 2 {
				start(g, 1).stop()
			}
			_, ok := l.next(t).Build()
			require.False(t, ok)
			require.Zero(t, g.Len())
			require.Empty(t, l.queued)
			require.Empty(t, s.attempts)
		})
	})

	t.Run("who leaves later is told at once, and its grant is given back", func(t *testing.T) {
		s, l := &server{free: 1}, &line{}
		bubble(t, s, l.holds, func(t *testing.T, g *waitqueue.Group[string, int]) {
			c := start(g, 1)
			attempt := l.build(t)
			c.stop()
			require.True(t, c.ended())
			require.ErrorIs(t, c.err, context.Canceled)
			attempt.Apply(redisconn.Reply{})
			require.Equal(t, []int{1}, s.back)
			require.Zero(t, g.Len())
		})
	})

	t.Run("an attempt is wanted until all its waiters have left", func(t *testing.T) {
		s, l := &server{}, &line{}
		change := func(c *waitqueue.Config[string, int]) {
			l.holds(c)
			c.MaxBatch = 2
		}
		bubble(t, s, change, func(t *testing.T, g *waitqueue.Group[string, int]) {
			all := []*call{start(g, 1), start(g, 1), start(g, 1)}
			attempt := l.build(t)
			require.True(t, attempt.Wanted())
			all[0].stop()
			synctest.Wait()
			require.True(t, attempt.Wanted())
			all[1].stop()
			synctest.Wait()
			require.False(t, attempt.Wanted(), "the third is not in it")
			attempt.Apply(redisconn.Reply{})
			all[2].stop()
			synctest.Wait()
			_, ok := l.next(t).Build()
			require.False(t, ok)
		})
	})

	t.Run("may decide without the server", func(t *testing.T) {
		s, l := &server{}, &line{}
		change := func(c *waitqueue.Config[string, int]) {
			l.holds(c)
			c.Build = func(_ string, batch []*waiter) waitqueue.Attempt {
				batch[0].Grant()
				return waitqueue.Attempt{Again: time.Hour}
			}
		}
		bubble(t, s, change, func(t *testing.T, g *waitqueue.Group[string, int]) {
			first, second := start(g, 1), start(g, 1)
			_, ok := l.next(t).Build()
			require.False(t, ok)
			require.True(t, first.ended())
			require.NoError(t, first.err)
			require.False(t, second.ended())
			second.stop()
			synctest.Wait()
			require.Zero(t, g.Len())
		})
	})

	t.Run("the call of one has the values of its context", func(t *testing.T) {
		s, l := &server{free: 9}, &line{}
		bubble(t, s, l.holds, func(t *testing.T, g *waitqueue.Group[string, int]) {
			type key struct{}
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, 7))
			defer cancel()
			go func() { _, _ = g.Wait(ctx, "name", 1) }()
			l.build(t).Apply(redisconn.Reply{})
			require.Equal(t, 7, l.values[0].Value(key{}))
			for range 2 {
				go func() { _, _ = g.Wait(ctx, "name", 1) }()
			}
			synctest.Wait()
			l.build(t).Apply(redisconn.Reply{})
			require.Nil(t, l.values[1])
		})
	})
}

func TestGroup_Send(t *testing.T) {
	t.Run("an attempt begins on the goroutine of a caller who waits", func(t *testing.T) {
		s, l := &server{free: 9}, &line{}
		bubble(t, s, l.holds, func(t *testing.T, g *waitqueue.Group[string, int]) {
			forever := context.Background()
			ctx, cancel := context.WithCancel(forever)
			defer cancel()
			stay := func(ctx context.Context) {
				_, _ = g.Stay(ctx, "name", 1, func(done <-chan int) bool {
					<-done
					return true
				}, nil)
			}
			for _, one := range []struct {
				call func()
				user context.Context
			}{
				{func() { _, _ = g.Wait(forever, "name", 1) }, forever},
				{func() { _, _ = g.Try(forever, "name", 1) }, forever},
				{func() { stay(forever) }, forever},
				{func() { _, _ = g.Wait(ctx, "name", 1) }, ctx},
				{func() { _, _ = g.Try(ctx, "name", 1) }, ctx},
				{func() { stay(ctx) }, ctx},
				{func() { g.WaitFunc(forever, "name", 1, func(int, error) {}) }, nil},
				{func() { g.TryFunc(forever, "name", 1, func(int, error) {}) }, nil},
			} {
				go one.call()
				l.build(t).Apply(redisconn.Reply{})
				require.Equal(t, one.user, l.users[len(l.users)-1])
			}
			go func() { _, _ = g.Wait(forever, "name", 100) }()
			l.build(t).Apply(redisconn.Reply{})
			s.release(100, false)
			l.build(t).Apply(redisconn.Reply{})
			require.Nil(t, l.users[len(l.users)-1], "a later attempt")
		})
	})

	t.Run("a caller whose goroutine ends while it carries its attempt leaves the queue", func(t *testing.T) {
		for what, stays := range map[string]bool{"Wait": false, "Stay": true} {
			s, l := &server{}, &line{}
			change := func(c *waitqueue.Config[string, int]) {
				l.holds(c)
				send := c.Submit
				c.Submit = func(user context.Context, j *calls.Job, caller calls.Caller, name string) {
					send(user, j, caller, name)
					if user != nil && user.Done() == nil {
						runtime.Goexit()
					}
				}
			}
			bubble(t, s, change, func(t *testing.T, g *waitqueue.Group[string, int]) {
				late := make(chan error, 1)
				go func() {
					if !stays {
						_, _ = g.Wait(context.Background(), "name", 1)
						return
					}
					_, _ = g.Stay(context.Background(), "name", 1, nil, func() func(int, error) {
						return func(_ int, err error) { late <- err }
					})
				}()
				synctest.Wait()
				behind := start(g, 2)
				s.free = 3
				l.build(t).Apply(redisconn.Reply{})
				require.True(t, behind.ended(), what)
				if stays {
					require.NoError(t, <-late)
					require.Equal(t, [][]int{{1, 2}}, s.attempts)
				} else {
					require.Equal(t, [][]int{{2}}, s.attempts)
				}
			})
		}
	})
}

func TestGroup_Apply(t *testing.T) {
	t.Run("AtOnce asks again at once, also for calls that do not wait", func(t *testing.T) {
		s := &server{free: 10}
		one := func(c *waitqueue.Config[string, int]) {
			asks(c, func(name string, batch []*waiter) (time.Duration, error) {
				if len(batch) == 1 {
					return s.Attempt(name, batch)
				}
				_, err := s.Attempt(name, batch[:1])
				return waitqueue.AtOnce, err
			})
		}
		bubble(t, s, one, func(t *testing.T, g *waitqueue.Group[string, int]) {
			s.rtt = time.Second
			first := start(g, 1)
			errs := make(chan error, 3)
			for n := range cap(errs) {
				go func() {
					_, err := g.Try(t.Context(), "name", n+2)
					errs <- err
				}()
				synctest.Wait()
			}
			began := time.Now()
			for range cap(errs) {
				require.NoError(t, <-errs)
			}
			require.True(t, first.ended())
			require.Equal(t, 4*time.Second, time.Since(began))
			require.Equal(t, [][]int{{1}, {2}, {3}, {4}}, s.attempts)
		})
	})

	t.Run("a waiter that Close fails does not read what the attempt may change", func(t *testing.T) {
		s := &server{}
		changes := func(c *waitqueue.Config[string, int]) {
			asks(c, func(_ string, batch []*waiter) (time.Duration, error) {
				time.Sleep(time.Second)
				batch[0].Value++
				return 0, nil
			})
		}
		bubble(t, s, changes, func(t *testing.T, g *waitqueue.Group[string, int]) {
			got := make(chan int, 1)
			go func() {
				v, err := g.Wait(t.Context(), "name", 7)
				if err != nil {
					got <- v
				}
			}()
			synctest.Wait()
			time.Sleep(999 * time.Millisecond)
			go func() { _ = g.Close(t.Context(), errClosed) }()
			require.Zero(t, <-got)
		})
	})
}

func TestGroup_Stay(t *testing.T) {
	until := func(ctx context.Context) func(<-chan int) bool {
		return func(done <-chan int) bool {
			select {
			case <-done:
				return true
			case <-ctx.Done():
				return false
			}
		}
	}
	t.Run("what its caller has left stays in the queue", func(t *testing.T) {
		s := &server{rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			late, began := make(chan error, 1), time.Now()
			told, _ := g.Stay(ctx, "name", 1, until(ctx), func() func(int, error) {
				return func(_ int, err error) { late <- err }
			})
			require.False(t, told)
			require.Equal(t, 100*time.Millisecond, time.Since(began))
			time.Sleep(4 * time.Second)
			synctest.Wait()
			require.Empty(t, late)
			require.Equal(t, 1, g.Waiting("name"))
			s.release(1, false)
			require.NoError(t, <-late)
			require.Empty(t, s.back)
		})
	})

	t.Run("an outcome of the instant in which its caller leaves is late", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			late := make(chan error, 1)
			never := func(<-chan int) bool {
				synctest.Wait()
				return false
			}
			told, _ := g.Stay(t.Context(), "name", 1, never, func() func(int, error) {
				return func(_ int, err error) { late <- err }
			})
			require.False(t, told)
			require.NoError(t, <-late)
		})
	})

	t.Run("is answered by one attempt", func(t *testing.T) {
		s := &server{free: 2}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			for _, ctx := range []context.Context{context.Background(), t.Context()} {
				told, err := g.Stay(ctx, "name", 1, until(ctx), nil)
				require.True(t, told)
				require.NoError(t, err)
			}
			require.Len(t, s.attempts, 2)
		})
	})

	t.Run("fails when the group is closed", func(t *testing.T) {
		s := &server{}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
			require.NoError(t, g.Close(t.Context(), errClosed))
			told, err := g.Stay(t.Context(), "name", 1, nil, nil)
			require.True(t, told)
			require.ErrorIs(t, err, errClosed)
		})
	})
}

func TestGroup_TryFunc(t *testing.T) {
	s := &server{free: 1}
	bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[string, int]) {
		got := make(chan error, 1)
		f := func(_ int, err error) { got <- err }
		g.TryFunc(t.Context(), "name", 1, f)
		require.NoError(t, <-got)
		g.TryFunc(t.Context(), "name", 1, f)
		require.ErrorIs(t, <-got, waitqueue.ErrNotServed)
		c := start(g, 1)
		asked := s.looks()
		g.TryFunc(t.Context(), "name", 1, f)
		require.ErrorIs(t, <-got, waitqueue.ErrNotServed)
		require.Equal(t, asked, s.looks(), "behind one who waits it fails at once")
		c.stop()
		require.True(t, c.ended())
	})
}

func TestWaiter_Waits(t *testing.T) {
	var waits []bool
	s := &server{free: 2}
	watch := func(c *waitqueue.Config[string, int]) {
		asks(c, func(name string, batch []*waiter) (time.Duration, error) {
			waits = append(waits, batch[0].Waits())
			return s.Attempt(name, batch)
		})
	}
	bubble(t, s, watch, func(t *testing.T, g *waitqueue.Group[string, int]) {
		_, err := g.Wait(t.Context(), "name", 1)
		require.NoError(t, err)
		_, err = g.Try(t.Context(), "name", 1)
		require.NoError(t, err)
		require.Equal(t, []bool{true, false}, waits)
	})
}
