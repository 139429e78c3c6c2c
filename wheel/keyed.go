package wheel

import (
	"context"
	"hash/maphash"
	"iter"
	"maps"
	"sync"
	"time"
)

// Keyed is a wheel whose values are found by keys, such as sessions by their ids, or changes that are debounced. For
// a timeout whose Timer is at hand, as that of an idle connection, use AfterFunc and Timer.Reschedule. A key has at
// most one value at a time. Like a Typed, a Keyed is a separate wheel. Its methods are safe for concurrent use, also
// inside the function of NewKeyed.
//
// Each value that Set has accepted goes to exactly one taker: the function of NewKeyed, Remove, the Set that replaces
// it, or Stop. When the firing of a value has begun, its key has no value, although the function may not have been
// called yet. So a key may be set again while the function runs for its previous value.
//
// A key must be hashable: if K is an interface type and the dynamic value of a key is not hashable, each method
// panics, as a map does.
type Keyed[K comparable, V any] struct {
	fire  func(K, V)
	typed *Typed[keyedValue[K, V]]
	seed  maphash.Seed
	parts [keyedParts]keyedPart[K]
}

// keyedParts is a power of two.
const keyedParts = 64

// keyedValue is the value of an entry, with its key. Remove, replacement, firing or Stop removes it with the
// entry.
type keyedValue[K comparable, V any] struct {
	key   K
	value V
}

// keyedPart finds entries by their keys. The hash of a key chooses its part. A part is locked before a shard is.
type keyedPart[K comparable] struct {
	mu      sync.Mutex
	entries map[K]keyedEntry
	peak    int // entries since the map was made
	_       [64]byte
}

// keyedEntry is a Timer without a pointer, so the garbage collector does not scan a map of them. Its entry may
// have ended: a firing begins before it removes its key here.
type keyedEntry struct{ shard, index, gen uint32 }

// NewKeyed makes a wheel that calls fire with each key and its value at the deadline, on the wheel's executor. Calls of
// fire may overlap, also for one key that was set again. The options are those of New. NewKeyed returns a
// *cogwheel.InvalidError if fire is nil or an option is invalid.
func NewKeyed[K comparable, V any](fire func(K, V), opts ...Option) (*Keyed[K, V], error) {
	if fire == nil {
		return nil, errNilFunction
	}
	w := &Keyed[K, V]{fire: fire, seed: maphash.MakeSeed()}
	typed, err := NewTyped(w.fired, opts...)
	if err != nil {
		return nil, err
	}
	w.typed = typed
	return w, nil
}

// Set gives key a value, which fires when d has passed, or as soon as possible if d is zero or less. It
// replaces a pending value of the key, together with its deadline, and returns that value; ok reports whether
// there was one.
//
// Set does not block. It returns a *cogwheel.InvalidError if key is not equal to itself, as a NaN is not,
// ErrStopped after Stop was called, and ErrTooManyPending if WithMaxPendingTimeouts is reached and the key has
// no value; then nothing has changed.
func (w *Keyed[K, V]) Set(key K, value V, d time.Duration) (replaced V, ok bool, err error) {
	if key != key { //nolint:gocritic // a NaN
		return replaced, false, argument.Error("key", key, "must be equal to itself")
	}
	v := keyedValue[K, V]{key, value}
	p := w.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, has := p.entries[key]; has {
		if old, ok := w.shard(e).replace(e.index, e.gen, d, v); ok {
			return old.value, true, nil
		}
	}
	t, err := w.typed.Add(v, d)
	if err != nil {
		return replaced, false, err
	}
	p.put(key, keyedEntry{t.shard.number, t.index, t.gen})
	return replaced, false, nil
}

// Reschedule moves the deadline of a key to d from now, or to as soon as possible if d is zero or less. It
// returns false if the key has no value. It does not block. A move to a later time is cheap, as for
// Timer.Reschedule.
func (w *Keyed[K, V]) Reschedule(key K, d time.Duration) bool {
	p := w.part(key)
	p.mu.Lock()
	e, ok := p.entries[key]
	p.mu.Unlock()
	return ok && w.shard(e).reschedule(e.index, e.gen, d)
}

