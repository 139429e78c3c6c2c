package wheel_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// A timer and a channel of a bubble must not be used outside it, or the runtime ends the program.
func TestDefault_HasAWheelForEachBubble(t *testing.T) {
	t.Parallel()
	use := func(t *testing.T) *wheel.Wheel {
		w := wheel.Default()
		require.Same(t, w, wheel.Default())
		began := time.Now()
		require.NoError(t, w.Sleep(t.Context(), 20*time.Millisecond))
		require.GreaterOrEqual(t, time.Since(began), 20*time.Millisecond)
		_, err := w.Stop(context.Background())
		require.ErrorIs(t, err, wheel.ErrDefaultWheel)
		return w
	}
	outside := use(t)
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			inside := use(t)
			require.NotSame(t, outside, inside)
			other := make(chan *wheel.Wheel)
			go func() { other <- wheel.Default() }()
			require.Same(t, inside, <-other)
			time.Sleep(time.Second) // ends its goroutines
		})
	}
	require.Same(t, outside, use(t))
}
