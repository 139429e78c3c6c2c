package sender_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/sender"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const lease = 60_000 // ms

// fixture is a Sender, and what it sends through.
type fixture struct {
	*sender.Sender
	server *redistest.Server
	dialer *redistest.FaultDialer
	admin  *redis.Client
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{server: redistest.Start(t), dialer: &redistest.FaultDialer{}}
	f.admin = f.server.Client(t)
	rdb := f.server.Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = f.dialer.Dial, 5*time.Second })
	w, err := wheel.New()
	require.NoError(t, err)
	workers := gate.NewWorkers(w)
	f.Sender = sender.New(sender.Config{Client: rdb, Base: rdb, Retries: 3, Wheel: w, Workers: workers})
	t.Cleanup(func() {
		workers.Close()
		_, err := w.Stop(context.Background())
		require.NoError(t, err)
	})
	r := f.Run(f.call(0), nil) // the server knows the script, the client has a connection
	require.NoError(t, r.Err())
	return f
}

// call takes a lock of its own.
func (f *fixture) call(i int) scripts.Call {
	return scripts.LockAcquire.Call([]string{fmt.Sprint("lock:", i)}, fmt.Sprint("id:", i), lease)
}

func (f *fixture) taken(t *testing.T, i int) bool {
	t.Helper()
	n, err := f.admin.Exists(t.Context(), fmt.Sprint("lock:", i)).Result()
	require.NoError(t, err)
	return n == 1
}

func granted(t *testing.T, r redisconn.Reply) {
	t.Helper()
	v, err := r.Integers(2)
	require.NoError(t, err)
	require.Equal(t, int64(1), v[0])
}

var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func TestEarly(t *testing.T) {
	t.Parallel()

	t.Run("a call that was answered is not sent again", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		var e sender.Early
		before := time.Now()
		require.True(t, e.Send(f.Sender, f.call(1), make(chan struct{})))
		require.True(t, e.Sent())
		require.WithinRange(t, e.SentAt(), before, time.Now())
		require.NoError(t, f.admin.Del(t.Context(), "lock:1").Err())
		r := e.Run(f.Sender, nil, closed)
		granted(t, r)
		require.False(t, r.Ambiguous)
		require.False(t, e.Sent())
		require.False(t, f.taken(t, 1))
		granted(t, e.Run(f.Sender, func() scripts.Call { return f.call(1) }, nil))
		require.True(t, f.taken(t, 1), "now it was")
	})

	t.Run("a caller may leave, and another goroutine gets the answer", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		var e sender.Early
		f.server.Pause()
		require.False(t, e.Send(f.Sender, f.call(1), closed))
		answer := make(chan redisconn.Reply)
		go func() { answer <- e.Run(f.Sender, nil, closed) }()
		f.server.Resume()
		granted(t, <-answer)
		require.True(t, f.taken(t, 1))
	})

	t.Run("a call that waits for a pipeline is not sent when its caller has left", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.server.Pause()
		var inFlight [2]sender.Early
		for i := range inFlight {
			require.False(t, inFlight[i].Send(f.Sender, f.call(1+i), closed))
		}
		var waits, leaves sender.Early // within the 20 ms for which pipelines in flight hold up others, or else both are sent
		began := time.Now()
		require.False(t, waits.Send(f.Sender, f.call(3), closed))
		require.False(t, leaves.Send(f.Sender, f.call(4), closed))
		inTime := time.Since(began) < 10*time.Millisecond
		if inTime {
			r := leaves.Run(f.Sender, nil, closed)
			require.ErrorIs(t, r.Err(), redisconn.ErrAbandoned)
			require.False(t, r.Ambiguous)
		}
		f.server.Resume()
		for i := range inFlight {
			granted(t, inFlight[i].Run(f.Sender, nil, nil))
		}
		granted(t, waits.Run(f.Sender, nil, nil))
		if inTime {
			require.False(t, f.taken(t, 4))
		}
	})

	t.Run("a call that failed is repeated by Run", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		var e sender.Early
		f.dialer.LoseReply("evalsha", 1, redistest.Cut)
		require.False(t, e.Send(f.Sender, f.call(1), make(chan struct{})))
		r := e.Run(f.Sender, nil, nil)
		granted(t, r)
		require.True(t, r.Ambiguous, "the first copy was not answered")
	})
}

// Jobs are used again. Each call gets its own answer, whatever became of those before. Others hold the locks: the
// answer tells for how long.
func TestSender_AnswersAreNotMixedUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const callers, calls = 64, 200
	for i := 1; i <= callers; i++ {
		key := fmt.Sprint("lock:", i)
		require.NoError(t, f.admin.HSet(t.Context(), key, "other", 1).Err())
		require.NoError(t, f.admin.PExpire(t.Context(), key, time.Duration(i)*time.Hour).Err())
	}
	var mixedUp, answered atomic.Int64
	var running sync.WaitGroup
	for i := 1; i <= callers; i++ {
		running.Go(func() {
			for k := range calls {
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(3*time.Millisecond))
				var e sender.Early
				if k%3 > 0 {
					e.Send(f.Sender, f.call(i), ctx.Done())
				}
				r := e.Run(f.Sender, func() scripts.Call { return f.call(i) }, ctx.Done())
				cancel()
				v, err := r.Integers(2)
				switch {
				case err == nil && v[0] == 0 && (v[1]+hour-1)/hour == int64(i):
					answered.Add(1)
				case !errors.Is(err, redisconn.ErrAbandoned):
					mixedUp.Add(1)
				}
			}
		})
	}
	running.Wait()
	require.Zero(t, mixedUp.Load())
	require.Greater(t, answered.Load(), int64(callers*calls/10))
}

const hour = int64(time.Hour / time.Millisecond)
