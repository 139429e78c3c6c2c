package calls_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// answer is an error reply of a server.
type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

// bubble runs f in a bubble with a Sender whose calls send themselves.
func bubble(t *testing.T, retries int, f func(t *testing.T, s *calls.Sender)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		workers := gate.NewWorkers(w)
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // is never dialed
		defer rdb.Close()
		s := calls.New(calls.Config{
			Client: rdb, Base: rdb, Retries: retries, Wheel: w, Workers: workers, Gate: new(gate.Gate),
		})
		f(t, s)
		synctest.Wait()
		require.NoError(t, s.Gate.Wait(t.Context()), "nothing is under way")
		workers.Close()
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
	})
}

// failing returns a request whose n-th try, from 1 on, ends as told, and the instants of its tries.
func failing(outcome func(n int) error) (request calls.Request, tries func() []time.Time) {
	var mu sync.Mutex
	var all []time.Time
	request.Send = func(context.Context) *redis.Cmd {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, time.Now())
		return calls.Failed(outcome(len(all)))
	}
	return request, func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

func always(err error) func(int) error { return func(int) error { return err } }

func TestSender_RepeatsWhatMayPass(t *testing.T) {
	t.Parallel()
	t.Run("with pauses of half a second at most, however often it is to", func(t *testing.T) {
		t.Parallel()
		const retries = 100
		bubble(t, retries, func(t *testing.T, s *calls.Sender) {
			request, tries := failing(always(io.EOF))
			r, answered := s.Do(t.Context(), request)
			require.True(t, answered)
			require.ErrorIs(t, r.Err(), io.EOF)
			require.True(t, r.Ambiguous)
			require.Len(t, tries(), 1+retries)
			for i := 10; i < retries; i++ {
				pause := tries()[i+1].Sub(tries()[i])
				require.GreaterOrEqual(t, pause, 256*time.Millisecond)
				require.Less(t, pause, 600*time.Millisecond)
			}
		})
	})
	t.Run("with growing pauses, and remembers that a copy was lost", func(t *testing.T) {
		t.Parallel()
		bubble(t, 3, func(t *testing.T, s *calls.Sender) {
			outcomes := []error{io.EOF, answer("LOADING x"), answer("LOADING x"), nil}
			request, tries := failing(func(n int) error { return outcomes[n-1] })
			r, answered := s.Do(t.Context(), request)
			require.True(t, answered)
			require.NoError(t, r.Err())
			require.True(t, r.Ambiguous)
			at := tries()
			require.Len(t, at, 4)
			require.Equal(t, at[3], r.SentAt, "the last try's")
			for i, most := range []time.Duration{8 * time.Millisecond, 16 * time.Millisecond, 32 * time.Millisecond} {
				require.GreaterOrEqual(t, at[i+1].Sub(at[i]), most/2)
				require.LessOrEqual(t, at[i+1].Sub(at[i]), most+2*time.Millisecond)
			}
		})
	})
	for name, tt := range map[string]struct {
		err       error
		tries     int
		ambiguous bool
	}{
		"a lost reply":                    {io.EOF, 4, true},
		"a failover":                      {answer("READONLY You can't write"), 4, false},
		"not a refusal for good":          {answer("WRONGTYPE Operation"), 1, false},
		"not a call that was not sent":    {redis.ErrPoolTimeout, 1, false},
		"nothing where the client closed": {redis.ErrClosed, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, 3, func(t *testing.T, s *calls.Sender) {
				request, tries := failing(always(tt.err))
				r, answered := s.Do(t.Context(), request)
				require.True(t, answered)
				require.ErrorIs(t, r.Err(), tt.err)
				require.Len(t, tries(), tt.tries)
				require.Equal(t, tt.ambiguous, r.Ambiguous)
			})
		})
	}
}

// A slot that migrates is waited for, however few retries the client allows.
func TestSender_WaitsForASlotThatMigrates(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		migrates, ends time.Duration // 0: never
		least, most    time.Duration
		err            bool
	}{
		"until it has": {migrates: time.Second, least: time.Second, most: 1100 * time.Millisecond},
		"not longer than the caller": {
			migrates: time.Hour, ends: 300 * time.Millisecond, least: 300 * time.Millisecond, most: 301 * time.Millisecond, err: true,
		},
		"not for ever": {migrates: time.Hour, least: 5 * time.Second, most: 5200 * time.Millisecond, err: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, 0, func(t *testing.T, s *calls.Sender) {
				began, ctx := time.Now(), t.Context()
				if tt.ends > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.ends)
					defer cancel()
				}
				request, tries := failing(func(int) error {
					if time.Since(began) < tt.migrates {
						return answer("TRYAGAIN Multiple keys request during rehashing of slot")
					}
					return nil
				})
				r, answered := s.Do(ctx, request)
				took := time.Since(began)
				require.GreaterOrEqual(t, took, tt.least)
				require.LessOrEqual(t, took, tt.most)
				require.Equal(t, tt.err, !answered || r.Err() != nil)
				require.False(t, r.Ambiguous, "nothing was executed")
				require.Less(t, len(tries()), int(took/(16*time.Millisecond)), "it pauses")
				time.Sleep(time.Second)
				require.Less(t, len(tries()), int(took/(16*time.Millisecond))+2, "it is not repeated for a user who has left")
			})
		})
	}
}

// The script of a call may have written before one of its commands was refused.
func TestSender_ACallWhoseScriptWasInterruptedIsAmbiguous(t *testing.T) {
	t.Parallel()
	bubble(t, 0, func(t *testing.T, s *calls.Sender) {
		request, tries := failing(func(n int) error {
			if n == 1 {
				return answer("ERR Script attempted to access a non local key in a cluster node script: c6a3")
			}
			return nil
		})
		r, answered := s.Do(t.Context(), request)
		require.True(t, answered)
		require.NoError(t, r.Err())
		require.Len(t, tries(), 2, "it is repeated, however few retries the client allows")
		require.True(t, r.Ambiguous)
	})
}

// Guarantees: A4.
func TestSender_RepeatsNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *calls.Sender){
		"after the stop of the wheel": func(s *calls.Sender) { _, _ = s.Wheel.Stop(context.Background()) },
		"after Close":                 func(s *calls.Sender) { s.Gate.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, 100, func(t *testing.T, s *calls.Sender) {
				request, tries := failing(always(io.EOF))
				done := make(chan redisconn.Reply, 1)
				go func() {
					r, _ := s.Do(t.Context(), request)
					done <- r
				}()
				synctest.Wait()
				require.Len(t, tries(), 1, "it pauses")
				end(s)
				require.ErrorIs(t, (<-done).Err(), io.EOF)
				require.Len(t, tries(), 1)
			})
		})
	}
	t.Run("but what is late goes to its user", func(t *testing.T) {
		t.Parallel()
		bubble(t, 0, func(t *testing.T, s *calls.Sender) {
			late := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, answered := s.Do(ctx, calls.Request{
				Send: func(context.Context) *redis.Cmd {
					time.Sleep(time.Minute)
					return calls.Failed(errors.New("late"))
				},
				Late: func(r redisconn.Reply) { late <- r.Err() },
			})
			require.False(t, answered)
			require.EqualError(t, <-late, "late")
		})
	})
}
