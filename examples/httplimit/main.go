// Httplimit serves HTTP on localhost:8080. It allows each client address a burst of 5 requests and one
// request per second.
//
//	REDIS_ADDR=localhost:6379 go run -C examples ./httplimit
//	for i in 1 2 3 4 5 6 7; do curl -si localhost:8080 | grep -iE 'HTTP/|ratelimit|retry'; done
package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	redisAddr := cmp.Or(os.Getenv("REDIS_ADDR"), "localhost:6379")
	if err := run(ctx, redisAddr, cmp.Or(os.Getenv("LISTEN"), "localhost:8080")); err != nil {
		log.Fatal(err)
	}
}

// run serves HTTP until ctx ends.
func run(ctx context.Context, redisAddr, listen string) (err error) {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr}) // a decision has a timeout of its own, 250 ms
	defer rdb.Close()
	limits, err := ratelimit.New(rdb,
		ratelimit.WithPolicy(ratelimit.FailOpen()), // serve without limits while Redis is down
		ratelimit.WithLogger(logger))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limits.Close(context.Background())) }()

	perAddress := limits.Limiter("example", ratelimit.PerSecond(1).WithBurst(5))
	checking, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if _, err := limits.Check(checking, perAddress); err != nil { // what is missing; serve all the same
		logger.Warn("requests may not be limited", "error", err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") })
	server := &http.Server{
		Addr:              listen,
		Handler:           httplimit.New(perAddress, httplimit.ByRemoteAddr)(handler),
		ReadHeaderTimeout: 5 * time.Second,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	logger.Info("serving", "address", listen)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	shutdown, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return server.Shutdown(shutdown)
}
