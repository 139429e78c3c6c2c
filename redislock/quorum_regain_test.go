package redislock_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// holdOn returns the hold that a server knows, without the part of its id that differs between servers, or "".
func holdOn(t *testing.T, s *redistest.Server, name string) string {
	t.Helper()
	state, err := newClient(t, s.Client(t)).Mutex(name).State(t.Context())
	require.NoError(t, err)
	if !state.Locked {
		return ""
	}
	hold, _, _ := strings.Cut(state.Holders[0].ID, ":s")
	return hold
}

// awaitPart waits until a server has a part of the hold.
func awaitPart(t *testing.T, s *redistest.Server, name, hold string) {
	t.Helper()
	rdb := s.Client(t)
	poll(t, func() bool {
		for id := range rdb.HGetAll(t.Context(), name).Val() {
			return strings.HasPrefix(id, hold+":s")
		}
		return false
	})
}

// awaitParts waits until each server has a part of the hold, and returns the hold.
func (f independentServers) awaitParts(t *testing.T, q *redislock.Quorum, name string) (hold string) {
	t.Helper()
	for h := range q.Holds() {
		if h.Name == name {
			hold = h.ID
		}
	}
	require.NotEmpty(t, hold)
	for _, s := range f {
		awaitPart(t, s, name, hold)
	}
	return hold
}

// Guarantees: L32.
func TestQuorum_OutlivesARollingRestart(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	servers, name := startServers(t, 3), redistest.Name(t)
	const lease = safeLease
	q := servers.newQuorumOfFailingServers(t)
	l := mustLock(t, q.Mutex(name, redislock.WithLease(lease), redislock.WithMetadata("host 7")))
	hold := servers.awaitParts(t, q, name)
	competitor := servers.newQuorumOfFailingServers(t).Mutex(name)
	waiting, _ := startLockFunc(t.Context(), competitor)
	for i, s := range servers {
		s.Kill()
		if i == 0 {
			awaitRenewals(t, lease, l) // the part expires; the others are found to be gone
		}
		s.Restart(t) // without its data
		awaitPart(t, s, name, hold)
		require.Equal(t, hold, holdOn(t, s, name))
		require.True(t, l.Valid())
		require.NoError(t, l.Err())
		require.Positive(t, time.Until(l.Deadline()))
		require.Less(t, time.Until(l.Deadline()), lease)
		_, err := competitor.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrLocked, "server %d", i)
		require.Empty(t, waiting)
		awaitRenewals(t, lease/2, l)
	}
	mustUnlock(t, l)
	mustUnlock(t, (<-waiting).mustHold(t))
	servers.awaitFree(t, name)
}

// A part that is gone is taken again when a renewal misses it.
// Guarantees: L32.
func TestQuorum_RegainsThePartOfAnEmptiedServer(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	lock := func(t *testing.T) (name, hold string, l *redislock.Lock) {
		t.Helper()
		name = redistest.Name(t)
		q := servers.newQuorum(t)
		l = mustLock(t, q.Mutex(name, redislock.WithLease(safeLease)))
		return name, servers.awaitParts(t, q, name), l
	}

	t.Run("one after the other", func(t *testing.T) {
		t.Parallel()
		name, hold, l := lock(t)
		for range 2 {
			for _, s := range servers {
				require.NoError(t, s.Client(t).Del(t.Context(), name).Err())
				awaitPart(t, s, name, hold)
			}
		}
		require.True(t, l.Valid())
		mustUnlock(t, l)
		servers.awaitFree(t, name)
	})

	t.Run("when another holder has left it", func(t *testing.T) {
		t.Parallel()
		name, hold, l := lock(t)
		rdb := servers[0].Client(t)
		_, err := rdb.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
			pipe.Del(t.Context(), name)
			pipe.HSet(t.Context(), name, "another:1", 1)
			return nil
		})
		require.NoError(t, err)
		regains := func() int { return serverCalls(t, rdb, "hmget") }
		before := regains()
		poll(t, func() bool { return regains() >= before+2 })
		require.Equal(t, "another:1", requireField(t, rdb, name))
		require.True(t, l.Valid())
		require.NoError(t, rdb.Del(t.Context(), name).Err())
		awaitPart(t, servers[0], name, hold)
		mustUnlock(t, l)
		servers.awaitFree(t, name)
	})

	t.Run("not without renewal", func(t *testing.T) {
		t.Parallel()
		name, q := redistest.Name(t), servers.newQuorum(t)
		l := mustLock(t, q.Mutex(name, redislock.WithLease(3*time.Second), redislock.WithoutRenewal()))
		servers.awaitParts(t, q, name)
		rdb := servers[0].Client(t)
		require.NoError(t, rdb.Del(t.Context(), name).Err())
		<-l.Done()
		requireFree(t, rdb, name)
	})
}

