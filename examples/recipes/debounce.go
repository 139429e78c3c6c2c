package recipes

import (
	"context"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Debounce collects the changes of each key and passes the last one on: when the key has been quiet for a while, and
// at the latest some time after the first change. It is safe for concurrent use.
type Debounce[K comparable, V any] struct {
	quiet, longest time.Duration
	pass           func(K, V)

	mu      sync.Mutex // makes one step of Remove and Set
	changes *wheel.Keyed[K, change[V]]
}

type change[V any] struct {
	first time.Time // when the first change came that is not passed on yet
	value V
}

// NewDebounce returns a Debounce that calls pass with each key that was quiet, and with its last value.
func NewDebounce[K comparable, V any](quiet, longest time.Duration, pass func(K, V)) (*Debounce[K, V], error) {
	changes, err := wheel.NewKeyed(func(key K, c change[V]) { pass(key, c.value) })
	return &Debounce[K, V]{quiet: quiet, longest: longest, pass: pass, changes: changes}, err
}

// Change replaces the value that is to be passed on for key. It returns an error, and passes nothing on, after Stop.
func (d *Debounce[K, V]) Change(key K, value V) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	first := time.Now()
	if before, ok := d.changes.Remove(key); ok {
		first = before.first
	}
	_, _, err := d.changes.Set(key, change[V]{first, value}, min(d.quiet, d.longest-time.Since(first)))
	return err
}

// Stop passes on what is left. It waits for calls that run until ctx ends.
func (d *Debounce[K, V]) Stop(ctx context.Context) error {
	left, err := d.changes.Stop(ctx)
	for _, l := range left {
		d.pass(l.Key, l.Value.value)
	}
	return err
}
