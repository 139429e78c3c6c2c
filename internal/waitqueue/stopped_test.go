package waitqueue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// TestGroup_EndsWithTheWheel stops the wheel of a Group whose callers wait for a poll, or for an attempt.
func TestGroup_EndsWithTheWheel(t *testing.T) {
	for name, inFlight := range map[string]bool{"parked": false, "an attempt is in flight": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, err := wheel.New()
				require.NoError(t, err)
				answered := make(chan struct{})
				attempts, listens := 0, 0
				var back []int
				cfg := waitqueue.Config[string, int]{
					MaxBatch: 10, Poll: time.Minute,
					Listen: func(string, func()) func() {
						listens++
						return func() { listens-- }
					},
					GiveBack: func(_ string, granted []int) { back = append(back, granted...) },
				}
				asks(&cfg, func(_ string, batch []*waiter) (time.Duration, error) {
					if attempts++; inFlight && attempts == 2 {
						<-answered
						batch[0].Grant() // too late
					}
					return 0, nil
				})
				g := waitqueue.New(w, cfg)
				ended := make(chan error, 3)
				for k := range 2 {
					go func() {
						_, err := g.Wait(context.Background(), "name", k)
						ended <- err
					}()
				}
				g.WaitFunc(context.Background(), "name", 2, func(_ int, err error) { ended <- err })
				synctest.Wait()
				if inFlight {
					g.Kick("name")
					synctest.Wait()
				}
				require.Equal(t, 3, g.Size())
				before := attempts
				_, err = w.Stop(context.Background())
				require.NoError(t, err)
				synctest.Wait()
				for range cap(ended) {
					require.ErrorIs(t, <-ended, wheel.ErrStopped)
				}
				require.Equal(t, before, attempts, "the server is not asked again")
				close(answered)
				synctest.Wait()
				if inFlight {
					require.Len(t, back, 1)
				}
				require.Zero(t, listens)
				require.Zero(t, g.Len())

				_, err = g.Wait(context.Background(), "name", 1)
				require.ErrorIs(t, err, wheel.ErrStopped, "a later wait ends after its attempt")
				require.NoError(t, g.Close(context.Background(), errClosed))
			})
		})
	}
}

// TestGroup_OutlastsAFullWheel fills the wheel of two Groups whose callers wait for a poll. Only those of a lasting
// Group go on: it asks at the times at which it would ask otherwise, and not more often after a Kick.
func TestGroup_OutlastsAFullWheel(t *testing.T) {
	for name, lasting := range map[string]bool{"lasting": true, "not lasting": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, err := wheel.New(wheel.WithMaxPendingTimeouts(1))
				require.NoError(t, err)
				defer w.Stop(context.Background())
				other, err := w.AfterFunc(time.Hour, func() {})
				require.NoError(t, err)
				cfg := waitqueue.Config[string, int]{MaxBatch: 1, Poll: time.Minute, Lasting: lasting}
				var attempts atomic.Int64
				var free atomic.Bool
				asks(&cfg, func(_ string, batch []*waiter) (time.Duration, error) {
					attempts.Add(1)
					if free.Load() {
						batch[0].Grant()
					}
					return time.Second, nil
				})
				g := waitqueue.New(w, cfg)
				ended := make(chan error, 1)
				g.WaitFunc(context.Background(), "name", 1, func(_ int, err error) { ended <- err })
				synctest.Wait()
				if !lasting {
					require.ErrorIs(t, <-ended, wheel.ErrTooManyPending)
					return
				}
				time.Sleep(500 * time.Millisecond)
				g.Kick("name")
				time.Sleep(3500 * time.Millisecond)
				require.Equal(t, int64(2+3), attempts.Load(), "the Kick has moved the others")
				require.True(t, other.Stop())
				time.Sleep(2 * time.Second)
				require.Equal(t, int64(2+5), attempts.Load())
				require.Equal(t, 1, w.Stats().Pending, "the wheel has the timer again")
				free.Store(true)
				time.Sleep(time.Second)
				require.NoError(t, <-ended)
				require.Zero(t, g.Len())
				require.Zero(t, w.Stats().Pending)
			})
		})
	}
}
