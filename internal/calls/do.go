package calls

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Request is a call that one user waits for.
type Request struct {
	Key   string // decides the node
	Build func() scripts.Call

	// Send, if not nil, is the Send of the Call.
	Send func(ctx context.Context) *redis.Cmd

	// Must says that the call is sent although the user has left before, as a release is.
	Must bool

	// Late, if not nil, gets the reply if the user has left, on another goroutine. It must not block.
	Late func(redisconn.Reply)
}

// Do sends a call and waits for the reply, at most until ctx ends: then answered is false. Unless the request Must be
// sent, a call that was not sent by then is never sent. One that was is not repeated, except once if it went solo: its
// reply is lost with the connection.
func (s *Sender) Do(ctx context.Context, r Request) (reply redisconn.Reply, answered bool) {
	p := s.Start(ctx, r)
	if !p.Wait(ctx.Done()) && !p.Leave() {
		return redisconn.Reply{}, false
	}
	return p.job.reply, true
}

// Start is Do for a user who may wait again after ctx has ended. It may block until the reply or the end of ctx. Unless
// Wait returns true, Leave must follow.
func (s *Sender) Start(ctx context.Context, r Request) *Pending {
	p := &Pending{request: r, values: ctx, done: make(chan struct{})}
	if r.Send != nil {
		s.SubmitAlone(&p.job, p, r.Key)
	} else {
		s.sendHere(ctx, p)
	}
	if ctx.Done() == nil {
		<-p.done // the user has nothing to do meanwhile
	}
	return p
}

// sendHere is Submit for a user who has left if a hook of the redis client ends the goroutine.
func (s *Sender) sendHere(ctx context.Context, p *Pending) {
	returned := false
	defer func() {
		if !returned && p.Leave() && p.request.Late != nil {
			p.request.Late(p.job.reply)
		}
	}()
	s.Submit(ctx, &p.job, p, p.request.Key)
	returned = true
}

// Go sends a call for which nobody waits, once. The reply goes to Late.
func (s *Sender) Go(ctx context.Context, r Request) {
	r.Must = true
	p := &Pending{request: r, values: ctx}
	p.state.Store(left)
	if r.Send != nil {
		s.SubmitAlone(&p.job, p, r.Key)
	} else {
		s.Submit(Nobody, &p.job, p, r.Key)
	}
}

// Pending is a request under way. Wait, Leave and Reply are for the one goroutine of its user.
type Pending struct {
	request Request
	values  context.Context //nolint:containedctx // of the user; see Call
	job     Job             // with the reply, once it is over
	state   atomic.Int32
	done    chan struct{} // closed when it is over
}

const (
	waiting int32 = iota
	sent
	left // by the user
	over
)

// Wait reports whether the reply has come; it waits until ended is closed at most.
func (p *Pending) Wait(ended <-chan struct{}) bool {
	select {
	case <-p.done:
		return true
	default:
	}
	select {
	case <-p.done:
		return true
	case <-ended:
		return false
	}
}

// Leave ends the wait. It reports whether the reply has come in the same instant.
func (p *Pending) Leave() (answered bool) {
	if p.state.CompareAndSwap(waiting, left) || p.state.CompareAndSwap(sent, left) {
		return false
	}
	<-p.done // at once
	return true
}

// Reply returns the reply, which must have come.
func (p *Pending) Reply() redisconn.Reply { return p.job.reply }

// Build implements Caller.
func (p *Pending) Build() (Call, bool) {
	if !p.state.CompareAndSwap(waiting, sent) && !p.request.Must {
		return Call{}, false
	}
	call := Call{Values: p.values, Send: p.request.Send}
	if call.Send == nil {
		call.Call = p.request.Build()
	}
	return call, true
}

// Wanted implements Caller.
func (p *Pending) Wanted() bool { return p.state.Load() != left }

// Apply implements Caller.
func (p *Pending) Apply(r redisconn.Reply) {
	p.job.reply = r
	if p.state.CompareAndSwap(sent, over) {
		close(p.done)
	} else if p.request.Late != nil {
		p.request.Late(r)
	}
}
