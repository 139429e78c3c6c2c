package sender

import (
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Early is a call that may be sent before its caller knows which goroutine will wait for it to the end: a caller
// that may leave waits itself while nothing is wrong, and another goroutine goes on when it leaves. The zero
// value is a call that was not sent. One goroutine at a time uses it.
type Early struct{ job *job }

// Send sends the call, and waits until Redis has answered or ended is closed. It reports whether Run, which must
// follow, has only to return an answer.
func (e *Early) Send(s *Sender, what scripts.Call, ended <-chan struct{}) (answered bool) {
	e.job = s.begin(what)
	select {
	case <-e.job.done:
		e.job.answered = true
		return e.job.cmd.Err() == nil
	case <-ended:
		return false
	}
}

// Sent reports whether Run returns the answer to a call that was sent.
func (e *Early) Sent() bool { return e.job != nil }

// SentAt returns an instant before the call was sent. It must have been answered.
func (e *Early) SentAt() time.Time { return e.job.sentAt }

// Run is Run of the Sender. If the call was sent, that is the first attempt of it; otherwise what makes it.
func (e *Early) Run(s *Sender, what func() scripts.Call, ended <-chan struct{}) redisconn.Reply {
	j := e.job
	if j == nil {
		return s.Run(what(), ended)
	}
	e.job = nil
	return s.run(j.Call, j, ended)
}
