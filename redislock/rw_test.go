package redislock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func readersAndWritersExclude(t *testing.T, dep *deployment) {
	rdb, name := dep.rdb, redistest.Name(t)
	a, b := newClient(t, rdb).RWMutex(name), newClient(t, rdb).RWMutex(name)
	require.Equal(t, name, a.Name())
	r1, r2, r3 := mustRLock(t, a), mustRLock(t, a), mustRLock(t, b)
	_, err := b.TryLock(t.Context())
	requireLocked(t, err)
	var locked *redislock.LockedError
	require.ErrorAs(t, err, &locked)
	require.InDelta(t, redislock.DefaultLease, locked.TTL, float64(5*time.Second))
	state, err := b.Reader().State(t.Context())
	require.NoError(t, err)
	require.Len(t, state.Holders, 3)
	mustUnlock(t, r1, r2)
	_, err = a.TryLock(t.Context())
	requireLocked(t, err)
	mustUnlock(t, r3)
	requireFree(t, rdb, name)

	w := mustWLock(t, a)
	for _, rw := range []*redislock.RWMutex{a, b} {
		_, err = rw.TryLock(t.Context())
		requireLocked(t, err)
		_, err = rw.TryRLock(t.Context())
		requireLocked(t, err)
	}
	mustUnlock(t, w)
	requireFree(t, rdb, name)
	mustUnlock(t, mustRLock(t, b))
	require.ErrorIs(t, r1.Unlock(t.Context()), redislock.ErrNotHeld)
	require.ErrorIs(t, w.Unlock(t.Context()), redislock.ErrNotHeld)
}

// Readers never see half of a write. The checker is shared memory without a lock of its own.
// Guarantees: L26.
func TestRWMutex_ReadersSeeWholeWrites(t *testing.T) {
	t.Parallel()
	// torn counts the torn reads among ten of each reader, or reads until one is torn.
	torn := func(
		t *testing.T, untilTorn bool, lock func(*redislock.RWMutex, context.Context, bool, func()) error,
	) (reads, torn int) {
		server := redistest.Shared(t)
		name := redistest.Name(t)
		rdb := server.Client(t)
		w := newWheel(t)
		const left, right = "{pair}:left:", "{pair}:right:"
		ctx := within(t, patience)
		var mu sync.Mutex
		var failed error
		var running sync.WaitGroup
		continues := func(n int, write bool) bool {
			mu.Lock()
			defer mu.Unlock()
			return n < 10 || !write && untilTorn && torn == 0 && ctx.Err() == nil
		}
		for i := range 4 {
			rw := newClient(t, rdb).RWMutex(name)
			for range 2 {
				running.Go(func() {
					write := i == 0
					for n := 0; continues(n, write); n++ {
						err := lock(rw, ctx, write, func() {
							if write {
								n := rdb.Incr(ctx, left+name).Val()
								_ = w.Sleep(ctx, time.Millisecond)
								rdb.Set(ctx, right+name, n, 0)
								return
							}
							a := rdb.Get(ctx, left+name).Val()
							b := rdb.Get(ctx, right+name).Val()
							mu.Lock()
							defer mu.Unlock()
							reads++
							if a != b {
								torn++
							}
						})
						mu.Lock()
						failed = errors.Join(failed, err)
						mu.Unlock()
					}
				})
			}
		}
		running.Wait()
		require.NoError(t, failed)
		return reads, torn
	}

	t.Run("with the lock", func(t *testing.T) {
		t.Parallel()
		reads, torn := torn(t, false, func(rw *redislock.RWMutex, ctx context.Context, write bool, f func()) error {
			side := rw.Reader()
			if write {
				side = rw.Writer()
			}
			return side.Do(ctx, func(context.Context) error { f(); return nil })
		})
		require.Equal(t, 60, reads)
		require.Zero(t, torn)
	})

	t.Run("control: with unlocked readers writes are torn", func(t *testing.T) {
		t.Parallel()
		_, torn := torn(t, true, func(rw *redislock.RWMutex, ctx context.Context, write bool, f func()) error {
			if !write {
				f()
				return nil
			}
			return rw.Writer().Do(ctx, func(context.Context) error { f(); return nil })
		})
		require.Positive(t, torn)
	})
}

