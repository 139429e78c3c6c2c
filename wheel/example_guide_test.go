package wheel_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// Repeat by a period, and by a calendar.
func Example_repeat() {
	w, stop := exampleWheel()
	defer stop()
	flush, bill := func() {}, func(_ time.Time) {}

	flushing, err := w.Every(10*time.Second, flush)
	if err != nil {
		log.Fatal(err)
	}
	monthly := wheel.ScheduleFunc(func(prev time.Time) time.Time { // the first of each month, at six
		next := time.Date(prev.Year(), prev.Month(), 1, 6, 0, 0, 0, prev.Location())
		if !next.After(prev) {
			next = time.Date(prev.Year(), prev.Month()+1, 1, 6, 0, 0, 0, prev.Location())
		}
		return next
	})
	billing, err := w.Schedule(monthly, bill)
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(flushing.Stop(), billing.Stop())
	// Output: true true
}

// A goroutine that pauses between two attempts, and gives up when its context ends.
func Example_retry() {
	w, stop := exampleWheel()
	defer stop()
	retry := func(ctx context.Context, call func(context.Context) error) error {
		ctx, cancel := w.WithTimeout(ctx, 30*time.Second) // for all attempts
		defer cancel()
		for pause := time.Millisecond; ; pause *= 2 {
			err := call(ctx)
			if err == nil {
				return nil
			}
			if ended := w.Sleep(ctx, pause); ended != nil {
				return errors.Join(ended, err)
			}
		}
	}

	attempts := 0
	err := retry(context.Background(), func(context.Context) error {
		if attempts++; attempts < 3 {
			return errors.New("busy")
		}
		return nil
	})
	fmt.Println(attempts, err)
	// Output: 3 <nil>
}

// A million sessions, each with an idle timeout. An entry is an id and nothing else.
func Example_million() {
	expire := func(id uint64) { fmt.Println("expired:", id) }

	sessions, err := wheel.NewTyped(expire, wheel.WithMaxPendingTimeouts(2_000_000))
	if err != nil {
		log.Fatal(err)
	}
	timers := make([]wheel.Timer, 1_000_000)
	for id := range timers {
		timers[id], err = sessions.Add(uint64(id), 30*time.Minute)
		if err != nil {
			log.Fatal(err) // ErrTooManyPending: refuse the session
		}
	}
	timers[7].Reschedule(30 * time.Minute) // session 7 is used again
	timers[8].Stop()                       // session 8 logs out

	fmt.Println("pending:", sessions.Len())
	_, err = sessions.Stop(context.Background())
	fmt.Println(err)
	// Output:
	// pending: 999999
	// <nil>
}
