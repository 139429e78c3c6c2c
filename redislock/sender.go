package redislock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

const (
	// maxInFlight is how many pipelines to one node are under way at most. With one, pipelines would be the largest; with a
	// second, those who come meanwhile wait for half a round trip on average.
	maxInFlight = 2

	// stalledAfter is after how long a flight does not count any more: its connection may have gone dead.
	stalledAfter = 20 * time.Millisecond
)

// sender carries the scripts of many locks to one node. A call that finds few enough pipelines under way is sent at once; others
// join the next pipeline. So the fewer calls there are, the sooner each is sent, and the more there are, the less each costs.
type sender struct {
	rdb redis.UniversalClient

	mu       sync.Mutex // guards what is below; a goroutine that raises inFlight sends what is queued until nothing is, and lowers it
	inFlight int
	last     time.Time // when the last flight departed
	queue    []*job
}

// job is a call on its way.
type job struct {
	call
	sentAt time.Time
	cmd    *redis.Cmd
	done   chan struct{}
}

// send executes a call once and returns its command and an instant before it was sent. A call that waits for a pipeline when
// ended is closed is not sent: its error is calls.ErrAbandoned.
func (s *sender) send(what call, ended <-chan struct{}) (*redis.Cmd, time.Time) {
	j := &job{call: what}
	s.mu.Lock()
	now := time.Now()
	if s.inFlight >= maxInFlight && now.Sub(s.last) < stalledAfter {
		j.done = make(chan struct{})
		s.queue = append(s.queue, j)
		s.mu.Unlock()
		select {
		case <-j.done:
		case <-ended:
			if s.abandon(j) {
				return failed(calls.ErrAbandoned), now
			}
			<-j.done
		}
		return j.cmd, j.sentAt
	}
	s.inFlight++
	s.last = now
	s.mu.Unlock()
	j.cmd = what.script.RunOnce(context.Background(), s.rdb, what.keys, what.args...)
	if jobs := s.next(); jobs != nil {
		go func() {
			for ; jobs != nil; jobs = s.next() {
				s.fly(jobs)
			}
		}()
	}
	return j.cmd, now
}

// abandon takes a job out of the queue, and reports whether it was still there.
func (s *sender) abandon(j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.queue, j)
	if i < 0 {
		return false
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	return true
}

// failed is a command that has failed.
func failed(err error) *redis.Cmd {
	cmd := redis.NewCmd(context.Background())
	cmd.SetErr(err)
	return cmd
}

// next returns the jobs of the next pipeline, or ends the flight.
func (s *sender) next() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.queue
	if s.queue = nil; len(jobs) == 0 {
		s.inFlight--
		return nil
	}
	s.last = time.Now()
	return jobs
}

func (s *sender) fly(jobs []*job) {
	sentAt := time.Now()
	batch := make([]scripts.Mixed, len(jobs))
	for i, j := range jobs {
		batch[i] = scripts.Mixed{Script: j.script, Keys: j.keys, Args: j.args}
	}
	for i, cmd := range scripts.RunMixedOnce(context.Background(), s.rdb, batch) {
		jobs[i].cmd, jobs[i].sentAt = cmd, sentAt
		close(jobs[i].done)
	}
}

// senders are those of one Client, one for each node. Where nobody knows the node of a key, calls travel alone: in a
// pipeline for several nodes the slowest would hold up the others.
type senders struct {
	rdb  redis.UniversalClient
	base redis.UniversalClient // knows the nodes

	mu  sync.Mutex
	all map[string]*sender
}

func (s *senders) send(what call, ended <-chan struct{}) (*redis.Cmd, time.Time) {
	node, err := calls.Node(s.base, what.keys[0])
	if _, ring := s.base.(*redis.Ring); ring || err != nil {
		now := time.Now()
		return what.script.RunOnce(context.Background(), s.rdb, what.keys, what.args...), now
	}
	addr := node.Options().Addr
	s.mu.Lock()
	to := s.all[addr]
	if to == nil {
		to = &sender{rdb: s.rdb}
		s.all[addr] = to
	}
	s.mu.Unlock()
	return to.send(what, ended)
}
