package redistest

import (
	"context"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Patience bounds every wait of a test. No wait is expected to take that long.
const Patience = 30 * time.Second

// Wheel returns a wheel that is stopped with the test.
func Wheel(tb testing.TB) *wheel.Wheel {
	tb.Helper()
	w, err := wheel.New()
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

// Scale returns few, or the number in the environment variable if it is set.
func Scale(tb testing.TB, env string, few int) (n int, full bool) {
	tb.Helper()
	many := os.Getenv(env)
	if many == "" {
		return few, false
	}
	n, err := strconv.Atoi(many)
	if err != nil {
		tb.Fatalf("%s: %v", env, err)
	}
	return n, true
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
