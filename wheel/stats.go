package wheel

import (
	"iter"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/histogram"
)

// Stats are the counters of a wheel since it was made. Pending, Fired and Stopped count entries of all kinds, also
// those of Sleep, WithTimeout and the other packages of this library. The counters are read one after another, so
// under load they may differ by some entries.
type Stats struct {
	Pending  int   // pending entries
	Fired    int64 // firings begun; each firing of Every, Repeat and Schedule counts
	Stopped  int64 // entries stopped, cancelled or removed, but not by the wheel's Stop or a Keyed.Set that replaces
	Panicked int64 // panics of callbacks, hooks, schedules and executors
	Wakeups  int64 // times the worker woke from sleep

	Lateness Histogram // from the deadline of an entry to the moment at which a goroutine took it to call it

	// LongestTask is the longest measured time. One measurement may cover up to 16 callbacks that follow one another
	// on a goroutine; if it covers several, it is left out below 100 µs. BlockedTime is the sum of the measured times
	// above a tick, where a tick below 1 ms counts as 1 ms and one above 10 ms as 10 ms: with Inline, that is the
	// time that other entries waited. Both count callbacks that have returned.
	LongestTask time.Duration
	BlockedTime time.Duration
}

// Histogram counts durations in buckets with the upper bounds 1 µs, 2 µs, 4 µs and so on up to 2^38 µs, which
// is three days. It is a value: a copy does not change. The Stats of all packages use it.
type Histogram histogram.Values

// Count returns the number of durations.
func (h Histogram) Count() uint64 { return (*histogram.Values)(&h).Count() }

// Sum returns the sum of the durations, at most the greatest Duration, 292 years. A million locks that are held
// together reach that within hours. Seconds has no such bound.
func (h Histogram) Sum() time.Duration { return (*histogram.Values)(&h).Sum() }

// Seconds returns the sum of the durations in seconds, without a bound.
func (h Histogram) Seconds() float64 { return (*histogram.Values)(&h).Seconds() }

// Buckets returns the upper bound of each bucket, in rising order, with the number of durations up to it: the
// counts are cumulative, as in Prometheus. Durations above the last bound are only in Count.
func (h Histogram) Buckets() iter.Seq2[time.Duration, uint64] {
	return (*histogram.Values)(&h).Buckets()
}

// Quantile returns a duration that at least the share q of all durations did not exceed: 0.5 gives the median,
// 0 or less the shortest duration, 1 or more the longest. The result is the upper bound of a bucket: 1 µs for a
// true value of up to 1 µs, otherwise less than twice the true value, and beyond the last bucket the greatest
// Duration. Without durations it is 0.
func (h Histogram) Quantile(q float64) time.Duration { return (*histogram.Values)(&h).Quantile(q) }

// counts has the counters of one shard, under its mutex.
type counts struct {
	fired, stopped int64
	lateness       histogram.Values
}

func (c *counts) fire(late time.Duration) {
	c.fired++
	c.lateness.Add(late)
}

// Stats returns the wheel's counters. It may delay scheduling calls for a moment. It is safe for concurrent
// use.
func (w *Wheel) Stats() Stats { return w.scheduler.stats() }

// Stats returns the wheel's counters, as Wheel.Stats does.
func (w *Typed[T]) Stats() Stats { return w.scheduler.stats() }

func (c *scheduler) stats() Stats {
	st := Stats{
		Panicked:    c.panics.Load(),
		Wakeups:     c.wakeups.Load(),
		LongestTask: time.Duration(c.durations.longest.Load()),
		BlockedTime: time.Duration(c.durations.blocked.Load()),
	}
	var lateness histogram.Values
	for _, e := range *c.shards.Load() {
		s := e.base()
		s.mu.Lock()
		st.Pending += s.ring.live
		st.Fired += s.counts.fired
		st.Stopped += s.counts.stopped
		lateness.Merge(&s.counts.lateness)
		s.mu.Unlock()
	}
	st.Lateness = Histogram(lateness)
	return st
}
