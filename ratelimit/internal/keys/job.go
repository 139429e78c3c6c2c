package keys

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
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

// Job is one script for a key, and the Caller of its call. It has the Client's timeout, counted from the
// arrival of its oldest caller: then the policy decides. If it was not sent by then, it is never sent.
type Job struct {
	algo.Ask
	state   *State
	calls   []*call // in the order of the requests
	kind    jobKind
	returns bool // permits that are granted after the caller has left are given back
	sender  calls.Job
	values  context.Context //nolint:containedctx // see calls.Call; nil if there are several callers
	one     [1]*call        // room for a single call
	oneRun  [1]algo.Run     // room for a single run

	// The outcome for a caller that waits. got and err are set before done is closed.
	done chan struct{}
	Got  algo.Answer
	err  error // the cause if there is no answer: an error of this package

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
	lent      time.Duration // the part of extra that began after the pause
	timer     wheel.Timer
	backup    *time.Timer // in place of timer if the wheel is stopped
}

// newJobLocked returns a job, or nil if the Client is closed. The job counts as an operation of the Client
// until over. since is the arrival of its oldest caller.
func (s *State) newJobLocked(kind jobKind, since time.Duration) *Job {
	if s.Keys.Enter() != nil {
		return nil
	}
	return s.makeJobLocked(kind, since)
}

// makeJobLocked is newJobLocked for a caller that has entered the gate.
func (s *State) makeJobLocked(kind jobKind, since time.Duration) *Job {
	s.refs.Add(1)
	j := &Job{state: s, kind: kind, since: since}
	j.Runs = j.oneRun[:0]
	j.Last = s.known.Snapshot
	j.armLocked(s.Keys.Now())
	return j
}

// over releases what newJobLocked has acquired.
func (j *Job) over() {
	j.state.Keys.Leave()
	j.state.Release()
}

// Send sends a job, unless it is nil.
func (s *State) Send(j *Job) {
	if j != nil {
		s.Keys.Sender.Submit(calls.Nobody, &j.sender, j, s.Route())
	}
}

// Build implements calls.Caller.
func (j *Job) Build() (calls.Call, bool) {
	s := j.state
	refused := s.refused()
	s.mu.Lock()
	ok, next := j.beginLocked(refused)
	s.mu.Unlock()
	if !ok {
		s.Send(next)
		j.over()
		return calls.Call{}, false
	}
	s.Keys.Scripts.Add(1)
	j.Now = s.Keys.Now()
	return calls.Call{Call: s.Algorithm.Encode(s.ID.Key, &j.Ask), Values: j.values}, true
}

// beginLocked collects the calls that have come, and reports whether there is a script to send. If not, next is
// the job to send instead. refused is the error if Redis must not be asked.
func (j *Job) beginLocked(refused error) (ok bool, next *Job) {
	s := j.state
	switch j.stage {
	case sent: // sent again, for the other scope
		return true, nil
	case queued:
	case answered, expired:
		return false, nil
	}
	if ok = j.gatherLocked(refused); ok {
		j.stage, j.sentAt = sent, s.Keys.Wheel.Now()
		return true, nil
	}
	j.stage, j.err = answered, refused
	j.stopLocked()
	return false, j.deliverLocked(algo.Reading{Sent: s.Keys.Now()})
}

// gatherLocked collects the requests of the job, and reports whether Redis must be asked.
func (j *Job) gatherLocked(refused error) bool {
	s, now := j.state, j.state.Keys.Now()
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
		j.Request, j.Settlement = s.line.Look(now)
		return true
	case jobCaller:
		return refused == nil && !j.left
	default:
		return refused == nil
	}
}

