package delay_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// The timer of a task may fire just when Serve ends: it begins no task after the last worker has left.
func TestServe_NoTaskBeginsAfterTheEnd(t *testing.T) {
	t.Parallel()
	q := newClient(t, redistest.Shared(t).Client(t)).Queue(redistest.Name(t))
	ends, err := q.StopThenBegin(func(context.Context, *delay.Task) error {
		t.Error("it has begun")
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []delay.Outcome{delay.HandedBack}, ends)
}
