package cogwheelprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// NewWheelCollector returns a collector for a *wheel.Wheel, a *wheel.Typed or a *wheel.Keyed, with the label
// wheel="name".
func NewWheelCollector(name string, w interface{ Stats() wheel.Stats }) prometheus.Collector {
	t := newTable[wheel.Stats]("wheel", "wheel", name)
	t.gauge("pending_timers", "Timers that have not fired and were not stopped.",
		func(s *wheel.Stats) float64 { return float64(s.Pending) })
	t.counter("fired_total", "Callbacks begun; each firing of a periodic timer counts.",
		func(s *wheel.Stats) float64 { return float64(s.Fired) })
	t.counter("stopped_total", "Timers that were stopped before they fired.",
		func(s *wheel.Stats) float64 { return float64(s.Stopped) })
	t.counter("panics_total", "Callbacks, schedules and executors that panicked.",
		func(s *wheel.Stats) float64 { return float64(s.Panicked) })
	t.counter("wakeups_total", "Times the worker of the wheel woke from sleep.",
		func(s *wheel.Stats) float64 { return float64(s.Wakeups) })
	t.histogram("lateness_seconds", "Time from the deadline of a timer to the moment it was taken to be called.",
		func(s *wheel.Stats) wheel.Histogram { return s.Lateness })
	t.gauge("longest_callback_seconds", "Longest time that a callback took since the wheel was made.",
		func(s *wheel.Stats) float64 { return s.LongestTask.Seconds() })
	t.counter("blocked_seconds_total", "Time taken by callbacks that took longer than a tick.",
		func(s *wheel.Stats) float64 { return s.BlockedTime.Seconds() })
	return t.collector(w.Stats)
}

// NewRenewerCollector returns a collector for a Renewer, with the label renewer="name". The collectors of clients have
// the metrics of their Renewers.
func NewRenewerCollector(name string, r *renewal.Renewer) prometheus.Collector {
	t := newTable[renewal.Stats]("renewal", "renewer", name)
	addRenewals(t, "", func(s *renewal.Stats) *renewal.Stats { return s })
	return t.collector(r.Stats)
}

// addRenewals adds the metrics of a watchdog, whose names continue with the prefix.
func addRenewals[S any](t *table[S], prefix string, of func(*S) *renewal.Stats) {
	t.gauge(prefix+"leases", "Leases that the watchdog keeps alive.",
		func(s *S) float64 { return float64(of(s).Leases) })
	t.counter(prefix+"renewed_total", "Leases that the watchdog extended; one call extends many.",
		func(s *S) float64 { return float64(of(s).Renewed) })
	t.counter(prefix+"lost_total", "Leases that ended against the will of their holder.",
		func(s *S) float64 { return float64(of(s).Lost) })
	t.counter(prefix+"call_failures_total", "Calls of the watchdog that failed; it repeats them until the deadline.",
		func(s *S) float64 { return float64(of(s).Failures) })
	t.histogram(prefix+"call_seconds", "Time that the calls of the watchdog took.",
		func(s *S) wheel.Histogram { return of(s).Took })
}
