package waitqueue_test

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const poll = 5 * time.Second

var errClosed = errors.New("closed")

type waiter = waitqueue.Waiter[int]

// server is a counting semaphore at some distance that an attempt talks to.
type server struct {
	mu       sync.Mutex
	free     int
	rtt      time.Duration
	attempts [][]int // what each asked for
	inFlight int
	most     int // attempts at a time
	back     []int
	left     []int
	kick     func()
	listens  int
	err      error
}

func (s *server) Attempt(_ string, batch []*waiter) (time.Duration, error) {
	s.mu.Lock()
	s.inFlight++
	s.most = max(s.most, s.inFlight)
	s.mu.Unlock()
	time.Sleep(s.rtt)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	if s.err != nil {
		return 0, s.err
	}
	var asked []int
	fits := true
	for _, w := range batch {
		asked = append(asked, w.Value)
		if fits = fits && w.Value <= s.free; fits {
			s.free -= w.Value
			w.Grant()
		}
	}
	s.attempts = append(s.attempts, asked)
	return 0, nil
}

func (s *server) Listen(_ string, kick func()) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kick = kick
	s.listens++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listens--
		s.kick = nil
	}
}

// release adds permits; silently drops the message.
func (s *server) release(n int, silently bool) {
	s.mu.Lock()
	s.free += n
	kick := s.kick
	s.mu.Unlock()
	if kick != nil && !silently {
		kick()
	}
}

func (s *server) GiveBack(_ string, granted []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range granted {
		s.free += n
	}
	s.back = append(s.back, granted...)
}

func (s *server) Leave(_ string, left []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, left...)
}

func (s *server) looks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.attempts)
}

// bubble runs f in virtual time with a group on a server.
func bubble(t *testing.T, s *server, change func(*waitqueue.Config[int]), f func(t *testing.T, g *waitqueue.Group[int])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		cfg := waitqueue.Config[int]{
			Attempt: s.Attempt, MaxBatch: 100, Poll: poll,
			Listen: s.Listen, GiveBack: s.GiveBack, Leave: s.Leave,
		}
		if change != nil {
			change(&cfg)
		}
		g := waitqueue.New(w, cfg)
		f(t, g)
		require.NoError(t, g.Close(context.Background(), errClosed))
		require.Zero(t, g.Len(), "a queue was left behind")
		require.Zero(t, w.Len(), "a wheel entry was left behind")
		require.Zero(t, s.listens, "a subscription was left behind")
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
	})
}

// call is a Wait under way.
type call struct {
	done chan struct{}
	err  error
	at   time.Time
	stop context.CancelFunc
}

func start(g *waitqueue.Group[int], n int) *call {
	ctx, stop := context.WithCancel(context.Background())
	c := &call{done: make(chan struct{}), stop: stop}
	go func() {
		defer close(c.done)
		_, c.err = g.Wait(ctx, "name", n)
		c.at = time.Now()
	}()
	synctest.Wait()
	return c
}

func (c *call) ended() bool {
	synctest.Wait()
	select {
	case <-c.done:
		c.stop()
		return true
	default:
		return false
	}
}

