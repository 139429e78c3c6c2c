package semaphore_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// An error that reaches a log says which call on which semaphore failed.
func TestErrors_NameTheOperationAndTheSemaphore(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		c, name := newClient(t, redistest.Shared(t).Client(t)), redistest.Name(t)
		s := k.newSemaphore(c, name, 0, semaphore.WithLease(safeLease))
		mustSetPermits(t, s, 1)
		g := mustAcquire(t, s, 1)
		require.NoError(t, g.Release(t.Context()))
		is := func(err, cause error, operation string) {
			t.Helper()
			require.ErrorIs(t, err, cause)
			require.Regexp(t, fmt.Sprintf("^semaphore: %s %q: [a-z ]+$", operation, name), err.Error())
		}
		is(g.Release(t.Context()), semaphore.ErrNotHeld, "release")
		is(g.Extend(t.Context(), safeLease), semaphore.ErrNotHeld, "extend")
		held := mustAcquire(t, s, 1)
		waiting := startCall(func() error {
			_, err := s.Acquire(context.Background(), 1)
			return err
		})
		poll(t, func() bool { return c.Stats().Waiting == 1 })
		require.NoError(t, c.Close(t.Context()))
		is(waiting.wait(t), semaphore.ErrClosed, "acquire")
		_, err := s.TryAcquire(t.Context(), 1)
		is(err, semaphore.ErrClosed, "acquire")
		is(held.Release(t.Context()), semaphore.ErrClosed, "release")
		is(c.CountingSemaphore(name).Release(t.Context(), 1), semaphore.ErrClosed, "release")
	})
}
