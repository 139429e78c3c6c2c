package conventions_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCause_HasTheCauseToo(t *testing.T) {
	reason := errors.New("reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	require.ErrorIs(t, conventions.Cause(ctx), reason)
	require.ErrorIs(t, conventions.Cause(ctx), context.Canceled)
	plain, stop := context.WithCancel(t.Context())
	stop()
	require.Equal(t, context.Canceled, conventions.Cause(plain))
}

func TestCaused_IsNotForDeadlinesOfTheLibrary(t *testing.T) {
	ended, end := context.WithTimeout(t.Context(), 0)
	defer end()
	<-ended.Done()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want bool
	}{
		{ended, context.DeadlineExceeded, true},
		{ended, errors.New("refused"), false},
		{t.Context(), context.DeadlineExceeded, false},
		{t.Context(), context.Canceled, true}, // by the cancel function of the call
	} {
		require.Equal(t, c.want, conventions.Caused(c.ctx, c.err), c.err)
	}
}

func TestEndingWith(t *testing.T) {
	reason := errors.New("reason")
	for what, end := range map[string]func(parent, base context.CancelCauseFunc){
		"its parent": func(parent, _ context.CancelCauseFunc) { parent(reason) },
		"its base":   func(_, base context.CancelCauseFunc) { base(reason) },
	} {
		t.Run(what, func(t *testing.T) {
			parent, endParent := context.WithCancelCause(t.Context())
			base, endBase := context.WithCancelCause(t.Context())
			ctx := conventions.EndingWith(parent, base)
			require.NoError(t, ctx.Err())
			end(endParent, endBase)
			<-ctx.Done()
			require.Equal(t, reason, context.Cause(ctx))
			require.ErrorIs(t, conventions.EndingWith(parent, base).Err(), context.Canceled, "also if that has ended before")
			endParent(nil)
			endBase(nil)
		})
	}
}

func TestEnd_ComesOnce(t *testing.T) {
	t.Parallel()
	first, second := errors.New("first"), errors.New("second")
	var end conventions.End
	before := end.Context(t.Context())
	require.True(t, end.Valid())
	require.NoError(t, before.Err())
	require.True(t, end.Close(first))
	require.False(t, end.Close(second))
	<-end.Done()
	<-before.Done()
	for _, ctx := range []context.Context{before, end.Base(), end.Context(t.Context()), conventions.Ended(first).Base()} {
		require.Equal(t, first, context.Cause(ctx))
	}
	require.Equal(t, first, end.Err())
	require.False(t, end.Valid())
	require.Zero(t, end.Deadline())
}

func TestEnd_IsTheSameForAll(t *testing.T) {
	t.Parallel()
	reasons := []error{errors.New("first"), errors.New("second")}
	for range 10_000 {
		var end conventions.End
		var all sync.WaitGroup
		closed := make([]bool, len(reasons))
		ended := func() {
			for _, ctx := range []context.Context{end.Base(), end.Context(t.Context())} {
				if end.Err() == nil || ctx.Err() == nil || !errors.Is(context.Cause(ctx), end.Err()) {
					t.Errorf("the end is %v, and a context ends with %v", end.Err(), context.Cause(ctx))
				}
			}
		}
		var before context.Context
		for i, reason := range reasons {
			all.Go(func() {
				closed[i] = end.Close(reason)
				ended()
			})
		}
		all.Go(func() {
			before = end.Base()
			for end.Err() == nil {
				<-before.Done()
			}
			if before.Err() == nil {
				t.Error("Err is set before Done is closed")
			}
			ended()
		})
		all.Wait()
		if closed[0] == closed[1] || before != end.Base() {
			t.Fatal("two ends")
		}
	}
}
