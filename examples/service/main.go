// Command service is an HTTP service that uses every part of cogwheel, as a program to copy from. Several
// processes of it share one Redis:
//
//   - each client address may send 5 requests per second to the API, to all processes together;
//   - one process at a time changes an order;
//   - at most 2 reports are made at a time, by all processes together;
//   - one process is the leader, and closes the books every few seconds;
//   - each request has a deadline, which is an entry on the wheel.
//
// It serves the API on LISTEN. On OPS, which must not be public, it serves the metrics for Prometheus, the status
// page, which shows names and metadata of locks, and the health check.
//
//	cd examples/service && go run .
//	REDIS_URL=redis://localhost:6379 LISTEN=localhost:8080 OPS=localhost:8081 go run .
//
//	curl -i -X POST localhost:8080/orders/42/ship
//	curl -i -X POST localhost:8080/reports
//	curl localhost:8081/healthz
//	curl localhost:8081/metrics
//	open http://localhost:8081/debug/cogwheel
//
// REDIS_URL may have a user and a password, and rediss:// selects TLS:
//
//	REDIS_URL=rediss://user:password@redis.internal:6379/0 go run .
//
// Without REDIS_URL it starts an embedded server, for trying it out.
//
// It stops on SIGTERM and on an interrupt: requests in progress end first, then the reports that were answered
// with status 202 are made, then locks and permits are released. That takes at most 25 s, also while Redis hangs. A
// report that cannot be made by then, because Redis does not answer or other processes have the permits, is logged
// as lost.
package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

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
		redis:  os.Getenv("REDIS_URL"),
		listen: cmp.Or(os.Getenv("LISTEN"), "localhost:8080"),
		ops:    cmp.Or(os.Getenv("OPS"), "localhost:8081"),
		logger: logger,
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	stop() // a second signal ends the process at once
	return s.stop(context.Background())
}
