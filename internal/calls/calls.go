// Package calls sends the calls of one Client to Redis. It collects the calls to each node into batches, retries them
// after transient failures, and passes each reply to its Caller.
//
// Only the goroutines that send batches block: two for each node, and up to maxStalled more while Redis does not
// answer. A call that waits for its batch or for its next try has no goroutine.
//
// A connection that failed is not the server: after such a failure the Sender checks the node over a new connection,
// and if it answers, repeats the call once.
package calls

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Caller owns a call. Its methods run one at a time, on a goroutine that sends batches. They must return, and not
// block: they call functions of the user by usercode.Apart.
type Caller interface {
	// Build returns the call just before it is sent, so a request that was cancelled by then is never sent. If ok is
	// false, nothing is sent, and neither Wanted nor Apply is called.
	Build() (call Call, ok bool)

	// Wanted reports whether to retry the call after a transient failure.
	Wanted() bool

	// Apply receives the reply. It may send the Job again, with another call.
	Apply(r redisconn.Reply)
}

// Asker is a Caller with rules of its own for calls that failed because of their connection.
type Asker interface {
	// Question returns the question for the check of the node.
	Question() redisconn.Question
	// Repeats reports whether to repeat the call if the node is well; sent, if the failed copy may have executed.
	Repeats(sent bool) bool
}

// Call is a script and its arguments. The script must be idempotent.
type Call struct {
	scripts.Call

	// Values is the context of the user's call, or nil if the call serves several users. Hooks of the redis client see
	// its values if the batch has no other call.
	Values context.Context //nolint:containedctx // only its values are used

	// Send, if not nil, replaces Script: it sends the call over connections that it chooses. It may block.
	Send func(ctx context.Context) *redis.Cmd

	// Next, if not nil, is sent behind this call in the same pipeline. It is for a call that this one makes
	// possible, to the same node: it saves the round trip in between.
	Next *Job

	// Start, if not nil, replaces Script for an owner that does not use a Sender: it sends the call and passes the
	// reply to done, once. Neither may block.
	Start func(done func(*redis.Cmd))
}

// Job is a call from Submit until Apply. The zero value is ready for Submit.
type Job struct {
	caller  Caller
	key     string
	line    *line
	call    Call
	reply   redisconn.Reply
	since   *time.Time // of the first try that found its slot migrating, or nil
	tries   int32
	built   bool
	follows bool // in the pipeline of the job before it
	checked bool // the node was checked after a failure of the connection
}

// For returns the job as a Call.Next whose call is that of c.
func (j *Job) For(c Caller) *Job {
	*j = Job{caller: c}
	return j
}

// Config configures a Sender. Retries, Timeout and Prepare are optional.
type Config struct {
	Client  redis.UniversalClient // sends the commands
	Base    redis.UniversalClient // Client, or the client embedded in it, which knows the nodes
	Retries int                   // maximum for each call
	Wheel   *wheel.Wheel
	Workers *gate.Workers
	Gate    *gate.Gate // counts calls in flight; once it is closed, no call is retried

	// Timeout, if not 0, bounds the context of each batch, and with it the wait for a connection. It does not apply to
	// calls with Call.Send.
	Timeout time.Duration

	// Prepare, if not nil, runs before the calls of a batch are built. It is pubsub.Channels.Decide for Clients with
	// waiters. It may block for a round trip, and must return.
	Prepare func()

	// CheckTimeout bounds each of the three steps of a check that follows a failed call; 0 means 250 ms.
	CheckTimeout time.Duration
	// Checked, if not nil, receives the result of each check, before those who wait for it. The arguments addr and
	// known are those of redisconn.NodeAddr. It must not block.
	Checked func(addr string, known bool, err error)
	// NoSharing gives each call of a batch a script of its own.
	NoSharing bool
}

// Sender sends calls. It is safe for concurrent use.
type Sender struct {
	Config
	lines lines
	proof redisconn.Proof
	solo  *solo // nil: calls of users whose contexts may end are sent by other goroutines
}

// New returns a Sender. The Gate has to be closed at its end.
func New(cfg Config) *Sender {
	s := &Sender{Config: cfg, proof: redisconn.Proof{Client: cfg.Base}}
	if s.solo = newSolo(cfg.Client, s.background); s.solo != nil {
		cfg.Gate.OnClose = s.solo.close
	}
	return s
}

// Nobody is the user of a call for which no goroutine waits.
var Nobody context.Context

// Submit queues the call of c for the node of key: c.Build makes the call just before it is written, and c.Apply gets
// the reply. user is the context of a user who waits on this goroutine, or Nobody, and then Submit does not block. If
// nothing else is sent to the node, the goroutine of the user may send the call, which saves two goroutine switches.
// Then Submit returns after the reply, or when user ends, and the call is sent once more. Instead of a call that must
// not execute twice, c.Apply gets ErrInterrupted.
func (s *Sender) Submit(user context.Context, j *Job, c Caller, key string) {
	l := s.line(key)
	switch {
	case user == Nobody:
		s.send(j, c, key, l, false)
	case user.Done() == nil:
		s.send(j, c, key, l, true)
	case !s.sendSolo(user, j, c, key, l, false):
		s.send(j, c, key, l, false)
	}
}

// SubmitTimed is Submit for the call of a user whose Caller has a time limit, at whose end it calls Interrupt.
func (s *Sender) SubmitTimed(user context.Context, j *Job, c Caller, key string) {
	if l := s.line(key); !s.sendSolo(user, j, c, key, l, true) {
		s.send(j, c, key, l, false)
	}
}

