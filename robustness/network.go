package robustness

import (
	"cmp"
	"context"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

// order is a fault of one process. The parent sends it, and the process carries it out and records how much it
// changed.
type order struct {
	Name string // of the fault

	LoseReplies int             // the replies of the next scripts, every third
	Cut         bool            // reset the connection in place of the reply, rather than stay silent
	Lost        redistest.Fault // directions in which bytes are lost, for the time of For
	Reset       bool            // reset all connections
	Delay       time.Duration   // of what is sent and of what is received, each, for the time of For
	Slice       int             // the most bytes that pass at once, for the time of For
	For         time.Duration

	Close     bool // close a client in the midst of its calls, and make another
	StopWheel bool // stop the wheel of a client before that
}

// carryOut causes the fault, ends it, and records its effect.
func (p *process) carryOut(o order) {
	var effects int
	switch {
	case o.LoseReplies > 0:
		effects = p.loseReplies(o)
	case o.Close, o.StopWheel:
		effects = p.closeOne(o.StopWheel)
	default:
		before := p.dialer.Effects()
		p.disturb(o)
		effects = p.dialer.Effects() - before
	}
	p.rec.Record(history.Event{
		Step: history.Effect, Client: history.ClientID(p.Process, 0), Note: o.Name, N: int64(effects),
	})
}

// loseReplies returns how many replies were lost. It waits a while for the calls that have them.
func (p *process) loseReplies(o order) (lost int) {
	loss := redistest.Swallow
	if o.Cut {
		loss = redistest.Cut
	}
	var replies []<-chan struct{}
	for i := range o.LoseReplies {
		replies = append(replies, p.dialer.LoseReply(cmp.Or(p.kind.Calls, "evalsha"), 1+3*i, loss))
	}
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
	defer cancel()
	for _, reply := range replies {
		select {
		case <-reply:
			lost++
		case <-ctx.Done():
		}
	}
	return lost
}

func (p *process) disturb(o order) {
	if o.Reset {
		p.dialer.Reset()
	}
	if o.For == 0 {
		return
	}
	p.dialer.Set(o.Lost)
	p.dialer.Delay(o.Delay, o.Delay)
	p.dialer.Slice(o.Slice)
	p.sleep(o.For)
	p.calm()
}

// calm ends all faults of the network.
func (p *process) calm() {
	p.dialer.Set(redistest.Pass)
	p.dialer.Delay(0, 0)
	p.dialer.Slice(0)
}

func (p *process) sleep(d time.Duration) {
	ctx, cancel := context.WithTimeout(p.ctx, d)
	defer cancel()
	<-ctx.Done()
}

// closeOne makes one client end, and returns how many did.
func (p *process) closeOne(stopWheel bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.sessions {
		if (!stopWheel || s.ownWheel) && !s.ending {
			s.ending, s.stopWheel = true, stopWheel
			close(s.end)
			return 1
		}
	}
	return 0
}
