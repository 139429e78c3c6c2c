// Command orders serves orders over HTTP. An order that nobody pays closes itself, although the process that took it has
// died.
//
//	go run -C examples ./orders
//
// shows that in a few seconds, without a Redis: it starts an embedded server and a process that takes orders, kills that
// process by SIGKILL, and starts another. With the address of a Redis, it is one of any number of processes that serve the
// orders there:
//
//	go run -C examples ./orders -redis localhost:6379 -listen localhost:8080
//	curl -X POST localhost:8080/orders/7        # takes an order of one item, and closes it after -after, 30 minutes
//	curl -X POST localhost:8080/orders/7/pay
//	curl localhost:8080/orders
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/delay"
)

func main() {
	addr := flag.String("redis", os.Getenv("REDIS_ADDR"), "host:port of the Redis; none shows what a killed process leaves")
	listen := flag.String("listen", "localhost:8080", "host:port to serve HTTP at")
	after := flag.Duration("after", 30*time.Minute, "after which an order closes itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if *addr == "" {
		err = demonstrate(ctx)
	} else {
		err = run(ctx, *addr, *listen, *after)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

// run serves HTTP and closes orders until ctx ends.
func run(ctx context.Context, addr, listen string, after time.Duration) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	delays, err := delay.New(rdb)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, delays.Close(context.WithoutCancel(ctx))) }()
	s := &service{rdb: rdb, queue: delays.Queue("orders"), after: after}

	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(listener) }()
	go func() { ended <- s.queue.Serve(ctx, 16, s.closeOrder) }() // hands back at its end what it has not closed
	fmt.Printf("serving http://%s\n", listener.Addr())

	var failed error
	select {
	case failed = <-ended:
	case <-ctx.Done():
	}
	stop()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(failed, server.Shutdown(within))
}
