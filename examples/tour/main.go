// Command tour shows cogwheel in four steps: a million timers beside those of package time, a lock whose holder loses its
// network, a limit for two processes, and permits for two processes.
//
//	go run -C examples ./tour
//	REDIS_ADDR=localhost:6379 go run -C examples ./tour
//
// Without REDIS_ADDR, tour starts an embedded server. With REDIS_ADDR, it uses that Redis for names that begin with
// "tour:" and end in random letters, and leaves no key there for longer than a day. If a step fails, tour prints one line
// to standard error and exits with status 1.
package main

import (
	"context"
	"crypto/rand"
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
	if len(args) > 0 {
		return errors.New("takes no arguments; REDIS_ADDR=host:port chooses the Redis")
	}
	w, err := wheel.New()
	if err != nil {
		return err
	}
	defer w.Stop(context.WithoutCancel(ctx))
	addr, closeServer, err := findServer(ctx, w)
	if err != nil {
		return err
	}
	defer closeServer()
	opts, err := redisOptions(addr)
	if err != nil {
		return err
	}
	return (&tour{wheel: w, redis: opts, name: "tour:" + rand.Text(), out: &console{}}).run(ctx)
}

// tour is what the steps share.
type tour struct {
	wheel *wheel.Wheel
	redis *redis.Options
	name  string // of what the steps write into Redis
	out   *console
}

// connect returns the options of a client as another process would have it.
func (t *tour) connect() *redis.Options {
	opts := *t.redis
	return &opts
}

func (t *tour) run(ctx context.Context) error {
	for i, step := range []struct {
		title string
		run   func(context.Context, *tour) error
	}{
		{"A million timers, scheduled for 30 minutes and stopped", compareTimers},
		{"A lock whose holder loses its network", loseLock},
		{"A limit of 5 per second for two processes", limitRequests},
		{"Two permits for five jobs of two processes", sharePermits},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		t.out.step(i+1, step.title)
		if err := step.run(ctx, t); err != nil {
			return err
		}
	}
	fmt.Print("\nNext: docs/choosing.md says which of these you need, docs/recipes.md has programs to begin with.\n")
	return nil
}
