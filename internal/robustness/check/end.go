package check

import (
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/robustness/history"
)

// NothingAfterClose finds clients that relied on a hold, or were granted one, after their Close had returned.
func NothingAfterClose(events []history.Event) (faults []Fault) {
	clients := make(map[uint64]uint64) // of each call
	objects := make(map[uint64]string)
	closed := make(map[uint64]int64)
	for _, e := range events {
		if e.Step == history.Closed {
			closed[e.Client] = e.At
		}
	}
	for _, e := range events {
		switch e.Step {
		case history.Called:
			clients[e.ID], objects[e.ID] = e.Client, e.Object
		case history.Relied:
			if at, gone := closed[clients[e.ID]]; gone && e.At > at {
				faults = append(faults, Fault{"nothing is held after Close", objects[e.ID], fmt.Sprintf(
					"call %d relied on its hold %v after the Close of its client", e.ID, time.Duration(e.At-at))})
			}
		}
	}
	return faults
}

// ToldInTime finds pairs of holds of a lock that two clients relied on at once for longer than a lease, which no
// loss of data excuses: a holder learns of a loss before its lease is over.
func ToldInTime(calls []*history.Call, r Rules, slack time.Duration) (faults []Fault) {
	if r.Capacity > 1 {
		return nil
	}
	for i, a := range calls {
		for _, b := range calls[i+1:] {
			if b.At > a.Until() {
				break // as are all that were called later
			}
			sharing := a.Shared && b.Shared || a.Owner != 0 && a.Owner == b.Owner
			if !a.Held() || !b.Held() || sharing {
				continue
			}
			both := time.Duration(min(a.Until(), b.Until()) - max(a.Return, b.Return))
			if both > r.Lease+slack {
				faults = append(faults, Fault{"told in time", a.Object, fmt.Sprintf(
					"calls %d and %d both relied on it for %v", a.ID, b.ID, both)})
			}
		}
	}
	return faults
}
