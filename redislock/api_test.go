package redislock_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestNew_WithLockDefaults(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	c := newClient(t, rdb, redislock.WithLockDefaults(
		redislock.WithLease(time.Hour), redislock.WithMetadata("host-3"), redislock.WithFencing(), redislock.WithLease(time.Minute),
	))

	t.Run("are those of every kind", func(t *testing.T) {
		t.Parallel()
		for _, kind := range fencedKinds {
			name := redistest.Name(t)
			m := newMutex(c, kind, name)
			l := mustTryLock(t, m)
			require.WithinDuration(t, time.Now().Add(time.Minute), l.Deadline(), 10*time.Second)
			require.Positive(t, l.Token())
			state, err := m.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, "host-3", state.Holders[0].Metadata)
			mustUnlock(t, l)
		}
	})

	t.Run("options of a lock come on top", func(t *testing.T) {
		t.Parallel()
		m := c.Mutex(redistest.Name(t), redislock.WithLease(10*time.Second))
		l := mustTryLock(t, m)
		require.WithinDuration(t, time.Now().Add(10*time.Second), l.Deadline(), 2*time.Second)
		require.Positive(t, l.Token())
		mustUnlock(t, l)
	})

	t.Run("serve one line with a lock that says the same", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		l := mustTryLock(t, c.Mutex(name))
		require.ErrorIs(t, errorOf(c.Mutex(name, redislock.WithLease(time.Minute)).TryLock(t.Context())), redislock.ErrLocked)
		mustUnlock(t, l)
	})
}

func TestNew_WithLockDefaults_CostNothingAtEachLock(t *testing.T) { // not parallel: it counts allocations
	rdb := redistest.Shared(t).Client(t)
	opts := func() []redislock.LockOption {
		return []redislock.LockOption{redislock.WithLease(time.Minute), redislock.WithMetadata("host-3"), redislock.WithFencing()}
	}
	plain, c := newClient(t, rdb), newClient(t, rdb, redislock.WithLockDefaults(opts()...))
	none := testing.AllocsPerRun(100, func() { plain.Mutex("name") })
	defaults := testing.AllocsPerRun(100, func() { c.Mutex("name") })
	given := testing.AllocsPerRun(100, func() { plain.Mutex("name", opts()...) })
	require.InDelta(t, none, defaults, 0.5)
	require.Less(t, defaults+5, given)
}

func errorOf[T any](_ T, err error) error { return err }

// freesTheHolderThatWasSeen: ForceUnlockHolder.
func freesTheHolderThatWasSeen(t *testing.T, lut *lockUnderTest) {
	c := lut.newClient(t)
	m := newMutex(c, lut.kind, lut.name)
	stuck := mustTryLock(t, lut.mutex(lut.newClient(t), redislock.WithMetadata("host 3:job/7")))
	state, err := m.State(t.Context())
	require.NoError(t, err)
	require.Len(t, state.Holders, 1)
	seen := state.Holders[0]
	require.Equal(t, "host 3:job/7", seen.Metadata)

	for _, other := range []string{"", "another:1", seen.ID + "1"} {
		freed, err := m.ForceUnlockHolder(t.Context(), other)
		require.NoError(t, err)
		require.False(t, freed)
		require.Contains(t, lut.requireHeldOnce(t), seen.ID)
	}
	freed, err := m.ForceUnlockHolder(t.Context(), seen.ID)
	require.NoError(t, err)
	require.True(t, freed)
	lut.requireNoKeys(t)
	require.ErrorIs(t, stuck.Unlock(t.Context()), redislock.ErrLost)

	next := mustTryLock(t, lut.mutex(lut.newClient(t)))
	freed, err = m.ForceUnlockHolder(t.Context(), seen.ID)
	require.NoError(t, err)
	require.False(t, freed, "another has it since")
	require.NoError(t, next.Err())
	mustUnlock(t, next)
	lut.requireNoKeys(t)
}

// Of several readers, the one that was seen is freed, and the others go on.
func TestRWMutex_ForceUnlockHolderFreesOneReader(t *testing.T) {
	t.Parallel()
	c, _, name := onSharedServer(t)
	m := c.RWMutex(name).Reader()
	stuck := mustTryLock(t, c.RWMutex(name, redislock.WithMetadata("stuck")).Reader())
	well := mustTryLock(t, c.RWMutex(name, redislock.WithMetadata("well")).Reader())
	state, err := m.State(t.Context())
	require.NoError(t, err)
	require.Len(t, state.Holders, 2)
	for _, h := range state.Holders {
		if h.Metadata == "stuck" {
			freed, err := m.ForceUnlockHolder(t.Context(), h.ID)
			require.NoError(t, err)
			require.True(t, freed)
		}
	}
	state, err = m.State(t.Context())
	require.NoError(t, err)
	require.Len(t, state.Holders, 1)
	require.Equal(t, "well", state.Holders[0].Metadata)
	require.ErrorIs(t, stuck.Unlock(t.Context()), redislock.ErrLost)
	mustUnlock(t, well)
}

