package delay_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
)

// Tasks whose claims were on their way when another began to run alone do not begin beside it.
func TestSolo_ALateClaimDoesNotBeginBesideATaskThatRunsAlone(t *testing.T) {
	t.Parallel()
	s := &delay.Solo{}
	alone, second, other := delay.AttemptAfter(2), delay.AttemptAfter(3), delay.AttemptAfter(1)
	next, isLate := s.Enter(other)
	require.True(t, next == nil && !isLate)
	next, isLate = s.Enter(alone)
	require.True(t, next == nil && !isLate, "it waits")
	_, isLate = s.Enter(delay.AttemptAfter(0))
	require.False(t, isLate, "nothing runs alone yet")
	next, _ = s.Leave(other)
	require.Nil(t, next)
	next, _ = s.Leave(delay.AttemptAfter(0))
	require.Same(t, alone, next)
	next, isLate = s.Enter(other)
	require.True(t, next == nil && isLate)
	next, isLate = s.Enter(second)
	require.True(t, next == nil && !isLate)
	next, over := s.Leave(other)
	require.True(t, next == nil && !over)
	next, over = s.Leave(alone)
	require.Same(t, second, next)
	require.False(t, over)
	_, over = s.Leave(second)
	require.True(t, over && !s.Waits())
}
