package cogwheelotel

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// SemaphoreHooks returns hooks for the semaphores of the client of that name. They make the spans permit.wait and
// permit.hold and the histograms of their durations. The permits of a CountingSemaphore have no hold: it does
// not know which of them a release returns.
func (t *Telemetry) SemaphoreHooks(name string) semaphore.Hooks {
	waited := func(e semaphore.Event, outcome string, failure error) {
		attributes := permitAttributes(name, e, outcome)
		t.permitWait.Record(e.Context, e.Took.Seconds(), metric.WithAttributes(attributes[:boundedPermit]...))
		t.span(e.Context, "permit.wait", e.Took, failure, attributes...)
	}
	held := func(e semaphore.Event, outcome string) {
		if e.Kind == semaphore.KindCounting {
			return
		}
		attributes := permitAttributes(name, e, outcome)
		t.permitHold.Record(e.Context, e.Took.Seconds(), metric.WithAttributes(attributes[:boundedPermit]...))
		t.span(e.Context, "permit.hold", e.Took, e.Err, attributes...)
	}
	return semaphore.Hooks{
		Acquired: func(e semaphore.Event) { waited(e, acquired, nil) },
		Failed: func(e semaphore.Event) {
			outcome, failure := outcome(e.Context, e.Err, semaphore.ErrNoPermits)
			waited(e, outcome, failure)
		},
		Contended: func(e semaphore.Event) {
			trace.SpanFromContext(e.Context).AddEvent("permit.contended",
				trace.WithAttributes(permitAttributes(name, e, contended)...))
		},
		Released: func(e semaphore.Event) { held(e, released) },
		Lost:     func(e semaphore.Event) { held(e, lost) },
	}
}

// boundedPermit is how many of the permitAttributes are for metrics too.
const boundedPermit = 3

func permitAttributes(client string, e semaphore.Event, outcome string) []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 6)
	attributes = append(attributes,
		clientKey.String(client), kindKey.String(string(e.Kind)), outcomeKey.String(outcome),
		permitNameKey.String(e.Name), permitsKey.Int64(e.Permits))
	if e.Token != 0 {
		attributes = append(attributes, tokenKey.Int64(e.Token))
	}
	return attributes
}

// ObserveSemaphores exports the Stats of a Client of package semaphore as metrics of the client of that name,
// until the Registration is unregistered.
func (t *Telemetry) ObserveSemaphores(name string, c *semaphore.Client) (metric.Registration, error) {
	o := newObserver[semaphore.Stats](t.meter, "cogwheel.permit.", clientKey.String(name))
	o.gauge("held", "{permit}", "Leased permits held.", func(s *semaphore.Stats) int64 { return s.Held })
	o.gauge("waiting", "{call}", "Calls that wait for permits.",
		func(s *semaphore.Stats) int64 { return int64(s.Waiting) })
	o.counter("acquired", "{call}", "Calls that got a grant of leased permits.",
		func(s *semaphore.Stats) int64 { return s.Acquired })
	o.counter("contended", "{call}", "Calls that found too few free permits.",
		func(s *semaphore.Stats) int64 { return s.Contended })
	const failedCalls = "Calls that ended without permits."
	o.counter("failed", "{call}", failedCalls,
		func(s *semaphore.Stats) int64 { return s.Refused }, outcomeKey.String(contended))
	o.counter("failed", "{call}", failedCalls,
		func(s *semaphore.Stats) int64 { return s.Cancelled }, outcomeKey.String(cancelled))
	o.counter("failed", "{call}", failedCalls,
		func(s *semaphore.Stats) int64 { return s.Failed - s.Refused - s.Cancelled }, outcomeKey.String(failed))
	o.counter("released", "{grant}", "Grants released by their holder.",
		func(s *semaphore.Stats) int64 { return s.Released })
	o.counter("lost", "{grant}", "Grants that ended before their holder released them.",
		func(s *semaphore.Stats) int64 { return s.Lost })
	o.counter("taken", "{permit}", "Permits taken from counting semaphores.",
		func(s *semaphore.Stats) int64 { return s.Taken })
	o.counter("returned", "{permit}", "Permits returned to counting semaphores.",
		func(s *semaphore.Stats) int64 { return s.Returned })
	addRenewals(o, "renewal.", func(s *semaphore.Stats) *renewal.Stats { return &s.Renewal })
	return o.register(c.Stats)
}
