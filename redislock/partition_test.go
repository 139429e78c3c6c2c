package redislock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// The primary is cut off from the Sentinels and its replicas, and goes on answering the connections that clients have. Renewals go where
// acquisitions go, so that a holder whose lock the new primary does not know is told a third of its lease later at the most.
func TestSentinel_RenewalsLeaveAPrimaryThatWasDeposed(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	sentinel := redistest.StartSentinel(t)
	c := newClient(t, sentinel.Client(t))
	held := map[string]*redislock.Lock{}
	for _, kind := range singleNameKinds {
		held[kind] = mustTryLock(t, newMutex(c, kind, "orders:"+kind, redislock.WithLease(lease)))
	}
	for _, l := range held {
		awaitRenewals(t, 0, l) // its connection stands
	}
	old := sentinel.Isolate(t)
	sentinel.AwaitFailover(t)
	require.EqualValues(t, len(singleNameKinds), old.Exists(t.Context(), "orders:plain", "orders:fair", "orders:read", "orders:write").Val())

	other := newClient(t, sentinel.Client(t))
	next, told := map[string]*asyncCall{}, map[string]*asyncCall{}
	for _, kind := range singleNameKinds {
		rival := newMutex(other, kind, "orders:"+kind)
		if kind == "read" {
			rival = other.RWMutex("orders:read").Writer()
		}
		told[kind] = callAsync(func() (*redislock.Lock, error) { <-held[kind].Done(); return nil, held[kind].Err() })
		next[kind] = callAsync(func() (*redislock.Lock, error) { return rival.Lock(within(t, 2*lease)) })
	}
	for kind, b := range next {
		<-b.done
		if b.err == nil { // it took the lock that the new primary did not hear of any more
			<-told[kind].done
			require.ErrorIs(t, told[kind].err, redislock.ErrLost)
			require.Less(t, told[kind].at.Sub(b.at), lease/3+time.Second, kind)
			mustUnlock(t, b.lock)
		} else {
			require.ErrorIs(t, b.err, redislock.ErrLocked)
			require.True(t, held[kind].Valid(), "%s: renewed at the new primary", kind)
		}
	}
	// What is renewed by now is renewed at the new primary alone.
	poll(t, func() bool {
		return old.Exists(t.Context(), "orders:plain", "orders:fair", "orders:read", "orders:write").Val() == 0
	})
}
