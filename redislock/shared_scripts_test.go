package redislock_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Locks of many callers are taken, and released, by scripts that they share. When the reply of such a script is lost,
// each of the locks is held once, and freed by one Unlock.
func TestMutex_ReplyLostOfASharedScript(t *testing.T) {
	t.Parallel()
	const callers = 200
	for name, loss := range map[string]redistest.Loss{"cut": redistest.Cut, "swallowed": redistest.Swallow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, dialer, rdb := newFaultyClient(t)
			for _, s := range []*scripts.Script{scripts.LocksAcquire, scripts.LocksRelease} {
				require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err()) // or its first reply is that it is unknown
			}
			names, held := make([]string, callers), make([]*redislock.Lock, callers)
			for i := range names {
				names[i] = fmt.Sprintf("%s:%d", redistest.Name(t), i)
			}
			each := func(f func(i int) error) {
				t.Helper()
				failed := make([]error, callers)
				var all sync.WaitGroup
				for i := range callers {
					all.Go(func() { failed[i] = f(i) })
				}
				all.Wait()
				for _, err := range failed {
					require.NoError(t, err)
				}
			}
			poll(t, c.SharesScripts)
			lost := dialer.LoseReply(scripts.LocksAcquire.SHA(), 1, loss)
			each(func(i int) (err error) {
				held[i], err = c.Mutex(names[i]).Lock(within(t, patience))
				return err
			})
			require.True(t, isClosed(lost), "they shared a script")
			holders := map[string]bool{}
			for _, name := range names {
				holders[requireHeldOnce(t, rdb, name)] = true
			}
			require.Len(t, holders, callers)
			lost = dialer.LoseReply(scripts.LocksRelease.SHA(), 1, loss)
			each(func(i int) error { return held[i].Unlock(within(t, patience)) })
			require.True(t, isClosed(lost), "they shared a script")
			requireAllFree(t, rdb, names...)
			require.NoError(t, c.Close(within(t, patience)))
		})
	}
}

// A script that releases many locks wakes the waiters of other processes, although nobody waits for most of them.
func TestMutex_ASharedReleaseWakesThoseWhoWait(t *testing.T) {
	t.Parallel()
	const locks, waiters = 100, 3
	server, name := redistest.Start(t), redistest.Name(t)
	rdb := server.Client(t)
	c, sent := newCountedClient(t, server.Client(t)) // without renewals: if it begins to listen late, it renews all at once
	other := newClient(t, rdb, onlyWoken())
	poll(t, c.SharesScripts)
	held := make([]*redislock.Lock, locks)
	redistest.Each(t, locks, func(i int) (err error) {
		held[i], err = c.Mutex(fmt.Sprint(name, i), redislock.WithLease(2*patience)).Lock(t.Context())
		return err
	})
	got := make(chan error, waiters)
	for i := range waiters {
		go func() {
			l, err := other.Mutex(fmt.Sprint(name, i*40)).Lock(within(t, patience))
			if err == nil {
				err = l.Unlock(t.Context())
			}
			got <- err
		}()
		awaitLine(t, rdb, fmt.Sprint(name, i*40), 1)
	}
	before := sent.scriptCalls()
	redistest.Each(t, locks, func(i int) error { return held[i].Unlock(t.Context()) })
	for range waiters {
		require.NoError(t, <-got)
	}
	require.Less(t, sent.scriptCalls()-before, locks, "they shared scripts")
}
