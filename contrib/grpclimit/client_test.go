package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cogwheel-go/cogwheel/contrib/grpclimit"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

func TestClient_Waits(t *testing.T) {
	t.Parallel()
	k := limits(t, redistest.Shared(t).Client(t)).Limiter("grpc"+redistest.Name(t), ratelimit.PerSecond(20).WithBurst(1))
	waits := grpclimit.NewClient(k, grpclimit.ByMethod)
	client := dial(t, nil, grpc.WithUnaryInterceptor(waits.Unary), grpc.WithStreamInterceptor(waits.Stream))
	began := time.Now()
	for range 6 {
		_, err := client.Check(t.Context(), check)
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, time.Since(began), 5*50*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := client.Watch(ctx, check)
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	cancel()
	_, err = client.Watch(ctx, check)
	require.Equal(t, codes.Canceled, status.Code(err))
}

func TestClient_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := limits(t, redistest.Shared(t).Client(t))
	k := c.Limiter("grpc"+redistest.Name(t), ratelimit.PerHour(1))
	waits := grpclimit.NewClient(k, grpclimit.ByMethod)
	client := dial(t, nil, grpc.WithUnaryInterceptor(waits.Unary))
	_, err := client.Check(t.Context(), check)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = client.Check(ctx, check)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "at once: it could not be granted in time")
	require.NoError(t, ctx.Err())
	cancel()
	_, err = client.Check(ctx, check)
	require.Equal(t, codes.Canceled, status.Code(err))
	require.NoError(t, c.Close(t.Context()))
	_, err = client.Check(t.Context(), check)
	require.Equal(t, codes.Unavailable, status.Code(err))

	free := grpclimit.NewClient(k, func(context.Context, string) (string, bool) { return "", false })
	_, err = dial(t, nil, grpc.WithUnaryInterceptor(free.Unary)).Check(t.Context(), check)
	require.NoError(t, err, "not limited")
}
