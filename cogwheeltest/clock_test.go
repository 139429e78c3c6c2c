package cogwheeltest_test

import (
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// advanceUntil moves the clock until the channel delivers.
func advanceUntil[T any](srv *cogwheeltest.Server, step time.Duration, c <-chan T) (v T) {
	for {
		select {
		case v = <-c:
			return v
		default:
			srv.Advance(step)
		}
	}
}

// Without a bubble, the server, its wheel and everything on the wheel live by the clock of the test.
func TestWithClock(t *testing.T) {
	t.Parallel()
	for name, behaviour := range map[string]func(*testing.T, *cogwheeltest.Server, *clock.Mock){
		"moves the server and the wheel": func(t *testing.T, srv *cogwheeltest.Server, mock *clock.Mock) {
			fired := make(chan time.Time, 1)
			_, err := srv.Wheel().AfterFunc(time.Hour, func() { fired <- mock.Now() })
			require.NoError(t, err)
			require.NoError(t, srv.Client().Set(t.Context(), "key", 1, time.Hour).Err())
			began, serverBegan := mock.Now(), srv.Now()
			srv.Advance(59 * time.Minute)
			require.EqualValues(t, 1, srv.Client().Exists(t.Context(), "key").Val())
			require.Empty(t, fired)
			srv.Advance(time.Minute)
			require.Zero(t, srv.Client().Exists(t.Context(), "key").Val())
			require.False(t, (<-fired).Before(began.Add(time.Hour)))
			require.Equal(t, time.Hour, srv.Now().Sub(serverBegan))
			require.Equal(t, began.Add(time.Hour), srv.Wheel().Now())
		},
		"renews a lock": func(t *testing.T, srv *cogwheeltest.Server, _ *clock.Mock) {
			renewed := make(chan struct{}, 10)
			locks := srv.Locks(redislock.WithHooks(redislock.Hooks{Renewed: func(redislock.Event) { renewed <- struct{}{} }}))
			l, err := locks.Mutex("n", redislock.WithLease(time.Hour)).Lock(t.Context())
			require.NoError(t, err)
			before := l.Deadline()
			srv.Advance(21 * time.Minute) // a third of the lease
			<-renewed
			require.NoError(t, l.Unlock(t.Context()))
			require.False(t, l.Deadline().Before(before))
		},
		"ends a lock": func(t *testing.T, srv *cogwheeltest.Server, _ *clock.Mock) {
			l, err := srv.Locks().Mutex("n", redislock.WithoutRenewal()).Lock(t.Context())
			require.NoError(t, err)
			srv.Advance(redislock.DefaultLease)
			require.False(t, l.Valid())
			<-l.Done()
			require.ErrorIs(t, l.Err(), redislock.ErrLost)
		},
		"tells the holder of a lost lock": func(t *testing.T, srv *cogwheeltest.Server, _ *clock.Mock) {
			l, err := srv.Locks().Mutex("n").Lock(t.Context())
			require.NoError(t, err)
			srv.Steal("n", time.Hour)
			advanceUntil(srv, time.Second, l.Done())
			require.ErrorIs(t, l.Err(), redislock.ErrLost)
		},
		"wakes a waiter when the lease of a crashed holder ends": func(t *testing.T, srv *cogwheeltest.Server, _ *clock.Mock) {
			srv.Steal("n", time.Minute)
			began := srv.Now()
			require.NoError(t, advanceUntil(srv, 5*time.Second, calling(func() error {
				_, err := srv.Locks().Mutex("n").Lock(t.Context())
				return err
			})))
			require.GreaterOrEqual(t, srv.Now().Sub(began), time.Minute)
		},
		"tells the holder of a lost permit": func(t *testing.T, srv *cogwheeltest.Server, _ *clock.Mock) {
			s := srv.Semaphores().Semaphore("n", 0)
			_, err := s.TrySetPermits(t.Context(), 1)
			require.NoError(t, err)
			g, err := s.Acquire(t.Context(), 1)
			require.NoError(t, err)
			srv.ExpirePermits("n")
			advanceUntil(srv, time.Second, g.Done())
			require.ErrorIs(t, g.Err(), semaphore.ErrLost)
		},
		"allows again what a limiter denied": func(t *testing.T, srv *cogwheeltest.Server, _ *clock.Mock) {
			k := srv.Limits().Limiter("api", ratelimit.PerSecond(2))
			srv.Exhaust(k, "user")
			r, err := k.Allow(t.Context(), "user")
			require.NoError(t, err)
			require.False(t, r.Allowed)
			srv.Advance(r.RetryAfter)
			r, err = k.Allow(t.Context(), "user")
			require.NoError(t, err)
			require.True(t, r.Allowed)
		},
		"serves those that wait for a limiter": func(t *testing.T, srv *cogwheeltest.Server, _ *clock.Mock) {
			k := srv.Limits().Limiter("api", ratelimit.PerMinute(6))
			srv.Exhaust(k, "user")
			began := srv.Now()
			require.NoError(t, advanceUntil(srv, 500*time.Millisecond, calling(func() error {
				return k.Wait(t.Context(), "user")
			})))
			require.GreaterOrEqual(t, srv.Now().Sub(began), 10*time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mock := clock.NewMock()
			behaviour(t, cogwheeltest.Start(t, cogwheeltest.WithClock(mock)), mock)
		})
	}
}
