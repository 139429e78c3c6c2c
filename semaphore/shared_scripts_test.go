package semaphore_test

import (
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Permits of many semaphores are acquired, and released, by scripts that they share. When the reply of such a
// script is lost, each caller holds one permit, and frees it by one Release.
func TestSemaphore_ReplyLostOfASharedScript(t *testing.T) {
	t.Parallel()
	const callers, permits = 200, 3
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, dialer, rdb := newFaultyClient(t, redistest.Start(t), 3)
			all, held := make([]*semaphore.Semaphore, callers), make([]*semaphore.Grant, callers)
			for i := range all {
				all[i] = c.Semaphore(fmt.Sprint("permits:", i), 0)
				mustSetPermits(t, all[i], permits)
			}
			sound := newClient(t, rdb)
			free := func(want int64) {
				t.Helper()
				for i := range all {
					require.Equal(t, want, available(t, sound.Semaphore(all[i].Name(), 0)), all[i].Name())
				}
			}
			poll(t, c.SharesScripts)
			lost := dialer.LoseReply(scripts.PermitsAcquire.SHA(), 1, loss)
			redistest.Each(t, callers, func(i int) (err error) {
				held[i], err = all[i].Acquire(within(t, testTimeout), 1)
				return err
			})
			requireClosed(t, lost)
			free(permits - 1)
			for i, g := range held {
				require.Positive(t, g.Token())
				ids, err := rdb.ZRange(t.Context(), scripts.SuffixName(all[i].Name(), "timeout"), 0, -1).Result()
				require.NoError(t, err)
				require.Equal(t, []string{hex.EncodeToString([]byte(ids[0]))}, g.IDs(), all[i].Name())
			}
			lost = dialer.LoseReply(scripts.PermitsRelease.SHA(), 1, loss)
			redistest.Each(t, callers, func(i int) error { return held[i].Release(within(t, testTimeout)) })
			requireClosed(t, lost)
			free(permits)
		})
	}
}

// The same of counting semaphores.
func TestCountingSemaphore_ReplyLostOfASharedScript(t *testing.T) {
	t.Parallel()
	const callers, permits = 200, 3
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, dialer, rdb := newFaultyClient(t, redistest.Start(t), 3)
			all := make([]*semaphore.CountingSemaphore, callers)
			for i := range all {
				all[i] = c.CountingSemaphore(fmt.Sprint("permits:", i))
				mustSetPermits(t, all[i], permits)
			}
			free := func(want int) {
				t.Helper()
				for _, s := range all {
					require.Equal(t, fmt.Sprint(want), rdb.Get(t.Context(), s.Name()).Val(), s.Name())
				}
			}
			poll(t, c.SharesScripts)
			lost := dialer.LoseReply(scripts.SemsAcquire.SHA(), 1, loss)
			redistest.Each(t, callers, func(i int) error { return all[i].Acquire(within(t, testTimeout), 2) })
			requireClosed(t, lost)
			free(permits - 2)
			lost = dialer.LoseReply(scripts.SemsRelease.SHA(), 1, loss)
			redistest.Each(t, callers, func(i int) error { return all[i].Release(within(t, testTimeout), 2) })
			requireClosed(t, lost)
			free(permits)
		})
	}
}

func requireClosed(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	default:
		t.Fatal("they did not share a script")
	}
}
