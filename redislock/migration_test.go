package redislock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/clock/clocktest"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// A plain lock has one key, so it keeps working while its slot migrates.
// Guarantees: L44.
func TestMutex_WhileItsSlotMigrates(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	c := newClient(t, cluster.Client(t))
	const lease = 6 * time.Second
	m := c.Mutex("{orders}", redislock.WithLease(lease))
	held := mustLock(t, c.Mutex("{orders}:held", redislock.WithLease(lease)))
	before := mustLock(t, m)
	slot := cluster.Migrate(t, "{orders}")
	require.Less(t, redistest.Running(t, func() {
		require.NoError(t, before.Unlock(within(t, patience)))
		for range 20 {
			mustUnlock(t, mustLock(t, m))
			mustUnlock(t, mustTryLock(t, m))
		}
		waiting := callAsync(func() (*redislock.Lock, error) { return c.Mutex(m.Name()).Lock(within(t, patience)) })
		mustUnlock(t, waiting.await(t))
	}), patience, "nothing waits for the slot")
	awaitRenewals(t, lease/3, held)
	slot.Finish()
	awaitRenewals(t, lease/3, held)
	mustUnlock(t, held, mustLock(t, m))
}

// Locks of several keys wait for the slot as long as their callers do. None of them fails.
// Guarantees: L45.
func TestKinds_WaitForASlotThatMigrates(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client(t)
	c, w := newClient(t, rdb), newWheel(t, wheel.WithClock(clocktest.Fast(10)))
	waits := newClient(t, rdb, redislock.WithWheel(w))
	kinds := map[string]func(c *redislock.Client, name string) *redislock.Mutex{
		"fair": func(c *redislock.Client, name string) *redislock.Mutex { return c.FairMutex(name) },
		"fenced": func(c *redislock.Client, name string) *redislock.Mutex {
			return c.Mutex(name, redislock.WithFencing())
		},
		"read":  func(c *redislock.Client, name string) *redislock.Mutex { return c.RWMutex(name).Reader() },
		"write": func(c *redislock.Client, name string) *redislock.Mutex { return c.RWMutex(name).Writer() },
	}
	held, waiting := map[string]*redislock.Lock{}, map[string]*asyncCall{}
	for kind, of := range kinds {
		held[kind] = mustLock(t, of(c, "{orders}:held:"+kind))
	}
	// One key of each lock must exist before, so that a call finds some of its keys and not the others.
	for kind := range kinds {
		name := "{orders}:new:" + kind
		if kind == "read" || kind == "write" {
			mustLock(t, c.RWMutex(name, redislock.WithLease(3*time.Second), redislock.WithoutRenewal()).Reader())
		} else {
			mustLock(t, c.Mutex(name, redislock.WithLease(3*time.Second), redislock.WithoutRenewal()))
		}
	}
	slot := cluster.Migrate(t, "{orders}")
	unlocked := make(chan error, len(kinds))
	for kind, of := range kinds {
		go func() { unlocked <- held[kind].Unlock(context.Background()) }()
		waiting[kind] = callAsync(func() (*redislock.Lock, error) {
			return of(waits, "{orders}:new:"+kind).Lock(within(t, patience))
		})
	}
	require.NoError(t, w.Sleep(t.Context(), 10*time.Second)) // for longer than a call is repeated: a second of the server
	slot.Finish()
	for range kinds {
		require.NoError(t, <-unlocked)
	}
	for kind := range kinds {
		_ = waiting[kind].await(t).Unlock(t.Context()) // its lease is three seconds: it may have ended
		poll(t, func() bool { return rdb.Exists(t.Context(), "{orders}:held:"+kind).Val() == 0 })
	}
}

// The lock and its token have a key each, and only that of the lock exists.
// Guarantees: L45.
func TestMutex_StateWaitsForASlotThatMigrates(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client(t)
	c, other := newClient(t, rdb), newClient(t, rdb)
	mustLock(t, c.Mutex("{orders}", redislock.WithLease(time.Hour)))
	state := func(ctx context.Context, c *redislock.Client) <-chan error {
		done := make(chan error, 1)
		go func() {
			s, err := c.Mutex("{orders}").State(ctx)
			if err == nil && !s.Locked {
				err = errors.New("not locked")
			}
			done <- err
		}()
		return done
	}
	slot := cluster.Migrate(t, "{orders}")
	require.ErrorIs(t, <-state(within(t, time.Second), c), context.DeadlineExceeded)
	asked := func() string {
		return slot.From.InfoMap(t.Context(), "commandstats").Val()["Commandstats"]["cmdstat_multi"]
	}
	before, closed := asked(), state(within(t, patience), other)
	poll(t, func() bool { return asked() != before })
	require.NoError(t, other.Close(within(t, patience)))
	require.ErrorIs(t, <-closed, redislock.ErrClosed)
	waits := state(within(t, patience), c)
	slot.Finish()
	require.NoError(t, <-waits)
}

