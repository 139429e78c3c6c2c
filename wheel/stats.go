package wheel

import (
	"iter"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/histogram"
)

// Stats is a snapshot of a wheel's counters since it was made. The counters are read one after another, so
// under load they may be some entries apart.
type Stats struct {
	Pending  int   // entries that are still to fire
	Fired    int64 // callbacks begun; each firing of Every and Schedule counts
	Stopped  int64 // entries stopped or cancelled, but for those that the wheel's Stop ended
	Panicked int64 // callbacks, hooks, schedules and executors that panicked
	Wakeups  int64 // times the worker woke from sleep

	Lateness Histogram // from the deadline of an entry to the moment at which it was taken to be called

	// LongestTask is the longest time a callback took. Callbacks are measured in groups of up to 16; a group
	// that took 100 µs or longer counts as one callback, and a shorter group is left out unless it has just
	// one. BlockedTime is the sum over the callbacks that took longer than a tick, a tick below 1 ms counting
	// as 1 ms and one above 10 ms as 10 ms: with Inline, the time that other entries waited. Both count a
	// callback when it returns.
	LongestTask time.Duration
	BlockedTime time.Duration
}

// Histogram counts durations in buckets whose upper bounds are 1 µs, 2 µs, 4 µs and so on up to 2^38 µs,
// which is three days. It is a value: a copy does not change. The Stats of all packages have it.
type Histogram histogram.Values

// Count returns how many durations were counted.
func (h Histogram) Count() uint64 { return (*histogram.Values)(&h).Count() }

// Sum returns the sum of the durations, at most the greatest Duration, 292 years: a million locks that are
// held together reach it within hours. Seconds has no such bound.
func (h Histogram) Sum() time.Duration { return (*histogram.Values)(&h).Sum() }

// Seconds returns the sum of the durations in seconds, however great it is.
func (h Histogram) Seconds() float64 { return (*histogram.Values)(&h).Seconds() }

// Buckets returns each bucket's upper bound, in rising order, with how many durations did not exceed it: the
// counts are cumulative, as Prometheus has them. Those above the last bound are in Count alone.
func (h Histogram) Buckets() iter.Seq2[time.Duration, uint64] {
	return (*histogram.Values)(&h).Buckets()
}

// Quantile returns a duration that at least the share q of the counted ones did not exceed: 0.5 gives the
// median, 0 or less the shortest duration, 1 or more the longest. It is the upper bound of a bucket: 1 µs for
// a true value of up to 1 µs, else less than twice the true value, or the greatest Duration beyond the last
// bucket. It is 0 if none was counted.
func (h Histogram) Quantile(q float64) time.Duration { return (*histogram.Values)(&h).Quantile(q) }

// counts is what one shard counts, under its mutex.
type counts struct {
	fired, stopped int64
	lateness       histogram.Values
}

func (c *counts) fire(late time.Duration) {
	c.fired++
	c.lateness.Add(late)
}

// Stats returns the wheel's counters. It may delay scheduling for a moment.
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
