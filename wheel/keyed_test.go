package wheel_test

import (
	heaps "container/heap"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// keyedWheel is what tests need of a Keyed, or of something that is wrong.
type keyedWheel interface {
	Set(key int, value uint32, d time.Duration) (replaced uint32, ok bool, err error)
	Reschedule(key int, d time.Duration) bool
	Remove(key int) (uint32, bool)
	Stop(ctx context.Context) ([]wheel.UnprocessedKey[int, uint32], error)
}

// newKeyed makes a Keyed that is stopped when the test ends.
func newKeyed[K comparable, V any](t testing.TB, fire func(K, V), opts ...wheel.Option) *wheel.Keyed[K, V] {
	t.Helper()
	w, err := wheel.NewKeyed(fire, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	})
	return w
}

// set gives a key a value and fails the test if that is refused.
func set[K comparable, V any](t testing.TB, w *wheel.Keyed[K, V], key K, value V, d time.Duration) {
	t.Helper()
	_, _, err := w.Set(key, value, d)
	require.NoError(t, err)
}

// keyedModel is a map of what each key has, and a heap of deadlines, some of which do not count any more.
type keyedModel struct {
	pending map[int]keyedDue
	dues    keyedHeap
	number  int
}

type keyedDue struct {
	key, number int
	value       uint32
	at          time.Time
}

type keyedHeap []keyedDue

func (h *keyedHeap) Len() int           { return len(*h) }
func (h *keyedHeap) Less(i, j int) bool { return (*h)[i].at.Before((*h)[j].at) }
func (h *keyedHeap) Swap(i, j int)      { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }
func (h *keyedHeap) Push(x any)         { *h = append(*h, x.(keyedDue)) }
func (h *keyedHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func (m *keyedModel) set(key int, value uint32, at time.Time) {
	m.number++
	due := keyedDue{key, m.number, value, at}
	m.pending[key] = due
	heaps.Push(&m.dues, due)
}

// fire removes what is due by then, and returns it.
func (m *keyedModel) fire(by time.Time) (fired []string) {
	for len(m.dues) > 0 && !m.dues[0].at.After(by) {
		due := heaps.Pop(&m.dues).(keyedDue)
		if m.pending[due.key].number == due.number {
			delete(m.pending, due.key)
			fired = append(fired, fmt.Sprint(due.key, " ", due.value))
		}
	}
	return fired
}

// Guarantees: W22.
func TestKeyed_FollowsAModel(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
		var mu sync.Mutex
		var fired []string
		w := newKeyed(t, func(key int, value uint32) {
			mu.Lock()
			defer mu.Unlock()
			fired = append(fired, fmt.Sprint(key, " ", value))
		}, wheel.WithExecutor(e))
		m := keyedModel{pending: map[int]keyedDue{}}
		for value := range uint32(testsize.Of(3000, 30_000)) {
			key, d := random.IntN(8), time.Duration(random.IntN(2000)+1)*time.Millisecond
			was, had := m.pending[key]
			switch random.IntN(5) {
			case 0, 1:
				old, ok, err := w.Set(key, value, d)
				require.NoError(t, err)
				require.Equal(t, had, ok)
				require.Equal(t, was.value, old)
				m.set(key, value, time.Now().Add(d))
			case 2:
				require.Equal(t, had, w.Reschedule(key, d))
				if had {
					m.set(key, was.value, time.Now().Add(d))
				}
			case 3:
				v, ok := w.Remove(key)
				require.Equal(t, had, ok)
				require.Equal(t, was.value, v)
				delete(m.pending, key)
			case 4:
				pass(time.Duration(random.IntN(700)) * time.Millisecond)
				want := m.fire(time.Now())
				slices.Sort(want)
				slices.Sort(fired)
				require.Equal(t, want, fired)
				fired = nil
			}
			require.Equal(t, len(m.pending), w.Len())
		}
		all := map[int]uint32{}
		for key, due := range m.pending {
			all[key] = due.value
		}
		require.Equal(t, all, maps.Collect(w.All()))
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, len(all))
		for _, u := range rest {
			require.Equal(t, m.pending[u.Key].value, u.Value)
			require.Equal(t, time.Until(m.pending[u.Key].at), u.Left)
		}
	})
}

// takers counts who got each value.
type takers struct {
	times                             []atomic.Int32
	fired, replaced, removed, stopped atomic.Int64
}