// takeLocked moves up to most pending calls into the job.
func (j *Job) takeLocked(most int) {
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
func (j *Job) Wanted() bool {
	s := j.state
	s.mu.Lock()
	defer s.mu.Unlock()
	j.repeated = true
	return j.stage == sent && !j.left
}

// Question implements calls.Asker.
func (j *Job) Question() redisconn.Question { return j.state.Question() }

// Repeats implements calls.Asker. A charge may be made twice, a return may not.
func (j *Job) Repeats(sent bool) bool {
	s := j.state
	s.mu.Lock()
	defer s.mu.Unlock()
	return !sent || len(j.Back) == 0
}

// Apply implements calls.Caller.
func (j *Job) Apply(r redisconn.Reply) {
	s, c := j.state, j.state.Keys
	if errors.Is(r.Err(), calls.ErrInterrupted) {
		j.interrupted()
		return
	}
	at := algo.Reading{Sent: c.Clock.At(r.SentAt), Got: c.Now()}
	c.Took.Add(at.Got - at.Sent)
	if err := r.Err(); err != nil && j.follows(err) {
		s.Send(j)
		return
	}
	j.finish(&r, at)
}

// follows reports whether the script has named the other scope than that of its keys. Then it has done nothing,
// and is sent once more.
func (j *Job) follows(err error) bool {
	s := j.state
	if !s.Algorithm.Follow(err) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	again := j.stage == sent && !j.followed
	j.followed = true
	return again
}

// finish applies the reply.
func (j *Job) finish(r *redisconn.Reply, at algo.Reading) {
	s, sentAt := j.state, r.SentAt
	s.mu.Lock()
	late := j.stage == expired
	if !late {
		j.stage = answered
		j.takeRoomLocked()
	}
	j.stopLocked()
	s.mu.Unlock()
	got, err := j.read(r, at)
	if !late {
		s.heard(err, sentAt)
	}
	s.mu.Lock()
	j.refused = err != nil && !r.Ambiguous
	var next *Job
	var unused []algo.Span
	switch {
	case late || j.left:
		if j.returns {
			unused = got.Spans
		}
		if err == nil {
			next = j.adoptLateLocked(got)
		} else if j.keepBackLocked(err) {
			next = s.pumpLocked(s.Keys.Now())
		}
	default:
		j.Got, j.err = got, err
		if err == nil && !sentAt.Before(s.changed) && !sentAt.Before(s.freedAt) {
			s.noteLocked(got.Snapshot, at)
		}
		next = j.deliverLocked(at)
	}
	s.mu.Unlock()
	s.Send(next)
	s.giveBackLate(unused)
	j.over()
}

// read reads a reply.
func (j *Job) read(r *redisconn.Reply, at algo.Reading) (algo.Answer, error) {
	reply, err := r.Integers()
	var got algo.Answer
	if err == nil {
		got, err = j.state.Algorithm.Decode(&j.Ask, reply, at)
		err = r.Understood(err)
	}
	if err != nil {
		return algo.Answer{}, Explain(context.Background(), err) // the end of the context of the call is an outage
	}
	return got, nil
}

// deliverLocked gives the callers of a job their outcome, and returns the job to send next.
func (j *Job) deliverLocked(at algo.Reading) (next *Job) {
	s := j.state
	switch j.kind {
	case jobCalls:
		s.decideLocked(j.calls, &j.Got, j.err)
		j.leaveRoomLocked()
		if next = s.nextLocked(); next == nil {
			s.inFlight--
		}
	case jobLine:
		j.deliverToLineLocked(at)
		if s.Keys.Gate.Closed() {
			return s.leavePlacesLocked()
		}
		next = s.pumpLocked(s.Keys.Now())
	case jobCaller:
		close(j.done)
	case jobGiveBack:
		switch {
		case j.err != nil && j.keepBackLocked(j.err):
			next = s.pumpLocked(s.Keys.Now())
		case j.err == nil && j.Got.TakenBack:
			next = s.freedLocked()
		}
	}
	return next
}

// keepBackLocked keeps what a job was to give back that has failed with err, for another job, and reports whether there
// is any. What may have been given back is kept only if that can be repeated: a part of an entry.
func (j *Job) keepBackLocked(err error) bool {
	s := j.state
	passes := errors.Is(err, ErrUnavailable) || errors.Is(err, ErrMisconfigured)
	repeatable := j.undoneLocked() || s.Algorithm.Traits().Entries
	if j.kind == jobCaller || len(j.Back) == 0 || j.kept || !passes || !repeatable || s.Keys.Gate.Closed() {
		return false
	}
	j.kept = true
	if s.line == nil {
		s.line = NewLine(s.Algorithm)
	}
	s.line.Charged.back = append(s.line.Charged.back, j.Back...)
	s.line.giveBackLater(s.Keys.Now())
	return true
}

// deliverToLineLocked serves the waiters.
func (j *Job) deliverToLineLocked(at algo.Reading) {
	s, l, got, err := j.state, j.state.line, j.Got, j.err
	now := s.Keys.Now()
	switch {
	case j.err == nil && got.Snapshot == nil: // the job was not sent
	case err == nil:
		l.Looked(&j.Ask, got, at)
		limit := int64(math.MaxInt64)
		if found, ok := s.limitLocked(); ok {
			limit = found.Burst
		}
		l.Serve(now)
		l.Refuse(now, &s.known, limit)
	case errors.Is(err, ErrUnavailable):
		l.failed(0)
		j.keepBackLocked(err)
		if len(j.Back) > 0 && j.stage == answered && !l.again {
			l.lookAgain()
			return
		}
		s.waitByPolicyLocked(err)
	case redisconn.IsLoginRefused(err) && l.endures(err, s.Keys.Wheel.Now(), now):
		l.failed(now + l.trouble.Pause(s.Keys.Breakers.Probe, maxLoginPause))
		j.keepBackLocked(err)
		l.finishSince(l.answered, at.Sent, now, err)
	default:
		l.failed(0)
		j.keepBackLocked(err)
		l.finishSince(-Never, at.Sent, now, err)
	}
}

// adoptLateLocked takes note of a grant whose callers have left. The line keeps its permits for its waiters. Permits
// of other calls count as used, unless giveBackLate gives them back. It returns the job to send.
func (j *Job) adoptLateLocked(got algo.Answer) (next *Job) {
	s := j.state
	if j.kind != jobLine {
		return nil
	}
	if held := s.line.Charged.spans; len(held) == 0 || held[0].Period <= got.Period {
		s.line.Charged.adopt(got.Period)
		s.line.Charged.Add(got.Spans...)
	}
	return s.pumpLocked(s.Keys.Now())
}

// giveBackLate gives back what a caller has left. charged has one span for each limit, and each limit gets a script.
func (s *State) giveBackLate(charged []algo.Span) {
	all, several := s.Algorithm.(*All)
	for i, back := range charged {
		of := s
		if several {
			of = s.Keys.Use(all.IDs[i], all.Parts[i].Algorithm)
		} else {
			of.Hold()
		}
		of.mu.Lock()
		s.Keys.Gate.EnterInside()
		j := of.makeJobLocked(jobGiveBack, s.Keys.Now())
		j.Back = []algo.Span{back}
		of.mu.Unlock()
		of.Send(j)
		of.Release()
	}
}

// noteLocked records a snapshot, unless the known one is later.
func (s *State) noteLocked(found algo.Snapshot, at algo.Reading) {
	if s.known.Snapshot == nil || at.Sent >= s.known.Sent {
		s.known = Knowledge{Snapshot: found, Sent: at.Sent, Took: at.Got - at.Sent}
	}
}

// ask sends a job for one caller, and returns when it is decided or ctx ends. If returns is true, permits that
// are granted after that are given back.
func (s *State) ask(ctx context.Context, r algo.Request, change algo.Settlement, returns bool) (*Job, error) {
	j, err := s.NewCallerJob(ctx, s.Keys.Now(), r, change, returns)
	if err != nil {
		return nil, err
	}
	s.Send(j)
	return j, j.Wait(ctx)
}

// NewCallerJob returns a job for one caller, who came at since, and must send it and wait for it.
func (s *State) NewCallerJob(
	ctx context.Context, since time.Duration, r algo.Request, change algo.Settlement, returns bool,
) (*Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.newJobLocked(jobCaller, since)
	if j == nil {
		return nil, ErrClosed
	}
	j.Request, j.Settlement = r, change
	j.done, j.values, j.returns = make(chan struct{}), ctx, returns
	return j, nil
}

// Wait blocks until the job is decided or ctx ends.
func (j *Job) Wait(ctx context.Context) error {
	select {
	case <-j.done:
		return j.err
	default:
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		if j.Leave() {
			return conventions.Cause(ctx)
		}
	}
	return j.err
}

// Leave reports whether the one caller could leave before the job was decided.
func (j *Job) Leave() bool {
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