// Remove removes and returns the value of a key, which then does not fire. It returns false if the key has no
// value. It does not block.
func (w *Keyed[K, V]) Remove(key K) (value V, ok bool) {
	p := w.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.entries[key]
	if !ok {
		return value, false
	}
	p.remove(key)
	v, ok := w.shard(e).take(e.index, e.gen)
	return v.value, ok
}

// Len returns the number of keys that have a value.
func (w *Keyed[K, V]) Len() int { return w.typed.Len() }

// All iterates over the keys that have a value, in no particular order. A key that is set, removed or fired during the
// loop may be left out, or shown with the value that it had before. The loop may call any method.
func (w *Keyed[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		var all []keyedValue[K, V]
		for i := range w.parts {
			p := &w.parts[i]
			all = all[:0]
			p.mu.Lock()
			for _, e := range p.entries {
				if v, ok := w.shard(e).peek(e.index, e.gen); ok {
					all = append(all, v)
				}
			}
			p.mu.Unlock()
			for _, v := range all {
				if !yield(v.key, v.value) {
					return
				}
			}
			clear(all)
		}
	}
}

// UnprocessedKey is a key and its value that Stop ended before the value fired.
type UnprocessedKey[K comparable, V any] struct {
	Key   K
	Value V
	Left  time.Duration // time that was left until its deadline; 0 if it was due
}

// Stop ends the wheel and returns each key whose value has not fired, with that value, exactly once. Wheel.Stop
// describes when it blocks and which errors it returns.
func (w *Keyed[K, V]) Stop(ctx context.Context) ([]UnprocessedKey[K, V], error) {
	var rest []UnprocessedKey[K, V]
	add := func(v keyedValue[K, V], left time.Duration) {
		rest = append(rest, UnprocessedKey[K, V]{v.key, v.value, left})
	}
	err := w.typed.scheduler.shutdown(ctx, func(now int64) { w.typed.shards.close(now, add) })
	if len(rest) > 0 { // this call ended them
		for i := range w.parts {
			w.parts[i].clear()
		}
	}
	return rest, err
}

// Stats returns the wheel's counters, as Wheel.Stats does.
func (w *Keyed[K, V]) Stats() Stats { return w.typed.Stats() }

// fired is the callback of an entry.
func (w *Keyed[K, V]) fired(v keyedValue[K, V]) {
	w.forget(v.key)
	w.fire(v.key, v.value)
}

// forget removes a key whose entry has ended, unless the key has another entry by now.
func (w *Keyed[K, V]) forget(key K) {
	p := w.part(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, ok := p.entries[key]; ok && !w.shard(e).pending(e.index, e.gen) {
		p.remove(key)
	}
}

func (w *Keyed[K, V]) shard(e keyedEntry) *typedShard[keyedValue[K, V]] {
	return &w.typed.shards.shards[e.shard]
}

func (w *Keyed[K, V]) part(key K) *keyedPart[K] {
	return &w.parts[maphash.Comparable(w.seed, key)%keyedParts]
}

func (p *keyedPart[K]) put(key K, e keyedEntry) {
	if p.entries == nil {
		p.entries = make(map[K]keyedEntry)
	}
	p.entries[key] = e
	p.peak = max(p.peak, len(p.entries))
}

func (p *keyedPart[K]) remove(key K) {
	delete(p.entries, key)
	if n := len(p.entries); p.peak >= leastPeak && n < p.peak/8 { // a map never shrinks
		p.entries, p.peak = maps.Collect(maps.All(p.entries)), n
	}
}

// leastPeak is the least peak of a map that is replaced: a smaller map would gain nothing.
const leastPeak = 64

func (p *keyedPart[K]) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entries, p.peak = nil, 0
}
