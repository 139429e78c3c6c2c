package renewal

import (
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/histogram"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Stats are the counts of a Renewer since New, and the leases it has now.
type Stats struct {
	Leases int // leases that have not ended; 0 after Close

	Renewed  int64 // renewals of a lease: one call renews many leases
	Lost     int64 // leases that ended with a *LostError
	Calls    int64 // calls to backends that have returned
	Failures int64 // of Calls, those that returned an error or panicked

	Took wheel.Histogram // how long calls took
}

// Event describes something that happened to a lease, or to a call for several leases.
type Event struct {
	Key, ID string        // of the Spec; "" for Failed
	Leases  int           // number of leases: 1, or for Failed those of the call
	Took    time.Duration // Renewed, Failed: how long the call took
	Err     error         // Lost: a *LostError; Failed: the error of the backend
}

// Hooks are functions that a Renewer calls when something happens to a lease. Each may be nil. Several may run at a
// time. They must return soon, because they hold up the renewal of other leases, and not stop the wheel. A panic of a
// hook is logged.
type Hooks struct {
	Renewed func(Event) // a call extended the lease; once for each lease of the call
	Lost    func(Event) // the lease ended against its holder's will; before Spec.OnLost
	Failed  func(Event) // a call to a backend returned an error or panicked; leases left Unknown are retried
}

// counts has the counts of a Renewer. It is safe for concurrent use.
type counts struct {
	mu    sync.Mutex // guards the fields below
	stats Stats      // without Leases and Took
	took  histogram.Values
}

// called counts a call to a backend.
func (c *counts) called(took time.Duration, renewed int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Calls++
	c.stats.Renewed += int64(renewed)
	if err != nil {
		c.stats.Failures++
	}
	c.took.Add(took)
}

func (c *counts) lost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Lost++
}

// Stats returns the counts of the Renewer. It does not block. It is safe for concurrent use.
func (r *Renewer) Stats() Stats {
	r.counts.mu.Lock()
	s := r.counts.stats
	s.Took = wheel.Histogram(r.counts.took)
	r.counts.mu.Unlock()
	s.Leases = r.Len()
	return s
}
