package delay_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// BenchmarkSchedule schedules tasks that are due later.
func BenchmarkSchedule(b *testing.B) {
	tasks := newClient(b, redistest.Bench(b))
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			q, n := tasks.Queue(redistest.Name(b)), atomic.Int64{}
			redistest.Calls(b, goroutines, func(int) error {
				return q.Schedule(b.Context(), strconv.FormatInt(n.Add(1), 10), time.Hour, []byte("payload"))
			})
		})
	}
}

// BenchmarkScheduleServe schedules tasks that are due at once, from 64 goroutines, while 64 workers run them. An
// operation is one task, from its Schedule to the end of its handler.
func BenchmarkScheduleServe(b *testing.B) {
	tasks := newClient(b, redistest.Bench(b))
	b.Run("goroutines=64/workers=64", func(b *testing.B) {
		q, n := tasks.Queue(redistest.Name(b)), atomic.Int64{}
		var left sync.WaitGroup
		left.Add(b.N)
		stop := serve(b, q, 64, func(context.Context, *delay.Task) error {
			left.Done()
			return nil
		})
		defer stop()
		redistest.Calls(b, 64, func(int) error {
			return q.Schedule(b.Context(), strconv.FormatInt(n.Add(1), 10), 0, []byte("payload"))
		})
		b.StartTimer()
		left.Wait()
		b.StopTimer()
	})
}