// race sets, moves and removes one key on several goroutines. It returns how many of the values that were set did not
// go to exactly one taker, or were pending beside another one.
func (r *takers) race(t *testing.T, w keyedWheel, n int) (wrong int) {
	const goroutines = 8
	took := func(by *atomic.Int64, value uint32) {
		by.Add(1)
		r.times[value].Add(1)
	}
	parallel(goroutines, func(g int) {
		for value := uint32(g); int(value) < n; value += goroutines {
			d := time.Duration(rand.IntN(30)) * time.Microsecond
			if rand.IntN(8) == 0 {
				d = time.Hour
			}
			old, ok, err := w.Set(0, value, d)
			if err != nil {
				t.Error(err)
			}
			if ok {
				took(&r.replaced, old)
			}
			switch rand.IntN(4) {
			case 0:
				w.Reschedule(0, d)
			case 1:
				if old, ok := w.Remove(0); ok {
					took(&r.removed, old)
				}
			case 2:
				runtime.Gosched()
			}
		}
	})
	rest, err := w.Stop(t.Context())
	require.NoError(t, err)
	for _, u := range rest {
		took(&r.stopped, u.Value)
	}
	wrong = max(0, len(rest)-1) // a key has one value
	for k := range r.times {
		if r.times[k].Load() != 1 {
			wrong++
		}
	}
	return wrong
}

func (r *takers) fire(_ int, value uint32) {
	r.fired.Add(1)
	r.times[value].Add(1)
}

// Guarantees: W22.
func TestKeyed_EachValueGoesToOneTaker(t *testing.T) {
	n := testsize.Of(50_000, 100_000)
	for name, e := range executors() {
		t.Run(name, func(t *testing.T) {
			r := &takers{times: make([]atomic.Int32, n)}
			w, err := wheel.NewKeyed(r.fire, wheel.WithExecutor(e))
			require.NoError(t, err)
			require.Zero(t, r.race(t, w, n))
			t.Logf("%d fired, %d replaced, %d removed, %d left at the end", r.fired.Load(), r.replaced.Load(), r.removed.Load(), r.stopped.Load())
			require.Positive(t, r.fired.Load())
			require.Positive(t, r.replaced.Load())
			require.Positive(t, r.removed.Load())
		})
	}
}

// handMade is what is written without a Keyed: a map of timers. It does not look whether a timer had fired.
type handMade struct {
	mu      sync.Mutex
	entries map[int]handMadeEntry
	fire    func(int, uint32)
}

type handMadeEntry struct {
	timer *time.Timer
	value uint32
}

func (h *handMade) Set(key int, value uint32, d time.Duration) (replaced uint32, ok bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old, ok := h.entries[key]
	if ok {
		old.timer.Stop()
	}
	h.entries[key] = handMadeEntry{time.AfterFunc(d, func() {
		h.Remove(key)
		h.fire(key, value)
	}), value}
	return old.value, ok, nil
}

func (h *handMade) Reschedule(key int, d time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, ok := h.entries[key]
	return ok && e.timer.Reset(d)
}

func (h *handMade) Remove(key int) (value uint32, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, ok := h.entries[key]
	if ok {
		e.timer.Stop()
		delete(h.entries, key)
	}
	return e.value, ok
}

func (h *handMade) Stop(context.Context) (rest []wheel.UnprocessedKey[int, uint32], err error) {
	if value, ok := h.Remove(0); ok {
		rest = append(rest, wheel.UnprocessedKey[int, uint32]{Value: value})
	}
	return rest, nil
}

func TestKeyed_TheRaceFindsAMapOfTimersWrong(t *testing.T) {
	n := testsize.Of(50_000, 100_000)
	r := &takers{times: make([]atomic.Int32, n)}
	wrong := r.race(t, &handMade{entries: map[int]handMadeEntry{}, fire: r.fire}, n)
	t.Logf("%d of %d values had no taker or several", wrong, n)
	require.Positive(t, wrong)
}

func TestKeyed_AKeyIsFreeInsideItsFiring(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		var w *wheel.Keyed[string, int]
		var fired []int
		w = newKeyed(t, func(key string, value int) {
			_, ok := w.Remove(key)
			require.False(t, ok)
			require.False(t, w.Reschedule(key, time.Second))
			if fired = append(fired, value); value < 5 {
				_, replaced, err := w.Set(key, value+1, time.Second)
				require.NoError(t, err)
				require.False(t, replaced)
			}
		}, wheel.WithExecutor(e))
		set(t, w, "a", 1, time.Second)
		pass(10 * time.Second)
		require.Equal(t, []int{1, 2, 3, 4, 5}, fired)
		require.Zero(t, w.Len())
		require.EqualValues(t, 5, w.Stats().Fired)
	})
}

