package ratelimit

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// jobKind tells which callers a job is for.
type jobKind uint8

const (
	jobCalls    jobKind = iota // callers that do not wait
	jobLine                    // waiters
	jobCaller                  // one caller, which waits for the job itself
	jobGiveBack                // no caller: it gives unused permits back
)

// stage is the progress of a job.
type stage uint8

const (
	queued   stage = iota // it takes the calls that come until it is sent
	sent                  // its script is in flight
	answered              // the reply is being applied
	expired               // its time had passed before; a reply may still come
)

// job is one script for a key, and the Caller of its call. It has the Client's timeout, counted from the
// arrival of its oldest caller: then the policy decides. If it was not sent by then, it is never sent.
type job struct {
	algo.Ask
	state  *keyState
	calls  []*call // in the order of the requests
	kind   jobKind
	sender calls.Job
	values context.Context //nolint:containedctx // see calls.Call; nil if there are several callers
	one    [1]*call        // room for a single call
	oneRun [1]algo.Run     // room for a single run

	// The outcome for a caller that waits. got and err are set before done is closed.
	done chan struct{}
	got  algo.Answer
	err  error // the cause if there is no answer: an error of this package

	// returns means that permits that are granted after the caller has left are given back.
	returns bool

	// The mu of the state guards the rest.
	stage     stage
	left      bool // the one caller has left
	followed  bool // the other scope was tried
	repeated  bool // the call is to be repeated
	suspected bool // the node became suspect
	refused   bool // the call has failed, and was certainly not executed
	kept      bool // what it was to give back was kept for another job
	sentAt    time.Time
	since     time.Duration // when the oldest caller came
	extra     time.Duration // extension of the timeout, because the process was paused
	granted   time.Duration // the part of extra that began after the pause
	timer     wheel.Timer
	backup    *time.Timer // in place of timer if the wheel is stopped
}

// newJobLocked returns a job, or nil if the Client is closed. The job counts as an operation of the Client
// until over. since is the arrival of its oldest caller.
func (s *keyState) newJobLocked(kind jobKind, since time.Duration) *job {
	if s.client.enter() != nil {
		return nil
	}
	return s.makeJobLocked(kind, since)
}

// makeJobLocked is newJobLocked for a caller that has entered the gate.
func (s *keyState) makeJobLocked(kind jobKind, since time.Duration) *job {
	s.refs.Add(1)
	j := &job{state: s, kind: kind, since: since}
	j.Runs = j.oneRun[:0]
	j.Last = s.known.snapshot
	j.armLocked(s.client.now())
	return j
}

// over releases what newJobLocked has acquired.
func (j *job) over() {
	j.state.client.leave()
	j.state.release()
}

// send sends a job, unless it is nil.
func (s *keyState) send(j *job) {
	if j != nil {
		s.client.sender.Submit(&j.sender, j, s.Route())
	}
}

// Build implements calls.Caller.
func (j *job) Build() (calls.Call, bool) {
	s := j.state
	refused := s.refused()
	s.mu.Lock()
	ok, next := j.beginLocked(refused)
	s.mu.Unlock()
	if !ok {
		s.send(next)
		j.over()
		return calls.Call{}, false
	}
	s.client.monitor.scripts.Add(1)
	j.Now = s.client.now()
	return calls.Call{Call: s.algorithm.Encode(s.id.key, &j.Ask), Values: j.values}, true
}

// beginLocked collects the calls that have come, and reports whether there is a script to send. If not, next is
// the job to send instead. refused is the error if Redis must not be asked.
func (j *job) beginLocked(refused error) (ok bool, next *job) {
	s := j.state
	switch j.stage {
	case sent: // sent again, for the other scope
		return true, nil
	case queued:
	case answered, expired:
		return false, nil
	}
	if ok = j.gatherLocked(refused); ok {
		j.stage, j.sentAt = sent, s.client.wheel.Now()
		return true, nil
	}
	j.stage, j.err = answered, refused
	j.stopLocked()
	return false, j.settleLocked(algo.Reading{Sent: s.client.now()})
}

// gatherLocked collects the requests of the job, and reports whether Redis must be asked.
func (j *job) gatherLocked(refused error) bool {
	s, now := j.state, j.state.client.now()
	switch j.kind {
	case jobCalls:
		s.queued = nil
		s.answerPendingLocked(now)
		if refused != nil {
			j.takeLocked(math.MaxInt)
		} else {
			j.takeLocked(maxBatch)
		}
		return refused == nil && len(j.calls) > 0
	case jobLine:
		if refused != nil || s.line.first == nil {
			s.line.failed(s.line.retryAt)
			return false
		}
		last := j.Last
		j.Ask = s.line.look(now)
		j.Last = last
		return true
	case jobCaller:
		return refused == nil && !j.left
	default:
		return refused == nil
	}
}

