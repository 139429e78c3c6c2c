package calls_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// checking runs f in a bubble with a Sender for a server that gives one reply to everything.
func checking(t *testing.T, reply redistest.Reply, f func(t *testing.T, s *calls.Sender)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		server := &redistest.Replying{}
		server.Set(reply)
		rdb, workers := server.Client(t), gate.NewWorkers(w)
		s := calls.New(calls.Config{Client: rdb, Base: rdb, Wheel: w, Workers: workers, Gate: new(gate.Gate)})
		f(t, s)
		require.NoError(t, s.Gate.Wait(t.Context()))
		workers.Close()
		require.NoError(t, rdb.Close())
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Hour)
	})
}

// check checks a node after a connection of it was closed.
func check(s *calls.Sender) (found error) {
	told := make(chan error)
	s.Check("k", redisconn.WriteQuestion("k"), io.EOF, time.Second, func(err error) { told <- err })
	return <-told
}

// Batches that hang delay no others once a check has found the node well.
func TestCheck_LetsCallsPassStalledOnes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reply redistest.Reply
		well  bool
	}{
		"the node is well": {int64(0), true},
		"it is not":        {redistest.ServerError("LOADING Redis is loading"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checking(t, tt.reply, func(t *testing.T, s *calls.Sender) {
				var begun atomic.Int64
				end := make(chan struct{})
				hangs := calls.Request{Key: "k", Send: func(ctx context.Context) *redis.Cmd {
					begun.Add(1)
					<-end
					return redis.NewCmd(ctx)
				}}
				for range 100 {
					s.Go(t.Context(), hangs)
				}
				time.Sleep(time.Second)
				before := begun.Load()
				require.Less(t, before, int64(100))
				require.Equal(t, tt.well, check(s) == nil)
				time.Sleep(time.Second)
				require.Equal(t, tt.well, begun.Load() > before)
				close(end)
			})
		})
	}
}

// Connections may fail between a check and the failure of a call that was on its way meanwhile.
func TestCheck_FollowsAFailureAfterTheLastOne(t *testing.T) {
	t.Parallel()
	checking(t, int64(0), func(t *testing.T, s *calls.Sender) {
		fails, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			s.Do(t.Context(), calls.Request{Key: "k", Send: func(ctx context.Context) *redis.Cmd {
				<-fails
				cmd := redis.NewCmd(ctx)
				cmd.SetErr(io.EOF)
				return cmd
			}})
		}()
		time.Sleep(time.Second)
		require.NoError(t, check(s))
		time.Sleep(time.Second)
		failed := s.Wheel.Now()
		close(fails)
		<-over
		began, _ := s.LastCheck("k")
		require.False(t, began.Before(failed), "%v before the failure", failed.Sub(began))
	})
}

// A call whose connection failed is repeated once more than its retries if the node is well. A node that refuses the
// client gives the error.
func TestCheck_RepeatsACallOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reply redistest.Reply
		tries int
		err   string
	}{
		"the node is well":             {int64(0), 3, "EOF"},
		"it cannot serve now":          {redistest.ServerError("LOADING Redis is loading"), 2, "EOF"},
		"it is a replica":              {redistest.ServerError("READONLY You can't write"), 2, "EOF"},
		"it has answered no to a call": {redistest.ServerError("WRONGTYPE Operation"), 3, "EOF"},
		"it wants a password":          {redistest.ServerError("NOAUTH Authentication required."), 1, "NOAUTH Authentication required."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checking(t, tt.reply, func(t *testing.T, s *calls.Sender) {
				s.Retries = 1
				request, tries := failing(always(io.EOF))
				request.Key = "k"
				r, answered := s.Do(t.Context(), request)
				require.True(t, answered)
				require.EqualError(t, r.Err(), tt.err)
				require.Len(t, tries(), tt.tries)
			})
		})
	}
}
