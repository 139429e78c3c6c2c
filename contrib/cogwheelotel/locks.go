package cogwheelotel

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// LockHooks returns hooks for the locks of the client of that name: a *redislock.Client or a *redislock.Quorum.
// They make the spans lock.wait and lock.hold and the histograms of their durations.
func (t *Telemetry) LockHooks(name string) redislock.Hooks {
	waited := func(e redislock.Event, outcome string, failure error) {
		attributes := lockAttributes(name, e, outcome)
		t.lockWait.Record(e.Context, e.Took.Seconds(), metric.WithAttributes(attributes[:boundedLock]...))
		t.span(e.Context, "lock.wait", e.Took, failure, attributes...)
	}
	held := func(e redislock.Event, outcome string) {
		attributes := lockAttributes(name, e, outcome)
		t.lockHold.Record(e.Context, e.Took.Seconds(), metric.WithAttributes(attributes[:boundedLock]...))
		t.span(e.Context, "lock.hold", e.Took, e.Err, attributes...)
	}
	return redislock.Hooks{
		Acquired: func(e redislock.Event) { waited(e, acquired, nil) },
		Failed: func(e redislock.Event) {
			outcome, failure := outcome(e.Context, e.Err, redislock.ErrLocked)
			waited(e, outcome, failure)
		},
		Contended: func(e redislock.Event) {
			trace.SpanFromContext(e.Context).AddEvent("lock.contended",
				trace.WithAttributes(lockAttributes(name, e, contended)...))
		},
		Released: func(e redislock.Event) { held(e, released) },
		Lost:     func(e redislock.Event) { held(e, lost) },
	}
}

// boundedLock is how many of the lockAttributes are for metrics too.
const boundedLock = 3

func lockAttributes(client string, e redislock.Event, outcome string) []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 6)
	attributes = append(attributes,
		clientKey.String(client), kindKey.String(string(e.Kind)), outcomeKey.String(outcome),
		lockNameKey.String(e.Name))
	if e.ID != "" {
		attributes = append(attributes, lockIDKey.String(e.ID))
	}
	if e.Token != 0 {
		attributes = append(attributes, tokenKey.Int64(e.Token))
	}
	return attributes
}

// ObserveLocks exports the Stats of a *redislock.Client or a *redislock.Quorum as metrics of the client of that
// name, until the Registration is unregistered.
func (t *Telemetry) ObserveLocks(name string, c interface{ Stats() redislock.Stats }) (metric.Registration, error) {
	o := newObserver[redislock.Stats](t.meter, "cogwheel.lock.", clientKey.String(name))
	o.gauge("held", "{lock}", "Locks held.", func(s *redislock.Stats) int64 { return int64(s.Held) })
	o.gauge("waiting", "{call}", "Calls that wait for a lock.",
		func(s *redislock.Stats) int64 { return int64(s.Waiting) })
	o.counter("acquired", "{call}", "Calls that got the lock.",
		func(s *redislock.Stats) int64 { return s.Acquired })
	o.counter("contended", "{call}", "Calls that found the lock held by another.",
		func(s *redislock.Stats) int64 { return s.Contended })
	const failedCalls = "Calls that ended without the lock."
	o.counter("failed", "{call}", failedCalls,
		func(s *redislock.Stats) int64 { return s.Refused }, outcomeKey.String(contended))
	o.counter("failed", "{call}", failedCalls,
		func(s *redislock.Stats) int64 { return s.Cancelled }, outcomeKey.String(cancelled))
	o.counter("failed", "{call}", failedCalls,
		func(s *redislock.Stats) int64 { return s.Failed - s.Refused - s.Cancelled }, outcomeKey.String(failed))
	o.counter("released", "{lock}", "Locks released by their holder.",
		func(s *redislock.Stats) int64 { return s.Released })
	o.counter("lost", "{lock}", "Locks that ended before their holder released them.",
		func(s *redislock.Stats) int64 { return s.Lost })
	addRenewals(o, "renewal.", func(s *redislock.Stats) *renewal.Stats { return &s.Renewal })
	return o.register(c.Stats)
}
