package calls

import (
	"context"
	"errors"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// healthCheck is a check of a node in progress.
type healthCheck struct {
	told []func(error)
	end  wheel.Timer // ends it
}

// errHung is the result of a check that a hook of the redis client held up.
var errHung = errors.New("the check of the node does not end")

// Check finds out whether the node of a key is well, with redisconn.Refresh, and calls told with the result, on another
// goroutine, after four times limit at most. Checks of a node at the same time are one, with the arguments of the
// first. If the node is well, its stalled batches no longer delay other calls. Check returns false, and does not call
// told, if the Client is closed.
func (s *Sender) Check(
	key string, ask redisconn.Question, cause error, limit time.Duration, told func(error),
) bool {
	if !s.Gate.Enter() {
		return false
	}
	l := s.line(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	begins := l.health == nil
	if begins {
		l.health, l.checkedAt = &healthCheck{}, s.Wheel.Now()
	}
	c := l.health
	c.told = append(c.told, func(err error) {
		defer s.Gate.Leave()
		told(err)
	})
	if begins {
		s.solo.renew()
		c.end, _ = wheelentry.AfterFunc(s.Wheel, 4*limit, func(error) { l.checkEnded(c, errHung) })
		s.Gate.EnterInside()
		s.Workers.Go(func() {
			defer s.Gate.Leave()
			var err error
			usercode.Apart(func() { err = s.refresh(key, ask, cause, limit) }, func(f *usercode.Failure) {
				err = hookFailed(f)
			})
			l.checkEnded(c, err)
		})
	}
	return true
}

// LastCheck reports when the last check of the node of a key began, and whether it is in progress.
func (s *Sender) LastCheck(key string) (began time.Time, inProgress bool) {
	l := s.line(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.checkedAt, l.health != nil
}

// troubleSince returns what the last check has found, if it began after t, has ended, and the node was not well. If it
// was well, connections may have failed after the check.
func (l *line) troubleSince(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.health != nil || !l.checkedAt.After(t) {
		return nil
	}
	return l.found
}

func (s *Sender) refresh(key string, ask redisconn.Question, cause error, limit time.Duration) error {
	node, err := redisconn.Node(s.Base, key)
	if errors.Is(err, redisconn.ErrNodes) {
		ctx, cancel := s.Wheel.WithTimeout(context.Background(), limit)
		defer cancel()
		return redisconn.Answer(ask(ctx, s.Client)) // its connections are not known
	}
	if err != nil {
		return err
	}
	return redisconn.Refresh(context.Background(), s.Wheel, node, limit, cause, ask)
}

// checkEnded passes on the result of a check, unless it has ended before.
func (l *line) checkEnded(c *healthCheck, err error) {
	s := l.sender
	l.mu.Lock()
	if l.health != c {
		l.mu.Unlock()
		return
	}
	l.health, l.found = nil, err
	c.end.Stop()
	l.mu.Unlock()
	if err == nil {
		s.forgetStalled(l.route)
	}
	if s.Checked != nil {
		s.Checked(l.route.node, l.route.known, err)
	}
	for _, tell := range c.told {
		s.Workers.Go(func() { tell(err) })
	}
}

// forgetStalled lets both lines of a node go on although batches are stalled.
func (s *Sender) forgetStalled(r route) {
	s.lines.mu.Lock()
	alone := s.lines.all[route{node: r.node, known: r.known, alone: true}]
	shared := s.lines.all[r]
	s.lines.mu.Unlock()
	for _, l := range []*line{shared, alone} {
		if l != nil {
			l.forgetStalled()
		}
	}
}
