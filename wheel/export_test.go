package wheel

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/histogram"
)

// Ring opens the pure ring to tests: entries are named by their index, time passes by Advance.
type Ring struct{ ring }

// NewRing makes a ring of the given geometry.
func NewRing(tick time.Duration, buckets int) *Ring {
	r := &Ring{}
	r.init(newTicks(tick), buckets)
	return r
}

// Add links an entry.
func (r *Ring) Add(now, deadline int64) uint32 {
	for {
		if i, n, _ := r.add(now, deadline); n != nil {
			return i
		}
		r.install(new(chunk))
	}
}

// Remove frees a linked entry.
func (r *Ring) Remove(i uint32) {
	r.unlink(i, r.node(i))
	r.Free(i)
}

// Free frees an entry that is in no list.
func (r *Ring) Free(i uint32) {
	r.release(i)
	for c, ok := r.surplus(); ok; c, ok = r.surplus() {
		r.drop(c)
	}
}

// Reschedule moves an entry.
func (r *Ring) Reschedule(i uint32, now, deadline int64) { r.reschedule(i, now, deadline) }

// Advance frees and returns the entries due by now, in the order they come out, and the number of calls it
// took to take them.
func (r *Ring) Advance(now int64) (due []uint32, calls int) { return r.AdvanceBy(now, 256) }

// AdvanceBy is Advance with so many entries at a time at most.
func (r *Ring) AdvanceBy(now int64, size int) (due []uint32, calls int) {
	for more := true; more; calls++ {
		var got []uint32
		got, more = r.AdvanceOnce(now, size)
		due = append(due, got...)
	}
	return due, calls
}

// AdvanceOnce makes a single call.
func (r *Ring) AdvanceOnce(now int64, size int) (due []uint32, more bool) {
	due, more = r.take(now, make([]uint32, 0, size))
	for _, i := range due {
		r.Free(i)
	}
	return due, more
}

// TakeAndHold takes what is due by now and holds it, as entries whose callback was called or is waited for.
func (r *Ring) TakeAndHold(now int64, called bool) []uint32 {
	due, _ := r.take(now, make([]uint32, 0, 256))
	for _, i := range due {
		if called {
			r.hold(i, locCalled)
		} else {
			r.hold(i, locWaiting)
		}
	}
	return due
}

// Rearm returns a held entry to its rows.
func (r *Ring) Rearm(i uint32, now, deadline int64) { r.move(i, now, deadline) }

// Settle moves the young to their rows.
func (r *Ring) Settle(now int64) { r.settle(now) }

// Next is the instant from which Advance has something to do.
func (r *Ring) Next() int64 { return r.next() }

// Live is the number of entries that are linked or held.
func (r *Ring) Live() int { return r.live }

// Chunks is the number of chunks of nodes held.
func (r *Ring) Chunks() int { return len(r.chunks) - r.holes.n }

// Places is the length of the tables of the chunks.
func (r *Ring) Places() int { return len(r.chunks) }

// TickOf is the tick an instant falls into.
func (r *Ring) TickOf(ns int64) int64 { return r.tickOf(ns) }

// Never is what Next returns for an empty ring.
const Never int64 = never

// Check walks everything and returns the first broken invariant.
func (r *Ring) Check() error {
	seen := make(map[uint32]bool)
	for k, rw := range r.rows {
		if (rw != nil) != (r.used[k>>roundBits]&(1<<(k&rowMask)) != 0) {
			return fmt.Errorf("row %d: bitmap of rows disagrees", k)
		}
		if rw == nil {
			continue
		}
		if err := r.checkRow(k, rw, seen); err != nil {
			return err
		}
	}
	for c, ch := range r.chunks {
		if ch == nil {
			continue
		}
		for k := range ch {
			if i := uint32(c<<chunkBits | k); ch[k].loc >= locHeld {
				if seen[i] {
					return fmt.Errorf("entry %d is held and linked", i)
				}
				seen[i] = true
			}
		}
	}
	if len(seen) != r.live {
		return fmt.Errorf("%d entries linked or held, %d live", len(seen), r.live)
	}
	return r.checkSlab()
}

