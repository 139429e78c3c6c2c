package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// Requests for one key under a long and a short limit take turns. Neither makes the key forget what was used
// under the other.
func TestKeyed_LimitsOfOneKeyDoNotForgetEachOther(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.GCRA, ratelimit.FixedWindow} {
		t.Run(fmt.Sprint(algorithm), func(t *testing.T) {
			t.Parallel()
			c, _, _, name := shared(t)
			k := c.Keyed("k", ratelimit.PerHour(20), ratelimit.WithAlgorithm(algorithm))
			short := ratelimit.Limit{Rate: 1000, Per: 10 * time.Millisecond, Burst: 1000}
			hourly := 0
			for range 100 {
				r, err := k.Allow(t.Context(), name)
				require.NoError(t, err)
				if r.Allowed {
					hourly++
				}
				_, err = k.AllowLimit(t.Context(), name, short)
				require.NoError(t, err)
			}
			require.LessOrEqual(t, hourly, 20)
			require.Positive(t, hourly)
		})
	}
}

var _ = redistest.Name
var _ redis.Cmdable
