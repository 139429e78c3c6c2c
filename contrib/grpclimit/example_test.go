package grpclimit_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	"github.com/cogwheel-go/cogwheel/contrib/grpclimit"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Each address may send twenty calls at once, and then ten a second.
func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	limits, err := ratelimit.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close(context.Background())

	perPeer := limits.Limiter("api", ratelimit.PerSecond(10).WithBurst(20))
	limiter := grpclimit.New(perPeer, grpclimit.ByPeer)
	server := grpc.NewServer(
		grpc.UnaryInterceptor(limiter.Unary),
		grpc.StreamInterceptor(limiter.Stream),
	)
	defer server.Stop()

	// Register services, and call server.Serve.
	fmt.Println(perPeer.Limit().Rate, "calls a second for each peer")
	// Output: 10 calls a second for each peer
}
