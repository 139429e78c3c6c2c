package wheel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// withTimeout is one of the two implementations that must behave alike.
type withTimeout func(parent context.Context, d time.Duration) (context.Context, context.CancelFunc)

// eachWithTimeout runs a test on the wheel's WithTimeout and on the standard one, which is the model.
func eachWithTimeout(t *testing.T, f func(t *testing.T, with withTimeout)) {
	t.Helper()
	t.Parallel()
	for _, name := range []string{"wheel", "context"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				with := withTimeout(context.WithTimeout)
				if name == "wheel" {
					with = newWheel(t).WithTimeout
				}
				f(t, with)
			})
		})
	}
}

// requireEnded checks every way of asking whether ctx has ended.
func requireEnded(t *testing.T, ctx context.Context, err, cause error) {
	t.Helper()
	require.Equal(t, err, ctx.Err())
	require.Equal(t, cause, context.Cause(ctx))
	<-ctx.Done()
}

func TestWithTimeout_EndsAtItsDeadline(t *testing.T) {
	eachWithTimeout(t, func(t *testing.T, with withTimeout) {
		start := time.Now()
		ctx, cancel := with(context.Background(), time.Minute)
		defer cancel()
		deadline, ok := ctx.Deadline()
		require.True(t, ok)
		require.Equal(t, start.Add(time.Minute), deadline)
		child, cancelChild := context.WithCancel(ctx)
		defer cancelChild()
		told := make(chan struct{})
		context.AfterFunc(ctx, func() { close(told) })
		pass(time.Minute - 1)
		require.NoError(t, ctx.Err())
		require.NoError(t, context.Cause(ctx))
		<-ctx.Done()
		require.Equal(t, time.Minute, time.Since(start))
		requireEnded(t, ctx, context.DeadlineExceeded, context.DeadlineExceeded)
		<-child.Done()
		requireEnded(t, child, context.DeadlineExceeded, context.DeadlineExceeded)
		<-told
	})
}

func TestWithTimeout_EndsWhenCancelled(t *testing.T) {
	eachWithTimeout(t, func(t *testing.T, with withTimeout) {
		ctx, cancel := with(context.Background(), time.Minute)
		child, cancelChild := with(ctx, time.Second)
		defer cancelChild()
		cancel()
		cancel()
		requireEnded(t, ctx, context.Canceled, context.Canceled)
		<-child.Done()
		requireEnded(t, child, context.Canceled, context.Canceled)
		pass(time.Hour)
		require.Equal(t, context.Canceled, ctx.Err(), "the deadline changes nothing any more")
		ran := make(chan struct{})
		require.False(t, context.AfterFunc(ctx, func() { close(ran) })())
		<-ran
	})
}

func TestWithTimeout_EndsWithItsParentAndItsCause(t *testing.T) {
	boom := errors.New("boom")
	eachWithTimeout(t, func(t *testing.T, with withTimeout) {
		parent, cancelParent := context.WithCancelCause(context.Background())
		ctx, cancel := with(parent, time.Minute)
		defer cancel()
		cancelParent(boom)
		requireEnded(t, ctx, context.Canceled, boom) // at once, not soon
		late, cancelLate := with(parent, time.Minute)
		defer cancelLate()
		requireEnded(t, late, context.Canceled, boom)
	})
}

func TestWithTimeout_ItsOwnEndOutlastsTheParents(t *testing.T) {
	boom := errors.New("boom")
	eachWithTimeout(t, func(t *testing.T, with withTimeout) {
		parent, cancelParent := context.WithCancelCause(context.Background())
		ctx, cancel := with(parent, time.Second)
		defer cancel()
		pass(2 * time.Second)
		cancelParent(boom)
		requireEnded(t, ctx, context.DeadlineExceeded, context.DeadlineExceeded)
	})
}

func TestWithTimeout_TheParentsEarlierDeadlineCounts(t *testing.T) {
	eachWithTimeout(t, func(t *testing.T, with withTimeout) {
		start := time.Now()
		parent, cancelParent := with(context.Background(), time.Second)
		defer cancelParent()
		ctx, cancel := with(parent, time.Minute)
		defer cancel()
		deadline, _ := ctx.Deadline()
		require.Equal(t, start.Add(time.Second), deadline)
		<-ctx.Done()
		require.Equal(t, time.Second, time.Since(start))
		requireEnded(t, ctx, context.DeadlineExceeded, context.DeadlineExceeded)
	})
}

func TestWithTimeout_ADeadlineInThePastHasEnded(t *testing.T) {
	eachWithTimeout(t, func(t *testing.T, with withTimeout) {
		for _, d := range []time.Duration{0, -time.Hour} {
			ctx, cancel := with(context.Background(), d)
			defer cancel()
			requireEnded(t, ctx, context.DeadlineExceeded, context.DeadlineExceeded)
		}
	})
}

