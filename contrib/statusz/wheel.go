package statusz

import (
	"time"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

type wheelStatus struct {
	Name            string  `json:"name"`
	Tick            seconds `json:"tick_seconds,omitempty"`
	Pending         int     `json:"pending"`
	Fired           int64   `json:"fired"`
	Stopped         int64   `json:"stopped"`
	Panicked        int64   `json:"panicked"`
	Wakeups         int64   `json:"wakeups"`
	Lateness        latency `json:"lateness"`
	LongestCallback seconds `json:"longest_callback_seconds"`
	Blocked         seconds `json:"blocked_seconds"`
}

// Wheel shows a *wheel.Wheel, a *wheel.Typed or a *wheel.Keyed under a name. It panics if w is nil.
func Wheel(name string, w interface{ Stats() wheel.Stats }) Source {
	return newSource(w.Stats, func(p *page, _ int) {
		s := w.Stats()
		status := wheelStatus{
			Name: name, Pending: s.Pending, Fired: s.Fired, Stopped: s.Stopped, Panicked: s.Panicked,
			Wakeups: s.Wakeups, Lateness: newLatency(s.Lateness),
			LongestCallback: seconds(s.LongestTask), Blocked: seconds(s.BlockedTime),
		}
		if w, ok := w.(interface{ TickDuration() time.Duration }); ok {
			status.Tick = seconds(w.TickDuration())
		}
		p.Wheels = append(p.Wheels, status)
	})
}

type renewalStatus struct {
	Leases   int     `json:"leases"`
	Renewed  int64   `json:"renewed"`
	Lost     int64   `json:"lost"`
	Calls    int64   `json:"calls"`
	Failures int64   `json:"failures"`
	Took     latency `json:"took"`
}

func newRenewalStatus(s renewal.Stats) renewalStatus {
	return renewalStatus{s.Leases, s.Renewed, s.Lost, s.Calls, s.Failures, newLatency(s.Took)}
}

type renewerStatus struct {
	Name string `json:"name"`
	renewalStatus
}

// Renewer shows a Renewer under a name. The page shows the Renewers of clients with the clients. Renewer panics if r
// is nil.
func Renewer(name string, r *renewal.Renewer) Source {
	return newSource(r.Stats, func(p *page, _ int) {
		p.Renewers = append(p.Renewers, renewerStatus{name, newRenewalStatus(r.Stats())})
	})
}
