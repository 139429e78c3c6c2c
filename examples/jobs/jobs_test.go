package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/examples/jobs"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestRestock_LosesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := cogwheeltest.Start(t)
		err := jobs.Restock(t.Context(), srv.Locks(), "42", func(ctx context.Context) error {
			srv.Steal("stock:42", time.Minute) // the lock has another holder from now on
			<-ctx.Done()                       // within a third of the lease
			return ctx.Err()
		})
		require.ErrorIs(t, err, redislock.ErrLost)
	})
}

func TestRestock_WaitsForAHolderThatCrashed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := cogwheeltest.Start(t)
		srv.Steal("stock:42", 30*time.Second) // nothing will renew or unlock it
		began := time.Now()
		err := jobs.Restock(t.Context(), srv.Locks(), "42", func(context.Context) error { return nil })
		require.NoError(t, err)
		require.Equal(t, 30*time.Second, time.Since(began).Round(time.Second))
	})
}

func TestLead_OneProcessAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := cogwheeltest.Start(t)
		var story []string
		ctx, stop := context.WithCancel(t.Context())
		began := time.Now()
		tell := func(process, what string) {
			story = append(story, fmt.Sprintf("%v: %s %s", time.Since(began).Truncate(time.Minute), process, what))
		}
		term := func(process string) func(context.Context) error {
			return func(ctx context.Context) error {
				tell(process, "leads")
				<-ctx.Done()
				tell(process, "stops")
				return ctx.Err()
			}
		}

		firstClient, secondClient := srv.NewClient(), srv.NewClient() // two processes
		first, err := redislock.New(firstClient, redislock.WithWheel(srv.Wheel()))
		require.NoError(t, err)
		second, err := redislock.New(secondClient, redislock.WithWheel(srv.Wheel()))
		require.NoError(t, err)
		go func() { _ = first.Mutex("leader").Lead(ctx, term("first")) }()
		srv.Advance(time.Minute)
		go func() { _ = second.Mutex("leader").Lead(ctx, term("second")) }()
		srv.Advance(time.Hour)

		srv.Isolate(firstClient) // its network is cut; it must stop before the second leads
		srv.Advance(time.Hour)
		srv.Rejoin(firstClient)
		srv.Advance(time.Hour)
		stop()
		synctest.Wait()
		require.Equal(t, []string{
			"0s: first leads",
			"1h1m0s: first stops",
			"1h1m0s: second leads",
			"3h1m0s: second stops",
		}, story)
		require.NoError(t, first.Close(context.Background()))
		require.NoError(t, second.Close(context.Background()))
	})
}

func TestGreet_IsDeniedAndAllowedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := cogwheeltest.Start(t)
		users := srv.Limits().Limiter("greet", ratelimit.PerMinute(10))
		srv.Exhaust(users, "ann")

		_, err := jobs.Greet(t.Context(), users, "ann")
		require.EqualError(t, err, "jobs: too many requests: try again in 6s")
		srv.Advance(6 * time.Second)
		text, err := jobs.Greet(t.Context(), users, "ann")
		require.NoError(t, err)
		require.Equal(t, "hello ann", text)
	})
}

func TestGreet_WhileRedisIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := cogwheeltest.Start(t)
		users := srv.Limits(ratelimit.WithPolicy(ratelimit.FailOpen())).Limiter("greet", ratelimit.PerMinute(10))
		srv.Stop()
		text, err := jobs.Greet(t.Context(), users, "ann")
		require.NoError(t, err)
		require.Equal(t, "hello ann", text)
	})
}

func TestExport_LosesThePermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := cogwheeltest.Start(t)
		exports := srv.Semaphores().Semaphore("exports", 5)
		err := jobs.Export(t.Context(), exports, func(ctx context.Context) error {
			srv.ExpirePermits("exports")
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, semaphore.ErrLost)
	})
}

func TestExport_LostReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := cogwheeltest.Start(t)
		exports := srv.Semaphores().Semaphore("exports", 5)
		srv.DropReplies(1, "exports") // of Acquire: it executes, and its reply is lost
		err := jobs.Export(t.Context(), exports, func(context.Context) error { return nil })
		require.NoError(t, err)
		require.Zero(t, srv.PendingFaults(), "the fault was met")
		free, err := exports.Available(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 5, free)
	})
}

func TestRemind_IsSentAfterHalfAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := cogwheeltest.Start(t)
		reminders := srv.Delays().Queue("reminders")
		began := time.Now()
		require.NoError(t, jobs.Remind(t.Context(), reminders, "ann"))

		var sent []string
		ctx, sigterm := context.WithCancel(t.Context())
		err := jobs.SendReminders(ctx, reminders, func(user string) error {
			sent = append(sent, fmt.Sprintf("%s after %v", user, time.Since(began).Round(time.Second)))
			if len(sent) == 1 {
				return errors.New("the mail server is down")
			}
			sigterm() // SendReminders returns when this reminder is recorded as sent
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, []string{"ann after 30m0s", "ann after 30m1s"}, sent)
	})
}

func TestTimer_FiresAfterHalfAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		defer w.Stop(t.Context())
		began, fired := time.Now(), make(chan time.Duration, 1)
		_, err = w.AfterFunc(30*time.Minute, func() { fired <- time.Since(began) })
		require.NoError(t, err)
		require.Equal(t, 30*time.Minute, (<-fired).Round(time.Second))
	})
}

func TestGreet_WithAMockClock(t *testing.T) {
	mock := clock.NewMock()
	srv := cogwheeltest.Start(t, cogwheeltest.WithClock(mock))
	users := srv.Limits().Limiter("greet", ratelimit.PerMinute(10))
	srv.Exhaust(users, "ann")

	_, err := jobs.Greet(t.Context(), users, "ann")
	require.ErrorIs(t, err, jobs.ErrTooMany)
	srv.Advance(6 * time.Second)
	_, err = jobs.Greet(t.Context(), users, "ann")
	require.NoError(t, err)
}

// realClient returns a client of the server at REDIS_URL.
func realClient(t *testing.T) *redis.Client {
	t.Helper()
	url := os.Getenv("REDIS_URL")
	if url == "" {
		t.Skip("REDIS_URL is not set")
	}
	opts, err := redis.ParseURL(url)
	require.NoError(t, err)
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	return rdb
}

func TestRestock_OnARealServer(t *testing.T) {
	locks, err := redislock.New(realClient(t))
	require.NoError(t, err)
	defer locks.Close(context.Background())
	require.NoError(t, jobs.Restock(t.Context(), locks, t.Name(), func(ctx context.Context) error { return ctx.Err() }))
}