// requireField returns the only field of a hash.
func requireField(t *testing.T, rdb *redis.Client, name string) (field string) {
	t.Helper()
	fields := rdb.HKeys(t.Context(), name).Val()
	require.Len(t, fields, 1)
	return fields[0]
}

// A server that was down when the lock was acquired gets its part too.
// Guarantees: L32.
func TestQuorum_TakesThePartThatWasMissing(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	servers, name := startServers(t, 3), redistest.Name(t)
	servers[0].Kill()
	q := servers.newQuorumOfFailingServers(t)
	l := mustLock(t, q.Mutex(name, redislock.WithLease(safeLease)))
	hold := servers[1:].awaitParts(t, q, name)
	servers[0].Restart(t)
	awaitPart(t, servers[0], name, hold)
	servers[1].Restart(t)
	awaitPart(t, servers[1], name, hold)
	require.True(t, l.Valid())
	mustUnlock(t, l)
	servers.awaitFree(t, name)
}

// regainHook calls a function, once, after a server has executed a call for a missing part and before the library
// sees the reply.
type regainHook struct{ executed chan func() }

func (h regainHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h regainHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h regainHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && strings.Contains(fmt.Sprint(cmd.Args()...), ":forced") {
			select {
			case f := <-h.executed:
				f()
			default:
			}
		}
		return err
	}
}

// A part that a server grants when the hold has ended is released.
// Guarantees: L32.
func TestQuorum_RegainsNothingAfterTheEnd(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	for end, by := range map[string]func(*testing.T, independentServers, string, *redislock.Lock){
		"Unlock": func(t *testing.T, _ independentServers, _ string, l *redislock.Lock) { mustUnlock(t, l) },
		"loss": func(t *testing.T, servers independentServers, name string, l *redislock.Lock) {
			for _, s := range servers[1:] {
				require.NoError(t, s.Client(t).Del(t.Context(), name).Err())
			}
			<-l.Done()
		},
	} {
		t.Run("the reply follows "+end, func(t *testing.T) {
			t.Parallel()
			servers, name := startServers(t, 3), redistest.Name(t)
			rdbs, hook := servers.clients(t), regainHook{make(chan func(), 1)}
			rdbs[0].AddHook(hook)
			q, err := redislock.NewQuorum(rdbs, redislock.WithWheel(newWheel(t)))
			require.NoError(t, err)
			redistest.CloseWith(t, q.Close)
			l := mustLock(t, q.Mutex(name, redislock.WithLease(safeLease)))
			servers.awaitParts(t, q, name)
			granted, ended := make(chan struct{}), make(chan struct{})
			hook.executed <- func() {
				close(granted)
				<-ended
			}
			require.NoError(t, rdbs[0].Del(t.Context(), name).Err())
			<-granted
			require.EqualValues(t, 1, rdbs[0].Exists(t.Context(), name).Val())
			by(t, servers, name, l)
			close(ended)
			servers.awaitFree(t, name)
			require.Error(t, l.Err())
			require.False(t, l.Valid())
		})
	}

	t.Run("a copy executes late", func(t *testing.T) {
		t.Parallel()
		servers, name := startServers(t, 3), redistest.Name(t)
		rdbs, dialer := servers.clients(t), &redistest.FaultDialer{}
		for _, s := range scripts.All() {
			require.NoError(t, rdbs[0].ScriptLoad(t.Context(), s.Source()).Err())
		}
		rdbs[0] = servers[0].Client(t, func(o *redis.Options) { o.Dialer, o.ReadTimeout = dialer.Dial, time.Second })
		q, err := redislock.NewQuorum(rdbs, redislock.WithWheel(newWheel(t)))
		require.NoError(t, err)
		redistest.CloseWith(t, q.Close)
		l := mustLock(t, q.Mutex(name, redislock.WithLease(safeLease)))
		servers.awaitParts(t, q, name)
		call := dialer.LoseCall(":forced", 1)
		require.NoError(t, servers[0].Client(t).Del(t.Context(), name).Err())
		copied := <-call
		mustUnlock(t, l)
		servers[0].Deliver(t, copied)
		servers.awaitFree(t, name)
		require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
	})
}

