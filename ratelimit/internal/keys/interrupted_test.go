package keys_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/client"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Callers that have joined the call of one that has left while sending it are asked for again. Here the client is
// closed meanwhile, so that is what they hear.
func TestJob_InterruptedAsksForTheOthersAgain(t *testing.T) {
	t.Parallel()
	w, err := wheel.New()
	require.NoError(t, err)
	defer func() {
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	}()
	c := keys.New(keys.Config{
		Wheel: w, Clock: client.NewClock(w), Gate: new(gate.Gate),
		Timeout: time.Minute, Patience: time.Hour, // of no time, the call would be over before it is sent
	})
	s := c.Use(keys.ID{Key: "k"}, nil)
	defer s.Release()
	leaves, leave := context.WithCancel(t.Context())
	told, err := s.Interrupt(func() {
		leave()
		c.Gate.Close()
	}, leaves, t.Context())
	require.NoError(t, err)
	require.Equal(t, map[int]error{1: keys.ErrClosed}, told, "the first one knows that it has left")
	require.NoError(t, c.Gate.Wait(t.Context()))
}