func TestWithTimeout_ValuesAndStoppedAfterFuncs(t *testing.T) {
	type key struct{}
	eachWithTimeout(t, func(t *testing.T, with withTimeout) {
		ctx, cancel := with(context.WithValue(context.Background(), key{}, "v"), time.Second)
		require.Equal(t, "v", ctx.Value(key{}))
		stop := context.AfterFunc(ctx, func() { t.Error("it was stopped") })
		require.True(t, stop())
		require.False(t, stop())
		cancel()
		require.Equal(t, "v", ctx.Value(key{}))
		pass(time.Minute)
	})
}

// Guarantees: W21.
func TestWithTimeout_OutlivesAStoppedWheel(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		first, cancelFirst := w.WithTimeout(context.Background(), time.Minute)
		defer cancelFirst()
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Empty(t, rest)
		stopped, cancelStopped := w.WithTimeout(context.Background(), time.Minute)
		defer cancelStopped()
		start := time.Now()
		for _, ctx := range []context.Context{first, stopped} {
			require.NoError(t, ctx.Err())
		}
		for _, ctx := range []context.Context{first, stopped} {
			<-ctx.Done()
			require.Equal(t, time.Minute, time.Since(start))
			requireEnded(t, ctx, context.DeadlineExceeded, context.DeadlineExceeded)
		}
	})
}

func TestWithTimeout_LeavesNothingBehindWhenCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		parent, cancelParent := context.WithCancel(context.Background())
		defer cancelParent()
		for range 1000 {
			_, cancel := w.WithTimeout(parent, time.Minute)
			cancel()
		}
		require.Zero(t, w.Len())
	})
}

func TestWithTimeout_DescribesItselfAsThoseOfPackageContext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWheel(t)
		type key struct{}
		parent, cancelParent := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		defer cancelParent()
		ctx, cancel := w.WithTimeout(parent, time.Minute)
		defer cancel()
		deadline, _ := ctx.Deadline()
		want := fmt.Sprintf("%v.wheel.WithTimeout(%v [1m0s])", parent, deadline)
		require.Equal(t, want, fmt.Sprint(ctx))
		require.Equal(t, want, fmt.Sprintf("%v %+v %s", ctx, ctx, ctx)[:len(want)])
		child, cancelChild := context.WithCancel(ctx)
		defer cancelChild()
		for _, field := range []string{"mu:", "0x", "map["} {
			require.NotContains(t, fmt.Sprintf("%v %+v", ctx, child), field)
		}
	})
}

func TestWithTimeout_ChildrenHaveEndedWhenCancelReturns(t *testing.T) {
	eachWithTimeout(t, func(t *testing.T, with withTimeout) {
		for range 100 {
			ctx, cancel := with(t.Context(), time.Hour)
			child, cancelChild := context.WithCancel(ctx)
			own, cancelOwn := with(ctx, time.Minute)
			grandchild, cancelGrandchild := with(own, time.Second)
			cancel()
			for _, c := range []context.Context{child, own, grandchild} {
				require.Equal(t, context.Canceled, c.Err())
				select {
				case <-c.Done():
				default:
					t.Fatal("not done")
				}
			}
			cancelChild()
			cancelGrandchild()
			cancelOwn()
		}
	})
}

// A child may be made at the instant at which its parent ends.
func TestWithTimeout_ChildrenMadeWhileTheParentEnds(t *testing.T) {
	t.Parallel()
	w := newWheel(t)
	for range 2000 {
		ctx, cancel := w.WithTimeout(t.Context(), time.Hour)
		var ending sync.WaitGroup
		ending.Go(cancel)
		child, cancelChild := context.WithCancel(ctx)
		own, cancelOwn := w.WithTimeout(ctx, time.Minute)
		<-child.Done()
		<-own.Done()
		ending.Wait()
		cancelChild()
		cancelOwn()
	}
}

func TestWithTimeout_ChildrenBehindAValueCostNoGoroutine(t *testing.T) { // not parallel: it counts goroutines
	type key struct{}
	w := newWheel(t)
	ctx, cancel := w.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	before := runtime.NumGoroutine()
	var children []context.Context
	for range 1000 {
		child, cancelChild := context.WithCancel(context.WithValue(ctx, key{}, "value"))
		defer cancelChild()
		children = append(children, child)
	}
	require.Less(t, runtime.NumGoroutine(), before+10)
	cancel()
	for _, child := range children {
		require.Equal(t, context.Canceled, child.Err(), "when CancelFunc returns")
	}
}

// A context of a wheel whose clock shows another time works with whatever asks for its deadline: package net and
// go-redis compare it with the real time.
func TestWithTimeout_UnderAnotherClockItsDeadlineIsReal(t *testing.T) {
	t.Parallel()
	mock := clock.NewMock()
	mock.Set(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	ctx, cancel := newWheel(t, wheel.WithClock(mock)).WithTimeout(t.Context(), time.Minute)
	defer cancel()
	deadline, _ := ctx.Deadline()
	require.WithinDuration(t, time.Now().Add(time.Minute), deadline, 10*time.Second)
	child, cancelChild := context.WithTimeout(ctx, time.Hour)
	defer cancelChild()
	require.NoError(t, child.Err())
	server, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	conn, err := new(net.Dialer).DialContext(child, "tcp", server.Addr().String())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}
