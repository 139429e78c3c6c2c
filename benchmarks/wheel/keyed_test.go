package wheel_test

// Timers by key: idle timeouts of connections, found by their number.

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/zeromicro/go-zero/core/collection"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// keyedPeer is one implementation of timers by key. Its value is a pointer, as that to a connection.
type keyedPeer struct {
	set        func(key uint64, conn *int, d time.Duration)
	reschedule func(key uint64, d time.Duration)
	remove     func(key uint64)
	close      func()
}

func newKeyed(b *testing.B) keyedPeer {
	w, err := wheel.NewKeyed(func(uint64, *int) {})
	if err != nil {
		b.Fatal(err)
	}
	return keyedPeer{
		set: func(key uint64, conn *int, d time.Duration) {
			if _, _, err := w.Set(key, conn, d); err != nil {
				panic(err)
			}
		},
		reschedule: func(key uint64, d time.Duration) { w.Reschedule(key, d) },
		remove:     func(key uint64) { w.Remove(key) },
		close:      func() { _, _ = w.Stop(context.Background()) },
	}
}

// newMapOfTimers is what is written by hand: a map under a mutex, and a timer of the runtime for each key.
func newMapOfTimers(*testing.B) keyedPeer {
	type entry struct {
		timer *time.Timer
		conn  *int
	}
	var mu sync.Mutex
	entries := map[uint64]*entry{}
	return keyedPeer{
		set: func(key uint64, conn *int, d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if e := entries[key]; e != nil && e.timer.Stop() {
				e.conn = conn
				e.timer.Reset(d)
				return
			}
			e := &entry{conn: conn}
			e.timer = time.AfterFunc(d, func() {
				mu.Lock()
				defer mu.Unlock()
				if entries[key] == e {
					delete(entries, key)
				}
			})
			entries[key] = e
		},
		reschedule: func(key uint64, d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if e := entries[key]; e != nil {
				e.timer.Reset(d)
			}
		},
		remove: func(key uint64) {
			mu.Lock()
			defer mu.Unlock()
			if e := entries[key]; e != nil {
				e.timer.Stop()
				delete(entries, key)
			}
		},
		close: func() {},
	}
}

func newKeyedGoZero(b *testing.B) keyedPeer {
	w, err := collection.NewTimingWheel(time.Millisecond, 512, func(_, _ any) {})
	if err != nil {
		b.Fatal(err)
	}
	return keyedPeer{
		set:        func(key uint64, conn *int, d time.Duration) { _ = w.SetTimer(key, conn, d) },
		reschedule: func(key uint64, d time.Duration) { _ = w.MoveTimer(key, d) },
		remove:     func(key uint64) { _ = w.RemoveTimer(key) },
		close:      w.Stop,
	}
}

// everyKey makes goroutines call f for all keys, each key once, in an order that is not that of the keys.
func everyKey(keys uint64, goroutines int, f func(key uint64)) {
	var wg sync.WaitGroup
	for g := range uint64(goroutines) {
		wg.Go(func() {
			for k := g; k < keys; k += uint64(goroutines) {
				f(k * 7919 % keys)
			}
		})
	}
	wg.Wait()
}

// BenchmarkKeyed is a million keys, each with a value for a connection.
func BenchmarkKeyed(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		for _, impl := range []struct {
			name string
			make func(b *testing.B) keyedPeer
		}{{"keyed", newKeyed}, {"map", newMapOfTimers}, {"gozero", newKeyedGoZero}} {
			keys := uint64(size(1_000_000))
			if impl.name == "gozero" {
				keys /= slow
			}
			for _, step := range []string{"set", "replace", "reschedule", "remove"} {
				b.Run(fmt.Sprintf("step=%s/goroutines=%d/impl=%s", step, goroutines, impl.name), func(b *testing.B) {
					conn, p := new(int), impl.make(b)
					defer p.close()
					set := func(key uint64) { p.set(key, conn, time.Minute) }
					remove := func(key uint64) { p.remove(key) }
					steps := map[string]func(key uint64){
						"set": set, "replace": func(key uint64) { p.set(key, conn, 2*time.Minute) },
						"reschedule": func(key uint64) { p.reschedule(key, 2*time.Minute) }, "remove": remove,
					}
					for b.Loop() {
						before := heap()
						if step != "set" {
							everyKey(keys, goroutines, set)
						}
						perCall(b, int(keys), func() { everyKey(keys, goroutines, steps[step]) })
						if step == "set" {
							b.ReportMetric(float64(heap()-before)/float64(keys), "B/key")
						}
						if step != "remove" {
							everyKey(keys, goroutines, remove)
						}
					}
				})
			}
		}
	}
}
