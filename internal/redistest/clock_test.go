package redistest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestStartOnClock(t *testing.T) {
	t.Parallel()
	s, clock := redistest.StartOnClock(t)
	rdb := s.Client(t)
	offset := func() time.Duration {
		now, err := rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		return time.Until(now).Round(time.Minute)
	}
	require.NoError(t, rdb.Set(t.Context(), "key", "value", time.Minute).Err())
	require.Zero(t, offset())
	clock.Set(t, time.Hour)
	require.Equal(t, time.Hour, offset())
	require.Zero(t, rdb.Exists(t.Context(), "key").Val(), "its minute has passed")
	clock.Set(t, -time.Hour)
	require.Equal(t, -time.Hour, offset())
}