// Err tells what Lock would return, before anything is sent.
func TestErr_TellsWhatCouldNotBeReportedByNew(t *testing.T) {
	t.Parallel()
	dialer := &redistest.FaultDialer{}
	server := redistest.Shared(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) { o.Dialer = dialer.Dial }))
	q, err := redislock.NewQuorum([]redis.UniversalClient{server.Client(t), server.Client(t), server.Client(t)})
	require.NoError(t, err)
	redistest.CloseWith(t, q.Close)
	bad := redislock.WithLease(-1)
	for what, err := range map[string]error{
		"Mutex":     c.Mutex("name", bad).Err(),
		"FairMutex": c.FairMutex("a{b").Err(),
		"RWMutex":   c.RWMutex("", bad).Err(),
		"Multi":     c.MultiMutex([]string{"a", ""}).Err(),
		"none":      c.MultiMutex(nil).Err(),
		"twice":     c.MultiMutex([]string{"a", "b", "a"}).Err(),
		"Quorum":    q.Mutex("name", nil).Err(),
	} {
		var invalid *redislock.InvalidError
		require.ErrorAs(t, err, &invalid, what)
		require.Equal(t, "redislock", invalid.Package)
	}
	for _, err := range []error{
		c.Mutex("name").Err(), c.FairMutex("name").Err(), c.RWMutex("name").Err(), c.MultiMutex([]string{"a", "b"}).Err(), q.Mutex("name").Err(),
	} {
		require.NoError(t, err)
	}
	require.Zero(t, dialer.Conns())
}

// Gauges that count what is held by Acquired, Lost and Released return to zero, however the holds end.
func TestHooks_AcquiredAndItsEndBalance(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	end := map[string]func(c *redislock.Client, name string, l *redislock.Lock) error{
		"Unlock": func(_ *redislock.Client, _ string, l *redislock.Lock) error { return l.Unlock(t.Context()) },
		"Close":  func(c *redislock.Client, _ string, _ *redislock.Lock) error { return c.Close(t.Context()) },
		"a loss": func(_ *redislock.Client, name string, l *redislock.Lock) error {
			err := rdb.Del(t.Context(), name).Err()
			<-l.Done()
			return err
		},
		"a loss and Close": func(c *redislock.Client, name string, l *redislock.Lock) error {
			err := rdb.Del(t.Context(), name).Err()
			<-l.Done()
			_ = c.Close(t.Context())
			return err
		},
	}
	for what, f := range end {
		for _, kind := range singleNameKinds {
			t.Run(kind+" by "+what, func(t *testing.T) {
				t.Parallel()
				var held, ended atomic.Int64
				done := func(redislock.Event) { held.Add(-1); ended.Add(1) }
				c := newClient(t, rdb, redislock.WithHooks(redislock.Hooks{
					Acquired: func(redislock.Event) { held.Add(1) }, Lost: done, Released: done,
				}))
				name := redistest.Name(t)
				l := mustTryLock(t, newMutex(c, kind, name, redislock.WithLease(time.Second)))
				require.EqualValues(t, 1, held.Load())
				require.NoError(t, f(c, name, l))
				poll(t, func() bool { return held.Load() == 0 })
				require.NoError(t, c.Close(t.Context()))
				require.EqualValues(t, 1, ended.Load(), "once")
				require.Zero(t, held.Load())
			})
		}
	}

	t.Run("a Quorum by Close", func(t *testing.T) {
		t.Parallel()
		var held atomic.Int64
		servers := []redis.UniversalClient{redistest.Start(t).Client(t), redistest.Start(t).Client(t), redistest.Start(t).Client(t)}
		q, err := redislock.NewQuorum(servers, redislock.WithWheel(newWheel(t)), redislock.WithHooks(redislock.Hooks{
			Acquired: func(redislock.Event) { held.Add(1) }, Released: func(redislock.Event) { held.Add(-1) },
		}))
		require.NoError(t, err)
		mustTryLock(t, q.Mutex("name"))
		require.EqualValues(t, 1, held.Load())
		require.NoError(t, q.Close(t.Context()))
		poll(t, func() bool { return held.Load() == 0 })
	})
}

