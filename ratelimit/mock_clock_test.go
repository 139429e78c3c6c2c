package ratelimit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// newOnMockClock returns a client whose wheel has a clock that the test moves.
func newOnMockClock(t *testing.T, opts ...ratelimit.Option) (*returning, *clock.Mock) {
	t.Helper()
	mock := clock.NewMock()
	mock.Set(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	return newReturning(t, append(opts, ratelimit.WithWheel(newWheel(t, wheel.WithClock(mock))))...), mock
}

// The permits of a share return by the clock of the wheel, and a breaker tells its time.
func TestClient_DecidesByTheClockOfItsWheelInAnOutage(t *testing.T) {
	t.Parallel()
	ups := make(chan ratelimit.Event, 1)
	c, mock := newOnMockClock(t, ratelimit.WithPolicy(ratelimit.LocalShare(2)), ratelimit.WithBreaker(1, time.Minute),
		ratelimit.WithHooks(ratelimit.Hooks{Up: func(e ratelimit.Event) { ups <- e }}))
	ctx, name := t.Context(), redistest.Name(t)
	limits := map[string]func() (ratelimit.Result, error){}
	for what, a := range kinds {
		k := c.Limiter("k"+what, ratelimit.Limit{Rate: 10, Per: 10 * time.Second, Burst: 10}, ratelimit.WithAlgorithm(a))
		limits[what] = func() (ratelimit.Result, error) { return k.Allow(ctx, name) }
	}
	log := c.StoredLimiter(name)
	require.NoError(t, log.SetRate(ctx, ratelimit.Limit{Rate: 10, Per: 10 * time.Second, Burst: 10}))
	require.NoError(t, second(log.Allow(ctx)))
	limits["log"] = func() (ratelimit.Result, error) { return log.Allow(ctx) }
	c.reconnect(t, redistest.Refuse)
	for what, allow := range limits {
		granted := func() (n int) {
			for range 10 {
				r, err := allow()
				require.NoError(t, err, what)
				require.Equal(t, ratelimit.SourceDegraded, r.Source)
				n += int(r.Granted)
			}
			return n
		}
		require.Equal(t, 5, granted(), what)
		require.Zero(t, granted(), what)
		mock.Add(2 * time.Second)
		require.Equal(t, 1, granted(), what)
		mock.Add(20 * time.Second)
		require.Equal(t, 5, granted(), what)
	}
	down := c.Breaker()
	require.True(t, down.Down)
	require.Equal(t, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), down.Since.UTC())
	c.d.Set(redistest.Pass)
	var up ratelimit.Event
	redistest.Poll(t, func() bool {
		mock.Add(time.Minute) // to the next probe
		select {
		case up = <-ups:
			return true
		default:
			return false
		}
	})
	require.Positive(t, up.Took)
	require.Zero(t, up.Took%time.Millisecond, "it is a time of the wheel")
}

// lastWords keeps the arguments of the last script.
type lastWords struct {
	mu   sync.Mutex
	args []any
}

func (*lastWords) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*lastWords) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lastWords) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		l.mu.Lock()
		l.args = cmd.Args()
		l.mu.Unlock()
		return next(ctx, cmd)
	}
}

// A log is counted again when a minute of the wheel has passed.
func TestStoredLimiter_CountsTheLogAgainByTheClockOfItsWheel(t *testing.T) {
	t.Parallel()
	c, mock := newOnMockClock(t)
	ctx, words := t.Context(), &lastWords{}
	c.rdb.AddHook(words)
	l := c.StoredLimiter(redistest.Name(t))
	require.NoError(t, l.SetRate(ctx, ratelimit.PerDay(1000)))
	counted := func() any {
		require.NoError(t, second(l.Allow(ctx)))
		words.mu.Lock()
		defer words.mu.Unlock()
		return words.args[6] // the rate at which this client has had the log counted, behind the script and three keys
	}
	require.Empty(t, counted(), "never before")
	require.Equal(t, "1000", counted())
	mock.Add(59 * time.Second)
	require.Equal(t, "1000", counted())
	mock.Add(time.Second)
	require.Empty(t, counted(), "a minute ago")
	require.Equal(t, "1000", counted())
}
