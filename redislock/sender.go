package redislock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/pipeline"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// sender sends the calls of one Client: those of many locks to one node share pipelines.
type sender struct {
	rdb     redis.UniversalClient
	base    redis.UniversalClient // knows the nodes
	wheel   *wheel.Wheel
	workers *gate.Workers
	lines   pipeline.Lines[struct{}, pipeline.Line[*job]]

	separate atomic.Bool // each call is a script of its own, as keys of several slots cannot share one
}

// job is a call that is being sent.
type job struct {
	scripts.Call
	sentAt time.Time
	cmd    *redis.Cmd
	done   chan struct{}
}

// send executes a call once and returns its command and an instant before it was sent. A call that waits for
// a pipeline when ended is closed is not sent: its error is redisconn.ErrAbandoned.
func (s *sender) send(what scripts.Call, ended <-chan struct{}) (*redis.Cmd, time.Time) {
	line := s.lines.Of(s.base, what.Keys[0], struct{}{}, func() *pipeline.Line[*job] {
		return new(pipeline.Line[*job])
	})
	if line == nil {
		return s.sendAlone(what)
	}
	j, now := line.Begin(func() *job { return &job{Call: what, done: make(chan struct{})} })
	if now {
		cmd, sentAt := s.sendAlone(what)
		if jobs := line.Next(); jobs != nil {
			s.workers.Go(func() {
				for ; jobs != nil; jobs = line.Next() {
					s.flush(jobs)
				}
			})
		}
		return cmd, sentAt
	}
	select {
	case <-j.done:
	case <-ended:
		if line.Withdraw(j) {
			return failed(redisconn.ErrAbandoned), s.wheel.Now()
		}
		<-j.done
	}
	return j.cmd, j.sentAt
}

func (s *sender) sendAlone(what scripts.Call) (*redis.Cmd, time.Time) {
	now := s.wheel.Now()
	return what.Script.RunOnce(context.Background(), s.rdb, what.Keys, what.Args...), now
}

// flush sends jobs in one pipeline.
func (s *sender) flush(jobs []*job) {
	sentAt := s.wheel.Now()
	batch := make([]scripts.Call, len(jobs))
	for i, j := range jobs {
		batch[i] = j.Call
	}
	for i, cmd := range s.runBatch(batch) {
		jobs[i].cmd, jobs[i].sentAt = cmd, sentAt
		close(jobs[i].done)
	}
}

// runBatch executes calls to one node. Those to a single server share scripts.
func (s *sender) runBatch(batch []scripts.Call) []*redis.Cmd {
	ctx := context.Background()
	if s.separate.Load() {
		return scripts.RunBatchOnce(ctx, s.rdb, batch)
	}
	cmds, crossSlot := scripts.RunSharedOnce(ctx, s.rdb, batch)
	if crossSlot { // a proxy of a cluster
		s.separate.Store(true)
	}
	return cmds
}

// failed returns a command that has failed.
func failed(err error) *redis.Cmd {
	cmd := redis.NewCmd(context.Background())
	cmd.SetErr(err)
	return cmd
}
