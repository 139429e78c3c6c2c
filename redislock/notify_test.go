package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// pubsubConnections returns how many subscription connections a server has.
func pubsubConnections(t testing.TB, rdb *redis.Client) int {
	t.Helper()
	list, err := rdb.Do(t.Context(), "client", "list", "type", "pubsub").Text()
	require.NoError(t, err)
	return strings.Count(list, "id=")
}

// onMockClock returns a lock client whose wheel moves by the clock of the test alone.
func onMockClock(t *testing.T, rdb redis.UniversalClient) (*redislock.Client, *clock.Mock) {
	t.Helper()
	mock := clock.NewMock()
	w, err := wheel.New(wheel.WithClock(mock))
	require.NoError(t, err)
	c, err := redislock.New(rdb, redislock.WithWheel(w))
	require.NoError(t, err)
	redistest.CloseWith(t, func(ctx context.Context) error {
		err := c.Close(ctx)
		require.Zero(t, w.Len(), "entries left on the wheel")
		_, stopped := w.Stop(ctx)
		return errors.Join(err, stopped)
	})
	return c, mock
}

// Guarantees: L50.
func TestClient_SubscribesOnceForAllItsHolds(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	dep := &deployment{rdb: rdb, nodes: []*redis.Client{rdb}}
	c := newClient(t, rdb)
	held := []*redislock.Lock{mustLock(t, c.Mutex("0", redislock.WithLease(farLease)))}
	dep.awaitListening(t, c)
	require.Equal(t, 1, serverCalls(t, rdb, "subscribe"), "with one hold")
	locks := testsize.Of(1000, 10_000)
	held = append(held, make([]*redislock.Lock, locks-1)...)
	redistest.Each(t, locks-1, func(i int) (err error) {
		held[i+1], err = c.Mutex(fmt.Sprint(i+1), redislock.WithLease(farLease)).Lock(context.Background())
		return err
	})
	require.Equal(t, 1, serverCalls(t, rdb, "subscribe"), "with %d holds", locks)
	require.Equal(t, 1, pubsubConnections(t, rdb))
	require.Zero(t, serverCalls(t, rdb, "unsubscribe"))

	freed, err := newClient(t, rdb).Mutex("7").ForceUnlock(t.Context())
	require.NoError(t, err)
	require.True(t, freed)
	requireEnds(t, held[7].Context(t.Context()), "one of many")
	for i, l := range held {
		require.Equal(t, i != 7, l.Valid())
	}
}

