// Command tour demonstrates cogwheel in three steps: timers that close unpaid orders, the lateness of a
// hundred thousand timers, and a lock that is renewed while its holder lives and passes on when the holder
// is killed.
//
//	go run ./examples/tour
//	REDIS_ADDR=localhost:6379 go run ./examples/tour
//
// Without REDIS_ADDR, tour starts an embedded server. With REDIS_ADDR, it uses that Redis for one lock with
// a random name, and leaves no key behind. If a step fails, tour prints one line to standard error and
// exits with status 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/cogwheel-go/cogwheel/wheel"
)

func main() {
	redis.SetLogger(&logging.VoidLogger{}) // the calls return the errors that matter
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "tour: interrupted")
	case err != nil:
		fmt.Fprintln(os.Stderr, "tour:", err)
	default:
		return
	}
	os.Exit(1)
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		return tour(ctx)
	case args[0] == "worker" && len(args) == 4:
		return runWorker(ctx, args[1], args[2], args[3])
	default:
		return errors.New("takes no arguments; REDIS_ADDR=host:port chooses the Redis")
	}
}

func tour(ctx context.Context) error {
	w, err := wheel.New()
	if err != nil {
		return err
	}
	defer w.Stop(context.WithoutCancel(ctx))

	out := &console{}
	addr, closeServer, err := findServer(ctx, w)
	if err != nil {
		return err
	}
	defer closeServer()

	for i, step := range []struct {
		title string
		run   func() error
	}{
		{"Orders that close unless they are paid", func() error { return closeUnpaidOrders(ctx, w, out) }},
		{"100 000 timers over 3 seconds", func() error { return measureLateness(ctx, w, out) }},
		{"A lock, its watchdog, and a holder that is killed", func() error { return takeOver(ctx, w, out, addr) }},
	} {
		out.step(i+1, step.title)
		if err := step.run(); err != nil {
			return err
		}
	}
	out.step(0, "Done. README.md lists the documentation.")
	return nil
}
