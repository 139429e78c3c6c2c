package ratelimit

import (
	"context"
	"errors"
	"math"
	"runtime"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/pipeline"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// sender carries the scripts of many keys to one node. A job that finds few enough pipelines under way is
// sent at once; others join the next pipeline, as callers of one key join its next script.
type sender struct {
	client *Client
	script *scripts.Script // nil: of one key, whose scripts travel alone
	line   pipeline.Line[*job]
}

// submit sends a job, or leaves it to the next pipeline. The job may be sent by the goroutine of the caller,
// whose context it is; see mayBlock. It never runs under that context, for others may join it.
func (s *sender) submit(ctx context.Context, j *job) {
	if !s.line.Begin(j) {
		return // it is queued
	}
	jobs := []*job{j}
	if !s.client.senders.mayBlock(ctx) {
		go s.run(jobs)
		return
	}
	if s.flush(jobs) {
		if jobs = s.take(); jobs != nil {
			go s.run(jobs)
		}
	}
}

// run sends jobs, and those that come up meanwhile.
func (s *sender) run(jobs []*job) {
	for jobs != nil && s.flush(jobs) {
		jobs = s.take()
	}
}

// take returns the jobs of the next pipeline. If there are none, fewer pipelines are under way.
func (s *sender) take() []*job { return s.line.Next() }

// flush has jobs decided, by Redis or by the policy. It returns false if that took so long that another
// goroutine goes on in its place.
func (s *sender) flush(jobs []*job) bool {
	err := s.client.breaker.refuse()
	if err == nil {
		if f := s.newFlight(jobs); f != nil {
			return f.send()
		}
		err = unavailable(errTimeout)
	}
	s.settle(jobs, err, reading{}, time.Time{})
	return true
}

// settle tells the callers of jobs what became of them, and queues the jobs that follow. err is why Redis was
// not asked; if it is nil, each job has its own answer.
func (s *sender) settle(jobs []*job, err error, at reading, sentAt time.Time) {
	callers := 0
	var next []*job
	for _, j := range jobs {
		if err != nil {
			j.got, j.err = answer{}, err
		}
		callers += len(j.calls)
		j.settle(at, sentAt)
	}
	if callers > 1 {
		runtime.Gosched() // callers that come back at once make the next script
	}
	for _, j := range jobs {
		if n := j.next(); n != nil {
			next = append(next, n)
		}
	}
	s.line.Queue(next...)
	for _, j := range jobs {
		j.over()
	}
}

// senders are those of one Client: one for each node and script.
type senders struct {
	client *Client
	lines  pipeline.Lines[*scripts.Script, sender]
}

// of returns the sender of a key.
func (s *senders) of(script *scripts.Script, key string) *sender {
	shared := s.lines.Of(s.client.base, key, script, func() *sender {
		return &sender{client: s.client, script: script}
	})
	if shared == nil {
		// A key whose node is not known has a sender for itself, and keeps its own order.
		return &sender{client: s.client, line: pipeline.Line[*job]{Width: math.MaxInt}}
	}
	return shared
}

// mayBlock reports whether a caller may wait for Redis on its own goroutine, which is cheaper than to have
// another do it, but keeps the caller until Redis answers or the timeout of the socket, which is the
// Client's, ends it. It may if Redis was well the last time and the caller's deadline, if any, is further
// away than that.
func (s *senders) mayBlock(ctx context.Context) bool {
	c := s.client
	if !c.bounded || c.breaker.failures.Load() != 0 {
		return false
	}
	deadline, ok := ctx.Deadline()
	return !ok || time.Until(deadline) > c.timeout
}

// errTimeout is why Redis counts as away when it does not answer in time.
var errTimeout = errors.New("no answer within the timeout")
