package semaphore_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// While a slot migrates, calls wait until it has arrived, and none fails.
// Guarantees: L45.
func TestSemaphores_WaitForAMigratingSlot(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client(t)
	c := newClient(t, rdb)
	names := map[string]string{}
	held := map[string]releaseFunc{}
	for _, k := range kinds {
		names[k.name] = "{orders}:" + k.name
		s := k.newAny(c, names[k.name])
		s.setPermits(t, 2)
		g, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		held[k.name] = g
	}
	other := newClient(t, rdb) // its keys do not exist yet
	slot := cluster.Migrate(t, "{orders}")
	var all []*asyncCall
	for _, k := range kinds {
		all = append(all, startCall(func() error { return held[k.name](context.Background()) }), startCall(func() error {
			g, err := k.newAny(other, names[k.name]).acquire(within(t, testTimeout), 2)
			if err != nil {
				return err
			}
			return g(context.Background())
		}))
	}
	require.NoError(t, newWheel(t).Sleep(t.Context(), 1500*time.Millisecond))
	slot.Finish()
	for _, call := range all {
		require.NoError(t, call.wait(t))
	}
	for _, k := range kinds {
		require.EqualValues(t, 2, available(t, k.newAny(c, names[k.name])))
	}
}

// The primary is cut off from the Sentinels and its replicas, but still answers on its open connections.
// Guarantees: L40.
func TestSentinel_RenewalsLeaveAPrimaryThatWasDeposed(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	for name, client := range redistest.SentinelClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			renewalsLeaveAPrimaryThatWasDeposed(t, client)
		})
	}
}

func renewalsLeaveAPrimaryThatWasDeposed(
	t *testing.T, client func(testing.TB, *redistest.Sentinel) redis.UniversalClient,
) {
	const lease = safeLease
	sentinel := redistest.StartSentinel(t)
	c := newClient(t, client(t, sentinel))
	semaphores := map[string]func(*semaphore.Client) *semaphore.Semaphore{
		"plain": func(c *semaphore.Client) *semaphore.Semaphore {
			return c.Semaphore("plain", 0, semaphore.WithLease(lease))
		},
		"fair": func(c *semaphore.Client) *semaphore.Semaphore {
			return c.FairSemaphore("fair", 0, semaphore.WithLease(lease))
		},
	}
	held := map[string]*semaphore.Grant{}
	for kind, of := range semaphores {
		mustSetPermits(t, of(c), 1)
		held[kind] = mustAcquire(t, of(c), 1)
	}
	first := time.Now().Add(lease)
	for _, g := range held {
		poll(t, func() bool { return g.Err() != nil || g.Deadline().After(first) }) // its connection is open
		require.NoError(t, g.Err())
	}
	sentinel.Isolate(t)
	sentinel.AwaitFailover(t)
	other := newClient(t, sentinel.Client(t))
	type instant struct {
		at  time.Time
		err error
	}
	for kind, of := range semaphores {
		next, told := make(chan instant, 1), make(chan instant, 1)
		go func() {
			_, err := of(other).Acquire(within(t, lease+2*time.Second), 1)
			next <- instant{time.Now(), err}
		}()
		go func() {
			<-held[kind].Done()
			told <- instant{time.Now(), held[kind].Err()}
		}()
		if got := <-next; got.err != nil {
			require.True(t, held[kind].Valid(), "%s: renewed at the new primary", kind)
		} else {
			lost := <-told
			require.ErrorIs(t, lost.err, semaphore.ErrLost)
			require.Less(t, lost.at.Sub(got.at), lease, kind)
		}
	}
}

// The script that releases a permit takes the woken waiter out of the line, and so empties it. While the slot migrates,
// Redis refuses a script the key that it has emptied.
// Guarantees: L45.
func TestSemaphore_GrantsNoMoreThanItsPermitsWhileItsSlotMigrates(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		cluster := redistest.StartCluster(t)
		rdb, name := cluster.Client(t), "orders"
		s := k.newAny(newClient(t, rdb), name)
		s.setPermits(t, 2)
		first, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		second, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		third := make(chan func(context.Context) error, 1)
		there := k.newAny(newClient(t, rdb), name)
		waiting := startCall(func() error {
			release, err := there.acquire(within(t, testTimeout), 1)
			third <- release
			return err
		})
		if k.name == fairKind.name || redistest.HasShardedChannels(t) {
			redistest.AwaitLine(t, rdb, k.key(name, "waiting"), 1)
		} else { // there is no line, as nobody can count who hears
			awaitListeners(t, rdb, scripts.PrefixName(k.channel, name), 1)
		}
		slot := cluster.Migrate(t, name)
		release := startCall(func() error { return first(within(t, testTimeout)) })
		redistest.AwaitLine(t, rdb, k.key(name, "waiting"), 0)
		slot.Finish()
		require.NoError(t, waiting.wait(t))
		_, err = s.tryAcquire(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrNoPermits, "both permits are held")
		require.NoError(t, release.wait(t), "the permit was held")
		require.NoError(t, second(t.Context()))
		require.NoError(t, (<-third)(t.Context()))
		free, err := s.Available(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 2, free)
	})
}

// interruption makes the server's next answer to a script the refusal of one of its commands.
type interruption struct{ next atomic.Bool }

func (i *interruption) DialHook(next redis.DialHook) redis.DialHook { return next }

func (i *interruption) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if i.interrupt(cmds...) {
			err = cmds[0].Err()
		}
		return err
	}
}

func (i *interruption) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if i.interrupt(cmd) {
			err = cmd.Err()
		}
		return err
	}
}

// interrupt interrupts scripts that were executed together.
func (i *interruption) interrupt(cmds ...redis.Cmder) bool {
	for _, cmd := range cmds {
		if !strings.HasPrefix(cmd.Name(), "eval") || cmd.Err() != nil {
			return false
		}
	}
	if !i.next.CompareAndSwap(true, false) {
		return false
	}
	for _, cmd := range cmds {
		cmd.SetErr(refused("ERR Script attempted to access a non local key in a cluster node script: c6a3, on @user_script:9."))
	}
	return true
}

// refused is an answer of a server.
type refused string

func (e refused) Error() string { return string(e) }
func (refused) RedisError()     {}

// A command of a script that is refused because its slot migrates says nothing about those before it.
func TestSemaphores_AnInterruptedScriptMayHaveDoneItsWork(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Start(t).Client(t)
			interrupt := new(interruption)
			rdb.AddHook(interrupt)
			s := k.newAny(newClient(t, rdb), "name")
			s.setPermits(t, 2)
			interrupt.next.Store(true)
			release, err := s.acquire(within(t, testTimeout), 1)
			require.False(t, interrupt.next.Load())
			require.NoError(t, err)
			require.EqualValues(t, 1, available(t, s), "one was taken")
			interrupt.next.Store(true)
			require.NoError(t, release(within(t, testTimeout)))
			require.EqualValues(t, 2, available(t, s))
		})
	}
}