// While the wheel stands still, no end is announced. A hold that has become invalid then stays so (L4), although a
// part is granted and another one lasts.
// Guarantees: L4, L32.
func TestQuorum_RegainsNothingWithoutAValidMajority(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	servers, name := startServers(t, 3), redistest.Name(t)
	w, err := wheel.New(wheel.WithExecutor(wheel.Inline()))
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = w.Stop(context.Background()) })
	rdbs, hook := servers.clients(t), regainHook{make(chan func(), 1)}
	rdbs[0].AddHook(hook)
	q, err := redislock.NewQuorum(rdbs, redislock.WithWheel(w))
	require.NoError(t, err)
	redistest.CloseWith(t, q.Close)
	l := mustLock(t, q.Mutex(name, redislock.WithLease(safeLease)))
	servers.awaitParts(t, q, name)
	first, last := servers[0].Client(t), servers[2].Client(t)
	channel := clientChannel(t, q)
	poll(t, func() bool { return isSubscribed(t, first, channel) })

	granted, reply := make(chan struct{}), make(chan struct{})
	hook.executed <- func() {
		close(granted)
		<-reply
	}
	servers[1].Pause()
	defer servers[1].Resume()
	extended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		extended <- l.Extend(ctx, time.Minute) // on the last server alone
	}()
	id := requireField(t, first, name)
	require.NoError(t, first.Del(t.Context(), name).Err())
	require.NoError(t, first.Publish(t.Context(), channel, id+" "+name).Err()) // the hold is checked at once
	<-granted
	still, moves := make(chan struct{}), make(chan struct{})
	move := sync.OnceFunc(func() { close(moves) })
	defer move()
	_, err = w.AfterFunc(0, func() {
		close(still)
		<-moves
	})
	require.NoError(t, err)
	<-still
	if err := <-extended; err != nil { // one of the others may have answered in time, or not
		t.Log(err)
	}
	require.Greater(t, last.PTTL(t.Context(), name).Val(), 2*safeLease)
	require.NoError(t, l.Err())
	poll(t, func() bool { return !l.Valid() }) // the part of the server that hangs is over

	close(reply)
	poll(t, func() bool { return l.Valid() || first.Exists(t.Context(), name).Val() == 0 })
	require.False(t, l.Valid())
	servers[1].Resume()
	move()
	requireEnds(t, l.Context(t.Context()), "too few parts")
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
	servers.awaitFree(t, name)
}