// Guarantees: L26, L27.
func TestRWMutex_Waits(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		t.Run("readers and writers exclude each other", func(t *testing.T) {
			t.Parallel()
			readersAndWritersExclude(t, dep)
		})
		t.Run("many readers and writers are renewed", func(t *testing.T) {
			skipIfShort(t)
			t.Parallel()
			readersAndWritersAreRenewed(t, dep)
		})
		t.Run("all waiting readers acquire when the writer unlocks", func(t *testing.T) {
			t.Parallel()
			c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
			other := newClient(t, rdb)
			w := mustWLock(t, c.RWMutex(name))
			var readers []*asyncCall
			for i := range 20 {
				rw := c.RWMutex(name)
				if i%2 == 0 {
					rw = other.RWMutex(name)
				}
				readers = append(readers, callAsync(func() (*redislock.Lock, error) {
					return rw.RLock(within(t, patience))
				}))
			}
			channel := scripts.RWChannel(name)
			if !dep.options.IsClusterMode || dep.hasShardedChannels(t) { // else there is no line, as nobody can count who hears
				channel += ":r"
			}
			dep.awaitSubscribed(t, channel)
			mustUnlock(t, w)
			free := time.Now()
			var locks []*redislock.Lock
			for _, r := range readers {
				locks = append(locks, r.await(t))
				require.Less(t, r.at.Sub(free), 6*time.Second)
			}
			require.Equal(t, int64(21), rdb.HLen(t.Context(), name).Val(), "all readers hold it at the same time")
			mustUnlock(t, locks...)
			requireFree(t, rdb, name)
		})

		t.Run("a dead reader is removed when a live reader unlocks", func(t *testing.T) {
			t.Parallel()
			lut := newLockUnderTest(t, dep, "read")
			require.True(t, lut.java(t, "read", 52).lock(3*time.Second)) // and dies
			alive := lut.mustLock(t)
			// the hash and the living reader's lease
			poll(t, func() bool { return len(lut.keysWith(t, lut.name)) == 2 })
			require.Equal(t, int64(3), lut.rdb.HLen(t.Context(), lut.name).Val())
			mustUnlock(t, alive)
			lut.requireNoKeys(t)
		})

		t.Run("a writer acquires when the last reader unlocks", func(t *testing.T) {
			t.Parallel()
			lut := newLockUnderTest(t, dep, "write")
			rw, writer := lut.newClient(t).RWMutex(lut.name), lut.newWaiter(t, lut.mutex)
			requireWokenWithoutPoll(t, func() time.Duration {
				r1, r2 := mustRLock(t, rw), mustRLock(t, rw)
				writing := writer.startWaiting(t, within(t, patience))
				mustUnlock(t, r1)
				require.False(t, isClosed(writing.done))
				mustUnlock(t, r2)
				free := time.Now()
				mustUnlock(t, writing.await(t))
				return writing.at.Sub(free)
			})
		})

		t.Run("a writer waits for the longest lease of dead readers, not longer", func(t *testing.T) {
			skipIfShort(t)
			t.Parallel()
			c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
			once := redislock.WithoutRenewal()
			start := time.Now()
			long := mustRLock(t, c.RWMutex(name, redislock.WithLease(3*time.Second), once)) // short: its end is awaited
			mustRLock(t, c.RWMutex(name, redislock.WithLease(2500*time.Millisecond), once)) // short: its end is awaited
			w, err := newClient(t, rdb).RWMutex(name).Lock(within(t, patience))
			require.NoError(t, err)
			require.GreaterOrEqual(t, time.Since(start), 2900*time.Millisecond)
			require.Less(t, time.Since(start), 3*time.Second+2*redislock.DefaultPoll)
			requireOver(t, long)
			require.ErrorIs(t, long.Unlock(t.Context()), redislock.ErrLost)
			require.True(t, w.Valid())
			mustUnlock(t, w)
		})
	})
}

