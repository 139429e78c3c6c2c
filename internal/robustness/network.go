package robustness

import (
	"cmp"
	"context"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// networkFault is a fault of the connections of one process. The parent sends it, and the process injects it.
type networkFault struct {
	LoseReplies int             // the replies of the next scripts, every third
	Cut         bool            // reset the connection in place of the reply, rather than stay silent
	Lost        redistest.Fault // directions in which bytes are lost, for the time of For
	Reset       bool            // reset all connections
	Delay       time.Duration   // of what is sent and of what is received, each, for the time of For
	For         time.Duration
}

func (f networkFault) inject(p *process) {
	loss := redistest.Swallow
	if f.Cut {
		loss = redistest.Cut
	}
	for i := range f.LoseReplies {
		p.dialer.LoseReply(cmp.Or(p.kind.Calls, "evalsha"), 1+3*i, loss)
	}
	if f.Reset {
		p.dialer.Reset()
	}
	if f.For == 0 {
		return
	}
	p.dialer.Set(f.Lost)
	p.dialer.Delay(f.Delay, f.Delay)
	_ = p.wheel.Sleep(context.Background(), f.For)
	p.dialer.Set(redistest.Pass)
	p.dialer.Delay(0, 0)
}
