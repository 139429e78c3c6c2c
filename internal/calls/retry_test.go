package calls_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestRetry_ManyTimes(t *testing.T) {
	t.Parallel()
	t.Run("pauses for half a second at most, however often it is to retry", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w, err := wheel.New()
			require.NoError(t, err)
			rdb := redis.NewClient(&redis.Options{})
			defer rdb.Close()
			const retries = 100
			var sent []time.Time
			r := calls.Retry(w, rdb, retries, nil, func() (*redis.Cmd, time.Time) {
				now := time.Now()
				sent = append(sent, now)
				cmd := redis.NewCmd(t.Context())
				cmd.SetErr(io.EOF)
				return cmd, now
			})
			require.ErrorIs(t, r.Err(), io.EOF)
			require.True(t, r.Doubt)
			require.Len(t, sent, 1+retries)
			for i := 10; i < retries; i++ {
				pause := sent[i+1].Sub(sent[i])
				require.GreaterOrEqual(t, pause, 256*time.Millisecond)
				require.Less(t, pause, 600*time.Millisecond)
			}
			_, err = w.Stop(t.Context())
			require.NoError(t, err)
		})
	})
}
