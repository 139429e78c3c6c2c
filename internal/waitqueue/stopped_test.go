package waitqueue_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// TestGroup_EndsWithTheWheel stops the wheel of a Group whose callers wait for a poll, or for an attempt.
// Guarantees: A4.
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
					Listen: func(string, func(time.Duration)) func() {
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