// A release that the migration blocks continues in the background, and Unlock says so.
// Guarantees: L45.
func TestLock_UnlockIsUnconfirmedWhileASlotMigratesForLong(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client(t)
	c := newClient(t, rdb)
	l := mustRLock(t, c.RWMutex("{orders}"))
	state, err := c.RWMutex("{orders}").Reader().State(t.Context())
	require.NoError(t, err)
	slot := cluster.Migrate(t, "{orders}")
	slot.Move(scripts.ReadTimeout("{orders}", state.Holders[0].ID))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	stalled, began := stalls(t), time.Now()
	err = l.Unlock(ctx)
	require.ErrorIs(t, err, redislock.ErrUnconfirmed)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began)-stalled(), 2500*time.Millisecond)
	require.ErrorIs(t, l.Err(), redislock.ErrNotHeld)
	slot.Finish()
	poll(t, func() bool { return rdb.Exists(t.Context(), "{orders}").Val() == 0 })
}

// A reader's timeout is a key of its own. The node that receives a slot does not have those that are still on the other
// one.
// Guarantees: L45.
func TestRWMutex_AReaderKeepsItsLockWhileItsSlotMigrates(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	c := newClient(t, cluster.Client(t))
	const name = "{orders}"
	stays := mustRLock(t, c.RWMutex(name))
	before, err := c.RWMutex(name).Reader().State(t.Context())
	require.NoError(t, err)
	leaves := mustRLock(t, c.RWMutex(name))
	after, err := c.RWMutex(name).Reader().State(t.Context())
	require.NoError(t, err)
	slot := cluster.Migrate(t, name)
	for _, holder := range after.Holders {
		if holder.ID != before.Holders[0].ID {
			slot.Move(name, scripts.ReadTimeout(name, holder.ID))
		}
	}
	mustUnlock(t, leaves)
	slot.Finish()
	_, err = c.RWMutex(name).Writer().TryLock(t.Context())
	require.ErrorIs(t, err, redislock.ErrLocked)
	mustUnlock(t, stays)
}

// interruption makes the server's next answer to a script the refusal of one of its commands.
type interruption struct{ next atomic.Bool }

func (i *interruption) DialHook(next redis.DialHook) redis.DialHook { return next }

func (i *interruption) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (i *interruption) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "eval") && err == nil && i.next.CompareAndSwap(true, false) {
			err = refused("ERR Script attempted to access a non local key in a cluster node script: c6a3, on @user_script:9.")
			cmd.SetErr(err)
		}
		return err
	}
}

// refused is an answer of a server.
type refused string

func (e refused) Error() string { return string(e) }
func (refused) RedisError()     {}

// A command of a script that is refused because its slot migrates says nothing about those before it.
func TestKinds_AnInterruptedScriptMayHaveDoneItsWork(t *testing.T) {
	t.Parallel()
	for kind, of := range map[string]func(c *redislock.Client) *redislock.Mutex{
		"plain":  func(c *redislock.Client) *redislock.Mutex { return c.Mutex("name") },
		"fenced": func(c *redislock.Client) *redislock.Mutex { return c.Mutex("name", redislock.WithFencing()) },
		"fair":   func(c *redislock.Client) *redislock.Mutex { return c.FairMutex("name") },
		"string": func(c *redislock.Client) *redislock.Mutex { return c.Mutex("name", redislock.WithStringKey()) },
		"read":   func(c *redislock.Client) *redislock.Mutex { return c.RWMutex("name").Reader() },
		"write":  func(c *redislock.Client) *redislock.Mutex { return c.RWMutex("name").Writer() },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			rdb := server.Client(t)
			interrupt := new(interruption)
			rdb.AddHook(interrupt)
			m := of(newClient(t, rdb))
			interrupt.next.Store(true)
			l := mustLock(t, m)
			require.False(t, interrupt.next.Load())
			interrupt.next.Store(true)
			require.NoError(t, l.Unlock(within(t, patience)))
			require.False(t, interrupt.next.Load())
			require.Zero(t, rdb.Exists(t.Context(), "name").Val())
		})
	}
}
