package cogwheelotel_test //nolint:testableexamples // the clients need a Redis

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/contrib/cogwheelotel"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func observed(ctx context.Context, rdb redis.UniversalClient, serve func(*redislock.Client) error) error {
	telemetry, err := cogwheelotel.New() // the global providers, unless options give others
	if err != nil {
		return err
	}
	locks, err := redislock.New(rdb, redislock.WithHooks(telemetry.LockHooks("orders")))
	if err != nil {
		return err
	}
	defer locks.Close(ctx)
	observed, err := telemetry.ObserveLocks("orders", locks)
	if err != nil {
		return err
	}
	defer observed.Unregister()
	return serve(locks)
}

func Example() {
	_ = observed // main calls it with what the service does
}
