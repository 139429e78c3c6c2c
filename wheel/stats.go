package wheel

import (
	"math/bits"
	"time"
)

// Stats is a snapshot of a wheel's counters since it was made. The counters are read one after another, so
// under load they may be some entries apart.
type Stats struct {
	Pending  int   // entries that are still to fire
	Fired    int64 // entries handed to the executor; each firing of Every counts
	Stopped  int64 // entries ended by Timer.Stop or Timeout.Cancel
	Panicked int64 // callbacks and hooks that panicked
	Wakeups  int64 // times the worker woke from sleep

	Lateness Histogram // from an entry's deadline to its hand-over to the executor

	// LongestTask is the longest time a callback took. Those under 100 µs are sampled; a longer one may include
	// up to 15 short ones before it. BlockedTime is the sum over the callbacks that took longer than a tick (at least
	// 1 ms, at most 10 ms): what other entries waited if the executor is Inline, and what a Pool had to start further
	// goroutines for. Both count a callback when it returns.
	LongestTask time.Duration
	BlockedTime time.Duration
}

// Histogram counts durations by power of two.
type Histogram struct {
	counts [40]uint64 // counts[k]: below 2^k µs, the last one also everything above
}

func (h *Histogram) add(d time.Duration) {
	h.counts[min(bits.Len64(uint64(max(0, d)/time.Microsecond)), len(h.counts)-1)]++
}

func (h *Histogram) merge(o *Histogram) {
	for k, n := range o.counts {
		h.counts[k] += n
	}
}

// Count returns how many durations were counted.
func (h *Histogram) Count() uint64 {
	n := uint64(0)
	for _, c := range h.counts {
		n += c
	}
	return n
}

// Quantile returns an upper bound, at most twice too high and never below 1 µs, of the duration that the given
// share (0 to 1) of those counted did not exceed; 0 if none was counted.
func (h *Histogram) Quantile(share float64) time.Duration {
	total := h.Count()
	if total == 0 {
		return 0
	}
	rank, seen := uint64(share*float64(total)), uint64(0)
	for k, c := range h.counts {
		if seen += c; seen > 0 && seen >= rank {
			return time.Duration(1<<k) * time.Microsecond
		}
	}
	return time.Duration(1<<(len(h.counts)-1)) * time.Microsecond
}

// counts is what one shard counts, under its mutex.
type counts struct {
	fired, stopped int64
	lateness       Histogram
}

func (c *counts) fire(late time.Duration) {
	c.fired++
	c.lateness.add(late)
}

// Stats returns the wheel's counters.
func (w *Wheel) Stats() Stats { return w.core.stats() }

// Stats returns the wheel's counters.
func (w *Typed[T]) Stats() Stats { return w.core.stats() }

func (c *core) stats() Stats {
	st := Stats{
		Panicked:    c.panics.Load(),
		Wakeups:     c.wakeups.Load(),
		LongestTask: time.Duration(c.tasks.longest.Load()),
		BlockedTime: time.Duration(c.tasks.blocked.Load()),
	}
	for _, e := range *c.shards.Load() {
		s := e.base()
		s.mu.Lock()
		st.Pending += s.ring.live
		st.Fired += s.counts.fired
		st.Stopped += s.counts.stopped
		st.Lateness.merge(&s.counts.lateness)
		s.mu.Unlock()
	}
	return st
}