// takeLocked moves up to most pending calls into the job.
func (j *job) takeLocked(most int) {
	s := j.state
	n := min(len(s.pending), most)
	if j.calls = s.pending[:n:n]; n == 1 {
		j.one[0] = s.pending[0] // reuse room
		j.calls, j.values = j.one[:], j.one[0].values
	}
	if s.pending = s.pending[n:]; len(s.pending) == 0 {
		s.room[0] = nil
		s.pending = s.room[:0]
	}
	for _, c := range j.calls {
		j.AddRun(c.n, 1)
	}
	j.Callers = len(j.calls)
}

// Wanted implements calls.Caller. Only two kinds of calls are repeated: those that a cluster refused while its slot
// migrates, and, once, those whose connection failed while the node is well.
func (j *job) Wanted() bool {
	s := j.state
	s.mu.Lock()
	defer s.mu.Unlock()
	j.repeated = true
	return j.stage == sent && !j.left
}

// Question implements calls.Asker.
func (j *job) Question() redisconn.Question { return j.state.Question() }

// Repeats implements calls.Asker. A charge may be made twice, a return may not.
func (j *job) Repeats(sent bool) bool {
	s := j.state
	s.mu.Lock()
	defer s.mu.Unlock()
	return !sent || len(j.Back) == 0
}

// Apply implements calls.Caller.
func (j *job) Apply(r redisconn.Reply) {
	s, c := j.state, j.state.client
	at := algo.Reading{Sent: c.clock.At(r.SentAt), Got: c.now()}
	c.monitor.took.Add(at.Got - at.Sent)
	if err := r.Err(); err != nil && j.follows(err) {
		s.send(j)
		return
	}
	j.finish(&r, at)
}

// follows reports whether the script has named the other scope than that of its keys. Then it has done nothing,
// and is sent once more.
func (j *job) follows(err error) bool {
	s := j.state
	if !s.algorithm.Follow(err) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	again := j.stage == sent && !j.followed
	j.followed = true
	return again
}

// finish applies the reply.
func (j *job) finish(r *redisconn.Reply, at algo.Reading) {
	s, sentAt := j.state, r.SentAt
	s.mu.Lock()
	late := j.stage == expired
	if !late {
		j.stage = answered
	}
	j.stopLocked()
	s.mu.Unlock()
	got, err := j.read(r, at)
	if !late {
		s.heard(err, sentAt)
	}
	s.mu.Lock()
	j.refused = err != nil && !r.Ambiguous
	var next *job
	var unused []algo.Span
	switch {
	case late || j.left:
		if j.returns {
			unused = got.Spans
		}
		if err == nil {
			next = j.settleLateLocked(got)
		} else if j.keepBackLocked(err) {
			next = s.pumpLocked(s.client.now())
		}
	default:
		j.got, j.err = got, err
		if err == nil && !sentAt.Before(s.changed) && !sentAt.Before(s.freedAt) {
			s.noteLocked(got.Snapshot, at)
		}
		next = j.settleLocked(at)
	}
	s.mu.Unlock()
	s.send(next)
	s.giveBackLate(unused)
	j.over()
}

// read reads a reply.
func (j *job) read(r *redisconn.Reply, at algo.Reading) (algo.Answer, error) {
	reply, err := r.Integers()
	var got algo.Answer
	if err == nil {
		got, err = j.state.algorithm.Decode(&j.Ask, reply, at)
		err = r.Understood(err)
	}
	if err != nil {
		return algo.Answer{}, explain(context.Background(), err) // the end of the context of the call is an outage
	}
	return got, nil
}

// settleLocked gives the callers of a job their outcome, and returns the job to send next.
func (j *job) settleLocked(at algo.Reading) (next *job) {
	s := j.state
	switch j.kind {
	case jobCalls:
		s.decideLocked(j.calls, &j.got, j.err)
		if next = s.nextLocked(); next == nil {
			s.inFlight--
		}
	case jobLine:
		j.settleLineLocked(at)
		if s.client.gate.Closed() {
			return s.leavePlacesLocked()
		}
		next = s.pumpLocked(s.client.now())
	case jobCaller:
		close(j.done)
	case jobGiveBack:
		switch {
		case j.err != nil && j.keepBackLocked(j.err):
			next = s.pumpLocked(s.client.now())
		case j.err == nil && j.got.TakenBack:
			next = s.freedLocked(j.got.Snapshot)
		}
	}
	return next
}

// keepBackLocked keeps what a job was to give back that has failed with err, for another job, and reports whether there
// is any. What may have been given back is kept only if that can be repeated: a part of an entry.
func (j *job) keepBackLocked(err error) bool {
	s := j.state
	passes := errors.Is(err, ErrUnavailable) || errors.Is(err, ErrMisconfigured)
	repeatable := j.undoneLocked() || s.algorithm.Traits().Entries
	if j.kind == jobCaller || len(j.Back) == 0 || j.kept || !passes || !repeatable || s.client.gate.Closed() {
		return false
	}
	j.kept = true
	if s.line == nil {
		s.line = newLine(s.algorithm)
	}
	s.line.charged.back = append(s.line.charged.back, j.Back...)
	s.line.giveBackLater(s.client.now())
	return true
}

