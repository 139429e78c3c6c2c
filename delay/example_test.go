package delay_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"time"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func newDelays(opts ...delay.Option) *delay.Client {
	delays, err := delay.New(redistest.Open(), opts...)
	if err != nil {
		log.Fatal(err)
	}
	redistest.AtEnd(delays.Close)
	return delays
}

// An order that closes itself unless it is paid.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	delays := newDelays()
	orders := delays.Queue("orders")
	for id, pays := range map[string]time.Duration{"order-7": 30 * time.Minute, "order-8": 10 * time.Millisecond} {
		if err := orders.Schedule(ctx, id, pays, []byte("a book")); err != nil {
			log.Fatal(err)
		}
	}
	paid, err := orders.Cancel(ctx, "order-7")
	fmt.Println("paid:", paid, err)

	err = orders.Serve(ctx, 16, func(_ context.Context, t *delay.Task) error {
		fmt.Printf("%s is closed: %s\n", t.ID, t.Payload)
		cancel()
		return nil
	})
	fmt.Println(err)
	// Output:
	// paid: true <nil>
	// order-8 is closed: a book
	// <nil>
}

func ExampleQueue_Schedule() {
	ctx := context.Background()
	delays := newDelays()
	orders := delays.Queue("orders")
	if err := orders.Schedule(ctx, "order-7", 30*time.Minute, []byte("a book")); err != nil {
		log.Fatal(err)
	}
	cancelled, err := orders.Cancel(ctx, "order-7") // it was paid
	fmt.Println(cancelled, err)
	// Output: true <nil>
}

func ExampleQueue_ScheduleAll() {
	ctx := context.Background()
	reminders := newDelays().Queue("reminders")
	tasks := []delay.NewTask{
		{ID: "order-7", Delay: time.Hour, Payload: []byte("a book")},
		{ID: "order-8", At: time.Now().Add(48 * time.Hour), Payload: []byte("a lamp")},
	}
	scheduled, err := reminders.ScheduleAll(ctx, slices.Values(tasks), delay.WithAttempts(3)) // of each task
	if err != nil {
		log.Fatalf("all from %s on are to be scheduled again: %v", tasks[scheduled].ID, err)
	}
	fmt.Println(scheduled)
	// Output: 2
}

func closeOrder(context.Context, string, []byte, int64) error { return nil }

func ExampleQueue_Serve() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	orders := newDelays().Queue("orders")
	err := orders.Serve(ctx, 16, func(ctx context.Context, t *delay.Task) error {
		return closeOrder(ctx, t.ID, t.Payload, t.Token)
	})
	fmt.Println(err)
	// Output: <nil>
}

func ExampleQueue_FailedTasks() {
	ctx, cancel := context.WithCancel(context.Background())
	delays := newDelays(delay.WithHooks(delay.Hooks{Ended: func(delay.Event) { cancel() }}))
	orders := delays.Queue("orders", delay.WithRetry(1, delay.Backoff(time.Second, time.Hour)))
	if err := orders.Schedule(ctx, "order-7", 0, nil); err != nil {
		log.Fatal(err)
	}
	err := orders.Serve(ctx, 1, func(context.Context, *delay.Task) error {
		return errors.New("the warehouse is closed")
	})
	if err != nil {
		log.Fatal(err)
	}

	ctx = context.Background()
	for task, err := range orders.FailedTasks(ctx) { // PendingTasks yields those that wait for their time, by time
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(task.ID, "has failed", task.Failures, "times")
		if _, err := orders.RetryFailed(ctx, task.ID); err != nil { // it is due now, with as many attempts as a new task
			log.Fatal(err)
		}
	}
	state, err := orders.State(ctx, "order-7") // PhasePending, PhaseClaimed, PhaseFailed; PhaseUnknown, "", if it has ended
	fmt.Println(state.Phase, state.Failures, err)
	// Output:
	// order-7 has failed 1 times
	// pending 0 <nil>
}
