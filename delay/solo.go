package delay

import (
	"slices"
	"sync"
	"time"
)

// aloneFrom is the number of lost leases from which on a task runs alone among the tasks of its Client: it may be what
// ends the process, and others must not end with it.
const aloneFrom = 2

// alone reports whether a task runs alone.
func (a *attempt) alone() bool { return a.Losses >= aloneFrom }

// solo lets tasks run alone, one after the other. One that has been claimed waits until the others of the Client have
// ended; meanwhile no tasks are claimed. Redis learns that it begins before it does: if the process dies while the task
// waits, that is no loss.
type solo struct {
	mu      sync.Mutex
	others  int // attempts that have not ended, but those of queue
	queue   []*attempt
	isFirst bool // the first of the queue runs, or is about to
}

// enter notes that an attempt is claimed. It returns the attempt that may begin alone now, or nil, and whether a task
// runs alone already, so that the attempt must not begin: the call that has claimed it was on its way.
func (s *solo) enter(a *attempt) (next *attempt, isLate bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.alone() {
		s.queue = append(s.queue, a)
	} else {
		s.others++
		isLate = s.isFirst
	}
	return s.nextLocked(), isLate
}

// leave notes that an attempt has ended. It returns the attempt that may begin now, or nil, and whether tasks may be
// claimed again.
func (s *solo) leave(a *attempt) (next *attempt, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch at := slices.Index(s.queue, a); {
	case !a.alone():
		s.others--
	case at >= 0:
		s.queue = slices.Delete(s.queue, at, at+1)
		s.isFirst = s.isFirst && at > 0
		over = len(s.queue) == 0
	}
	return s.nextLocked(), over
}

func (s *solo) nextLocked() *attempt {
	if s.isFirst || s.others > 0 || len(s.queue) == 0 {
		return nil
	}
	s.isFirst = true
	return s.queue[0]
}

// overdue returns how long ago the first task was due that waits until it runs alone, or 0.
func (s *solo) overdue(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.queue
	if s.isFirst {
		waiting = waiting[1:]
	}
	if len(waiting) == 0 {
		return 0
	}
	return max(0, now.Sub(waiting[0].due))
}

// waits reports whether a task is to run alone.
func (s *solo) waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) > 0
}

// tell has Redis learn that an attempt begins, which may be nil. It begins when Redis has.
func (c *Client) tell(a *attempt) {
	if a == nil {
		return
	}
	c.goInside(func() {
		s := a.server
		s.mu.Lock()
		told := !a.ended && !s.stopped
		if told {
			a.told = true
			s.notes = append(s.notes, note{a, begun, 0})
		}
		s.mu.Unlock()
		if told {
			c.claims.Kick(s.queue.tag)
		}
	})
}

// goInside runs f on a goroutine for which Close waits.
func (c *Client) goInside(f func()) {
	c.gate.EnterInside()
	c.gate.Workers.Go(func() {
		defer c.gate.Leave()
		f()
	})
}

// kickAll has all servers claim tasks if they can.
func (c *Client) kickAll() {
	c.mu.Lock()
	var tags []string
	for tag := range c.serving {
		tags = append(tags, tag)
	}
	c.mu.Unlock()
	for _, tag := range tags {
		c.claims.Kick(tag)
	}
}
