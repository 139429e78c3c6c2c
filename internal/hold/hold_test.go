package hold_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/hold"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReported_TheEndIsReportedOnce(t *testing.T) {
	t.Parallel()
	for range 1000 {
		var r hold.Reported
		var reports int
		var mu sync.Mutex
		report := func(is bool) {
			mu.Lock()
			defer mu.Unlock()
			if is {
				reports++
			}
		}
		var all sync.WaitGroup
		all.Go(func() { report(!r.Announced()) }) // then the announcer reports the end
		for range 3 {
			all.Go(func() { report(r.Over()) })
		}
		all.Wait()
		require.Equal(t, 1, reports)
		require.False(t, r.Over())
	}
	var never hold.Reported
	require.False(t, never.Over(), "it was not announced")
	require.False(t, never.Announced(), "and does not last")
}

func TestReported_NoRenewalIsReportedAfterTheEnd(t *testing.T) {
	t.Parallel()
	for range 1000 {
		var r hold.Reported
		require.True(t, r.Announced())
		var reporting, renewals atomic.Int32
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				r.Renewed(func() {
					reporting.Add(1)
					runtime.Gosched()
					reporting.Add(-1)
					renewals.Add(1)
				})
			})
		}
		require.True(t, r.Over())
		require.Zero(t, reporting.Load(), "it waits for one that is being reported")
		before := renewals.Load()
		r.Renewed(func() { renewals.Add(1) })
		all.Wait()
		require.Equal(t, before, renewals.Load())
	}
	var part hold.Reported // of a Quorum's lock: only its renewals are reported
	renewals := 0
	part.Renewed(func() { renewals++ })
	require.Equal(t, 1, renewals)
}

func TestAwaitRelease_WaitsASecondAfterTheEndOfTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		answer := make(chan struct{})
		wait := func(end <-chan struct{}) bool {
			select {
			case <-answer:
				return true
			case <-end:
				return false
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		began := time.Now()
		require.False(t, hold.AwaitRelease(ctx, w, wait))
		require.InDelta(t, time.Minute+time.Second, time.Since(began), float64(10*time.Millisecond))

		time.AfterFunc(time.Second/2, func() { close(answer) })
		require.True(t, hold.AwaitRelease(ctx, w, wait), "it comes in time")

		answer = make(chan struct{})
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
		began = time.Now()
		require.False(t, hold.AwaitRelease(ctx, w, wait))
		require.Equal(t, began, time.Now(), "nothing measures the second")
	})
}

func TestFrom_ReturnsTheInnermostHandleOfTheName(t *testing.T) {
	t.Parallel()
	type one struct{ n int }
	type other struct{ n int }
	a, b, ofSort := hold.Name{Name: "a"}, hold.Name{Name: "b"}, hold.Name{Sort: "sort", Name: "a"}
	ctx := hold.With(t.Context(), a, &one{1})
	ctx = hold.With(hold.With(hold.With(ctx, a, &one{2}), b, &one{3}), a, &other{4})
	ctx = hold.With(ctx, ofSort, &one{5})
	require.Equal(t, &one{2}, hold.From[one](ctx, a))
	require.Equal(t, &one{3}, hold.From[one](ctx, b))
	require.Equal(t, &one{5}, hold.From[one](ctx, ofSort))
	require.Equal(t, &other{4}, hold.From[other](ctx, a))
	require.Nil(t, hold.From[other](ctx, b))
}

func TestClient_Do(t *testing.T) {
	t.Parallel()
	lost, notHeld, closed, failed := errors.New("lost"), errors.New("not held"), errors.New("closed"), errors.New("failed")
	for _, c := range []struct {
		what          string
		err, released error
		want          []error
		logged        bool
	}{
		{what: "both succeed"},
		{what: "f fails", err: failed, want: []error{failed}},
		{what: "lost", released: lost, want: []error{lost}},
		{what: "lost, and f fails", err: failed, released: lost, want: []error{failed, lost}},
		{what: "closed", released: closed, want: []error{closed}},
		{what: "released by f", released: notHeld},
		{what: "a release that fails", released: failed, logged: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			logged := false
			client := hold.Client{Lost: lost, NotHeld: notHeld, Closed: closed}
			err := client.Do(t.Context(), new(conventions.End),
				func(context.Context) error { return c.err }, func(context.Context) error { return c.released }, func(error) { logged = true })
			require.Equal(t, len(c.want) == 0, err == nil, err)
			for _, want := range c.want {
				require.ErrorIs(t, err, want)
			}
			require.Equal(t, c.logged, logged)
		})
	}
}
