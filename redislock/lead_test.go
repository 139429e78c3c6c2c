package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// startLead runs Lead on a goroutine, and returns the channel of its error.
func startLead(
	ctx context.Context, c *redislock.Client, name string, f func(context.Context) error, opts ...redislock.LockOption,
) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- c.Mutex(name, opts...).Lead(ctx, f) }()
	return ended
}

// receive returns what a channel yields within the patience of tests.
func receive[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-within(t, patience).Done():
		require.FailNow(t, "nothing came")
	}
	return v
}

// A term that returns makes room for another process, whatever it returns.
// Guarantees: L52.
func TestLead_IsInOneProcessAtATime(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var leading, most atomic.Int64
	led, ended := make(chan int), []<-chan error{}
	for process := range 3 {
		ended = append(ended, startLead(ctx, newClient(t, rdb), name, func(ctx context.Context) error {
			most.Store(max(most.Load(), leading.Add(1)))
			defer leading.Add(-1)
			select {
			case led <- process:
			case <-ctx.Done():
			}
			return []error{nil, errors.New("the term is over"), redislock.ErrClosed}[process]
		}))
	}
	terms := map[int]int{}
	for len(terms) < 3 || terms[0]+terms[1]+terms[2] < 5 {
		terms[receive(t, led)]++
	}
	cancel()
	for _, e := range ended {
		require.ErrorIs(t, receive(t, e), context.Canceled)
	}
	require.EqualValues(t, 1, most.Load())
	// The end of ctx may come when Redis has just granted the lock to a waiter, whose Client then releases it in the
	// background.
	poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
}

// A process that leads is killed: another leads when the lease is over.
// Guarantees: L52.
func TestLead_AKilledLeaderIsFollowed(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Shared(t)
	name := redistest.Name(t)
	leader := startChild(t, roleLead, server.Addr(), name)
	require.Equal(t, "leads", leader.readLine(t))
	c, led := newClient(t, server.Client(t)), make(chan bool, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := startLead(ctx, c, name, func(ctx context.Context) error {
		led <- true
		<-ctx.Done()
		return ctx.Err()
	})
	poll(t, func() bool { return c.Stats().Waiting == 1 })
	require.Empty(t, led)
	require.NoError(t, leader.cmd.Process.Kill())
	receive(t, led)
	cancel()
	require.ErrorIs(t, receive(t, ended), context.Canceled)
}

// An orderly shutdown is nothing that an operator should look at.
func TestLead_CloseEndsTheTermWithoutAWarning(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	var log lockedBuffer
	c := newClient(t, rdb, redislock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	began, unsaved := make(chan bool, 1), errors.New("the work was not saved")
	ended := startLead(t.Context(), c, name, func(ctx context.Context) error {
		began <- true
		<-ctx.Done()
		return unsaved
	})
	receive(t, began)
	require.NoError(t, c.Close(t.Context()))
	err := receive(t, ended)
	require.ErrorIs(t, err, redislock.ErrClosed)
	require.ErrorIs(t, err, unsaved)
	require.Empty(t, log.String())
}

// A leader that loses the lock stops, says why, and leads again.
// Guarantees: L52.
func TestLead_ALostLockEndsTheTerm(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	var log lockedBuffer
	c := newClient(t, rdb, redislock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	ctx, cancel := context.WithCancel(t.Context())
	tokens, causes := make(chan int64), make(chan error, 2)
	ended := startLead(ctx, c, name, func(ctx context.Context) error {
		l := c.Mutex(name).FromContext(ctx) // by the name, whatever the options
		tokens <- l.Token()
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil // the loss is logged all the same
	}, redislock.WithFencing())
	first := receive(t, tokens)
	_, err := c.Mutex(name).ForceUnlock(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, receive(t, causes), redislock.ErrLost)
	require.Greater(t, receive(t, tokens), first)
	require.Contains(t, log.String(), `level=WARN msg="redislock: not leading" name=`+name)
	require.Contains(t, log.String(), redislock.ErrLost.Error())
	cancel()
	require.ErrorIs(t, receive(t, ended), context.Canceled)
	requireFree(t, rdb, name)
}

// Guarantees: L52.
func TestLead_EndsWithTheClientAndTheWheel(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	untilItEnds := func(began chan<- bool) func(context.Context) error {
		return func(ctx context.Context) error {
			began <- true
			<-ctx.Done()
			return context.Cause(ctx)
		}
	}
	t.Run("Close", func(t *testing.T) {
		t.Parallel()
		c, began := newClient(t, rdb), make(chan bool, 1)
		ended := startLead(context.Background(), c, name+"close", untilItEnds(began))
		receive(t, began)
		require.NoError(t, c.Close(t.Context()))
		require.ErrorIs(t, receive(t, ended), redislock.ErrClosed)
		require.ErrorIs(t, c.Mutex(name).Lead(t.Context(), untilItEnds(began)), redislock.ErrClosed)
	})
	t.Run("Stop", func(t *testing.T) {
		t.Parallel()
		w := newWheel(t)
		c, began := newClient(t, rdb, redislock.WithWheel(w)), make(chan bool, 1)
		ended := startLead(context.Background(), c, name+"stop", untilItEnds(began))
		receive(t, began)
		_, err := w.Stop(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, receive(t, ended), wheel.ErrStopped)
	})
}

// Lead does not try for ever what can never succeed.
// Guarantees: L52.
func TestLead_RefusesBadArguments(t *testing.T) {
	t.Parallel()
	c, _, name := onSharedServer(t)
	ctx := t.Context()
	do := func(context.Context) error { return errors.New("not called") }
	for what, err := range map[string]error{
		"a nil function": c.Mutex(name).Lead(ctx, nil),
		"a nil context":  c.Mutex(name).Lead(nil, do), //nolint:staticcheck // the case of the test
		"no name":        c.Mutex("").Lead(ctx, do),
		"a bad option":   c.Mutex(name, redislock.WithLease(-1)).Lead(ctx, do),
		"readers":        c.RWMutex(name).Reader().Lead(ctx, do),
	} {
		require.ErrorIs(t, err, cogwheel.ErrInvalid, what)
	}
}

// Every kind of which one Lock at a time holds the lock can elect a leader.
func TestLead_OfEachExclusiveKind(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	for kind, m := range map[string]*redislock.Mutex{
		"fair": c.FairMutex(name + ":fair"), "write": c.RWMutex(name + ":rw").Writer(),
	} {
		ctx, cancel := context.WithCancel(t.Context())
		require.ErrorIs(t, m.Lead(ctx, func(ctx context.Context) error {
			require.True(t, m.FromContext(ctx).Valid(), kind)
			cancel()
			return ctx.Err()
		}), context.Canceled, kind)
		requireFree(t, rdb, m.Name())
	}
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
