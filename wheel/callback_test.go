package wheel_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestWheel_CallbacksMayUseTheWheel(t *testing.T) {
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		w := newWheel(t, wheel.WithExecutor(e))
		var ran counter
		var self, next, later atomic.Pointer[wheel.Timer]
		set := func(p *atomic.Pointer[wheel.Timer], timer wheel.Timer) { p.Store(&timer) }
		set(&self, after(t, w, time.Second, func() {
			require.False(t, self.Load().Stop(), "it has fired")
			require.False(t, self.Load().Reschedule(time.Second))
			next.Load().Stop()
			require.True(t, later.Load().Reschedule(time.Second))
			_, err := w.AfterFunc(0, ran.inc)
			require.NoError(t, err)
		}))
		set(&next, after(t, w, time.Second+time.Millisecond, func() { t.Error("stopped by the one before it") }))
		set(&later, after(t, w, time.Hour, ran.inc))
		pass(3 * time.Second)
		require.EqualValues(t, 2, ran.Load())
		require.Zero(t, w.Len())
	})
}

// Guarantees: A3.
func TestWheel_APanicHarmsNoOtherEntry(t *testing.T) {
	boom := errors.New("boom")
	eachExecutor(t, func(t *testing.T, e wheel.Executor) {
		var values []any
		handled := make(chan any, 10)
		w := newWheel(t, wheel.WithExecutor(e), wheel.WithPanicHandler(func(v any, stack []byte) {
			require.Contains(t, string(stack), "wheel_test")
			handled <- v
		}))
		var ran counter
		bad := map[int]func(){
			0:  func() { panic("value") },
			10: func() { panic(boom) },
			11: func() { panic(nil) },
			12: func() { runtime.Goexit() },
			49: func() { panic("last") },
		}
		for k := range 50 {
			f := bad[k]
			if f == nil {
				f = ran.inc
			}
			after(t, w, time.Second, f)
		}
		after(t, w, 2*time.Second, ran.inc)
		pass(3 * time.Second)
		require.EqualValues(t, 46, ran.Load())
		for range 4 {
			values = append(values, <-handled)
		}
		require.Empty(t, handled, "each panic is reported once, Goexit is none")
		require.Contains(t, values, any("value"))
		require.Contains(t, values, any(boom))
		require.Contains(t, values, any("last"))
	})
}

func TestWheel_APanicIsLoggedByDefault(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var out bytes.Buffer
		w := newWheel(t, wheel.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
		after(t, w, time.Second, func() { panic("boom") })
		pass(time.Second)
		require.Contains(t, out.String(), "callback panicked")
		require.Contains(t, out.String(), "boom")
	})
}

// panicky panics when it is told of its cancellation.
type panicky struct{ task }

func (p *panicky) Cancelled(*wheel.Timeout) { panic("in the hook") }

func TestTimeout_APanickingHookIsReported(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var reported counter
		w := newWheel(t, wheel.WithPanicHandler(func(any, []byte) { reported.inc() }))
		require.True(t, newTimeout(t, w, &panicky{}, time.Second).Cancel())
		newTimeout(t, w, &panicky{}, time.Second)
		newTimeout(t, w, &panicky{}, time.Second)
		rest, err := w.Stop(context.Background())
		require.NoError(t, err)
		require.Len(t, rest, 2)
		require.EqualValues(t, 3, reported.Load())
	})
}

// Guarantees: W9.
func TestWheel_InlineDelaysOthersWhileItBlocks(t *testing.T) {
	inBubble(t, func(t *testing.T) { // the documented price of Inline, and the control of the tests above
		w := newWheel(t, wheel.WithExecutor(wheel.Inline()))
		start := time.Now()
		var took atomic.Int64
		after(t, w, time.Second, func() { time.Sleep(5 * time.Second) })
		after(t, w, 2*time.Second, func() { took.Store(int64(time.Since(start))) })
		pass(time.Minute)
		require.Equal(t, 6*time.Second, time.Duration(took.Load()))
	})
}