// A waiter that no message reaches looks again within the poll that was chosen.
func TestNew_WithPoll(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	name := redistest.Name(t)
	writeHold(t, rdb, name, 0) // without an expiry, so that only a poll finds out
	c := newClient(t, rdb, redislock.WithPoll(100*time.Millisecond))
	got := make(chan error, 1)
	c.Mutex(name).LockFunc(within(t, patience), func(l *redislock.Lock, err error) {
		if err == nil {
			err = l.Unlock(t.Context())
		}
		got <- err
	})
	awaitSubscription(t, rdb, name)
	began := time.Now()
	require.NoError(t, rdb.Del(t.Context(), name).Err())
	require.NoError(t, <-got)
	require.Less(t, time.Since(began), redislock.DefaultPoll/5)
}

// A wrapper is what services put around a client to add to it.
type wrapper struct {
	redis.UniversalClient
}

// client has an unexported name, so that New does not see it inside a client of another make.
type client redis.UniversalClient

type otherMake struct{ client }

func TestNew_AWrappedClientKeepsWhatItsNodesGive(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		wrap func(redis.UniversalClient) redis.UniversalClient
		warn bool
	}{
		"as it is":        {func(rdb redis.UniversalClient) redis.UniversalClient { return rdb }, false},
		"in a struct":     {func(rdb redis.UniversalClient) redis.UniversalClient { return wrapper{rdb} }, false},
		"behind a star":   {func(rdb redis.UniversalClient) redis.UniversalClient { return &wrapper{rdb} }, false},
		"twice":           {func(rdb redis.UniversalClient) redis.UniversalClient { return &wrapper{wrapper{rdb}} }, false},
		"of another make": {func(rdb redis.UniversalClient) redis.UniversalClient { return otherMake{rdb} }, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			server := redistest.Shared(t)
			rdb := server.Client(t, func(o *redis.Options) { o.ClientName = redistest.Name(t) })
			c := newClient(t, tt.wrap(rdb), redislock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			require.Equal(t, tt.warn, strings.Contains(log.String(), "nodes are not known"), log.String())
			l := mustLock(t, c.Mutex(redistest.Name(t), redislock.WithLease(300*time.Millisecond)))
			awaitRenewals(t, 300*time.Millisecond, l)
			mustUnlock(t, l)
		})
	}
}

func TestErrors_AreOneLineAndNameTheirObjectOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }))
	ctx := t.Context()
	long := strings.Repeat("long", 10_000)
	rdb := server.Client(t)
	require.NoError(t, rdb.Set(ctx, "words", "x", 0).Err())
	held := mustLock(t, c.Mutex("held"))
	lost := mustLock(t, c.Mutex("lost"))
	require.NoError(t, rdb.Del(ctx, "lost").Err())
	all := map[string]error{
		"words":  errorOf(c.Mutex("words").TryLock(ctx)),
		"held":   errorOf(c.Mutex("held").TryLock(ctx)),
		"later":  errorOf(c.Mutex("held").Lock(within(t, 20*time.Millisecond))),
		"lost":   lost.Unlock(ctx),
		"closed": errorOf(c.Mutex(long + "{").TryLock(ctx)),
	}
	require.NoError(t, rdb.ConfigSet(ctx, "min-replicas-to-write", "1").Err())
	all["refused"] = errorOf(c.Mutex(long).TryLock(ctx))
	require.NoError(t, rdb.ConfigSet(ctx, "min-replicas-to-write", "0").Err())
	require.NoError(t, rdb.ReplicaOf(ctx, "127.0.0.1", "1").Err())
	all["read only"] = errorOf(c.Mutex("replica").TryLock(ctx))
	require.NoError(t, rdb.ReplicaOf(ctx, "NO", "ONE").Err())
	all["Do"] = c.Mutex("done").Do(ctx, func(ctx context.Context) error {
		require.NoError(t, rdb.Del(ctx, "done").Err())
		return nil
	})
	for what, err := range all {
		require.Error(t, err, what)
		text := err.Error()
		require.NotContains(t, text, "\n", what)
		require.NotRegexp(t, `[0-9a-f]{40}|user_script`, text, what)
		require.Less(t, len(text), 400, what)
		require.LessOrEqual(t, strings.Count(text, "redislock:"), 1, "%s: %s", what, text)
		require.Equal(t, 1, strings.Count(text, "redislock: "), "%s: %s", what, text)
	}
	mustUnlock(t, held)
}
