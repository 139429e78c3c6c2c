package highest_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/highest"
)

func TestRaise(t *testing.T) {
	t.Run("keeps the greater value", func(t *testing.T) {
		var v atomic.Int64
		for _, step := range [][2]int64{{3, 3}, {2, 3}, {3, 3}, {7, 7}, {-1, 7}} {
			highest.Raise(&v, step[0])
			require.Equal(t, step[1], v.Load())
		}
	})

	t.Run("keeps the maximum of concurrent calls", func(t *testing.T) {
		var v atomic.Int64
		var wg sync.WaitGroup
		for k := range int64(4) {
			wg.Go(func() {
				for i := range int64(25_000) {
					highest.Raise(&v, 4*i+k)
					if got := v.Load(); got < 4*i+k {
						t.Errorf("%d after Raise to %d", got, 4*i+k)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 99_999, v.Load())
	})
}