func (r *Ring) checkRow(k int, rw *row, seen map[uint32]bool) error {
	entries := 0
	for b := range rw.buckets {
		bk := rw.buckets[b]
		if (bk.head != 0) != (rw.occupied[b>>6]&(1<<(b&63)) != 0) {
			return fmt.Errorf("row %d bucket %d: bitmap disagrees", k, b)
		}
		prev := uint32(0)
		for i := bk.head; i != 0; i = r.node(i).next {
			n := r.node(i)
			switch {
			case seen[i]:
				return fmt.Errorf("entry %d is linked twice", i)
			case n.loc>>locSlotBits != uint32(k) || n.loc&locSlotMask>>rw.shift != uint32(b):
				return fmt.Errorf("entry %d is in row %d bucket %d, its loc says %x", i, k, b, n.loc)
			case n.prev != prev:
				return fmt.Errorf("entry %d: broken back link", i)
			case k < rowsPerRing && prev != 0 && r.node(prev).loc > n.loc:
				return fmt.Errorf("row %d bucket %d: slots out of order", k, b)
			}
			seen[i], prev = true, i
			entries++
		}
		if bk.tail != prev {
			return fmt.Errorf("row %d bucket %d: broken tail", k, b)
		}
	}
	if entries == 0 || entries != rw.entries {
		return fmt.Errorf("row %d: %d entries, counted %d", k, entries, rw.entries)
	}
	return nil
}

func (r *Ring) checkSlab() error {
	live, free := 0, 0
	for c, ch := range r.chunks {
		st := r.states[c]
		for name, set := range map[string]struct {
			set *chunkSet
			has bool
		}{
			"partial": {&r.partial, ch != nil && st.free != 0},
			"empty":   {&r.empty, ch != nil && st.live == 0},
			"holes":   {&r.holes, ch == nil},
		} {
			if set.set.has(uint32(c)) != set.has {
				return fmt.Errorf("chunk %d: its bit in %s disagrees", c, name)
			}
		}
		if ch == nil {
			continue
		}
		live += int(r.states[c].live)
		for i := r.states[c].free; i != 0; i = r.node(i).next {
			free++
		}
	}
	for _, set := range []*chunkSet{&r.partial, &r.empty, &r.holes} {
		n := 0
		for _, word := range set.words {
			n += bits.OnesCount64(word)
		}
		if n != set.n {
			return fmt.Errorf("%d chunks in a set, counted %d", n, set.n)
		}
	}
	if live != r.live || free != r.free {
		return fmt.Errorf("slab holds %d live %d free, counted %d and %d", live, free, r.live, r.free)
	}
	return nil
}

func (s *chunkSet) has(c uint32) bool {
	w := int(c >> 6)
	return w < len(s.words) && s.words[w]&(1<<(c&63)) != 0
}

// SystemOrigin is the instant from which a wheel on the system clock counts.
func SystemOrigin() time.Time {
	s := newTimeSource(nil)
	return s.origin
}

// Reserved is what counts towards WithMaxPendingTimeouts.
func (w *Wheel) Reserved() int64 { return w.scheduler.reserved.Load() }

// Retirements is how often the worker of an empty wheel has ended.
func (w *Wheel) Retirements() int64 { return w.scheduler.retired.Load() }

// WarnAgain lets the warning of too many wheels be logged again, and returns how many are at work now.
func WarnAgain() int64 {
	warned.Store(false)
	return running.Load()
}

// HistogramOf returns a histogram of the given durations.
func HistogramOf(ds ...time.Duration) (h Histogram) {
	for _, d := range ds {
		(*histogram.Values)(&h).Add(d)
	}
	return h
}

// Merged returns the histogram of what both have counted.
func Merged(a, b Histogram) Histogram {
	(*histogram.Values)(&a).Merge((*histogram.Values)(&b))
	return a
}

// SetWallClock makes schedules read the wall clock by now.
func (w *Wheel) SetWallClock(now func() time.Time) { w.scheduler.time.wall = now }
