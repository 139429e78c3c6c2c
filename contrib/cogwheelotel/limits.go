package cogwheelotel

import (
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// LimitHooks returns hooks for the limiters of the client of that name. They make the spans limit.decision and
// limit.outage and the histogram of the durations of all decisions, under a sampled span or not.
func (t *Telemetry) LimitHooks(name string) ratelimit.Hooks {
	prepared := prepareDecisions(name)
	decided := func(e ratelimit.Event, outcome string, failure error) {
		d := decision{e.Kind, outcome, e.Result.Source, e.Waited, e.Shadow}
		attributes, ok := prepared[d]
		if !ok {
			attributes = d.attributes(name)
		}
		t.decision.Record(e.Context, e.Took.Seconds(), attributes...)
		if trace.SpanContextFromContext(e.Context).IsSampled() {
			t.span(e.Context, "limit.decision", e.Took, failure, limitAttributes(name, e, outcome)...)
		}
	}
	return ratelimit.Hooks{
		Allowed: func(e ratelimit.Event) { decided(e, allowed, nil) },
		Denied:  func(e ratelimit.Event) { decided(e, denied, nil) },
		Failed: func(e ratelimit.Event) {
			if errors.Is(e.Err, ratelimit.ErrWouldExceedDeadline) {
				decided(e, cancelled, nil)
				return
			}
			outcome, failure := outcome(e.Context, e.Err, nil)
			if errors.Is(e.Err, ratelimit.ErrUnavailable) {
				outcome, failure = failed, e.Err
			}
			decided(e, outcome, failure)
		},
		Up: func(e ratelimit.Event) {
			t.span(e.Context, "limit.outage", e.Took, nil, clientKey.String(name), limitNodeKey.String(e.Node))
		},
	}
}

// decision has the attributes of a decision that metrics have too.
type decision struct {
	kind    ratelimit.Kind
	outcome string
	source  ratelimit.Source
	waited  bool
	shadow  bool
}

func (d decision) attributes(client string) []metric.RecordOption {
	return []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(
		clientKey.String(client), kindKey.String(string(d.kind)), outcomeKey.String(d.outcome),
		sourceKey.String(d.source.String()), waitedKey.Bool(d.waited), shadowKey.Bool(d.shadow)))}
}

// prepareDecisions returns the attributes of all decisions. A decision from memory takes less than a microsecond, so it
// must not make them.
func prepareDecisions(client string) map[decision][]metric.RecordOption {
	prepared := make(map[decision][]metric.RecordOption)
	for _, kind := range []ratelimit.Kind{ratelimit.KindLimiter, ratelimit.KindStoredLimiter, ratelimit.KindAll} {
		for _, outcome := range []string{allowed, denied, cancelled, failed} {
			for source := ratelimit.SourceRedis; source <= ratelimit.SourceDegraded; source++ {
				for _, waited := range []bool{false, true} {
					for _, shadow := range []bool{false, true} {
						d := decision{kind, outcome, source, waited, shadow}
						prepared[d] = d.attributes(client)
					}
				}
			}
		}
	}
	return prepared
}

func limitAttributes(client string, e ratelimit.Event, outcome string) []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 11)
	attributes = append(attributes,
		clientKey.String(client), kindKey.String(string(e.Kind)), outcomeKey.String(outcome),
		sourceKey.String(e.Result.Source.String()), waitedKey.Bool(e.Waited), shadowKey.Bool(e.Shadow),
		limitNameKey.String(e.Name), permitsKey.Int64(e.N))
	if e.Key != "" {
		attributes = append(attributes, limitKeyKey.String(e.Key))
	}
	if !e.Waited && e.Err == nil {
		attributes = append(attributes,
			remainingKey.Int64(e.Result.Remaining), retryAfterKey.Float64(e.Result.RetryAfter.Seconds()))
	}
	return attributes
}

// ObserveLimits exports the Stats of a Client of package ratelimit as metrics of the client of that name, until
// the Registration is unregistered.
func (t *Telemetry) ObserveLimits(name string, c *ratelimit.Client) (metric.Registration, error) {
	o := newObserver[ratelimit.Stats](t.meter, "cogwheel.limit.", clientKey.String(name))
	const decisions, ofDecisions = "decisions", "Decisions of limiters."
	o.counter(decisions, "{call}", ofDecisions,
		func(s *ratelimit.Stats) int64 { return s.Allowed }, outcomeKey.String(allowed))
	o.counter(decisions, "{call}", ofDecisions,
		func(s *ratelimit.Stats) int64 { return s.Denied - s.ShadowDenied },
		outcomeKey.String(denied), shadowKey.Bool(false))
	o.counter(decisions, "{call}", ofDecisions,
		func(s *ratelimit.Stats) int64 { return s.ShadowDenied }, outcomeKey.String(denied), shadowKey.Bool(true))
	o.counter(decisions, "{call}", ofDecisions,
		func(s *ratelimit.Stats) int64 { return s.Cancelled }, outcomeKey.String(cancelled))
	o.counter(decisions, "{call}", ofDecisions,
		func(s *ratelimit.Stats) int64 { return s.Failed - s.Cancelled }, outcomeKey.String(failed))
	o.counter("local", "{call}", "Calls that were granted or denied without asking Redis.",
		func(s *ratelimit.Stats) int64 { return s.Local })
	o.counter("degraded", "{call}", "Calls that the policy decided, because Redis did not answer.",
		func(s *ratelimit.Stats) int64 { return s.Degraded })
	o.counter("scripts", "{script}", "Scripts sent to Redis.",
		func(s *ratelimit.Stats) int64 { return s.Scripts })
	o.counter("call.failures", "{call}", "Calls to Redis that were not answered.",
		func(s *ratelimit.Stats) int64 { return s.Failures })
	o.gauge("waiting", "{call}", "Calls that wait for permits.",
		func(s *ratelimit.Stats) int64 { return int64(s.Waiting) })
	o.gauge("keys", "{key}", "Keys that are remembered in memory.",
		func(s *ratelimit.Stats) int64 { return int64(s.Keys) })
	o.gauge("breaker.open", "{breaker}",
		"1 while the policy decides instead of Redis for the keys of some node, else 0.",
		func(s *ratelimit.Stats) int64 {
			if s.Down {
				return 1
			}
			return 0
		})
	return o.register(c.Stats)
}