func TestGroup_Wait(t *testing.T) {
	t.Run("is granted by one attempt where nobody waits, without listening", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			v, err := g.Wait(t.Context(), "name", 1)
			require.NoError(t, err)
			require.Equal(t, 1, v)
			require.Equal(t, [][]int{{1}}, s.attempts)
			synctest.Wait()
			require.Zero(t, g.Len())
		})
	})

	t.Run("the first attempt is the caller's own if nothing can call him away", func(t *testing.T) {
		s := &server{free: 3}
		var stacks []string
		watch := func(c *waitqueue.Config[int]) {
			c.Attempt = func(name string, batch []*waiter) (time.Duration, error) {
				stacks = append(stacks, string(debug.Stack()))
				return s.Attempt(name, batch)
			}
		}
		bubble(t, s, watch, func(t *testing.T, g *waitqueue.Group[int]) {
			_, err := g.Wait(context.Background(), "name", 1)
			require.NoError(t, err)
			_, err = g.Try(context.Background(), "name", 1)
			require.NoError(t, err)
			require.Zero(t, g.Len(), "nothing is left to do for another goroutine")
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			_, err = g.Wait(ctx, "name", 1)
			require.NoError(t, err)
			require.Len(t, stacks, 3)
			const caller = "waitqueue.(*Group[...]).Wait("
			require.Contains(t, stacks[0], caller)
			require.Contains(t, stacks[1], "waitqueue.(*Group[...]).Try(")
			require.NotContains(t, stacks[2], caller)

			refused := make(chan error, 1)
			go func() {
				_, err := g.Wait(context.Background(), "name", 1)
				refused <- err
			}()
			synctest.Wait()
			require.Contains(t, stacks[3], caller)
			s.release(1, false)
			require.NoError(t, <-refused)
			require.NotContains(t, stacks[4], caller, "a later one")
		})
	})

	t.Run("a message wakes a whole prefix with one attempt", func(t *testing.T) {
		s := &server{}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			var calls []*call
			for range 10 {
				calls = append(calls, start(g, 1))
			}
			before := s.looks()
			require.Equal(t, 1, before, "who comes behind one that waits does not ask")
			s.release(10, false)
			for _, c := range calls {
				require.True(t, c.ended())
				require.NoError(t, c.err)
			}
			require.Equal(t, before+1, s.looks())
		})
	})

	t.Run("who arrives during an attempt is in the next", func(t *testing.T) {
		s := &server{free: 100, rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			calls := []*call{start(g, 1)}
			for range 20 {
				calls = append(calls, start(g, 2))
			}
			time.Sleep(2*time.Second + time.Millisecond)
			for _, c := range calls {
				require.True(t, c.ended())
			}
			require.Equal(t, [][]int{{1}, slices.Repeat([]int{2}, 20)}, s.attempts)
			require.Equal(t, 1, s.most)
		})
	})

	t.Run("a large request is not overtaken by small ones", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			large, small := start(g, 3), start(g, 1)
			require.False(t, small.ended())
			s.release(1, false)
			require.False(t, small.ended())
			s.release(1, false)
			require.True(t, large.ended())
			require.False(t, small.ended())
			s.release(1, false)
			require.True(t, small.ended())
		})
	})

	t.Run("a cancelled head lets the others go at once, also where nobody is told that it left", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, func(c *waitqueue.Config[int]) { c.Leave = nil }, func(t *testing.T, g *waitqueue.Group[int]) {
			large, small := start(g, 3), start(g, 1)
			large.stop()
			require.True(t, large.ended())
			require.True(t, small.ended())
			require.NoError(t, small.err)
		})
	})

	t.Run("a cancelled head lets the others go at once", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			large, small := start(g, 3), start(g, 1)
			large.stop()
			require.True(t, large.ended())
			require.ErrorIs(t, large.err, context.Canceled)
			require.True(t, small.ended())
			require.NoError(t, small.err)
			require.Equal(t, []int{3}, s.left)
		})
	})

	t.Run("a lost message costs at most the poll interval", func(t *testing.T) {
		s := &server{}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			c := start(g, 1)
			free := time.Now()
			s.release(1, true)
			<-c.done
			require.Less(t, c.at.Sub(free), poll+2*time.Millisecond)
			require.Greater(t, c.at.Sub(free), time.Millisecond, "nothing told it")
			c.stop()
		})
	})

	t.Run("the attempt says when to look again", func(t *testing.T) {
		s := &server{}
		first := true
		sooner := func(c *waitqueue.Config[int]) {
			c.Attempt = func(name string, batch []*waiter) (time.Duration, error) {
				if first {
					first = false
					return 300 * time.Millisecond, nil
				}
				return s.Attempt(name, batch)
			}
		}
		bubble(t, s, sooner, func(t *testing.T, g *waitqueue.Group[int]) {
			c := start(g, 1)
			began := time.Now()
			s.release(1, true)
			<-c.done
			require.GreaterOrEqual(t, c.at.Sub(began), 300*time.Millisecond)
			require.Less(t, c.at.Sub(began), 302*time.Millisecond)
			c.stop()
		})
	})

	t.Run("a grant that comes for one who has gone is given back and serves the next", func(t *testing.T) {
		s := &server{free: 1, rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			gone, next := start(g, 1), start(g, 1)
			gone.stop()
			require.True(t, gone.ended(), "it does not wait for the attempt")
			require.ErrorIs(t, gone.err, context.Canceled)
			time.Sleep(2*time.Second + time.Millisecond)
			require.True(t, next.ended())
			require.NoError(t, next.err)
			require.Equal(t, []int{1}, s.back)
			require.Zero(t, s.free)
		})
	})

	t.Run("an error of the attempt fails those it was for", func(t *testing.T) {
		s := &server{err: errors.New("down"), rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			a, b := start(g, 1), start(g, 1)
			time.Sleep(time.Second + time.Millisecond)
			require.True(t, a.ended())
			require.ErrorIs(t, a.err, s.err)
			require.False(t, b.ended())
			time.Sleep(time.Second)
			require.True(t, b.ended())
			require.ErrorIs(t, b.err, s.err)
		})
	})

	t.Run("a context that has ended asks nobody", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := g.Wait(ctx, "name", 1)
			require.ErrorIs(t, err, context.Canceled)
			require.Empty(t, s.attempts)
		})
	})

	t.Run("a kick during an attempt causes one more", func(t *testing.T) {
		s := &server{rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			c := start(g, 1)
			for range 5 {
				g.Kick("name")
			}
			time.Sleep(2*time.Second + 500*time.Millisecond)
			require.Equal(t, 2, s.looks())
			c.stop()
			require.True(t, c.ended())
		})
	})

	t.Run("a wheel that takes no entry fails the waiters instead of stranding them", func(t *testing.T) {
		s := &server{}
		synctest.Test(t, func(t *testing.T) {
			w, err := wheel.New()
			require.NoError(t, err)
			_, err = w.Stop(t.Context())
			require.NoError(t, err)
			g := waitqueue.New(w, waitqueue.Config[int]{Attempt: s.Attempt, MaxBatch: 1, Poll: poll})
			_, err = g.Wait(t.Context(), "name", 1)
			require.ErrorIs(t, err, wheel.ErrStopped)
			require.NoError(t, g.Close(t.Context(), errClosed))
		})
	})
}

