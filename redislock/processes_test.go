package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Processes that share only Redis increment a counter under a lock of each kind.
// Guarantees: L1.
func TestProcesses_LocksLoseNoUpdate(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	const processes, times = 3, 20
	count := func(t *testing.T, dep *deployment, role, kind string) int {
		name := redistest.Name(t)
		var running sync.WaitGroup
		errs := make([]error, processes)
		for i := range processes {
			cmd := childCommand(t, role, dep.options.Addrs, name, times)
			cmd.Env = append(cmd.Env, childKind+"="+kind, childPeers+"="+strconv.Itoa(processes))
			running.Go(func() { errs[i] = cmd.Run() })
		}
		running.Wait()
		require.NoError(t, errors.Join(errs...))
		require.ElementsMatch(t, []string{name + counterSuffix, name + readySuffix}, dep.keysWith(t, name))
		n, err := dep.rdb.Get(t.Context(), name+counterSuffix).Int()
		require.NoError(t, err)
		return n
	}
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		for _, kind := range []string{"plain", "string", "fair", "write"} {
			t.Run(kind+": no update is lost", func(t *testing.T) {
				t.Parallel()
				require.Equal(t, processes*times, count(t, dep, roleCount, kind))
			})
		}
		t.Run("control: readers share the lock and lose updates", func(t *testing.T) {
			t.Parallel()
			require.Less(t, count(t, dep, roleCount, "read"), processes*times)
		})
		t.Run("control: without a lock updates are lost", func(t *testing.T) {
			t.Parallel()
			require.Less(t, count(t, dep, roleNoLock, "plain"), processes*times)
		})
	})
}

// When a holder is killed, the next caller acquires when the lease ends, not before.
// Guarantees: L12.
func TestProcesses_KilledHolderIsSucceededWhenItsLeaseEnds(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	onEachDeployment(t, func(t *testing.T, dep *deployment) {
		for _, kinds := range [][2]string{
			{"plain", "plain"}, {"string", "string"}, {"fair", "fair"}, {"write", "read"}, {"read", "write"},
		} {
			t.Run(kinds[1]+" after "+kinds[0], func(t *testing.T) {
				t.Parallel()
				lut := newLockUnderTest(t, dep, kinds[1])
				holder := childCommand(t, roleHold, dep.options.Addrs, lut.name, 0)
				holder.Env = append(holder.Env, childKind+"="+kinds[0])
				stdin, err := holder.StdinPipe()
				require.NoError(t, err)
				defer stdin.Close()
				require.NoError(t, holder.Start())
				poll(t, func() bool { return dep.rdb.Exists(t.Context(), lut.name).Val() == 1 })
				next := lut.newWaiter(t, lut.mutex).startWaiting(t, within(t, patience))
				require.NoError(t, holder.Process.Kill())
				require.Error(t, holder.Wait())
				dead := time.Now()
				left := dep.rdb.PTTL(t.Context(), lut.name).Val()
				require.Positive(t, left)
				l := next.await(t)
				require.GreaterOrEqual(t, next.at.Sub(dead), left-10*time.Millisecond)
				require.Less(t, next.at.Sub(dead), left+6*time.Second)
				mustUnlock(t, l)
				lut.requireNoKeys(t)
			})
		}
	})
}

// A queued waiter whose process was killed is skipped 15 s after its last sign of life, not before.
// Guarantees: L23.
func TestProcesses_FairMutexSkipsAKilledWaiter(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	onEachDeployment(t, skipsAKilledWaiter)
}

func skipsAKilledWaiter(t *testing.T, dep *deployment) {
	rdb, name := dep.rdb, redistest.Name(t)
	held := mustLock(t, newClient(t, rdb).FairMutex(name))
	dead := childCommand(t, roleHold, dep.options.Addrs, name, 0)
	dead.Env = append(dead.Env, childKind+"=fair")
	require.NoError(t, dead.Start())
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 1 })
	next := callAsync(func() (*redislock.Lock, error) {
		return newClient(t, rdb).FairMutex(name).Lock(within(t, 2*patience))
	})
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 2 })
	require.NoError(t, dead.Process.Kill())
	require.Error(t, dead.Wait())
	// To save time, move the waiter's last sign of life back by 12 s.
	alive, id := scripts.FairLockKeys(name)[3], fairQueue(t, rdb, name)[0]
	until, err := rdb.ZIncrBy(t.Context(), alive, -12_000, id).Result()
	require.NoError(t, err)
	killed := time.Now()
	left := time.Duration(until-float64(serverTime(t, dep, name).UnixMilli())) * time.Millisecond
	require.Less(t, left, 3*time.Second+100*time.Millisecond)
	mustUnlock(t, held)
	l := next.await(t)
	took := next.at.Sub(killed)
	require.GreaterOrEqual(t, took, left-10*time.Millisecond, "not before 15 s, since it may be alive")
	require.Less(t, took, left+8*time.Second)
	t.Logf("skipped after %[2]v; %[1]v remained of the 15 s", left, took)
	mustUnlock(t, l)
	requireNoFairKeys(t, rdb, name)
}

// serverTime returns the clock of the server that owns the key.
func serverTime(t *testing.T, dep *deployment, key string) time.Time {
	t.Helper()
	ms, err := dep.rdb.Eval(t.Context(), "return redis.call('TIME')", []string{key}).Slice()
	require.NoError(t, err)
	s, err := strconv.ParseInt(ms[0].(string), 10, 64)
	require.NoError(t, err)
	us, err := strconv.ParseInt(ms[1].(string), 10, 64)
	require.NoError(t, err)
	return time.Unix(s, us*1000)
}

// A holder is frozen for longer than its lease. It resumes and writes before it has checked anything.
// Guarantees: L35.
func TestProcesses_FrozenHolderWritesTooLate(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t)
	for _, fenced := range []bool{true, false} {
		what := "a fenced store refuses the write"
		if !fenced {
			what = "control: a store without a fence accepts the write"
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			role := roleFrozen
			if fenced {
				role = roleFrozenFenced
			}
			holder := startChild(t, role, server.Addr(), name)
			require.Equal(t, "held", holder.readLine(t))
			freeze(t, holder.cmd)

			next := mustLock(t, newClient(t, rdb).Mutex(name, redislock.WithFencing()))
			accepted, err := writeToStore(t.Context(), rdb, name, fenced, next.Token(), "of the new holder")
			require.NoError(t, err)
			require.True(t, accepted)

			_, err = fmt.Fprintln(holder.stdin, "write")
			require.NoError(t, err)
			thaw(t, holder.cmd)
			require.Equal(t, fmt.Sprintf("valid=false accepted=%v", !fenced), holder.readLine(t))
			want := "of the new holder"
			if !fenced {
				want = "of the frozen holder"
			}
			require.Equal(t, want, rdb.Get(t.Context(), name+":value").Val())
			require.NoError(t, next.Unlock(t.Context()))
		})
	}
}

// fencedWrite writes to a store that remembers the highest token and refuses lower ones.
const fencedWrite = `
if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[2]) or 0) then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return 1`

// writeToStore writes as a holder with the token. A store that is not fenced accepts every write.
func writeToStore(
	ctx context.Context, rdb redis.UniversalClient, name string, fenced bool, token int64, value string,
) (accepted bool, err error) {
	if !fenced {
		return true, rdb.Set(ctx, name+":value", value, 0).Err()
	}
	n, err := rdb.Eval(ctx, fencedWrite, []string{name + ":value", name + ":seen"}, token, value).Int()
	return n == 1, err
}