func TestKeyed_ChangesNothingWhenItRefuses(t *testing.T) {
	_, err := wheel.NewKeyed[int, int](nil)
	var invalid *cogwheel.InvalidError
	require.ErrorAs(t, err, &invalid)
	_, err = wheel.NewKeyed(func(int, int) {}, nil)
	require.ErrorAs(t, err, &invalid)

	w := newKeyed(t, func(float64, int) {}, wheel.WithMaxPendingTimeouts(1))
	_, _, err = w.Set(math.NaN(), 1, time.Hour)
	require.ErrorAs(t, err, &invalid)
	set(t, w, 1, 1, time.Hour)
	_, _, err = w.Set(2, 1, time.Hour)
	require.ErrorIs(t, err, wheel.ErrTooManyPending)
	old, ok, err := w.Set(1, 2, time.Hour)
	require.NoError(t, err, "a replacement needs no place")
	require.True(t, ok)
	require.Equal(t, 1, old)
	require.Equal(t, map[float64]int{1: 2}, maps.Collect(w.All()))
	_, ok = w.Remove(3)
	require.False(t, ok)
	require.False(t, w.Reschedule(3, time.Hour))
	rest, err := w.Stop(t.Context())
	require.NoError(t, err)
	require.Len(t, rest, 1)
	require.Equal(t, 2, rest[0].Value)
	for range 2 {
		_, _, err = w.Set(1, 3, time.Hour)
		require.ErrorIs(t, err, wheel.ErrStopped)
	}
	_, ok = w.Remove(1)
	require.False(t, ok)
	require.Zero(t, w.Len())
	require.Empty(t, maps.Collect(w.All()))
}

func TestKeyed_TheLoopOverAllMayCallItsMethods(t *testing.T) {
	w := newKeyed(t, func(int, int) {})
	for key := range 1000 {
		set(t, w, key, -key, time.Hour)
	}
	seen := 0
	for key, value := range w.All() {
		require.Equal(t, -key, value)
		require.True(t, w.Reschedule(key, time.Minute))
		_, ok := w.Remove(key)
		require.True(t, ok)
		if seen++; seen == 600 {
			break
		}
	}
	require.Equal(t, 400, w.Len())
}

// What many keys took is given back, although a map does not shrink.
func TestKeyed_MemoryOfABurstIsGivenBack(t *testing.T) {
	// Not parallel: it measures the heap of the process.
	n := testsize.WhenAlone(100_000, 5_000_000)
	for name, empty := range map[string]func(t *testing.T, w *wheel.Keyed[uint64, *int], fired *atomic.Int64){
		"removed": func(t *testing.T, w *wheel.Keyed[uint64, *int], _ *atomic.Int64) {
			for key := range uint64(n) {
				_, ok := w.Remove(key)
				require.True(t, ok)
			}
		},
		"fired": func(t *testing.T, w *wheel.Keyed[uint64, *int], fired *atomic.Int64) {
			for key := range uint64(n) {
				require.True(t, w.Reschedule(key, 0))
			}
			for int(fired.Load()) < n {
				runtime.Gosched()
			}
		},
		"stopped": func(t *testing.T, w *wheel.Keyed[uint64, *int], _ *atomic.Int64) {
			rest, err := w.Stop(t.Context())
			require.NoError(t, err)
			require.Len(t, rest, n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var fired atomic.Int64
			// Inline, because the runtime keeps some memory for each goroutine that has ended.
			w := newKeyed(t, func(uint64, *int) { fired.Add(1) }, wheel.WithExecutor(wheel.Inline()))
			before, value := heap(), new(int)
			for key := range uint64(n) {
				set(t, w, key, value, time.Hour)
			}
			full := heap() - before
			empty(t, w, &fired)
			left := heap() - before
			t.Logf("%d bytes for each of %d keys; %d are left", full/int64(n), n, left)
			require.Greater(t, full, int64(60*n), "the measurement is wrong")
			require.Less(t, full, int64(180*n))
			require.Less(t, left, int64(400_000))
			require.Zero(t, w.Len())
			runtime.KeepAlive(w)
		})
	}
}
