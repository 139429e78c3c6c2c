package grpclimit_test

import (
	"context"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const method = "/grpc.health.v1.Health/Check"

// limits returns a Client that is closed with the test.
func limits(t *testing.T, rdb redis.UniversalClient, opts ...ratelimit.Option) *ratelimit.Client {
	t.Helper()
	c, err := ratelimit.New(rdb, append([]ratelimit.Option{ratelimit.WithWheel(redistest.Wheel(t)), ratelimit.WithTimeout(redistest.Patience / 3)}, opts...)...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

// dial serves the health service over a connection in memory.
func dial(t *testing.T, server []grpc.ServerOption, client ...grpc.DialOption) grpc_health_v1.HealthClient {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	s := grpc.NewServer(server...)
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- s.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///memory", append(client,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		s.Stop()
		require.NoError(t, <-done)
	})
	return grpc_health_v1.NewHealthClient(conn)
}
