package grpclimit_test

import (
	"context"
	"log"
	"net"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	"github.com/cogwheel-go/cogwheel/contrib/grpclimit"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Each address may send twenty calls at once, and then ten a second.
func Example() {
	limits, err := ratelimit.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(context.Background())

	perPeer := limits.Keyed("api", ratelimit.PerSecond(10).WithBurst(20))
	limiter := grpclimit.New(perPeer, grpclimit.ByPeer)
	server := grpc.NewServer(
		grpc.UnaryInterceptor(limiter.Unary),
		grpc.StreamInterceptor(limiter.Stream),
	)

	listener, err := net.Listen("tcp", "localhost:8081")
	if err != nil {
		log.Print(err)
		return
	}
	log.Print(server.Serve(listener))
}
