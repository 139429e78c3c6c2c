package semaphore

import (
	"iter"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/signals"
)

// Hold is a grant that this process holds, as it was when it was looked at.
type Hold struct {
	Kind     Kind
	Name     string
	IDs      []string  // as Grant.IDs, one for each permit
	Token    int64     // as Grant.Token
	Since    time.Time // when it was acquired
	Deadline time.Time // as Grant.Deadline
}

// Wait is a semaphore for whose permits calls of this process wait.
type Wait struct {
	Kind  Kind
	Name  string
	Calls int // of Acquire and AcquireFunc
}

// Holds yields the grants that the Client holds, in no order, for a status page. It does not talk to Redis and
// holds no lock of the Client for long, whatever the number of grants: one that is acquired or ends meanwhile
// may be yielded or not, any other is yielded once. The permits of a CountingSemaphore, which does not know its
// holders, are not yielded.
func (c *Client) Holds() iter.Seq[Hold] {
	self := func(g *Grant, _ struct{}) *Grant { return g }
	return func(yield func(Hold) bool) {
		for g := range signals.InPieces(&c.mu, c.held, self) {
			if g.lease.Err() != nil {
				continue
			}
			h := Hold{
				Kind: kindOf(g.fair), Name: g.name, IDs: g.IDs(), Token: g.token,
				Since: c.monitor.origin.Add(g.madeAt), Deadline: g.Deadline(),
			}
			if !yield(h) {
				return
			}
		}
	}
}

// Waits yields the semaphores for whose permits calls wait, in no order, and how many do. It is like Holds in
// all else.
func (c *Client) Waits() iter.Seq[Wait] {
	return func(yield func(Wait) bool) {
		for _, kind := range []struct {
			is    Kind
			sizes iter.Seq2[string, int]
		}{
			{KindCounting, c.counting.Sizes()}, {KindSemaphore, c.plain.Sizes()}, {KindFair, c.fair.Sizes()},
		} {
			for name, n := range kind.sizes {
				if !yield(Wait{kind.is, name, n}) {
					return
				}
			}
		}
	}
}
