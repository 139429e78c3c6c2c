// Package histogram counts durations in buckets. Values is the plain count, which a caller guards; Recorder
// is one for concurrent use. wheel.Histogram shows either.
package histogram

import (
	"iter"
	"math"
	"math/bits"
	"sync"
	"time"
)

// Bounds is the number of buckets with an upper bound: 1 µs, 2 µs, 4 µs and so on up to 2^38 µs.
const Bounds = 39

// lap is how far a sum counts before it starts anew.
const lap time.Duration = 1 << 62

// Values counts durations. The zero value is empty. It is not safe for concurrent use.
type Values struct {
	counts [Bounds + 1]uint64 // those up to upperBound(k) and above upperBound(k-1); the last one: the rest
	sum    time.Duration      // less than a lap
	laps   uint64             // that the sum has made
}

func upperBound(k int) time.Duration { return time.Microsecond << k }

// Add counts a duration. One below 0 counts as 0.
func (v *Values) Add(d time.Duration) {
	d = max(0, d)
	v.counts[min(bits.Len64(uint64(max(0, d-1)/time.Microsecond)), Bounds)]++
	v.grow(d)
}

// grow adds to the sum.
func (v *Values) grow(d time.Duration) {
	if d >= lap {
		d -= lap
		v.laps++
	}
	if v.sum += d; v.sum >= lap {
		v.sum -= lap
		v.laps++
	}
}

// Merge adds what another has counted.
func (v *Values) Merge(o *Values) {
	for k, n := range o.counts {
		v.counts[k] += n
	}
	v.laps += o.laps
	v.grow(o.sum)
}

// Count returns how many durations were counted.
func (v *Values) Count() (n uint64) {
	for _, c := range v.counts {
		n += c
	}
	return n
}

// Sum returns the sum of the durations, or the greatest Duration if it is above that.
func (v *Values) Sum() time.Duration {
	switch v.laps {
	case 0:
		return v.sum
	case 1:
		return v.sum + lap // twice a lap is one more than the greatest Duration
	default:
		return math.MaxInt64
	}
}

// Seconds returns the sum of the durations in seconds, however great it is.
func (v *Values) Seconds() float64 {
	return float64(v.laps)*lap.Seconds() + v.sum.Seconds()
}

// Buckets yields each bucket's upper bound, in rising order, with how many durations did not exceed it.
func (v *Values) Buckets() iter.Seq2[time.Duration, uint64] {
	return func(yield func(upper time.Duration, count uint64) bool) {
		seen := uint64(0)
		for k, n := range v.counts[:Bounds] {
			if seen += n; !yield(upperBound(k), seen) {
				return
			}
		}
	}
}

// Quantile returns the upper bound of the first bucket up to which the share q of the durations was counted.
func (v *Values) Quantile(q float64) time.Duration {
	total := v.Count()
	if total == 0 {
		return 0
	}
	rank := max(1, uint64(math.Ceil(min(max(q, 0), 1)*float64(total))))
	for upper, seen := range v.Buckets() {
		if seen >= rank {
			return upper
		}
	}
	return math.MaxInt64
}

// Recorder counts durations. The zero value is empty. It is safe for concurrent use.
type Recorder struct {
	mu     sync.Mutex
	values Values // guarded by mu
}

// Add counts a duration.
func (r *Recorder) Add(d time.Duration) {
	r.mu.Lock()
	r.values.Add(d)
	r.mu.Unlock()
}

// Values returns what was counted so far.
func (r *Recorder) Values() Values {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values
}