// A call of Lock sends what it sent before holders were notified; the subscription is another matter.
// Guarantees: L50.
func TestClient_SubscribesApartFromLock(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	c, mock := onMockClock(t, rdb)
	for range 3 {
		l := mustLock(t, c.Mutex("n"))
		mustUnlock(t, l)
	}
	l := mustLock(t, c.Mutex("n"))
	stats, err := rdb.InfoMap(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	sent := 0
	for command, stat := range stats["Commandstats"] {
		var calls int
		_, err := fmt.Sscanf(stat, "calls=%d", &calls)
		require.NoError(t, err)
		switch command {
		case "cmdstat_evalsha", "cmdstat_eval":
			sent += calls
		default:
			require.NotContains(t, command, "subscribe")
		}
	}
	const locked, unlocked, loaded = 4, 3, 2 // each script is sent by its text once
	require.Equal(t, locked+unlocked+loaded, sent)
	require.Zero(t, pubsubConnections(t, rdb))

	mock.Add(200 * time.Millisecond)
	poll(t, func() bool { return serverCalls(t, rdb, "subscribe") == 1 })
	mustUnlock(t, l)
	for i := 0; pubsubConnections(t, rdb) > 0; i++ {
		require.Less(t, i, 1000, "it unsubscribes when it holds nothing")
		mock.Add(100 * time.Millisecond)
	}
	mustLock(t, c.Mutex("n"))
	poll(t, func() bool { // the server closes the old connection before the client has noticed, which may cost a pause
		mock.Add(100 * time.Millisecond)
		return serverCalls(t, rdb, "subscribe") == 2
	})
	require.NoError(t, c.Close(within(t, patience)))
	poll(t, func() bool { return pubsubConnections(t, rdb) == 0 })
}

// Guarantees: L49.
func TestClient_HearsOfForceUnlock(t *testing.T) {
	t.Parallel()

	force := func(t *testing.T, m *redislock.Mutex) {
		t.Helper()
		freed, err := m.ForceUnlock(t.Context())
		require.NoError(t, err)
		require.True(t, freed)
	}

	// Guarantees: L49.
	t.Run("before it has subscribed", func(t *testing.T) {
		t.Parallel()
		for _, kind := range singleNameKinds {
			rdb := redistest.Shared(t).Client(t)
			name := redistest.Name(t)
			l := mustLock(t, newMutex(newClient(t, rdb), kind, name, redislock.WithLease(farLease)))
			force(t, newMutex(newClient(t, rdb), kind, name))
			requireEnds(t, l.Context(t.Context()), kind)
		}
	})

	// Guarantees: L49.
	t.Run("while its connection is cut", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Start(t).Client(t)
		dep := &deployment{rdb: rdb, nodes: []*redis.Client{rdb}}
		c, other := newClient(t, rdb), newClient(t, rdb)
		mustLock(t, c.Mutex("kept", redislock.WithLease(farLease)))
		for range 5 {
			l := mustLock(t, c.Mutex("n", redislock.WithLease(farLease)))
			dep.awaitListening(t, c)
			require.NoError(t, rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
			force(t, other.Mutex("n"))
			requireEnds(t, l.Context(t.Context()), "by the message, or once it has subscribed again")
		}
	})

	t.Run("after its connection was cut", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Start(t).Client(t)
		dep := &deployment{rdb: rdb, nodes: []*redis.Client{rdb}}
		c := newClient(t, rdb)
		l := mustLock(t, c.Mutex("n", redislock.WithLease(farLease)))
		dep.awaitListening(t, c)
		for n := range 3 {
			require.NoError(t, rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
			poll(t, func() bool { return serverCalls(t, rdb, "subscribe") == n+2 })
		}
		dep.awaitListening(t, c)
		require.NoError(t, l.Err())
		force(t, newClient(t, rdb).Mutex("n"))
		requireEnds(t, l.Context(t.Context()), "after the cuts")
	})

	t.Run("in a cluster on ordinary channels", func(t *testing.T) {
		t.Parallel()
		dep := sharedCluster(t)
		ordinary := redislock.WithShardedChannels(false)
		for range 4 { // slots of several masters
			c, name := newClient(t, dep.rdb, ordinary), redistest.Name(t) // a new one: it has no earlier subscription
			l := mustLock(t, c.Mutex(name, redislock.WithLease(farLease)))
			dep.awaitListening(t, c)
			force(t, newClient(t, dep.rdb, ordinary).Mutex(name))
			requireEnds(t, l.Context(t.Context()), name)
		}
	})

	t.Run("in every process that reads", func(t *testing.T) {
		t.Parallel()
		onEachDeployment(t, func(t *testing.T, dep *deployment) {
			name := redistest.Name(t)
			var readers []*redislock.Lock
			for range 3 {
				c := newClient(t, dep.rdb)
				for range 2 {
					readers = append(readers, mustRLock(t, c.RWMutex(name, redislock.WithLease(farLease))))
				}
				dep.awaitListening(t, c)
			}
			force(t, newClient(t, dep.rdb).RWMutex(name).Reader())
			for i, l := range readers {
				requireEnds(t, l.Context(t.Context()), fmt.Sprint(i))
			}
		})
	})

	t.Run("of a lock that was handed over", func(t *testing.T) {
		t.Parallel()
		c, rdb, name := onSharedServer(t)
		dep := singleServer(t)
		m := c.Mutex(name, redislock.WithLease(farLease), redislock.WithHandoff(1, time.Minute))
		var second *redislock.Lock
		poll(t, func() bool { // an unlock may meet an attempt in flight, and then hands nothing over
			first := mustLock(t, m)
			id := holderOf(t, rdb, name)
			calls, _ := startLockFunc(t.Context(), m)
			poll(t, func() bool { return c.Stats().Waiting == 1 })
			mustUnlock(t, first)
			second = (<-calls).mustHold(t)
			handedOver := holderOf(t, rdb, name) == id
			if !handedOver {
				mustUnlock(t, second)
			}
			return handedOver
		})
		dep.awaitListening(t, c)
		force(t, newClient(t, rdb).Mutex(name))
		requireEnds(t, second.Context(t.Context()), "handed over")
	})
}

// Guarantees: L49.
func TestQuorum_HearsOfForceUnlock(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	q := servers.newQuorum(t)
	l := mustLock(t, q.Mutex("n", redislock.WithLease(farLease)))
	neighbour := mustLock(t, q.Mutex("neighbour", redislock.WithLease(farLease)))
	for _, rdb := range servers.clients(t) {
		poll(t, func() bool { return isSubscribed(t, rdb.(*redis.Client), "cogwheel_client:") })
	}
	for _, rdb := range servers.clients(t) {
		_, err := newClient(t, rdb).Mutex("n").ForceUnlock(t.Context())
		require.NoError(t, err)
	}
	requireEnds(t, l.Context(t.Context()), "the whole")
	require.ErrorIs(t, l.Unlock(t.Context()), redislock.ErrLost)
	mustUnlock(t, neighbour)
}

// A message is a hint that anybody may send. It has Redis asked for the holds that it names, which go on if Redis
// has them.
// Guarantees: L49.
func TestClient_ForgedMessages(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	dep := &deployment{rdb: rdb, nodes: []*redis.Client{rdb}}
	c := newClient(t, rdb)
	var ids []string
	var held []*redislock.Lock
	for _, kind := range singleNameKinds {
		held = append(held, mustLock(t, newMutex(c, kind, kind, redislock.WithLease(farLease))))
		ids = append(ids, holderOf(t, rdb, kind))
	}
	last := mustLock(t, c.Mutex("last", redislock.WithLease(farLease)))
	dep.awaitListening(t, c)
	channel, checked := clientChannel(t, c), serverCalls(t, rdb, "hexists")
	deadlines := func() (all []time.Time) {
		for _, l := range held {
			all = append(all, l.Deadline())
		}
		return all
	}
	before, ttl := deadlines(), rdb.PTTL(t.Context(), "plain").Val()
	messages := []string{
		"", " ", "x", ",", " plain", ", plain", ids[0], ids[0] + " another", "another:1 plain", ids[0] + "1 plain",
		strings.Join(ids, ",") + " last", strings.Repeat(",", 1000) + " plain", "\x00\xff \xff",
	}
	for _, message := range messages {
		require.EqualValues(t, 1, rdb.Publish(t.Context(), channel, message).Val())
	}
	const times = 200
	for range times {
		for i, kind := range singleNameKinds {
			require.EqualValues(t, 1, rdb.Publish(t.Context(), channel, ids[i]+" "+kind).Val())
		}
	}
	freed, err := newClient(t, rdb).Mutex("last").ForceUnlock(t.Context()) // one HEXISTS
	require.NoError(t, err)
	require.True(t, freed)
	requireEnds(t, last.Context(t.Context()), "after the forged ones")
	var checks int
	poll(t, func() bool { // until the last of them were answered
		n := serverCalls(t, rdb, "hexists") - checked
		settled := n == checks
		checks = n
		return settled
	})
	require.LessOrEqual(t, checks, times*len(singleNameKinds)+2+len(singleNameKinds)+1,
		"a check for each message that names a hold, and of all holds for an empty one")
	t.Logf("%d checks of %d messages", checks, len(messages)+times*len(singleNameKinds))
	for i, l := range held {
		require.NoError(t, l.Err(), singleNameKinds[i])
	}
	require.Equal(t, before, deadlines(), "a check is no renewal")
	require.LessOrEqual(t, rdb.PTTL(t.Context(), "plain").Val(), ttl)
	mustUnlock(t, held...)
}

// holderOf returns the id of the one hold of a lock.
func holderOf(t testing.TB, rdb redis.UniversalClient, name string) string {
	t.Helper()
	if rdb.Type(t.Context(), name).Val() == "string" {
		return rdb.Get(t.Context(), name).Val()
	}
	fields, err := rdb.HKeys(t.Context(), name).Result()
	require.NoError(t, err)
	fields = slices.DeleteFunc(fields, func(field string) bool { return field == "mode" })
	require.Len(t, fields, 1)
	return fields[0]
}

// refusedCalls returns how often a server refused a command for want of a right.
func refusedCalls(t testing.TB, rdb *redis.Client, command string) (n int) {
	t.Helper()
	stats, err := rdb.InfoMap(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	if _, refused, ok := strings.Cut(stats["Commandstats"]["cmdstat_"+command], "rejected_calls="); ok {
		_, err = fmt.Sscanf(refused, "%d", &n)
		require.NoError(t, err)
	}
	return n
}

// A user who may not use the channels of clients keeps all else: waiters are woken, and a holder learns of
// ForceUnlock by its next renewal.
// Guarantees: L49.
func TestClient_WithoutTheRightToItsChannel(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	user := server.User(t, "app", "~*", "+@all", "&redisson_lock__channel:*", "&redisson_rwlock:*")
	c, mock := onMockClock(t, server.Client(t, user))
	mustLock(t, c.Mutex("held", redislock.WithLease(farLease)))
	for range 100 {
		mock.Add(100 * time.Millisecond)
		require.LessOrEqual(t, refusedCalls(t, rdb, "subscribe"), 1, "it does not ask again and again")
	}
	poll(t, func() bool { return refusedCalls(t, rdb, "subscribe") == 1 && pubsubConnections(t, rdb) == 0 })

	var log bytes.Buffer
	logger := redislock.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	holder := newClient(t, server.Client(t, user), logger)
	waiter := newClient(t, server.Client(t, user), redislock.WithPoll(time.Hour)) // nothing but a message wakes it
	for i, kind := range singleNameKinds {
		mine := mustLock(t, waiter.Mutex("of the waiter", redislock.WithLease(farLease)))
		l := mustLock(t, newMutex(holder, kind, kind, redislock.WithLease(farLease)))
		if i == 0 {
			poll(t, func() bool { return refusedCalls(t, rdb, "subscribe") == 3 })
		}
		conflicting := newMutex(waiter, kind, kind)
		if kind == "read" {
			conflicting = newMutex(waiter, "write", kind)
		}
		waiting := callAsync(func() (*redislock.Lock, error) { return conflicting.Lock(within(t, patience)) })
		poll(t, func() bool { return isSubscribed(t, rdb, kind) })
		mustUnlock(t, l)
		mustUnlock(t, waiting.await(t), mine)
	}
	require.Empty(t, log.String())

	l := mustLock(t, holder.Mutex("n", redislock.WithLease(safeLease)))
	freed, err := waiter.Mutex("n").ForceUnlock(t.Context())
	require.NoError(t, err)
	require.True(t, freed)
	forced := time.Now()
	<-l.Done()
	require.Less(t, time.Since(forced), safeLease, "by the next renewal")
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
}
