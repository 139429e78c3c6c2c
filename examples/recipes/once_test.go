package recipes_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/examples/recipes"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// locksOf returns a client of a process, on the wheel of the server.
func locksOf(t *testing.T, server *cogwheeltest.Server, rdb redis.UniversalClient) *redislock.Client {
	t.Helper()
	locks, err := redislock.New(rdb, redislock.WithWheel(server.Wheel()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locks.Close(context.Background())) })
	return locks
}

func TestOnce_RunsUntilItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		rdb, locks := server.Client(), server.Locks()
		ran, failed := 0, errors.New("failed")
		fails := func(context.Context) error { ran++; return failed }
		succeeds := func(context.Context) error { ran++; return nil }
		require.ErrorIs(t, recipes.Once(t.Context(), locks, rdb, "7", fails), failed)
		require.NoError(t, recipes.Once(t.Context(), locks, rdb, "7", succeeds))
		require.NoError(t, recipes.Once(t.Context(), locksOf(t, server, server.NewClient()), rdb, "7", fails))
		require.Equal(t, 2, ran)
		require.NoError(t, recipes.Once(t.Context(), locks, rdb, "8", succeeds))
		require.Equal(t, 3, ran, "another id")
	})
}

// The process of the first run does not reach Redis any more. The second one waits for it, as long as its lease lasts.
func TestOnce_RunsAgainAfterACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		crashed, began, ended := server.NewClient(), make(chan struct{}), make(chan error, 1)
		locks := locksOf(t, server, crashed)
		go func() {
			ended <- recipes.Once(t.Context(), locks, crashed, "7", func(ctx context.Context) error {
				server.Isolate(crashed)
				close(began)
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		<-began
		start, ran := time.Now(), false
		job := func(context.Context) error { ran = true; return nil }
		require.NoError(t, recipes.Once(t.Context(), server.Locks(), server.Client(), "7", job))
		require.True(t, ran)
		require.InDelta(t, 30, time.Since(start).Seconds(), 1)
		require.ErrorIs(t, <-ended, redislock.ErrLost)
		server.Rejoin(crashed)
	})
}

func TestOnce_AJobThatSucceedsAfterSIGTERMIsNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cogwheeltest.Start(t)
		ctx, sigterm := context.WithCancel(t.Context())
		ran := 0
		job := func(ctx context.Context) error {
			ran++
			sigterm()
			<-ctx.Done() // and it goes on
			return nil
		}
		require.NoError(t, recipes.Once(ctx, server.Locks(), server.Client(), "7", job))
		again := func(context.Context) error { ran++; return nil }
		require.NoError(t, recipes.Once(t.Context(), server.Locks(), server.Client(), "7", again))
		require.Equal(t, 1, ran)
	})
}