func TestGroup_Try(t *testing.T) {
	t.Run("is answered by its attempt", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			_, err := g.Try(t.Context(), "name", 1)
			require.NoError(t, err)
			_, err = g.Try(t.Context(), "name", 1)
			require.ErrorIs(t, err, waitqueue.ErrNotServed)
			require.Len(t, s.attempts, 2)
			synctest.Wait()
			require.Zero(t, g.Len(), "nobody waits")
		})
	})

	t.Run("does not overtake those who wait, and says when they look again", func(t *testing.T) {
		s := &server{free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			c := start(g, 2)
			_, err := g.Try(t.Context(), "name", 1)
			refused, ok := errors.AsType[*waitqueue.NotServedError](err)
			require.True(t, ok)
			require.Greater(t, refused.Again, time.Duration(0))
			require.LessOrEqual(t, refused.Again, poll)
			require.Len(t, s.attempts, 1)
			c.stop()
			require.True(t, c.ended())
		})
	})

	t.Run("behind others in flight it is answered when they have to wait", func(t *testing.T) {
		s := &server{rtt: time.Second}
		bubble(t, s, func(c *waitqueue.Config[int]) { c.MaxBatch = 1 }, func(t *testing.T, g *waitqueue.Group[int]) {
			c := start(g, 1)
			_, err := g.Try(t.Context(), "name", 1)
			require.ErrorIs(t, err, waitqueue.ErrNotServed)
			c.stop()
			require.True(t, c.ended())
		})
	})
}

