package semaphore

import (
	"iter"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/signals"
)

// Hold describes a grant that this process holds, at the time of the call of Holds.
type Hold struct {
	Kind     Kind
	Name     string
	IDs      []string  // as Grant.IDs
	Token    int64     // as Grant.Token
	Since    time.Time // when it was acquired
	Deadline time.Time // as Grant.Deadline
}

// Wait describes a semaphore for whose permits calls of this process wait.
type Wait struct {
	Kind  Kind
	Name  string
	Calls int       // the number of calls of Acquire and AcquireFunc
	Since time.Time // when the oldest of these calls began
}

// Holds yields the grants that the Client holds, in no particular order, for a status page. It does not talk to Redis,
// and does not hold up other calls, however many grants there are. A grant that is acquired or ends meanwhile may be
// yielded or not; any other is yielded once. Grants of no permits are not yielded, nor permits of a CountingSemaphore,
// which have no holder.
func (c *Client) Holds() iter.Seq[Hold] {
	self := func(h *held, _ struct{}) *held { return h }
	return func(yield func(Hold) bool) {
		for h := range signals.InPieces(&c.mu, c.held, self) {
			if h.Err() != nil {
				continue
			}
			one := Hold{
				Kind: kindOf(h.fair), Name: h.name, IDs: h.hexIDs(), Token: h.token,
				Since: c.monitor.clock.Time(h.madeAt), Deadline: h.Deadline(),
			}
			if !yield(one) {
				return
			}
		}
	}
}

// Waits yields the semaphores for whose permits calls wait, in no particular order, with the number of these
// calls. It does not talk to Redis, and does not hold up other calls.
func (c *Client) Waits() iter.Seq[Wait] {
	return func(yield func(Wait) bool) {
		for name, line := range c.counting.Lines() {
			if !yield(Wait{KindCounting, name, line.Size, c.monitor.clock.Time(line.First.began)}) {
				return
			}
		}
		for _, leased := range []*leased{&c.plain, &c.fair} {
			for name, line := range leased.acquisitions.Lines() {
				if !yield(Wait{kindOf(leased.fair), name, line.Size, c.monitor.clock.Time((*line.First).began)}) {
					return
				}
			}
		}
	}
}
