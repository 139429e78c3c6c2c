package cogwheelotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/cogwheel-go/cogwheel"
)

const scope = "github.com/cogwheel-go/cogwheel/contrib/cogwheelotel"

// Attributes. Those of the second group are for spans alone.
const (
	clientKey  = attribute.Key("cogwheel.client.name")
	wheelKey   = attribute.Key("cogwheel.wheel.name")
	renewerKey = attribute.Key("cogwheel.renewer.name")
	kindKey    = attribute.Key("cogwheel.kind")
	outcomeKey = attribute.Key("cogwheel.outcome")
	sourceKey  = attribute.Key("cogwheel.limit.source")
	waitedKey  = attribute.Key("cogwheel.limit.waited")
	shadowKey  = attribute.Key("cogwheel.limit.shadow")
	lateKey    = attribute.Key("cogwheel.wheel.late_by")
	taskByKey  = attribute.Key("cogwheel.task.late_by")

	lockNameKey   = attribute.Key("cogwheel.lock.name")
	lockIDKey     = attribute.Key("cogwheel.lock.id")
	permitNameKey = attribute.Key("cogwheel.semaphore.name")
	permitsKey    = attribute.Key("cogwheel.permits")
	tokenKey      = attribute.Key("cogwheel.token")
	limitNameKey  = attribute.Key("cogwheel.limit.name")
	limitKeyKey   = attribute.Key("cogwheel.limit.key")
	limitNodeKey  = attribute.Key("cogwheel.limit.node")
	remainingKey  = attribute.Key("cogwheel.limit.remaining")
	retryAfterKey = attribute.Key("cogwheel.limit.retry_after")
	queueKey      = attribute.Key("cogwheel.queue.name")
	taskIDKey     = attribute.Key("cogwheel.task.id")
	failuresKey   = attribute.Key("cogwheel.task.failures")
	lossesKey     = attribute.Key("cogwheel.task.losses")
	taskLateKey   = attribute.Key("cogwheel.task.lateness")
)

// Telemetry makes hooks and observers. It is safe for concurrent use. Observe methods return the error of the meter
// provider, and panic if the observed object is nil.
type Telemetry struct {
	tracer trace.Tracer
	meter  metric.Meter

	lockWait, lockHold     metric.Float64Histogram
	permitWait, permitHold metric.Float64Histogram
	decision               metric.Float64Histogram
	taskAttempt            metric.Float64Histogram
}

// Option configures New. If an option is given twice, the last one counts.
type Option interface{ apply(*config) error }

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

type config struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
}

// WithTracerProvider sets where spans go. The default is the global provider at the time of New.
func WithTracerProvider(p trace.TracerProvider) Option {
	return option(func(c *config) error {
		if p == nil {
			return invalid("WithTracerProvider", "nil", "must not be nil")
		}
		c.tracers = p
		return nil
	})
}

// WithMeterProvider sets where metrics go. The default is the global provider at the time of New.
func WithMeterProvider(p metric.MeterProvider) Option {
	return option(func(c *config) error {
		if p == nil {
			return invalid("WithMeterProvider", "nil", "must not be nil")
		}
		c.meters = p
		return nil
	})
}

func invalid(field string, value any, reason string) error {
	return &cogwheel.InvalidError{Package: "cogwheelotel", Field: field, Value: value, Reason: reason}
}

// New returns a Telemetry. One is enough for a process. The error is a *cogwheel.InvalidError of an option, or
// that of the provider for an instrument.
func New(opts ...Option) (*Telemetry, error) {
	c := config{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider()}
	for i, o := range opts {
		if o == nil {
			return nil, invalid("option", i, "is nil")
		}
		if err := o.apply(&c); err != nil {
			return nil, err
		}
	}
	t := &Telemetry{tracer: c.tracers.Tracer(scope), meter: c.meters.Meter(scope)}
	var refused []error
	histogram := func(name, description string) metric.Float64Histogram {
		h, err := t.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(bounds...))
		refused = append(refused, err)
		return h
	}
	t.lockWait = histogram("cogwheel.lock.wait.duration", "Duration of calls for a lock.")
	t.lockHold = histogram("cogwheel.lock.hold.duration", "Time that locks were held.")
	t.permitWait = histogram("cogwheel.permit.wait.duration", "Duration of calls for permits.")
	t.permitHold = histogram("cogwheel.permit.hold.duration", "Time that grants of permits were held.")
	t.decision = histogram("cogwheel.limit.decision.duration", "Duration of calls of limiters, with their waits.")
	t.taskAttempt = histogram("cogwheel.task.attempt.duration", "Time that handlers of tasks took.")
	if err := errors.Join(refused...); err != nil {
		return nil, err
	}
	return t, nil
}

// bounds of the buckets of durations, in seconds. Views of the SDK can set others.
var bounds = []float64{
	0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600,
}

// span records a span that ends now. If err is not nil, the span has failed.
func (t *Telemetry) span(
	ctx context.Context, name string, took time.Duration, err error, attributes ...attribute.KeyValue,
) {
	now := time.Now()
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(now.Add(-took)), trace.WithAttributes(attributes...))
	if err != nil {
		span.RecordError(err, trace.WithTimestamp(now))
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(now))
}

// Outcomes. A call that ends because another holds the lock, or because its caller gave up, has not failed.
const (
	acquired  = "acquired"
	contended = "contended"
	cancelled = "cancelled"
	failed    = "failed"
	released  = "released"
	lost      = "lost"
	allowed   = "allowed"
	denied    = "denied"
)

// outcome returns the outcome of a call that ended with err, and err if the call has failed. An error that matches held
// says that another holds the lock or the permits. The end of a deadline that the library has set, such as that of a
// Quorum for one vote, is a failure.
func outcome(ctx context.Context, err, held error) (string, error) {
	switch {
	case held != nil && errors.Is(err, held):
		return contended, nil
	case errors.Is(err, context.Canceled), ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return cancelled, nil
	default:
		return failed, err
	}
}
