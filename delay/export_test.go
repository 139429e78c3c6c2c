package delay

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/clock"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// StopThenBegin stops a server that has claimed one task, and then has the timer of the task begin it, as a timer does
// that fired while stop held the lock. It returns the ends of attempts that are to be recorded.
func (q *Queue) StopThenBegin(handle func(context.Context, *Task) error) (ends []Outcome, err error) {
	s, a, err := q.claimedOne(handle)
	if err != nil {
		return nil, err
	}
	s.stop()
	<-s.idle
	s.begin(a, nil)
	return s.outcomes(), nil
}

// BeginLost has a worker begin a task that has waited for it, and whose lease is lost. It waits until the worker has
// left, and returns the ends of attempts that are to be recorded.
func (q *Queue) BeginLost(handle func(context.Context, *Task) error) (ends []Outcome, err error) {
	s, a, err := q.claimedOne(handle)
	if err != nil {
		return nil, err
	}
	a.lease.MarkLost()
	s.mu.Lock()
	s.running, s.stopped = 1, true
	s.takeLocked(a)
	s.mu.Unlock()
	go s.work(a)
	<-s.idle
	return s.outcomes(), nil
}

// AddOne adds a task that Redis has granted. It returns the ends of attempts that are to be recorded.
func (q *Queue) AddOne() (ends []Outcome, err error) {
	s := q.server(nil)
	err = s.add([]*attempt{{Task: Task{ID: "a"}}}, q.client.wheel.Now())
	defer s.end()
	return s.outcomes(), err
}

func (q *Queue) server(handle func(context.Context, *Task) error) *server {
	return &server{
		queue: q, workers: 1, handle: handle, ctx: context.Background(),
		claimed: make(map[string]*attempt), idle: make(chan struct{}),
	}
}

func (q *Queue) claimedOne(handle func(context.Context, *Task) error) (s *server, a *attempt, err error) {
	c := q.client
	s = q.server(handle)
	a = &attempt{Task: Task{ID: "a"}, server: s, key: "0 a"}
	if a.lease, err = c.leases.Add(renewal.Spec{Key: q.name, TTL: q.config.lease, SentAt: c.wheel.Now()}); err != nil {
		return nil, nil, err
	}
	s.claimed[a.key] = a
	c.solo.enter(a)
	return s, a, nil
}

func (s *server) outcomes() (ends []Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, end := range s.notes {
		ends = append(ends, end.outcome)
	}
	return ends
}

// NextAfterRecording has the timer that records ends fire when there are none to record, while no task is known to be
// due. It returns how many tasks the next call claims, as after a message.
func (q *Queue) NextAfterRecording() (wanted int) {
	s := q.server(nil)
	s.nextDue = q.client.wheel.Now().Add(time.Hour)
	s.kick(nil)
	if call, _, _ := s.next(); call != nil {
		wanted = call.wanted
	}
	return wanted
}

// Wheel returns the wheel of the client.
func (q *Queue) Wheel() *wheel.Wheel { return q.client.wheel }

// Attempts returns how often a task is attempted.
func (q *Queue) Attempts() int { return q.config.attempts }

// Solo is the solo of a Client.
type Solo = solo

func (s *solo) Enter(a *attempt) (*attempt, bool) { return s.enter(a) }
func (s *solo) Leave(a *attempt) (*attempt, bool) { return s.leave(a) }
func (s *solo) Waits() bool                       { return s.waits() }

// AttemptAfter returns an attempt of a task after some losses.
func AttemptAfter(losses int) *attempt { return &attempt{Task: Task{Losses: losses}} }

// DueOfClaimed returns when a task that a reply claims is due, by the clock of the process.
func DueOfClaimed(server *clock.Server, r redisconn.Reply, came time.Time) (time.Time, error) {
	reply, err := readClaim(&r, server, came)
	if err != nil || len(reply.found) != 1 {
		return time.Time{}, err
	}
	return reply.found[0].due, nil
}

// OverdueBehind returns how long a task is overdue, as far as a process knows, a second after a slow reply that put it
// behind another and told of a task that was due before the reply came.
func (q *Queue) OverdueBehind(ctx context.Context) (time.Duration, error) {
	s := q.server(nil)
	defer s.end()
	err := s.answerAfter(ctx, 2*time.Millisecond, 1000, 2)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overdueLocked(q.client.wheel.Now().Add(time.Second)), err
}

// AsksIn returns the time between two calls of a process with a place in the list. The first call finds no task, and
// the next task is due a second later.
func (q *Queue) AsksIn(ctx context.Context, place int) (time.Duration, error) {
	s := q.server(nil)
	defer s.tune() // ends its subscriptions
	defer s.end()
	err := s.answerAfter(ctx, 0, 1e6, place)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextDue.Sub(s.answeredAt), err
}

// answerAfter replies to a call that it ran at once and found no task, and when the next one is due, in us.
func (s *server) answerAfter(ctx context.Context, took time.Duration, due int64, place int) error {
	c := s.queue.client
	now := c.wheel.Now()
	instant := time.Duration(now.UnixNano()).Truncate(time.Microsecond)
	s.clock.Read(instant, now, now)
	cmd := redis.NewCmd(ctx)
	cmd.SetVal([]any{int64(1e6), int64(0), int64(0), int64(0), "", due, int64(place), instant.Microseconds(), int64(0)})
	for c.wheel.Now().Sub(now) < took {
		runtime.Gosched()
	}
	_, err := c.readWork(s, &claim{process: "p", wanted: 1, firstSentAt: now}, redisconn.Reply{Cmd: cmd, SentAt: now})
	if err == nil && !s.answered {
		return errors.New("the reply was not read")
	}
	return err
}
