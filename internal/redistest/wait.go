package redistest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Patience bounds every wait of a test. No wait is expected to take that long.
const Patience = 30 * time.Second

// SafeLease is a lease for holds that a test must not lose. Renewals are due after a third of it, so the hold
// outlasts a stall of the machine of three seconds. Only a hold whose end the test awaits has a shorter one.
const SafeLease = 5 * time.Second

// Wheel returns a wheel that is stopped with the test.
func Wheel(tb testing.TB, opts ...wheel.Option) *wheel.Wheel {
	tb.Helper()
	w, err := wheel.New(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if _, err := w.Stop(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return w
}

// Within returns a context that ends after d, or with the test.
func Within(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	tb.Cleanup(cancel)
	return ctx
}

// Poll checks cond every few milliseconds until it holds, and fails the test after Patience. It is for states
// of Redis that no event announces.
func Poll(tb testing.TB, cond func() bool) {
	tb.Helper()
	w, ctx := Wheel(tb), Within(tb, Patience)
	for !cond() {
		if err := w.Sleep(ctx, 5*time.Millisecond); err != nil {
			tb.Fatalf("the awaited state was not reached: %v", err)
		}
	}
}

// SkipIfShort skips a test that takes seconds when the tests run with -short.
func SkipIfShort(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("takes seconds: skipped by -short")
	}
}

// CloseWith calls closing when the test ends, which fails if that takes longer than Patience.
func CloseWith(tb testing.TB, closing func(context.Context) error) {
	tb.Helper()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := closing(ctx); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
}

// Each calls f for 0 to n-1 on 64 goroutines and fails the test if a call returns an error.
func Each(tb testing.TB, n int, f func(i int) error) {
	tb.Helper()
	const goroutines = 64
	var running sync.WaitGroup
	for part := range goroutines {
		running.Go(func() {
			for i := part; i < n; i += goroutines {
				if err := f(i); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	if tb.Failed() {
		tb.FailNow()
	}
}

// Stalls watches the process until the test ends. The function that it returns says for how long the process
// has not run since, because its host stood still or gave the processor to others: the test subtracts that from
// a time that it has measured.
func Stalls(tb testing.TB) (stalled func() time.Duration) {
	tb.Helper()
	stalled, stop := watchStalls()
	tb.Cleanup(stop)
	return stalled
}

// watchStalls has a timer fire all the time, and sums up how late it does.
func watchStalls() (stalled func() time.Duration, stop func()) {
	const pause = 10 * time.Millisecond
	var mu sync.Mutex
	var total time.Duration
	last := time.Now()
	lateLocked := func() time.Duration { // of the timer that is pending; what is normal is none
		if late := time.Since(last) - pause; late > pause {
			return late
		}
		return 0
	}
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTimer(pause)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-over:
				return
			}
			mu.Lock()
			total += lateLocked()
			last = time.Now()
			mu.Unlock()
			tick.Reset(pause)
		}
	}()
	stalled = func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return total + lateLocked()
	}
	return stalled, func() {
		close(over)
		<-stopped
	}
}

// Running calls f and returns how long it took, without the time in which the process did not run; see [Stalls].
func Running(tb testing.TB, f func()) time.Duration {
	tb.Helper()
	stalled, stop := watchStalls()
	defer stop()
	began := time.Now()
	f()
	return time.Since(began) - stalled()
}
