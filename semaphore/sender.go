package semaphore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/pipeline"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// sender sends the calls of one Client: those of many semaphores to one node share pipelines.
type sender struct {
	rdb     redis.UniversalClient
	base    redis.UniversalClient // knows the nodes
	wheel   *wheel.Wheel
	workers *gate.Workers
	lines   pipeline.Lines[struct{}, pipeline.Line[*job]]
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
			s.workers.Go(func() { s.run(line, jobs) })
		}
		return cmd, sentAt
	}
	select {
	case <-j.done:
	case <-ended:
		if line.Withdraw(j) {
			cmd := redis.NewCmd(context.Background())
			cmd.SetErr(redisconn.ErrAbandoned)
			return cmd, s.wheel.Now()
		}
		<-j.done
	}
	return j.cmd, j.sentAt
}

func (s *sender) sendAlone(what scripts.Call) (*redis.Cmd, time.Time) {
	now := s.wheel.Now()
	return what.Script.RunOnce(context.Background(), s.rdb, what.Keys, what.Args...), now
}

// run sends jobs, and those that come meanwhile, each time in one pipeline.
func (s *sender) run(line *pipeline.Line[*job], jobs []*job) {
	for ; jobs != nil; jobs = line.Next() {
		sentAt := s.wheel.Now()
		batch := make([]scripts.Call, len(jobs))
		for i, j := range jobs {
			batch[i] = j.Call
		}
		for i, cmd := range scripts.RunBatchOnce(context.Background(), s.rdb, batch) {
			jobs[i].cmd, jobs[i].sentAt = cmd, sentAt
			close(jobs[i].done)
		}
	}
}
