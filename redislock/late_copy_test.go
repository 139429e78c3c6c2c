package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// A copy of an acquisition reaches Redis when its lock has been released, twice. It is found and released soon: not after the lease.
func TestKinds_ACopyThatComesLateIsReleased(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	for _, s := range scripts.All() {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source()).Err())
	}
	for _, kind := range singleNameKinds {
		for _, lease := range []time.Duration{500 * time.Millisecond, time.Minute} {
			t.Run(kind+", lease "+lease.String(), func(t *testing.T) {
				t.Parallel()
				dialer := &redistest.FaultDialer{}
				c := newClient(t, server.Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = dialer.Dial, 100*time.Millisecond }))
				name := redistest.Name(t)
				lost := dialer.LoseCall(name, 1)
				l := mustTryLock(t, newMutex(c, kind, name, redislock.WithLease(lease)))
				late := <-lost
				mustUnlock(t, l)
				requireFree(t, rdb, name)
				require.NoError(t, newWheel(t).Sleep(t.Context(), 1300*time.Millisecond)) // for one more release, and not for two
				server.Deliver(t, late)
				held := time.Now()
				require.EqualValues(t, 1, rdb.Exists(t.Context(), name).Val(), "the copy takes the lock, for nobody")
				poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
				require.Less(t, time.Since(held), 2500*time.Millisecond)
			})
		}
	}
}

// The first copy of a release was executed, and its reply lost; the second came when the lease was over.
func TestLock_UnlockConfirmedAfterTheLeaseIsNoLoss(t *testing.T) {
	t.Parallel()
	for _, kind := range singleNameKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const lease = 600 * time.Millisecond
			c, dialer, _ := newFaultyClient(t) // replies are awaited for a second
			name := redistest.Name(t)
			l := mustTryLock(t, newMutex(c, kind, name, redislock.WithLease(lease), redislock.WithoutRenewal()))
			gone := dialer.LoseReply(name, 1, redistest.Swallow)
			require.True(t, l.Valid())
			began := time.Now()
			require.NoError(t, l.Unlock(t.Context()))
			require.Greater(t, time.Since(began), lease)
			require.True(t, isClosed(gone))
		})
	}
}

// A key that was overwritten by another type is a lock that was lost, whichever call finds out.
func TestKinds_AnOverwrittenKeyIsALoss(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		for _, kind := range allKinds {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				events := make(chan string, 10)
				c := newClient(t, dep.rdb, redislock.WithHooks(redislock.Hooks{
					Lost:     func(e redislock.Event) { events <- "lost" },
					Released: func(redislock.Event) { events <- "released" },
				}))
				lut := newLockUnderTest(t, dep, kind)
				overwrite := func() {
					name := lut.parts[0]
					require.NoError(t, dep.rdb.Del(t.Context(), name).Err())
					require.NoError(t, dep.rdb.Set(t.Context(), name, "mine", time.Minute).Err())
				}
				isLoss := func(err error) {
					t.Helper()
					require.ErrorIs(t, err, redislock.ErrLost)
					require.ErrorIs(t, err, redislock.ErrWrongKind)
					require.Equal(t, "mine", dep.rdb.Get(t.Context(), lut.parts[0]).Val())
					require.NoError(t, dep.rdb.Del(t.Context(), lut.parts[0]).Err())
				}
				l := mustTryLock(t, lut.mutex(c))
				overwrite()
				isLoss(l.Unlock(t.Context()))
				require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
				isLoss(lut.mutex(c).Do(t.Context(), func(context.Context) error { overwrite(); return nil }))
				if kind == "write" {
					rw := c.RWMutex(lut.name)
					l, err := rw.Lock(t.Context())
					require.NoError(t, err)
					overwrite()
					_, err = rw.Downgrade(t.Context(), l)
					isLoss(err)
				}
				close(events)
				released := 0
				for e := range events {
					if e == "released" {
						released++
					}
				}
				require.Equal(t, 2*(len(lut.parts)-1), released, "of a MultiMutex the parts that were not overwritten")
			})
		}
	})
}

// Tokens are reserved for hand-overs among many waiters, and Redis loses all it knows right after they were used.
func TestMutex_TokensRiseAcrossALossHoweverManyWereReserved(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	c := newClient(t, rdb)
	m := c.Mutex("orders", redislock.WithFencing(), redislock.WithHandoff(10_000, time.Minute))
	const waiters, rounds = 300, 40
	highest := int64(0)
	for range rounds {
		first := mustLock(t, m)
		require.Greater(t, first.Token(), highest, "after a loss")
		highest = first.Token()
		got := make(chan *redislock.Lock)
		for range waiters {
			m.LockFunc(t.Context(), func(l *redislock.Lock, err error) {
				if err != nil && !errors.Is(err, redislock.ErrClosed) {
					t.Error(err)
				}
				got <- l
			})
		}
		mustUnlock(t, first)
		for range waiters {
			l := <-got
			require.Greater(t, l.Token(), highest)
			highest = l.Token()
			mustUnlock(t, l)
		}
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
	}
}
