package cogwheelotel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// traceparent is the field of the W3C Trace Context that tasks carry.
const traceparent = "traceparent"

// DelayHooks returns hooks for the queues of the client of that name. A task carries the traceparent of the W3C Trace
// Context in which it was scheduled. Each attempt is a span task.attempt, the root of a trace with a link to the span
// that scheduled the task: that one has ended long before, and a task may be attempted many times. The context of the
// handler has the span. The hooks also make the histogram of the durations of attempts.
func (t *Telemetry) DelayHooks(name string) delay.Hooks {
	return delay.Hooks{
		Headers: func(ctx context.Context) string {
			fields := propagation.MapCarrier{}
			propagation.TraceContext{}.Inject(ctx, fields)
			return fields[traceparent]
		},
		Context: func(ctx context.Context, e delay.Event) context.Context {
			options := []trace.SpanStartOption{
				trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
				trace.WithAttributes(taskAttributes(name, e)...),
			}
			if scheduled := scheduler(e); scheduled.IsValid() {
				options = append(options, trace.WithLinks(trace.Link{SpanContext: scheduled}))
			}
			ctx, span := t.tracer.Start(ctx, "task.attempt", options...)
			return context.WithValue(ctx, attemptKey{e.Queue, e.Token}, span)
		},
		Ended: func(e delay.Event) {
			outcome := outcomeKey.String(string(e.Outcome))
			span, begun := e.Context.Value(attemptKey{e.Queue, e.Token}).(trace.Span)
			if !begun {
				return // it was handed back before its time
			}
			t.taskAttempt.Record(e.Context, e.Took.Seconds(), metric.WithAttributes(clientKey.String(name), outcome))
			span.SetAttributes(outcome)
			if e.Err != nil && e.Outcome != delay.OutcomeHandedBack {
				span.RecordError(e.Err)
				span.SetStatus(codes.Error, e.Err.Error())
			} else if e.Outcome == delay.OutcomeLost {
				span.SetStatus(codes.Error, "the lease of the task ended")
			}
			span.End()
		},
	}
}

// attemptKey is the key of the span of an attempt in the context of its handler.
type attemptKey struct {
	queue string
	token int64
}

// scheduler returns the context of the span that scheduled a task, which is not valid without one.
func scheduler(e delay.Event) trace.SpanContext {
	fields := propagation.MapCarrier{traceparent: e.Headers}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), fields))
}

func taskAttributes(client string, e delay.Event) []attribute.KeyValue {
	return []attribute.KeyValue{
		clientKey.String(client), queueKey.String(e.Queue), taskIDKey.String(e.ID), tokenKey.Int64(e.Token),
		failuresKey.Int(e.Failures), lossesKey.Int(e.Losses), taskLateKey.Float64(e.Late.Seconds()),
	}
}

// tasksLateBy are the bounds of lateness above which attempts are counted: bounds of a wheel.Histogram.
var tasksLateBy = []time.Duration{
	1 << 14 * time.Microsecond, 1 << 18 * time.Microsecond, 1 << 22 * time.Microsecond, 1 << 26 * time.Microsecond,
}

// ObserveDelays exports the Stats of a Client of package delay as metrics of the client of that name, until the
// Registration is unregistered. OpenTelemetry has no histogram that is read on demand. So lateness is exported as its
// sum in seconds, and as the numbers of attempts that began more than 16 and 262 ms, 4 and 67 s late.
func (t *Telemetry) ObserveDelays(name string, c *delay.Client) (metric.Registration, error) {
	o := newObserver[delay.Stats](t.meter, "cogwheel.task.", clientKey.String(name))
	o.gauge("serving", "{call}", "Calls of Serve that have not returned.",
		func(s *delay.Stats) int64 { return int64(s.Serving) })
	o.gauge("running", "{task}", "Handlers that run.", func(s *delay.Stats) int64 { return int64(s.Running) })
	o.gauge("claimed", "{task}", "Tasks that this process has claimed, with those that run.",
		func(s *delay.Stats) int64 { return int64(s.Claimed) })
	o.gauge("paused", "{queue}", "Queues that are served and paused.",
		func(s *delay.Stats) int64 { return int64(s.Paused) })
	o.duration("oldest_overdue", "How late the oldest task of the served queues is that has not begun.",
		func(s *delay.Stats) float64 { return s.Overdue.Seconds() })
	o.counter("scheduled", "{call}", "Calls of Schedule, ScheduleAt and Reschedule that took effect.",
		func(s *delay.Stats) int64 { return s.Scheduled })
	o.counter("cancelled", "{call}", "Calls of Cancel that removed a task.",
		func(s *delay.Stats) int64 { return s.Cancelled })
	for outcome, value := range map[delay.Outcome]func(*delay.Stats) int64{
		delay.OutcomeDone:       func(s *delay.Stats) int64 { return s.Done },
		delay.OutcomeRetried:    func(s *delay.Stats) int64 { return s.Retried },
		delay.OutcomeExhausted:  func(s *delay.Stats) int64 { return s.Exhausted },
		delay.OutcomeHandedBack: func(s *delay.Stats) int64 { return s.HandedBack },
		delay.OutcomeLost:       func(s *delay.Stats) int64 { return s.Lost },
	} {
		o.counter("attempts", "{attempt}", "Attempts that have ended.", value, outcomeKey.String(string(outcome)))
	}
	for kind, value := range map[delay.IncidentKind]func(*delay.Stats) int64{
		delay.IncidentLostTooOften: func(s *delay.Stats) int64 { return s.LostTooOften },
		delay.IncidentDeleted:      func(s *delay.Stats) int64 { return s.Deleted },
		delay.IncidentNoPayload:    func(s *delay.Stats) int64 { return s.NoPayload },
	} {
		o.counter("incidents", "{task}", "Tasks that have failed or were removed outside of their attempts.", value,
			kindKey.String(string(kind)))
	}
	o.timestamp("last_error", "When a query, renewal or call failed last, in seconds since 1970; 0 if none did.",
		func(s *delay.Stats) time.Time { return s.ErrAt })
	o.seconds("lateness", "Sum over the attempts of the time from the due time to the start of the handler.",
		func(s *delay.Stats) float64 { return s.Late.Seconds() })
	for _, bound := range tasksLateBy {
		o.counter("late", "{attempt}", "Attempts that began later than the bound.",
			func(s *delay.Stats) int64 { return later(s.Late, bound) }, taskByKey.Float64(bound.Seconds()))
	}
	addRenewals(o, "renewal.", func(s *delay.Stats) *renewal.Stats { return &s.Renewal })
	return o.register(c.Stats)
}
