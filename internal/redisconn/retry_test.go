package redisconn_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestRetry_ManyTimes(t *testing.T) {
	t.Parallel()
	t.Run("pauses for half a second at most, however often it is to retry", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w, err := wheel.New()
			require.NoError(t, err)
			const retries = 100
			var sent []time.Time
			r := redisconn.Retry(w, nil, retries, nil, func() (*redis.Cmd, time.Time) {
				now := time.Now()
				sent = append(sent, now)
				cmd := redis.NewCmd(t.Context())
				cmd.SetErr(io.EOF)
				return cmd, now
			})
			require.ErrorIs(t, r.Err(), io.EOF)
			require.True(t, r.Ambiguous)
			require.Len(t, sent, 1+retries)
			for i := 10; i < retries; i++ {
				pause := sent[i+1].Sub(sent[i])
				require.GreaterOrEqual(t, pause, 256*time.Millisecond)
				require.Less(t, pause, 600*time.Millisecond)
			}
			_, err = w.Stop(t.Context())
			require.NoError(t, err)
		})
	})
}

// A slot that migrates is waited for, however few retries the client allows.
func TestRetry_WaitsForASlotThatMigrates(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		migrates, ends time.Duration // 0: never
		least, most    time.Duration
		err            bool
	}{
		"until it has":               {migrates: time.Second, least: time.Second, most: 1100 * time.Millisecond},
		"not longer than the caller": {migrates: time.Second, ends: 300 * time.Millisecond, least: 250 * time.Millisecond, most: 310 * time.Millisecond, err: true},
		"not for ever":               {migrates: time.Hour, least: 5 * time.Second, most: 5200 * time.Millisecond, err: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, err := wheel.New()
				require.NoError(t, err)
				began, calledAt := time.Now(), time.Time{}
				var ended chan struct{}
				if tt.ends > 0 {
					ended = make(chan struct{})
					time.AfterFunc(tt.ends, func() { close(ended) })
				}
				sent := 0
				r := redisconn.Retry(w, nil, 0, ended, func() (*redis.Cmd, time.Time) {
					sent++
					calledAt = time.Now()
					cmd := redis.NewCmd(t.Context())
					if time.Since(began) < tt.migrates {
						cmd.SetErr(answer("TRYAGAIN Multiple keys request during rehashing of slot"))
					}
					return cmd, calledAt
				})
				took := time.Since(began)
				require.GreaterOrEqual(t, took, tt.least)
				require.LessOrEqual(t, took, tt.most)
				require.Equal(t, tt.err, r.Err() != nil)
				require.False(t, r.Ambiguous, "nothing was executed")
				require.Less(t, sent, int(took/(16*time.Millisecond)), "it pauses")
				_, err = w.Stop(t.Context())
				require.NoError(t, err)
			})
		})
	}
}

// The script of a call may have written before one of its commands was refused.
func TestRetry_ACallWhoseScriptWasInterruptedIsAmbiguous(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		sent := 0
		r := redisconn.Retry(w, nil, 0, nil, func() (*redis.Cmd, time.Time) {
			cmd := redis.NewCmd(t.Context())
			if sent++; sent == 1 {
				cmd.SetErr(answer("ERR Script attempted to access a non local key in a cluster node script: c6a3"))
			}
			return cmd, time.Now()
		})
		require.NoError(t, r.Err())
		require.Equal(t, 2, sent, "it is repeated, however few retries the client allows")
		require.True(t, r.Ambiguous)
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
	})
}

func TestRetry_EndsWithTheWheel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		sent, replied := 0, make(chan redisconn.Reply, 1)
		go func() {
			replied <- redisconn.Retry(w, nil, 100, nil, func() (*redis.Cmd, time.Time) {
				sent++
				cmd := redis.NewCmd(t.Context())
				cmd.SetErr(io.EOF)
				return cmd, time.Now()
			})
		}()
		synctest.Wait()
		require.Equal(t, 1, w.Len(), "it pauses")
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		require.ErrorIs(t, (<-replied).Err(), io.EOF)
		require.Equal(t, 1, sent)
	})
}
