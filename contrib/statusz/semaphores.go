package statusz

import (
	"cmp"
	"iter"
	"time"

	"github.com/cogwheel-go/cogwheel/semaphore"
)

type semaphoreStatus struct {
	Name      string        `json:"name"`
	Held      int64         `json:"held"` // permits
	Grants    int           `json:"grants"`
	Waiting   int           `json:"waiting"`
	Acquired  int64         `json:"acquired"`
	Contended int64         `json:"contended"`
	Failed    int64         `json:"failed"`
	Released  int64         `json:"released"`
	Lost      int64         `json:"lost"`
	Taken     int64         `json:"taken"`
	Returned  int64         `json:"returned"`
	Wait      latency       `json:"wait"`
	Hold      latency       `json:"hold"`
	Renewal   renewalStatus `json:"renewal"`
	LastError *lastError    `json:"last_error"`

	Holds        []heldGrant    `json:"holds"`
	HoldsLeftOut int            `json:"holds_left_out"`
	Waits        []permitWaiter `json:"waits"`
	WaitsLeftOut int            `json:"waits_left_out"`
}

type heldGrant struct {
	Name    string         `json:"name"`
	Kind    semaphore.Kind `json:"kind"`
	Permits int            `json:"permits"`
	Token   int64          `json:"token,omitempty"`
	HeldFor seconds        `json:"held_seconds"`
	Left    *seconds       `json:"deadline_in_seconds"`
	Waiting int            `json:"waiting"` // calls of this process
}

type permitWaiter struct {
	Name  string         `json:"name"`
	Kind  semaphore.Kind `json:"kind"`
	Calls int            `json:"calls"`
}

// SemaphoreClient is a *semaphore.Client.
type SemaphoreClient interface {
	Stats() semaphore.Stats
	Holds() iter.Seq[semaphore.Hold]
	Waits() iter.Seq[semaphore.Wait]
}

// Semaphores shows the permits of a client under a name: first those of semaphores that calls of this process
// wait for, then those that are held longest. The permits of a CountingSemaphore have no holders: they are counted
// when they are taken and returned. It panics if c is nil.
func Semaphores(name string, c SemaphoreClient) Source {
	return newSource(c.Stats, func(p *page, rows int) {
		p.Semaphores = append(p.Semaphores, newSemaphoreStatus(name, c, rows, p.Time))
	})
}

func newSemaphoreStatus(name string, c SemaphoreClient, rows int, now time.Time) semaphoreStatus {
	s := c.Stats()
	status := semaphoreStatus{
		Name: name, Held: s.Held, Grants: s.Grants, Waiting: s.Waiting,
		Acquired: s.Acquired, Contended: s.Contended, Failed: s.Failed, Released: s.Released, Lost: s.Lost,
		Taken: s.Taken, Returned: s.Returned,
		Wait: newLatency(s.Wait), Hold: newLatency(s.Hold), Renewal: newRenewalStatus(s.Renewal),
		LastError: newLastError(s.Err, s.ErrAt, now),
	}
	waits, leftOut := first(c.Waits(), rows, func(a, b semaphore.Wait) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
	})
	status.Waits, status.WaitsLeftOut = make([]permitWaiter, len(waits)), leftOut
	for i, w := range waits {
		status.Waits[i] = permitWaiter{shown(w.Name, maxName), w.Kind, w.Calls}
	}

	waiting := make(map[string]int)
	for w := range c.Waits() {
		waiting[w.Name] += w.Calls
	}
	holds, leftOut := first(c.Holds(), rows, func(a, b semaphore.Hold) int {
		return cmp.Or(
			cmp.Compare(waiting[b.Name], waiting[a.Name]), a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	status.Holds, status.HoldsLeftOut = make([]heldGrant, len(holds)), leftOut
	for i, h := range holds {
		status.Holds[i] = heldGrant{
			Name: shown(h.Name, maxName), Kind: h.Kind, Permits: len(h.IDs), Token: h.Token,
			HeldFor: seconds(now.Sub(h.Since)), Left: until(h.Deadline, now), Waiting: waiting[h.Name],
		}
	}
	return status
}
