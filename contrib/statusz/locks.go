package statusz

import (
	"cmp"
	"iter"
	"time"

	"github.com/cogwheel-go/cogwheel/redislock"
)

type lockStatus struct {
	Name      string        `json:"name"`
	Held      int           `json:"held"`
	Waiting   int           `json:"waiting"`
	Acquired  int64         `json:"acquired"`
	Contended int64         `json:"contended"`
	Failed    int64         `json:"failed"`
	Released  int64         `json:"released"`
	Lost      int64         `json:"lost"`
	Wait      latency       `json:"wait"`
	Hold      latency       `json:"hold"`
	Renewal   renewalStatus `json:"renewal"`
	LastError *lastError    `json:"last_error"`

	Holds        []heldLock   `json:"holds"`
	HoldsLeftOut int          `json:"holds_left_out"`
	Waits        []lockWaiter `json:"waits"`
	WaitsLeftOut int          `json:"waits_left_out"`
}

type heldLock struct {
	Name     string         `json:"name"`
	Kind     redislock.Kind `json:"kind"`
	ID       string         `json:"id"`
	Token    int64          `json:"token,omitempty"`
	Metadata string         `json:"metadata,omitempty"`
	HeldFor  seconds        `json:"held_seconds"`
	Left     *seconds       `json:"deadline_in_seconds"`
	Waiting  int            `json:"waiting"` // calls of this process
}

type lockWaiter struct {
	Name  string         `json:"name"`
	Kind  redislock.Kind `json:"kind"`
	Calls int            `json:"calls"`
}

// LockClient is a *redislock.Client or a *redislock.Quorum.
type LockClient interface {
	Stats() redislock.Stats
	Holds() iter.Seq[redislock.Hold]
	Waits() iter.Seq[redislock.Wait]
}

// Locks shows the locks of a client under a name: first those that calls of this process wait for, then those
// that are held longest. It panics if c is nil.
func Locks(name string, c LockClient) Source {
	return newSource(c.Stats, func(p *page, rows int) {
		p.Locks = append(p.Locks, newLockStatus(name, c, rows, p.Time))
	})
}

func newLockStatus(name string, c LockClient, rows int, now time.Time) lockStatus {
	s := c.Stats()
	status := lockStatus{
		Name: name, Held: s.Held, Waiting: s.Waiting,
		Acquired: s.Acquired, Contended: s.Contended, Failed: s.Failed, Released: s.Released, Lost: s.Lost,
		Wait: newLatency(s.Wait), Hold: newLatency(s.Hold), Renewal: newRenewalStatus(s.Renewal),
		LastError: newLastError(s.Err, s.ErrAt, now),
	}
	waits, leftOut := first(c.Waits(), rows, func(a, b redislock.Wait) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
	})
	status.Waits, status.WaitsLeftOut = make([]lockWaiter, len(waits)), leftOut
	for i, w := range waits {
		status.Waits[i] = lockWaiter{shown(w.Name, maxName), w.Kind, w.Calls}
	}

	waiting := make(map[string]int) // by name alone: a writer waits for readers
	for w := range c.Waits() {
		waiting[w.Name] += w.Calls
	}
	holds, leftOut := first(c.Holds(), rows, func(a, b redislock.Hold) int {
		return cmp.Or(
			cmp.Compare(waiting[b.Name], waiting[a.Name]), a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	status.Holds, status.HoldsLeftOut = make([]heldLock, len(holds)), leftOut
	for i, h := range holds {
		status.Holds[i] = heldLock{
			Name: shown(h.Name, maxName), Kind: h.Kind, ID: shown(h.ID, maxName), Token: h.Token,
			Metadata: shown(h.Metadata, maxName),
			HeldFor:  seconds(now.Sub(h.Since)), Left: until(h.Deadline, now), Waiting: waiting[h.Name],
		}
	}
	return status
}