// told returns the decision for a caller.
func told(d *algo.Decision) (Result, error) {
	if d.Exceeds {
		return Result{}, ErrExceedsLimit
	}
	return resultOf(d), nil
}

// decideLocked gives calls the answer if err is nil, and else the policy's.
func (s *keyState) decideLocked(calls []*call, got *algo.Answer, err error) {
	for i, c := range calls {
		switch {
		case c.left:
			continue
		case errors.Is(err, ErrUnavailable):
			c.res, c.err = s.policyLocked(c.n, err)
		case err != nil:
			c.err = err
		default:
			c.res, c.err = told(&got.Decisions[i])
		}
		c.done <- struct{}{}
	}
}

// settleLineLocked serves the waiters.
func (j *job) settleLineLocked(at algo.Reading) {
	s, l, got, err := j.state, j.state.line, j.got, j.err
	now := s.client.now()
	switch {
	case j.err == nil && got.Snapshot == nil: // the job was not sent
	case err == nil:
		l.looked(&j.Ask, got, at)
		limit := int64(math.MaxInt64)
		if found, ok := s.limitLocked(); ok {
			limit = found.Burst
		}
		l.serve(now)
		l.refuse(now, &s.known, limit)
	case errors.Is(err, ErrUnavailable):
		l.failed(0)
		j.keepBackLocked(err)
		if len(j.Back) > 0 && j.stage == answered && !l.again {
			l.again = true // without what it was to give back, as it would have been repeated
			return
		}
		s.waitByPolicyLocked(err)
	case redisconn.IsLoginRefused(err) && l.trouble.Endures(err, s.client.wheel.Now(), loginPatience):
		l.failed(now + l.trouble.Pause(s.client.breakers.Probe, maxLoginPause))
		j.keepBackLocked(err)
		l.finishSince(l.answered, at.Sent, now, err)
	default:
		l.failed(0)
		j.keepBackLocked(err)
		l.finishSince(-never, at.Sent, now, err)
	}
}

// settleLateLocked takes note of a grant whose callers have left. The line keeps its permits for its waiters. Permits
// of other calls count as used, unless giveBackLate gives them back. It returns the job to send.
func (j *job) settleLateLocked(got algo.Answer) (next *job) {
	s := j.state
	if j.kind != jobLine {
		return nil
	}
	if held := s.line.charged.spans; len(held) == 0 || held[0].Period <= got.Period {
		s.line.charged.adopt(got.Period)
		s.line.charged.add(got.Spans...)
	}
	return s.pumpLocked(s.client.now())
}

// giveBackLate gives back what a caller has left. charged has one span for each limit, and each limit gets a script.
func (s *keyState) giveBackLate(charged []algo.Span) {
	all, several := s.algorithm.(*allOf)
	for i, back := range charged {
		of := s
		if several {
			of = s.client.use(all.ids[i], all.Parts[i].Algorithm)
		} else {
			of.hold()
		}
		of.mu.Lock()
		s.client.gate.EnterInside()
		j := of.makeJobLocked(jobGiveBack, s.client.now())
		j.Back = []algo.Span{back}
		of.mu.Unlock()
		of.send(j)
		of.release()
	}
}

// noteLocked records a snapshot, unless the known one is later.
func (s *keyState) noteLocked(found algo.Snapshot, at algo.Reading) {
	if s.known.snapshot == nil || at.Sent >= s.known.sent {
		s.known = knowledge{snapshot: found, sent: at.Sent, took: at.Got - at.Sent}
	}
}

// ask sends a job for one caller, and returns when it is decided or ctx ends. If returns is true, permits that
// are granted after that are given back.
func (s *keyState) ask(ctx context.Context, a algo.Ask, returns bool) (*job, error) {
	j, err := s.newCallerJob(ctx, s.client.now(), a, returns)
	if err != nil {
		return nil, err
	}
	s.send(j)
	return j, j.wait(ctx)
}

// newCallerJob returns a job for one caller, who came at since, and must send it and wait for it.
func (s *keyState) newCallerJob(ctx context.Context, since time.Duration, a algo.Ask, returns bool) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.newJobLocked(jobCaller, since)
	if j == nil {
		return nil, ErrClosed
	}
	last, runs := j.Last, j.Runs
	j.Ask = a
	if j.Last = last; a.Runs == nil {
		j.Runs = runs
	}
	j.done, j.values, j.returns = make(chan struct{}), ctx, returns
	return j, nil
}

// wait blocks until the job is decided or ctx ends.
func (j *job) wait(ctx context.Context) error {
	select {
	case <-j.done:
		return j.err
	default:
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		if j.leave() {
			return conventions.Cause(ctx)
		}
	}
	return j.err
}

// leave reports whether the one caller could leave before the job was decided.
func (j *job) leave() bool {
	j.state.mu.Lock()
	defer j.state.mu.Unlock()
	select {
	case <-j.done:
		return false
	default:
		j.left = true
		return true
	}
}