func TestGroup_WaitFunc(t *testing.T) {
	record := func() (func(int, error), chan error) {
		got := make(chan error, 2)
		return func(_ int, err error) { got <- err }, got
	}

	t.Run("calls back once", func(t *testing.T) {
		s := &server{}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			f, got := record()
			cancel := g.WaitFunc(t.Context(), "name", 1, f)
			synctest.Wait()
			require.Empty(t, got)
			s.release(1, false)
			require.NoError(t, <-got)
			require.False(t, cancel())
			require.Empty(t, got)
		})
	})

	t.Run("a cancel in time means no call", func(t *testing.T) {
		s := &server{rtt: time.Second, free: 1}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			f, got := record()
			cancel := g.WaitFunc(t.Context(), "name", 1, f)
			synctest.Wait()
			require.True(t, cancel())
			require.False(t, cancel())
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.Empty(t, got)
			require.Equal(t, []int{1}, s.back)
		})
	})

	t.Run("the end of its context is told", func(t *testing.T) {
		s := &server{}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			f, got := record()
			g.WaitFunc(ctx, "name", 1, f)
			require.ErrorIs(t, <-got, context.DeadlineExceeded)
			g.WaitFunc(ctx, "name", 1, f)
			require.ErrorIs(t, <-got, context.DeadlineExceeded)
		})
	})
}

func TestGroup_Handoff(t *testing.T) {
	s := &server{}
	bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
		require.False(t, g.Handoff("name", func(*int) { t.Error("nobody waits") }))
		first, second := start(g, 1), start(g, 1)
		require.True(t, g.Handoff("name", func(v *int) { *v = 7 }))
		require.True(t, first.ended())
		require.NoError(t, first.err)
		require.False(t, second.ended())
		require.Equal(t, 1, g.Waiting("name"))
		second.stop()
		require.True(t, second.ended())
	})
}

func TestGroup_Eager(t *testing.T) {
	s := &server{}
	bubble(t, s, func(c *waitqueue.Config[int]) { c.Eager = true }, func(t *testing.T, g *waitqueue.Group[int]) {
		a, b := start(g, 1), start(g, 2)
		require.Equal(t, [][]int{{1}, {1, 2}}, s.attempts[:2], "each arrival reaches the server")
		b.stop()
		require.True(t, b.ended())
		require.Equal(t, []int{2}, s.left)
		a.stop()
		require.True(t, a.ended())
		require.Equal(t, []int{2, 1}, s.left)
	})
}

func TestGroup_Close(t *testing.T) {
	t.Run("fails those who wait and those who come, and gives back what is granted meanwhile", func(t *testing.T) {
		s := &server{free: 1, rtt: time.Second}
		bubble(t, s, nil, func(t *testing.T, g *waitqueue.Group[int]) {
			flying, waiting := start(g, 1), start(g, 1)
			short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			require.ErrorIs(t, g.Close(short, errClosed), context.DeadlineExceeded)
			require.True(t, flying.ended())
			require.ErrorIs(t, flying.err, errClosed)
			require.True(t, waiting.ended())
			require.ErrorIs(t, waiting.err, errClosed)
			require.NoError(t, g.Close(t.Context(), errors.New("another")))
			require.Equal(t, []int{1}, s.back)
			_, err := g.Wait(t.Context(), "name", 1)
			require.ErrorIs(t, err, errClosed)
		})
	})
}

func TestGroup_CostsNothingPerWaiter(t *testing.T) {
	const waiters = 1000
	s := &server{}
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		g := waitqueue.New(w, waitqueue.Config[int]{Attempt: s.Attempt, MaxBatch: 100, Poll: poll})
		ctx, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		calls.Add(waiters)
		for range waiters {
			g.WaitFunc(ctx, "name", 1, func(int, error) { calls.Done() })
		}
		synctest.Wait()
		require.Equal(t, waiters, g.Waiting("name"))
		require.Equal(t, 1, w.Len(), "one wheel entry for all of them")
		require.Equal(t, 1, s.looks())
		cancel()
		calls.Wait()
		synctest.Wait()
		require.Zero(t, g.Len())
		require.Zero(t, w.Len())
		require.NoError(t, g.Close(t.Context(), errClosed))
		_, err = w.Stop(context.Background())
		require.NoError(t, err)
	})
}
