package delay_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Child(runCrashing)
	redistest.Main(m)
}

func newClient(t testing.TB, rdb redis.UniversalClient, opts ...delay.Option) *delay.Client {
	t.Helper()
	c, err := delay.New(rdb, append([]delay.Option{delay.WithWheel(redistest.Wheel(t))}, opts...)...)
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}
