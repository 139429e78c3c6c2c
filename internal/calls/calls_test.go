package calls_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestGate(t *testing.T) {
	t.Run("lets nothing new begin once it is closed, and waits for the rest", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var g calls.Gate
			require.True(t, g.Enter())
			require.True(t, g.Enter())
			require.False(t, g.Closed())
			require.True(t, g.Close())
			require.False(t, g.Close(), "the second to close")
			require.True(t, g.Closed())
			require.False(t, g.Enter())
			returned := make(chan error, 2)
			for range 2 {
				go func() { returned <- g.Wait(t.Context()) }()
			}
			g.Leave()
			synctest.Wait()
			require.Empty(t, returned, "one is inside")
			g.Leave()
			require.NoError(t, <-returned)
			require.NoError(t, <-returned)
		})
	})

	t.Run("waits also for what is begun after it was idle", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var g calls.Gate
			g.Close()
			require.NoError(t, g.Wait(t.Context()))
			g.EnterInside()
			returned := make(chan error, 1)
			go func() { returned <- g.Wait(t.Context()) }()
			synctest.Wait()
			require.Empty(t, returned)
			g.Leave()
			require.NoError(t, <-returned)
			g.EnterInside()
			g.Leave()
		})
	})

	t.Run("waits no longer than the context", func(t *testing.T) {
		var g calls.Gate
		g.Enter()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, g.Wait(ctx), context.Canceled)
		g.Leave()
		require.NoError(t, g.Wait(ctx), "nothing is under way, whatever the context")
	})
}

// answer is an error reply.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

func TestErrors_SayWhatBecameOfACall(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	read := &net.OpError{Op: "read", Err: errors.New("connection reset")}
	for _, c := range []struct {
		err                                error
		sent, refused, passing, final, out bool
	}{
		{err: dial, out: true},
		{err: read, sent: true, out: true},
		{err: io.EOF, sent: true, out: true},
		{err: redis.ErrClosed},
		{err: redis.ErrPoolTimeout, out: true},
		{err: context.DeadlineExceeded, sent: true, out: true},
		{err: answer("ERR wrong"), refused: true, final: true},
		{err: answer("NOPERM this user"), refused: true, final: true},
		{err: answer("LOADING Redis is loading"), refused: true, passing: true, out: true},
		{err: answer("READONLY You can't write"), refused: true, passing: true, out: true},
		{err: answer("CLUSTERDOWN The cluster is down"), refused: true, passing: true, out: true},
		{err: answer("MOVED 1 127.0.0.1:7000"), refused: true, passing: true, out: true},
		{err: answer("NOREPLICAS Not enough good replicas to write."), refused: true, passing: true, out: true},
		{err: answer("BUSY Redis is busy running a script."), refused: true, passing: true, out: true},
		{err: answer("BUSYGROUP of a stream"), refused: true, final: true},
		{err: answer("TRYAGAIN Multiple keys request during rehashing of slot"), refused: true, passing: true, out: true},
		{err: answer("ERR Script attempted to access a non local key in a cluster node script: abc"), refused: true, passing: true, out: true},
		{err: calls.ErrAbandoned},
		{err: answer("MISCONF Redis is configured to save RDB snapshots"), refused: true, passing: true, out: true},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			require.Equal(t, c.sent, calls.MayHaveBeenSent(err), err)
			require.Equal(t, c.refused, calls.Refused(err), err)
		}
		require.Equal(t, c.passing, calls.Passing(c.err), c.err)
		require.Equal(t, c.final, calls.Final(c.err), c.err)
		require.Equal(t, c.out, calls.Outage(c.err), c.err)
	}
}

func TestEnded_GivesTheCauseToo(t *testing.T) {
	reason := errors.New("reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	require.ErrorIs(t, calls.Ended(ctx), reason)
	require.ErrorIs(t, calls.Ended(ctx), context.Canceled)
	plain, stop := context.WithCancel(t.Context())
	stop()
	require.Equal(t, context.Canceled, calls.Ended(plain))
}

// attempts is a call that fails with one error after another.
type attempts struct {
	errs []error
	at   []time.Time
}

func (a *attempts) once() (*redis.Cmd, time.Time) {
	now := time.Now()
	a.at = append(a.at, now)
	cmd := redis.NewCmd(context.Background())
	cmd.SetErr(a.errs[0])
	if len(a.errs) > 1 {
		a.errs = a.errs[1:]
	}
	return cmd, now
}

func TestRetry(t *testing.T) {
	run := func(t *testing.T, retries int, errs ...error) (r calls.Reply, a *attempts) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			w, err := wheel.New()
			require.NoError(t, err)
			a = &attempts{errs: errs}
			r = calls.Retry(w, nil, retries, nil, a.once)
			_, err = w.Stop(context.Background())
			require.NoError(t, err)
		})
		return r, a
	}
	lost, down, no := io.EOF, answer("LOADING x"), answer("ERR no")

	t.Run("returns the first answer", func(t *testing.T) {
		r, a := run(t, 3, nil)
		require.NoError(t, r.Err())
		require.False(t, r.Ambiguous)
		require.Len(t, a.at, 1)
		require.Equal(t, a.at[0], r.SentAt)
	})

	t.Run("repeats what may succeed, with growing pauses, and remembers that a copy was lost", func(t *testing.T) {
		r, a := run(t, 3, lost, down, down, nil)
		require.NoError(t, r.Err())
		require.True(t, r.Ambiguous)
		require.Len(t, a.at, 4)
		require.Equal(t, a.at[3], r.SentAt, "the last attempt's")
		for i, most := range []time.Duration{8 * time.Millisecond, 16 * time.Millisecond, 32 * time.Millisecond} {
			pause := a.at[i+1].Sub(a.at[i])
			require.GreaterOrEqual(t, pause, most/2)
			require.LessOrEqual(t, pause, most+2*time.Millisecond)
		}
	})

	t.Run("is not in doubt about what was never sent", func(t *testing.T) {
		r, a := run(t, 3, down, nil)
		require.NoError(t, r.Err())
		require.False(t, r.Ambiguous)
		require.Len(t, a.at, 2)
	})

	t.Run("gives up after so many retries", func(t *testing.T) {
		r, a := run(t, 2, lost)
		require.ErrorIs(t, r.Err(), lost)
		require.Len(t, a.at, 3)
		_, a = run(t, 0, lost)
		require.Len(t, a.at, 1)
	})

	t.Run("does not repeat what was refused for good", func(t *testing.T) {
		r, a := run(t, 3, no)
		require.ErrorIs(t, r.Err(), no)
		require.False(t, r.Ambiguous)
		require.Len(t, a.at, 1)
	})
}

func TestMillis_RoundsUp(t *testing.T) {
	require.EqualValues(t, 1, calls.Millis(time.Nanosecond))
	require.EqualValues(t, 1, calls.Millis(time.Millisecond))
	require.EqualValues(t, 2, calls.Millis(time.Millisecond+1))
	require.EqualValues(t, 30_000, calls.Millis(30*time.Second))
}
