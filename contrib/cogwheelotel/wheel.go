package cogwheelotel

import (
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// lateBy are the bounds of lateness above which timers are counted: bounds of a wheel.Histogram.
var lateBy = []time.Duration{
	1 << 10 * time.Microsecond, 1 << 14 * time.Microsecond, 1 << 18 * time.Microsecond, 1 << 22 * time.Microsecond,
}

// ObserveWheel exports the Stats of a *wheel.Wheel, a *wheel.Typed or a *wheel.Keyed as metrics of the wheel of that
// name, until the Registration is unregistered. OpenTelemetry has no histogram that is read on demand. So lateness is
// exported as its sum in seconds, and as the numbers of timers that were more than 1, 16, 262 and 4194 ms late.
func (t *Telemetry) ObserveWheel(name string, w interface{ Stats() wheel.Stats }) (metric.Registration, error) {
	o := newObserver[wheel.Stats](t.meter, "cogwheel.wheel.", wheelKey.String(name))
	o.gauge("timers.pending", "{timer}", "Timers that have not fired and were not stopped.",
		func(s *wheel.Stats) int64 { return int64(s.Pending) })
	o.counter("timers.fired", "{timer}", "Callbacks begun; each firing of a periodic timer counts.",
		func(s *wheel.Stats) int64 { return s.Fired })
	o.counter("timers.stopped", "{timer}", "Timers that were stopped before they fired.",
		func(s *wheel.Stats) int64 { return s.Stopped })
	o.counter("panics", "{panic}", "Callbacks, schedules and executors that panicked.",
		func(s *wheel.Stats) int64 { return s.Panicked })
	o.seconds("lateness", "Sum over the timers fired of the time from the deadline to the call.",
		func(s *wheel.Stats) float64 { return s.Lateness.Seconds() })
	o.seconds("blocked", "Time taken by callbacks that took longer than a tick.",
		func(s *wheel.Stats) float64 { return s.BlockedTime.Seconds() })
	for _, bound := range lateBy {
		o.counter("timers.late", "{timer}", "Timers that fired later than the bound.",
			func(s *wheel.Stats) int64 { return later(s.Lateness, bound) }, lateKey.Float64(bound.Seconds()))
	}
	return o.register(w.Stats)
}

// later returns how many durations were longer than a bound of a bucket.
func later(h wheel.Histogram, bound time.Duration) int64 {
	for upper, count := range h.Buckets() {
		if upper == bound {
			return int64(h.Count() - count)
		}
	}
	return 0
}

// ObserveRenewer exports the Stats of a Renewer as metrics of the renewer of that name, until the Registration
// is unregistered. The Renewers of clients are observed with the clients.
func (t *Telemetry) ObserveRenewer(name string, r *renewal.Renewer) (metric.Registration, error) {
	o := newObserver[renewal.Stats](t.meter, "cogwheel.renewal.", renewerKey.String(name))
	addRenewals(o, "", func(s *renewal.Stats) *renewal.Stats { return s })
	return o.register(r.Stats)
}

// addRenewals adds the metrics of a watchdog.
func addRenewals[S any](o *observer[S], prefix string, of func(*S) *renewal.Stats) {
	o.gauge(prefix+"leases", "{lease}", "Leases that the watchdog keeps alive.",
		func(s *S) int64 { return int64(of(s).Leases) })
	o.counter(prefix+"renewed", "{lease}", "Leases that the watchdog extended; one call extends many.",
		func(s *S) int64 { return of(s).Renewed })
	o.counter(prefix+"lost", "{lease}", "Leases that ended against the will of their holder.",
		func(s *S) int64 { return of(s).Lost })
	o.counter(prefix+"calls", "{call}", "Calls of the watchdog.", func(s *S) int64 { return of(s).Calls })
	o.counter(prefix+"call.failures", "{call}", "Calls of the watchdog that failed; it repeats them.",
		func(s *S) int64 { return of(s).Failures })
	o.seconds(prefix+"calls.time", "Time that the calls of the watchdog took.",
		func(s *S) float64 { return of(s).Took.Seconds() })
}
