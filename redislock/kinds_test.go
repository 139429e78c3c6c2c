package redislock_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// behaviours are the same on every topology.
var behaviours = map[string]func(*testing.T, redis.UniversalClient){
	"readers and writers exclude each other": readersAndWritersExclude,
	"readers and writers are renewed":        readersAndWritersAreRenewed,
	"the fair lock serves in order":          servesInOrder,
	"a multi lock is all or nothing":         multiIsAllOrNothing,
}

func TestKinds_OnOneServer(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for what, check := range behaviours {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			check(t, server.Client(t))
		})
	}
}

func TestKinds_InACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for what, check := range behaviours {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			check(t, cluster.Client(t))
		})
	}
}

// mutexOf returns the lock of a kind as a Mutex.
func mutexOf(c *redislock.Client, kind, name string, opts ...redislock.LockOption) *redislock.Mutex {
	switch kind {
	case "fair":
		return c.FairMutex(name, opts...)
	case "read":
		return c.RWMutex(name, opts...).Reader()
	case "write":
		return c.RWMutex(name, opts...).Writer()
	}
	return c.Mutex(name, opts...)
}

func TestKinds_ExcludeProcesses(t *testing.T) {
	t.Parallel()
	const processes, times = 3, 20
	server := redistest.Shared(t)
	rdb := server.Client(t)
	count := func(t *testing.T, kind string) int {
		name := redistest.Name(t)
		var running sync.WaitGroup
		errs := make([]error, processes)
		for i := range processes {
			cmd := child(t, roleCount, server.Addr(), name, times)
			cmd.Env = append(cmd.Env, childKind+"="+kind)
			running.Go(func() { errs[i] = cmd.Run() })
		}
		running.Wait()
		require.NoError(t, errors.Join(errs...))
		requireNoLine(t, rdb, name)
		n, err := rdb.Get(t.Context(), name+counterTail).Int()
		require.NoError(t, err)
		return n
	}
	for _, kind := range []string{"fair", "write"} {
		t.Run(kind+" loses no update", func(t *testing.T) {
			t.Parallel()
			require.Equal(t, processes*times, count(t, kind))
		})
	}
	t.Run("read does, who share it (control)", func(t *testing.T) {
		t.Parallel()
		require.Less(t, count(t, "read"), processes*times)
	})
}

// A holder that is killed is succeeded when its lease ends, not before.
func TestKinds_AreTakenOverFromAKilledProcess(t *testing.T) {
	t.Parallel()
	for _, kinds := range [][2]string{{"fair", "fair"}, {"write", "read"}, {"read", "write"}} {
		t.Run(kinds[1]+" after "+kinds[0], func(t *testing.T) {
			t.Parallel()
			server := redistest.Shared(t)
			rdb, name := server.Client(t), redistest.Name(t)
			holder := child(t, roleHold, server.Addr(), name, 0)
			holder.Env = append(holder.Env, childKind+"="+kinds[0])
			stdin, err := holder.StdinPipe()
			require.NoError(t, err)
			defer stdin.Close()
			require.NoError(t, holder.Start())
			poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 1 })
			m := mutexOf(newClient(t, rdb), kinds[1], name)
			_, err = m.TryLock(t.Context())
			require.ErrorIs(t, err, redislock.ErrLocked)
			next := begin(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) })
			require.NoError(t, holder.Process.Kill())
			require.Error(t, holder.Wait())
			left, dead := rdb.PTTL(t.Context(), name).Val(), time.Now()
			require.Positive(t, left)
			l := next.wait(t)
			require.GreaterOrEqual(t, next.at.Sub(dead), left-10*time.Millisecond)
			require.Less(t, next.at.Sub(dead), left+6*time.Second)
			mustUnlock(t, l)
			requireFree(t, rdb, name)
		})
	}
}

// A reply that is lost after the script has executed costs nothing: one Lock is one hold, and one Unlock frees it.
func TestKinds_LostReply(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"fair", "read", "write"} {
		for loss, how := range map[redistest.Loss]string{redistest.Swallow: "swallowed", redistest.Cut: "cut"} {
			t.Run(kind+", "+how, func(t *testing.T) {
				t.Parallel()
				d, server := &redistest.FaultDialer{}, redistest.Shared(t)
				plain, name := server.Client(t), redistest.Name(t)
				m := mutexOf(newClient(t, server.Client(t, func(o *redis.Options) {
					o.Dialer, o.ReadTimeout = d.Dial, 200*time.Millisecond
				})), kind, name)
				mustUnlock(t, mustLock(t, m)) // the scripts are known
				lost := d.LoseReply("EVALSHA", 1, loss)
				l := mustLock(t, m)
				<-lost
				holders, err := m.State(t.Context())
				require.NoError(t, err)
				require.Len(t, holders.Holders, 1)
				lost = d.LoseReply("EVALSHA", 1, loss)
				mustUnlock(t, l)
				<-lost
				requireNoLine(t, plain, name)
				require.Zero(t, plain.Exists(t.Context(), scripts.ReadTimeout(name, holders.Holders[0])).Val())
			})
		}
	}
}

// Every kind refuses the keys of the others, of other types, and leaves them alone.
func TestKinds_RefuseEachOther(t *testing.T) {
	t.Parallel()
	c, rdb, name := shared(t)
	kinds := map[string]*redislock.Mutex{
		"plain": c.Mutex(name), "fair": c.FairMutex(name), "read": c.RWMutex(name).Reader(), "write": c.RWMutex(name).Writer(),
	}
	for held, mine := range kinds {
		l := mustLock(t, mine)
		before := rdb.HGetAll(t.Context(), name).Val()
		for kind, m := range kinds {
			second, err := m.TryLock(t.Context())
			switch {
			case held == "read" && kind == "read":
				require.NoError(t, err)
				mustUnlock(t, second)
			case (held == "plain" || held == "fair") == (kind == "plain" || kind == "fair"):
				require.ErrorIs(t, err, redislock.ErrLocked, "%s at %s", kind, held)
			default:
				require.ErrorIs(t, err, redislock.ErrWrongKind, "%s at %s", kind, held)
				require.NotErrorIs(t, err, redislock.ErrLocked)
				_, err = m.Lock(within(t, patience))
				require.ErrorIs(t, err, redislock.ErrWrongKind, "%s waits at %s", kind, held)
			}
		}
		require.Equal(t, before, rdb.HGetAll(t.Context(), name).Val())
		mustUnlock(t, l)
	}
	require.NoError(t, rdb.Set(t.Context(), name, "text", 0).Err())
	for kind, m := range kinds {
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrWrongKind, kind)
		_, err = m.ForceUnlock(t.Context())
		require.ErrorIs(t, err, redislock.ErrWrongKind, kind)
	}
	require.Equal(t, "text", rdb.Get(t.Context(), name).Val())
	for kind, m := range map[string]*redislock.Mutex{"fair": c.FairMutex("a{b"), "read": c.RWMutex("").Reader(), "write": c.RWMutex("{}").Writer()} {
		_, err := m.TryLock(t.Context())
		require.ErrorIs(t, err, redislock.ErrInvalid, kind)
	}
}