// Interrupt ends the call of a Caller as the end of the user's context does, if SubmitTimed is sending it.
func (s *Sender) Interrupt(c Caller) {
	if s.solo != nil {
		s.solo.interrupt(c)
	}
}

// ErrInterrupted is the error of a call that may have executed, and is not sent again, because its user has left.
var ErrInterrupted = errors.New("calls: interrupted")

// SubmitAlone is Submit for a call with Call.Send. Such calls share no batches.
func (s *Sender) SubmitAlone(j *Job, c Caller, key string) {
	s.send(j, c, key, s.aloneLine(key), false)
}

func (s *Sender) send(j *Job, c Caller, key string, l *line, here bool) {
	s.Gate.EnterInside()
	*j = Job{caller: c, key: key, line: l}
	l.add(j, here)
}

// build builds the call of a job before its first try. If it returns false, there is no call, and its Caller may have
// sent the job again.
func (j *Job) build() bool {
	if j.built {
		return true
	}
	g := j.line.sender.Gate
	call, ok := j.caller.Build()
	if !ok {
		g.Leave()
		return false
	}
	j.call, j.built = call, true
	return true
}

// tried handles the result of a try: it schedules the next try or ends the job.
func (j *Job) tried() {
	err := j.reply.Err()
	if err == nil {
		j.deliver()
		return
	}
	j.reply.Ambiguous = j.reply.Ambiguous || redisconn.MayHaveExecuted(err)
	if !j.check(err) {
		j.failed(err)
	}
}

// failed schedules the next try after a failure, or ends the job.
func (j *Job) failed(err error) {
	s := j.line.sender
	if most, again := j.again(err); again {
		redisconn.Reload(s.Base)
		longest := min(8*time.Millisecond<<min(j.tries-1, 6), most)
		if _, err := wheelentry.AfterFunc(s.Wheel, longest/2+rand.N(longest/2), j.resume); err == nil {
			return
		}
	}
	j.deliver()
}

// check checks the node if a call failed because of its connection, once for each job, unless a check has found, while
// the call was in flight, that the node is not well. It reports whether the job goes on.
func (j *Job) check(err error) bool {
	s := j.line.sender
	if j.checked || !redisconn.OfConnection(err) {
		return false
	}
	j.checked = true
	if trouble := s.line(j.key).troubleSince(j.reply.SentAt); trouble != nil {
		j.goOn(err, trouble)
		return true
	}
	key := j.key
	if len(j.call.Keys) > 0 {
		key = j.call.Keys[0] // a name may be outside the rights
	}
	ask := redisconn.WriteQuestion(key)
	if asker, ok := j.caller.(Asker); ok {
		ask = asker.Question()
	}
	limit := cmp.Or(s.CheckTimeout, defaultCheck)
	return s.Check(j.key, ask, err, limit, func(found error) { j.goOn(err, found) })
}

const defaultCheck = 250 * time.Millisecond

// goOn continues a job after a check. If the node is well, the call is repeated at once; if Retries is 0, only if it
// was not executed. If the node refuses the client, that is the reply.
func (j *Job) goOn(err, found error) {
	repeats := j.line.sender.Retries > 0 || !j.reply.Ambiguous
	if asker, ok := j.caller.(Asker); ok {
		repeats = asker.Repeats(j.reply.Ambiguous)
	}
	switch {
	case found == nil && !repeats:
		j.deliver()
	case found == nil:
		j.resume(nil)
	case redisconn.IsMisconfigured(found), redisconn.IsLoginRefused(found):
		j.reply.Cmd = Failed(found)
		j.deliver()
	default:
		j.failed(err)
	}
}

const (
	longestPause = 512 * time.Millisecond

	// migrationTimeout bounds how long a call waits for the migration of a cluster slot. A migration takes
	// milliseconds, unless an operator leaves it half-way.
	migrationTimeout = 5 * time.Second
	migrationPause   = 64 * time.Millisecond
)

// again reports whether to retry a failed call, and returns the longest pause before that.
func (j *Job) again(err error) (most time.Duration, again bool) {
	s := j.line.sender
	if s.Gate.Closed() || !j.caller.Wanted() {
		return 0, false
	}
	if redisconn.Migrating(err) {
		if j.since == nil {
			first := j.reply.SentAt
			j.since = &first
		}
		j.tries++
		return migrationPause, s.Wheel.Now().Sub(*j.since) <= migrationTimeout
	}
	j.tries++
	return longestPause, int(j.tries) <= s.Retries && (redisconn.MayHaveExecuted(err) || redisconn.Transient(err))
}

// resume queues the next try after a pause.
func (j *Job) resume(stopped error) {
	if s := j.line.sender; stopped != nil || s.Gate.Closed() || !j.caller.Wanted() {
		s.Workers.Go(j.deliver)
		return
	}
	j.line.add(j, false)
}

// deliver passes the last reply to the Caller.
func (j *Job) deliver() {
	g, c, r := j.line.sender.Gate, j.caller, j.reply
	*j = Job{}
	defer g.Leave()
	c.Apply(r)
}

// Failed returns a command with an error.
func Failed(err error) *redis.Cmd {
	cmd := redis.NewCmd(context.Background())
	cmd.SetErr(err)
	return cmd
}
