package cogwheelotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// observer exports Stats of type S: one snapshot for all instruments, when metrics are collected.
type observer[S any] struct {
	meter       metric.Meter
	prefix      string // of the names of instruments
	object      attribute.KeyValue
	instruments []metric.Observable
	observe     []func(metric.Observer, *S)
	refused     []error
}

func newObserver[S any](meter metric.Meter, prefix string, object attribute.KeyValue) *observer[S] {
	return &observer[S]{meter: meter, prefix: prefix, object: object}
}

// gauge adds a number of things that there are now. Such numbers of several processes can be added up, which
// makes them an UpDownCounter to OpenTelemetry.
func (o *observer[S]) gauge(name, unit, description string, value func(*S) int64) {
	i, err := o.meter.Int64ObservableUpDownCounter(
		o.prefix+name, metric.WithUnit(unit), metric.WithDescription(description))
	o.add(i, err, value)
}

func (o *observer[S]) counter(
	name, unit, description string, value func(*S) int64, attributes ...attribute.KeyValue,
) {
	i, err := o.meter.Int64ObservableCounter(
		o.prefix+name, metric.WithUnit(unit), metric.WithDescription(description))
	o.add(i, err, value, attributes...)
}

func (o *observer[S]) add(
	i metric.Int64Observable, err error, value func(*S) int64, attributes ...attribute.KeyValue,
) {
	if err != nil {
		o.refused = append(o.refused, err)
		return
	}
	o.instruments = append(o.instruments, i)
	set := metric.WithAttributeSet(attribute.NewSet(append(attributes, o.object)...))
	o.observe = append(o.observe, func(to metric.Observer, s *S) { to.ObserveInt64(i, value(s), set) })
}

// seconds adds a counter of time.
func (o *observer[S]) seconds(name, description string, value func(*S) float64) {
	i, err := o.meter.Float64ObservableCounter(
		o.prefix+name, metric.WithUnit("s"), metric.WithDescription(description))
	if err != nil {
		o.refused = append(o.refused, err)
		return
	}
	o.instruments = append(o.instruments, i)
	set := metric.WithAttributeSet(attribute.NewSet(o.object))
	o.observe = append(o.observe, func(to metric.Observer, s *S) { to.ObserveFloat64(i, value(s), set) })
}

// timestamp adds an instant, in seconds since 1970; the zero time is 0.
func (o *observer[S]) timestamp(name, description string, value func(*S) time.Time) {
	o.duration(name, description, func(s *S) float64 {
		at := value(s)
		if at.IsZero() {
			return 0
		}
		return float64(at.UnixMilli()) / 1000
	})
}

// duration adds a time of now, in seconds.
func (o *observer[S]) duration(name, description string, value func(*S) float64) {
	i, err := o.meter.Float64ObservableGauge(
		o.prefix+name, metric.WithUnit("s"), metric.WithDescription(description))
	if err != nil {
		o.refused = append(o.refused, err)
		return
	}
	o.instruments = append(o.instruments, i)
	set := metric.WithAttributeSet(attribute.NewSet(o.object))
	o.observe = append(o.observe, func(to metric.Observer, s *S) { to.ObserveFloat64(i, value(s), set) })
}

// register starts the export. It takes the first snapshot, so that a nil client panics here and not when
// metrics are collected.
func (o *observer[S]) register(stats func() S) (metric.Registration, error) {
	stats()
	if err := errors.Join(o.refused...); err != nil {
		return nil, err
	}
	return o.meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		s := stats()
		for _, observe := range o.observe {
			observe(to, &s)
		}
		return nil
	}, o.instruments...)
}