// A part that was freed by force stays free, whether or not the Quorum was notified. So the hold ends when a majority
// was freed, however slowly.
// Guarantees: L57.
func TestQuorum_RegainsNothingThatWasFreedByForce(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	forceUnlock := func(t *testing.T, s *redistest.Server, name string) {
		freed, err := newClient(t, s.Client(t)).Mutex(name).ForceUnlock(t.Context())
		require.NoError(t, err)
		require.True(t, freed)
	}
	for by, free := range map[string]func(*testing.T, *redistest.Server, string){
		"ForceUnlock": forceUnlock,
		"ForceUnlock of the FairMutex": func(t *testing.T, s *redistest.Server, name string) {
			freed, err := newClient(t, s.Client(t)).FairMutex(name).ForceUnlock(t.Context())
			require.NoError(t, err)
			require.True(t, freed)
		},
		"ForceUnlockHolder": func(t *testing.T, s *redistest.Server, name string) {
			rdb := s.Client(t)
			freed, err := newClient(t, rdb).Mutex(name).ForceUnlockHolder(t.Context(), requireField(t, rdb, name))
			require.NoError(t, err)
			require.True(t, freed)
		},
	} {
		for _, notified := range []bool{true, false} {
			if notified && by != "ForceUnlock" {
				continue
			}
			t.Run(fmt.Sprintf("%s, notified: %v", by, notified), func(t *testing.T) {
				t.Parallel()
				servers, name := startServers(t, 3), redistest.Name(t)
				var rdbs []redis.UniversalClient
				for _, s := range servers {
					rights := []string{"~*", "+@all", "&redisson*"}
					if notified {
						rights = append(rights, "&*")
					}
					rdbs = append(rdbs, s.Client(t, s.User(t, "app", rights...)))
				}
				q, err := redislock.NewQuorum(rdbs, redislock.WithWheel(newWheel(t)))
				require.NoError(t, err)
				redistest.CloseWith(t, q.Close)
				l := mustLock(t, q.Mutex(name, redislock.WithLease(safeLease)))
				servers.awaitParts(t, q, name)
				rdb := servers[0].Client(t)
				asked := func() int { return serverCalls(t, rdb, "exists") }
				before := asked()
				free(t, servers[0], name)
				poll(t, func() bool { return asked() > before })
				awaitRenewals(t, safeLease/3, l)
				require.Empty(t, rdb.HKeys(t.Context(), name).Val())
				require.True(t, l.Valid(), "a majority is left")
				free(t, servers[1], name)
				requireEnds(t, l.Context(t.Context()), "a majority was freed")
				require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
				servers.awaitFree(t, name)
				mustUnlock(t, mustLock(t, q.Mutex(name)))
			})
		}
	}

	t.Run("the part that was taken again is freed, and stays free", func(t *testing.T) {
		t.Parallel()
		servers, name := startServers(t, 3), redistest.Name(t)
		q := servers.newQuorum(t)
		l := mustLock(t, q.Mutex(name, redislock.WithLease(safeLease)))
		hold := servers.awaitParts(t, q, name)
		for _, s := range servers[:2] {
			require.NoError(t, s.Client(t).Del(t.Context(), name).Err())
			awaitPart(t, s, name, hold)
		}
		for _, s := range servers[:2] {
			forceUnlock(t, s, name)
		}
		requireEnds(t, l.Context(t.Context()), "a majority was freed")
		servers.awaitFree(t, name)
	})
}

// It counts the goroutines of the process, so it is not parallel.
// Guarantees: L19.
func TestScale_HoldsOfAQuorumThatMissAPartCostNoGoroutine(t *testing.T) {
	skipIfShort(t)
	const holds, few = 200, 50
	servers, name, w := startServers(t, 3), redistest.Name(t), newWheel(t)
	q, err := redislock.NewQuorum(servers.clients(t), redislock.WithWheel(w))
	require.NoError(t, err)
	mustUnlock(t, mustLock(t, q.Mutex(name)))
	servers[0].Kill()
	before := runtime.NumGoroutine()
	var held []*redislock.Lock
	for i := range holds {
		held = append(held, mustLock(t, q.Mutex(fmt.Sprint(name, i))))
	}
	fewest := fewestGoroutines(t)
	t.Logf("goroutines: %d before, %d with %d holds that miss a part", before, fewest, holds)
	require.LessOrEqual(t, fewest, before+few)
	mustUnlock(t, held...)
	_ = q.Close(within(t, patience)) // one server is down
	require.Zero(t, w.Len(), "nothing waits for the parts")
}
