package check

import (
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/robustness/history"
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
		case history.Called, history.Began:
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
