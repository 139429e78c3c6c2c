// Package sender sends the calls of one Client: those of many locks or semaphores to one node share pipelines.
package sender

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/pipeline"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Sender sends calls. It is safe for concurrent use.
type Sender struct {
	Config
	lines pipeline.Lines[struct{}, pipeline.Line[*job]]
	jobs  sync.Pool

	separate atomic.Bool // each call is a script of its own, as keys of several slots cannot share one
}

// Config is what a Sender sends with. All fields but Retries are required.
type Config struct {
	Client  redis.UniversalClient // sends
	Base    redis.UniversalClient // is Client, or embedded in it, and knows the nodes
	Retries int                   // of a call, at most; see redisconn.Retry
	Wheel   *wheel.Wheel
	Workers *gate.Workers
}

// New returns a Sender.
func New(cfg Config) *Sender {
	s := &Sender{Config: cfg}
	s.jobs.New = func() any { return &job{sender: s, done: make(chan struct{}, 1)} }
	_, single := cfg.Base.(*redis.Client)
	s.separate.Store(!single)
	return s
}

// Run executes a script that is idempotent. It retries calls that may succeed later, unless ended is closed. It
// blocks until an answer or the last failure; the timeouts of the client bound each attempt.
func (s *Sender) Run(what scripts.Call, ended <-chan struct{}) redisconn.Reply {
	return s.run(what, nil, ended)
}

// Retry is Run for a call that is sent by once, which also returns an instant before it was sent.
func (s *Sender) Retry(ended <-chan struct{}, once func() (*redis.Cmd, time.Time)) redisconn.Reply {
	return redisconn.Retry(s.Wheel, s.Base, s.Retries, ended, once)
}

// run is Run. The first attempt may have begun.
func (s *Sender) run(what scripts.Call, begun *job, ended <-chan struct{}) redisconn.Reply {
	return s.Retry(ended, func() (*redis.Cmd, time.Time) {
		if j := begun; j != nil {
			begun = nil
			return j.wait(ended)
		}
		return s.send(what, ended)
	})
}

// job is a call that is being sent.
type job struct {
	scripts.Call
	sender *Sender
	line   *pipeline.Line[*job] // where it is queued; nil if it never was

	done     chan struct{} // receives when it is over
	answered bool          // received

	cmd    *redis.Cmd
	sentAt time.Time // before it was sent
}

// begin sends a call, or queues it for the next pipeline, and does not block.
func (s *Sender) begin(what scripts.Call) *job {
	j := s.newJob(what)
	if j.line = s.line(what.Keys[0]); j.line == nil || j.line.Begin(j) {
		line := j.line
		j.line = nil
		s.Workers.Go(func() {
			j.cmd, j.sentAt = s.sendAlone(j.Call)
			j.done <- struct{}{} // has room
			if line != nil {
				s.sendNext(line)
			}
		})
	}
	return j
}

// send executes a call once and returns its command and an instant before it was sent. A call that waits for
// a pipeline when ended is closed is not sent: its error is redisconn.ErrAbandoned.
func (s *Sender) send(what scripts.Call, ended <-chan struct{}) (*redis.Cmd, time.Time) {
	line := s.line(what.Keys[0])
	if line == nil {
		return s.sendAlone(what)
	}
	j := s.newJob(what)
	if j.line = line; !line.Begin(j) {
		return j.wait(ended)
	}
	s.free(j)
	cmd, sentAt := s.sendAlone(what)
	if jobs := line.Next(); jobs != nil {
		s.Workers.Go(func() {
			s.flush(jobs)
			s.sendNext(line)
		})
	}
	return cmd, sentAt
}

// wait returns what became of a job, which ends its use.
func (j *job) wait(ended <-chan struct{}) (*redis.Cmd, time.Time) {
	s := j.sender
	defer s.free(j)
	if j.answered {
		return j.cmd, j.sentAt
	}
	select {
	case <-j.done:
	case <-ended:
		if j.line != nil && j.line.Withdraw(j) {
			return Failed(redisconn.ErrAbandoned), s.Wheel.Now()
		}
		<-j.done
	}
	return j.cmd, j.sentAt
}

func (s *Sender) newJob(what scripts.Call) *job {
	j := s.jobs.Get().(*job) //nolint:forcetypeassert // of New
	j.Call = what
	return j
}

// free lets a job be used again. Nothing else refers to it.
func (s *Sender) free(j *job) {
	*j = job{sender: s, done: j.done}
	s.jobs.Put(j)
}

// line returns the line of the node of a key, nil if that is not known.
func (s *Sender) line(key string) *pipeline.Line[*job] {
	return s.lines.Of(s.Base, key, struct{}{}, func() *pipeline.Line[*job] { return new(pipeline.Line[*job]) })
}

func (s *Sender) sendAlone(what scripts.Call) (*redis.Cmd, time.Time) {
	now := s.Wheel.Now()
	return what.Script.RunOnce(context.Background(), s.Client, what.Keys, what.Args...), now
}

// sendNext sends the jobs that have come meanwhile, each time in one pipeline.
func (s *Sender) sendNext(line *pipeline.Line[*job]) {
	for jobs := line.Next(); jobs != nil; jobs = line.Next() {
		s.flush(jobs)
	}
}

// flush sends jobs in one pipeline.
func (s *Sender) flush(jobs []*job) {
	sentAt := s.Wheel.Now()
	batch := make([]scripts.Call, len(jobs))
	for i, j := range jobs {
		batch[i] = j.Call
	}
	for i, cmd := range s.runBatch(batch) {
		j := jobs[i]
		j.cmd, j.sentAt = cmd, sentAt
		j.done <- struct{}{} // has room
	}
}

// runBatch executes calls to one node. Those to a single server share scripts.
func (s *Sender) runBatch(batch []scripts.Call) []*redis.Cmd {
	ctx := context.Background()
	if s.separate.Load() {
		return scripts.RunBatchOnce(ctx, s.Client, batch)
	}
	cmds, crossSlot := scripts.RunSharedOnce(ctx, s.Client, batch)
	if crossSlot { // a proxy of a cluster
		s.separate.Store(true)
	}
	return cmds
}

// Failed returns a command that has failed.
func Failed(err error) *redis.Cmd {
	cmd := redis.NewCmd(context.Background())
	cmd.SetErr(err)
	return cmd
}
