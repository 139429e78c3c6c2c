package waitqueue_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const poll = 5 * time.Second

var errClosed = errors.New("closed")

type waiter = waitqueue.Waiter[int]

// attempt asks a server on behalf of a batch. It may block.
type attempt[T any] func(name string, batch []*waitqueue.Waiter[T]) (time.Duration, error)

// asks has attempts made by f, each on a goroutine of its own, or on that of a caller whose context cannot end.
func asks[T any](c *waitqueue.Config[string, T], f attempt[T]) { asksAfter(c, 0, f) }

// asksAfter is asks for attempts that wait for a while before they are sent.
func asksAfter[T any](c *waitqueue.Config[string, T], queued time.Duration, f attempt[T]) {
	c.Submit = func(user context.Context, _ *calls.Job, caller calls.Caller, _ string) {
		run := func() {
			time.Sleep(queued)
			if _, ok := caller.Build(); ok {
				caller.Apply(redisconn.Reply{})
			}
		}
		if user != nil && user.Done() == nil {
			run()
		} else {
			go run()
		}
	}
	c.Build = func(name string, batch []*waitqueue.Waiter[T]) waitqueue.Attempt {
		return waitqueue.Attempt{Read: func(redisconn.Reply) (time.Duration, error) { return f(name, batch) }}
	}
}

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
	wake     func(time.Duration)
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

func (s *server) Listen(_ string, wake func(time.Duration)) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake = wake
	s.listens++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listens--
		s.wake = nil
	}
}

// release adds permits; silently drops the message.
func (s *server) release(n int, silently bool) {
	s.mu.Lock()
	s.free += n
	wake := s.wake
	s.mu.Unlock()
	if wake != nil && !silently {
		wake(0)
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
func bubble(t *testing.T, s *server, change func(*waitqueue.Config[string, int]), f func(t *testing.T, g *waitqueue.Group[string, int])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		cfg := waitqueue.Config[string, int]{
			MaxBatch: 100, Poll: poll, Listen: s.Listen, GiveBack: s.GiveBack, Leave: s.Leave,
		}
		asks(&cfg, s.Attempt)
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

func start(g *waitqueue.Group[string, int], n int) *call {
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
