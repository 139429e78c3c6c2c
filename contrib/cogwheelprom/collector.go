package cogwheelprom

import (
	"iter"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// collector exports the Stats of one object. S is the type of the Stats.
type collector[S any] struct {
	stats   func() S
	metrics []metric[S]
}

// metric is one metric of a collector.
type metric[S any] struct {
	desc *prometheus.Desc
	of   func(*prometheus.Desc, *S) prometheus.Metric
}

func (c *collector[S]) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		descs <- m.desc
	}
}

// Collect takes one snapshot for all metrics.
func (c *collector[S]) Collect(metrics chan<- prometheus.Metric) {
	stats := c.stats()
	for _, m := range c.metrics {
		metrics <- m.of(m.desc, &stats)
	}
}

// table makes the metrics of a collector.
type table[S any] struct {
	prefix  string // of their names
	labels  prometheus.Labels
	metrics []metric[S]
}

// newTable returns a table for a package. All its metrics have the label; some have a second one.
func newTable[S any](pkg, label, value string) *table[S] {
	return &table[S]{prefix: "cogwheel_" + pkg + "_", labels: prometheus.Labels{label: value}}
}

// collector returns the collector of the table's metrics. It takes the first snapshot, so that a nil client panics here
// and not when metrics are scraped.
func (t *table[S]) collector(stats func() S) prometheus.Collector {
	stats()
	return &collector[S]{stats, t.metrics}
}

func (t *table[S]) add(name, help string, labels prometheus.Labels, of func(*prometheus.Desc, *S) prometheus.Metric) {
	t.metrics = append(t.metrics, metric[S]{prometheus.NewDesc(t.prefix+name, help, nil, labels), of})
}

func (t *table[S]) gauge(name, help string, value func(*S) float64) {
	t.add(name, help, t.labels, func(d *prometheus.Desc, s *S) prometheus.Metric {
		return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value(s))
	})
}

func (t *table[S]) counter(name, help string, value func(*S) float64) {
	t.counterWith(t.labels, name, help, value)
}

func (t *table[S]) counterWith(labels prometheus.Labels, name, help string, value func(*S) float64) {
	t.add(name, help, labels, func(d *prometheus.Desc, s *S) prometheus.Metric {
		return prometheus.MustNewConstMetric(d, prometheus.CounterValue, value(s))
	})
}

// with returns the labels of the table and one more.
func (t *table[S]) with(label, value string) prometheus.Labels {
	labels := maps.Clone(t.labels)
	labels[label] = value
	return labels
}

// outcomes adds one counter for each outcome.
func (t *table[S]) outcomes(name, help string, values map[string]func(*S) int64) {
	t.counters("outcome", name, help, values)
}

// counters adds one counter for each value of a label.
func (t *table[S]) counters(label, name, help string, values map[string]func(*S) int64) {
	for one, value := range values {
		t.counterWith(t.with(label, one), name, help, func(s *S) float64 { return float64(value(s)) })
	}
}

func (t *table[S]) histogram(name, help string, value func(*S) wheel.Histogram) {
	t.add(name, help, t.labels, func(d *prometheus.Desc, s *S) prometheus.Metric {
		h := value(s)
		return prometheus.MustNewConstHistogram(d, h.Count(), h.Seconds(), buckets(h))
	})
}

// snapshot is the state of a client with holds and waits. Stats do not have the ages, because they do not read each
// hold.
type snapshot[S any] struct {
	Stats                  S
	oldestHold, oldestWait time.Duration // 0 if there is none
}

// snapshotOf returns a function that takes the snapshot of a client.
func snapshotOf[S, H, W any](
	stats func() S, holds func() iter.Seq[H], held func(H) time.Time, waits func() iter.Seq[W], began func(W) time.Time,
) func() snapshot[S] {
	return func() snapshot[S] {
		return snapshot[S]{stats(), age(holds(), held), age(waits(), began)}
	}
}

// age returns the age of the oldest value, or 0 if there is none.
func age[T any](values iter.Seq[T], since func(T) time.Time) (oldest time.Duration) {
	now := time.Now()
	for v := range values {
		oldest = max(oldest, now.Sub(since(v)))
	}
	return oldest
}

// A metric has every second bucket of a wheel.Histogram between these bounds: from 64 µs to 72 minutes. All
// of them would be 39.
const (
	firstBound = 64 * time.Microsecond
	lastBound  = 1 << 32 * time.Microsecond
)

// buckets returns the counts of a histogram by their bounds in seconds.
func buckets(h wheel.Histogram) map[float64]uint64 {
	chosen := make(map[float64]uint64)
	next := firstBound
	for upper, count := range h.Buckets() {
		if upper == next && upper <= lastBound {
			chosen[upper.Seconds()] = count
			next *= 4
		}
	}
	return chosen
}
