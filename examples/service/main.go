// Command service is an HTTP service that uses every part of cogwheel, as a program to copy from. Several
// processes of it share one Redis:
//
//   - each client address may send 5 requests per second to the API, to all processes together;
//   - one process at a time changes an order;
//   - at most 2 reports are made at a time, by all processes together;
//   - one process is the leader, and closes the books every few seconds;
//   - each request has a deadline, which is an entry on the wheel.
//
// It serves the API on LISTEN, and on OPS the metrics for Prometheus, the status page and the health check.
//
//	cd examples/service && go run .
//	REDIS_ADDR=localhost:6379 LISTEN=localhost:8080 OPS=localhost:8081 go run .
//
//	curl -i -X POST localhost:8080/orders/42/ship
//	curl -i -X POST localhost:8080/reports
//	curl localhost:8081/metrics
//	open http://localhost:8081/debug/cogwheel
//
// Without REDIS_ADDR it starts an embedded server, for trying it out. It stops on SIGTERM and on an
// interrupt: requests in progress end first, then locks and permits are released.
package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// drain is how long the service takes to stop at most.
const drain = 10 * time.Second

func main() {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(logger); err != nil {
		logger.Error("service failed", "error", err)
		os.Exit(1)
	}
	logger.Info("stopped")
}

// run serves until the process is told to stop.
func run(logger *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := start(ctx, config{
		redis:  os.Getenv("REDIS_ADDR"),
		listen: cmp.Or(os.Getenv("LISTEN"), "localhost:8080"),
		ops:    cmp.Or(os.Getenv("OPS"), "localhost:8081"),
		logger: logger,
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	stop() // a second signal ends the process at once
	draining, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	return s.stop(draining)
}
