package gate_test

import (
	"bytes"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// goroutine names the goroutine that calls it.
func goroutine() string {
	text := make([]byte, 64)
	name, _, _ := bytes.Cut(text[:runtime.Stack(text, false)], []byte(" ["))
	return string(name)
}

// onWorker returns the goroutine on which Go has called a function.
func onWorker(w *gate.Workers) string {
	name := make(chan string)
	w.Go(func() { name <- goroutine() })
	return <-name
}

// A bubble waits for its goroutines, and fails if one of them never ends.
func TestWorkers(t *testing.T) {
	t.Parallel()
	with := func(name string, f func(t *testing.T, timers *wheel.Wheel, w *gate.Workers)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				timers, err := wheel.New()
				require.NoError(t, err)
				f(t, timers, gate.NewWorkers(timers))
				_, err = timers.Stop(t.Context())
				require.NoError(t, err)
			})
		})
	}

	with("use a goroutine again", func(t *testing.T, timers *wheel.Wheel, w *gate.Workers) {
		first := onWorker(w)
		for range 100 {
			synctest.Wait()
			require.Equal(t, first, onWorker(w))
		}
		w.Close()
		require.Zero(t, timers.Len())
	})

	with("end one that is not needed for two seconds", func(t *testing.T, timers *wheel.Wheel, w *gate.Workers) {
		first := onWorker(w)
		for range 10 {
			time.Sleep(900 * time.Millisecond)
			require.Equal(t, first, onWorker(w), "needed")
		}
		time.Sleep(2100 * time.Millisecond)
		synctest.Wait()
		require.Zero(t, timers.Len(), "none is left")
		require.NotEqual(t, first, onWorker(w))
		w.Close()
	})

	with("run as many functions at once as there are", func(t *testing.T, _ *wheel.Wheel, w *gate.Workers) {
		for range 2 {
			begin, done := make(chan struct{}), make(chan string, 200)
			for range cap(done) {
				w.Go(func() {
					<-begin
					done <- goroutine()
				})
			}
			close(begin)
			names := map[string]bool{}
			for range cap(done) {
				names[<-done] = true
			}
			require.Len(t, names, cap(done))
			synctest.Wait()
		}
		w.Close()
	})

	with("end after Close, and run what comes then", func(t *testing.T, timers *wheel.Wheel, w *gate.Workers) {
		end, running := make(chan struct{}), make(chan string)
		w.Go(func() {
			running <- goroutine()
			<-end
		})
		first := <-running
		w.Close()
		close(end)
		synctest.Wait()
		require.NotEqual(t, first, onWorker(w))
		require.Zero(t, timers.Len())
	})

	with("a function that ends its goroutine ends no other", func(t *testing.T, _ *wheel.Wheel, w *gate.Workers) {
		w.Go(runtime.Goexit)
		synctest.Wait()
		require.NotEmpty(t, onWorker(w))
		w.Close()
	})

	with("end with the wheel", func(t *testing.T, timers *wheel.Wheel, w *gate.Workers) {
		onWorker(w)
		synctest.Wait()
		_, err := timers.Stop(t.Context())
		require.NoError(t, err)
		require.NotEmpty(t, onWorker(w))
	})

	with("keep none without a wheel that would end it", func(t *testing.T, timers *wheel.Wheel, w *gate.Workers) {
		_, err := timers.Stop(t.Context())
		require.NoError(t, err)
		require.NotEmpty(t, onWorker(w))
	})

	t.Run("none are new goroutines", func(t *testing.T) {
		t.Parallel()
		var none *gate.Workers
		require.NotEqual(t, goroutine(), onWorker(none))
	})
}