func readersAndWritersAreRenewed(t *testing.T, dep *deployment) {
	const lease = safeLease
	rdb := dep.rdb
	c := newClient(t, rdb)
	var locks []*redislock.Lock
	var names []string
	read := redistest.Name(t)
	for range 30 {
		locks = append(locks, mustRLock(t, c.RWMutex(read, redislock.WithLease(lease))))
	}
	for range 10 {
		names = append(names, redistest.Name(t))
		locks = append(locks, mustWLock(t, c.RWMutex(names[len(names)-1], redislock.WithLease(lease))))
	}
	awaitRenewals(t, lease/2, locks...)
	require.Len(t, rdb.HGetAll(t.Context(), read).Val(), 31)
	for _, name := range append(names, read) {
		require.Positive(t, rdb.PTTL(t.Context(), name).Val())
	}
	mustUnlock(t, locks...)
	requireFree(t, rdb, read)
}

// Guarantees: L29.
func TestRWMutex_Downgrade(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		t.Run("admits readers and excludes writers", func(t *testing.T) {
			t.Parallel()
			lut := newLockUnderTest(t, dep, "read")
			rw, other := lut.newClient(t).RWMutex(lut.name), lut.newClient(t).RWMutex(lut.name)
			reader := lut.newWaiter(t, lut.mutex)
			requireWokenWithoutPoll(t, func() time.Duration {
				w := mustWLock(t, rw)
				reading := reader.startWaiting(t, within(t, patience))
				r, err := rw.Downgrade(t.Context(), w)
				require.NoError(t, err)
				lets := time.Now()
				require.ErrorIs(t, w.Err(), redislock.ErrNotHeld)
				require.ErrorIs(t, w.Unlock(t.Context()), redislock.ErrNotHeld)
				require.True(t, r.Valid())
				woken := reading.await(t)
				_, err = other.TryLock(t.Context())
				requireLocked(t, err)
				mustUnlock(t, r)
				_, err = other.TryLock(t.Context())
				requireLocked(t, err)
				mustUnlock(t, woken)
				lut.requireNoKeys(t)
				return reading.at.Sub(lets)
			})
		})

		t.Run("refuses a Lock that is not its writer", func(t *testing.T) {
			t.Parallel()
			c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
			rw := c.RWMutex(name)
			elsewhere := mustWLock(t, c.RWMutex(name+"-other"))
			reader, plain := mustRLock(t, rw), mustLock(t, c.Mutex(name+"-plain"))
			foreign := mustWLock(t, newClient(t, rdb).RWMutex(name+"-foreign"))
			for _, l := range []*redislock.Lock{elsewhere, reader, plain, foreign} {
				_, err := rw.Downgrade(t.Context(), l)
				require.ErrorIs(t, err, cogwheel.ErrInvalid)
				mustUnlock(t, l)
			}
			for _, l := range []*redislock.Lock{nil, {}, elsewhere} {
				_, err := rw.Downgrade(t.Context(), l)
				require.Error(t, err)
				require.NotErrorIs(t, err, redislock.ErrLost)
			}
		})

		t.Run("of a lost writer returns ErrLost", func(t *testing.T) {
			t.Parallel()
			c, rdb, name := newClient(t, dep.rdb), dep.rdb, redistest.Name(t)
			rw := c.RWMutex(name)
			w := mustWLock(t, rw)
			require.NoError(t, rdb.Del(t.Context(), name).Err())
			_, err := rw.Downgrade(t.Context(), w)
			require.ErrorIs(t, err, redislock.ErrLost)
			requireFree(t, rdb, name)
		})
	})
}
