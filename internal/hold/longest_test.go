package hold_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/hold"
)

func TestLongest(t *testing.T) {
	t.Parallel()
	t.Run("keeps the greater value", func(t *testing.T) {
		t.Parallel()
		var l hold.Longest
		for _, step := range [][2]time.Duration{{3, 3}, {2, 3}, {3, 3}, {7, 7}, {-1, 7}} {
			l.Raise(step[0])
			require.Equal(t, step[1], l.Load())
		}
	})

	t.Run("keeps the maximum of concurrent calls", func(t *testing.T) {
		t.Parallel()
		var l hold.Longest
		var wg sync.WaitGroup
		for k := range time.Duration(4) {
			wg.Go(func() {
				for i := range time.Duration(25_000) {
					l.Raise(4*i + k)
					if got := l.Load(); got < 4*i+k {
						t.Errorf("%d after Raise to %d", got, 4*i+k)
					}
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 99_999, l.Load())
	})
}
