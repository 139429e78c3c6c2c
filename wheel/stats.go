package wheel

import (
	"iter"
	"math"
	"math/bits"
	"time"
)

// Stats is a snapshot of a wheel's counters since it was made. The counters are read one after another, so
// under load they may be some entries apart.
type Stats struct {
	Pending  int   // entries that are still to fire
	Fired    int64 // callbacks begun; each firing of Every and Schedule counts
	Stopped  int64 // entries ended by Timer.Stop or Timeout.Cancel
	Panicked int64 // callbacks, hooks, schedules and executors that panicked
	Wakeups  int64 // times the worker woke from sleep

	Lateness Histogram // from the deadline of an entry to the moment at which it was taken to be called

	// LongestTask is the longest time a callback took. Those under 100 µs are sampled; a longer one may
	// include up to 15 short ones before it. BlockedTime is the sum over the callbacks that took longer than
	// a tick (at least 1 ms, at most 10 ms): with Inline, what other entries waited. Both count a callback
	// when it returns.
	LongestTask time.Duration
	BlockedTime time.Duration
}

// Histogram counts durations in buckets whose upper bounds are 1 µs, 2 µs, 4 µs and so on up to 2^38 µs,
// which is three days. It is a value: a copy does not change.
type Histogram struct {
	durations histogram
}

// Count returns how many durations were counted.
func (h Histogram) Count() uint64 { return h.durations.total() }

// Sum returns the sum of the durations. It stays at its greatest value, 292 years, instead of overflowing: a
// million firings a second, each of them 1 ms late, reach that in 106 days.
func (h Histogram) Sum() time.Duration { return h.durations.sum }

// Buckets returns each bucket's upper bound, in rising order, with how many durations did not exceed it: the
// counts are cumulative, as Prometheus has them. Those above the last bound are in Count alone.
func (h Histogram) Buckets() iter.Seq2[time.Duration, uint64] {
	return func(yield func(upper time.Duration, count uint64) bool) {
		seen := uint64(0)
		for k, n := range h.durations.counts[:bounds] {
			if seen += n; !yield(upperBound(k), seen) {
				return
			}
		}
	}
}

// Quantile returns a duration that at least the share q of the counted ones did not exceed: 0.5 gives the
// median, and a q outside of 0 to 1 counts as 0 or 1. It is the upper bound of a bucket: at least 1 µs and
// less than twice the true value, or the greatest Duration beyond the last bucket. It is 0 if none was
// counted.
func (h Histogram) Quantile(q float64) time.Duration {
	total := h.Count()
	if total == 0 {
		return 0
	}
	rank := max(1, uint64(math.Ceil(min(max(q, 0), 1)*float64(total))))
	for upper, seen := range h.Buckets() {
		if seen >= rank {
			return upper
		}
	}
	return math.MaxInt64
}

// bounds is the number of buckets with an upper bound.
const bounds = 39

func upperBound(k int) time.Duration { return time.Microsecond << k }

// histogram is what a Histogram shows.
type histogram struct {
	counts [bounds + 1]uint64 // those up to upperBound(k) and above upperBound(k-1); the last one: the rest
	sum    time.Duration
}

func (h *histogram) add(d time.Duration) {
	d = max(0, d)
	h.counts[min(bits.Len64(uint64(max(0, d-1)/time.Microsecond)), bounds)]++
	h.grow(d)
}

// grow adds to the sum as far as it goes.
func (h *histogram) grow(d time.Duration) {
	if h.sum += d; h.sum < 0 {
		h.sum = math.MaxInt64
	}
}

func (h *histogram) merge(o *histogram) {
	for k, n := range o.counts {
		h.counts[k] += n
	}
	h.grow(o.sum)
}

func (h *histogram) total() (n uint64) {
	for _, c := range h.counts {
		n += c
	}
	return n
}

// counts is what one shard counts, under its mutex.
type counts struct {
	fired, stopped int64
	lateness       histogram
}

func (c *counts) fire(late time.Duration) {
	c.fired++
	c.lateness.add(late)
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
	for _, e := range *c.shards.Load() {
		s := e.base()
		s.mu.Lock()
		st.Pending += s.ring.live
		st.Fired += s.counts.fired
		st.Stopped += s.counts.stopped
		st.Lateness.durations.merge(&s.counts.lateness)
		s.mu.Unlock()
	}
	return st
}
