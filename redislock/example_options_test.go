package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// The lease is how long others wait for a holder that died. Work may take longer: the lock is renewed.
func ExampleWithLease() {
	ctx := context.Background()
	rebuild := newLocks().Mutex("rebuild", redislock.WithLease(10*time.Second))
	lock, err := rebuild.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	state, err := rebuild.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("free", state.TTL.Round(10*time.Second), "after a crash")
	// Output: free 10s after a crash
}

// Without renewal, the lock ends with its lease, however long the work takes.
func ExampleWithoutRenewal() {
	ctx := context.Background()
	scan := newLocks().Mutex("scan", redislock.WithLease(time.Second), redislock.WithoutRenewal())
	err := scan.Do(ctx, func(ctx context.Context) error {
		<-ctx.Done() // work for as long as it may take
		return context.Cause(ctx)
	})
	fmt.Println("lost:", errors.Is(err, redislock.ErrLost))
	// Output: lost: true
}

// WithMaxHold ends a lock whose holder lives but has forgotten it, or hangs.
func ExampleWithMaxHold() {
	ctx := context.Background()
	export := newLocks().Mutex("export", redislock.WithMaxHold(time.Second))
	err := export.Do(ctx, func(ctx context.Context) error {
		<-ctx.Done() // work that never ends
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, redislock.ErrLost), errors.Is(err, redislock.ErrMaxHold))
	// Output: true true
}

// WithMinHold lets a job that is shorter than the clocks of two processes differ run in one of them.
func ExampleWithMinHold() {
	ctx := context.Background()
	report := newLocks().Mutex("report", redislock.WithMinHold(time.Minute))
	for _, process := range []string{"first", "second"} {
		l, err := report.TryLock(ctx)
		if errors.Is(err, redislock.ErrLocked) {
			fmt.Println(process, "skips it")
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(process, "runs it")
		if err := l.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// first runs it
	// second skips it
}

// WithReplicas takes the lock only if replicas have it too. This server has none.
func ExampleWithReplicas() {
	ctx := context.Background()
	ledger := newLocks().Mutex("ledger", redislock.WithReplicas(1, 100*time.Millisecond))
	_, err := ledger.Lock(ctx)
	fmt.Println("not held:", errors.Is(err, redislock.ErrReplicas))
	// Output: not held: true
}

// Callers of one process hand a lock over without asking Redis, for 20 ms and a hundred times by default.
// Where processes should alternate, turn it off.
func ExampleWithHandoff() {
	ctx := context.Background()
	turn := newLocks().Mutex("turn", redislock.WithHandoff(0, 0))
	err := turn.Do(ctx, func(context.Context) error {
		fmt.Println("my turn")
		return nil
	})
	fmt.Println(err)
	// Output:
	// my turn
	// <nil>
}

// Metadata tells an operator what holds a lock.
func ExampleWithMetadata() {
	ctx := context.Background()
	vacuum := newLocks().Mutex("vacuum", redislock.WithMetadata("host-3, pid 4711"))
	lock, err := vacuum.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	state, err := vacuum.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, holder := range state.Holders {
		fmt.Println(holder.Metadata)
	}
	// Output: host-3, pid 4711
}

// Hooks are where metrics and traces are made.
func ExampleHooks() {
	ctx := context.Background()
	events := make(chan string, 10)
	locks, err := redislock.New(newRedis(), redislock.WithHooks(redislock.Hooks{
		Acquired:  func(e redislock.Event) { events <- "acquired " + e.Name },
		Contended: func(e redislock.Event) { events <- "contended " + e.Name },
		Lost: func(e redislock.Event) {
			events <- fmt.Sprintf("lost %s: %t", e.Name, errors.Is(e.Err, redislock.ErrLost))
		},
		Released: func(e redislock.Event) { events <- "released " + e.Name },
	}))
	if err != nil {
		log.Fatal(err)
	}
	job := locks.Mutex("job")
	lock, err := job.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = job.TryLock(ctx)
	fmt.Println(errors.Is(err, redislock.ErrLocked), lock.Unlock(ctx), locks.Close(ctx))

	close(events) // none is called after Close
	for event := range events {
		fmt.Println(event)
	}
	// Output:
	// true <nil> <nil>
	// acquired job
	// contended job
	// released job
}
