package redislock_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// place is a deployment of Redis. Tests keep apart in it by the names of their locks.
type deployment struct {
	rdb     redis.UniversalClient
	nodes   []*redis.Client // replicas too
	options redis.UniversalOptions
}

func newDeployment(t testing.TB, protocol int, servers ...*redistest.Server) *deployment {
	t.Helper()
	dep := &deployment{options: redis.UniversalOptions{Protocol: protocol, IsClusterMode: len(servers) > 1}}
	for _, s := range servers {
		dep.options.Addrs = append(dep.options.Addrs, s.Addr())
		dep.nodes = append(dep.nodes, s.Client(t))
	}
	dep.rdb = dep.connect(t)
	return dep
}

// oneServer and aCluster are shared by all tests: they are neither stopped nor flushed, nor are their scripts.
func singleServer(t testing.TB) *deployment { return newDeployment(t, 3, redistest.Shared(t)) }
func sharedCluster(t testing.TB) *deployment {
	return newDeployment(t, 3, redistest.SharedCluster(t).Nodes()...)
}

var deployments = map[string]func(testing.TB) *deployment{
	"a single server": singleServer,
	"a cluster":       sharedCluster,
}

// everywhere runs a test in each place.
func onEachDeployment(t *testing.T, f func(*testing.T, *deployment)) {
	t.Helper()
	for name, where := range deployments {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, where(t))
		})
	}
}

// connect returns a client that is closed with the test.
func (dep *deployment) connect(t testing.TB, change ...func(*redis.UniversalOptions)) redis.UniversalClient {
	t.Helper()
	o := dep.options
	for _, f := range change {
		f(&o)
	}
	rdb := redis.NewUniversalClient(&o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// onMasters calls f for each master.
func (dep *deployment) forEachMaster(t testing.TB, f func(context.Context, *redis.Client) error) {
	t.Helper()
	if cluster, ok := dep.rdb.(*redis.ClusterClient); ok {
		require.NoError(t, cluster.ForEachMaster(t.Context(), f))
		return
	}
	require.NoError(t, f(t.Context(), dep.nodes[0]))
}

// keys are those in whose names part occurs.
func (dep *deployment) keysWith(t testing.TB, part string) (keys []string) {
	t.Helper()
	var mu sync.Mutex
	dep.forEachMaster(t, func(ctx context.Context, rdb *redis.Client) error {
		found, err := rdb.Keys(ctx, "*"+part+"*").Result()
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, found...)
		return err
	})
	return keys
}

// verb is how those who wait are told.
func (dep *deployment) publishCommand() string {
	if dep.options.IsClusterMode {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// channels are those somebody is subscribed to in whose names part occurs.
func (dep *deployment) channelsWith(t testing.TB, part string) (channels []string) {
	t.Helper()
	for _, node := range dep.nodes {
		for _, found := range []*redis.StringSliceCmd{
			node.PubSubChannels(t.Context(), "*"+part+"*"), node.PubSubShardChannels(t.Context(), "*"+part+"*"),
		} {
			require.NoError(t, found.Err())
			channels = append(channels, found.Val()...)
		}
	}
	return channels
}

func (dep *deployment) awaitSubscribed(t testing.TB, channel string) {
	t.Helper()
	poll(t, func() bool { return slices.Contains(dep.channelsWith(t, channel), channel) })
}

// hear returns a channel that gets the next message on a channel of Redis, as a service in Java would.
func (dep *deployment) nextMessage(t testing.TB, channel string) <-chan string {
	t.Helper()
	subscribe := dep.rdb.Subscribe
	if dep.options.IsClusterMode {
		subscribe = dep.rdb.SSubscribe
	}
	sub := subscribe(t.Context(), channel)
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	heard := make(chan string, 1)
	ctx := within(t, patience)
	go func() {
		if m, err := sub.ReceiveMessage(ctx); err == nil {
			heard <- m.Payload
		}
	}()
	return heard
}

// locker is a lock of any kind.
type anyMutex interface {
	Lock(context.Context) (*redislock.Lock, error)
	TryLock(context.Context) (*redislock.Lock, error)
	Do(context.Context, func(context.Context) error) error
}

// subject is a lock of some kind in some place, with a name of its own.
type lockUnderTest struct {
	*deployment
	kind  string // plain, fair, read, write or multi
	name  string
	parts []string // the names of a multi lock, else the name
}

func newLockUnderTest(t testing.TB, dep *deployment, kind string) *lockUnderTest {
	t.Helper()
	lut := &lockUnderTest{deployment: dep, kind: kind, name: redistest.Name(t)}
	lut.parts = []string{lut.name}
	if kind == "multi" {
		lut.parts = []string{lut.name + ":a", lut.name + ":b", lut.name + ":c"}
	}
	return lut
}

// client is that of a process of its own, on shared connections.
func (lut *lockUnderTest) newClient(t testing.TB) *redislock.Client { return newClient(t, lut.rdb) }

// of is the lock.
func (lut *lockUnderTest) mutex(c *redislock.Client, opts ...redislock.LockOption) anyMutex {
	if lut.kind == "multi" {
		return c.MultiMutex(lut.parts, opts...)
	}
	return newMutex(c, lut.kind, lut.name, opts...)
}

// rivalOf is what cannot be had beside the lock.
func (lut *lockUnderTest) conflictingMutex(c *redislock.Client, opts ...redislock.LockOption) anyMutex {
	if lut.kind == "read" {
		return newMutex(c, "write", lut.name, opts...)
	}
	return lut.mutex(c, opts...)
}

// mutexOf returns the lock of a kind as a Mutex, a part of those that are made of several.
func (lut *lockUnderTest) partMutex(c *redislock.Client) *redislock.Mutex {
	return newMutex(c, lut.kind, lut.parts[len(lut.parts)-1])
}

func newMutex(c *redislock.Client, kind, name string, opts ...redislock.LockOption) *redislock.Mutex {
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

// take has a process of its own take the lock, which is free.
func (lut *lockUnderTest) mustLock(t testing.TB, opts ...redislock.LockOption) *redislock.Lock {
	t.Helper()
	return mustTryLock(t, lut.mutex(lut.newClient(t), opts...))
}

func mustTryLock(t testing.TB, m anyMutex) *redislock.Lock {
	t.Helper()
	l, err := m.TryLock(within(t, patience))
	require.NoError(t, err)
	return l
}

// holders are the ids in Redis, and requireHeld checks that there is one, counted once, with a lease.
func (lut *lockUnderTest) requireHeldOnce(t testing.TB) (holders []string) {
	t.Helper()
	for _, name := range lut.parts {
		fields, err := lut.rdb.HGetAll(t.Context(), name).Result()
		require.NoError(t, err)
		mode := fields["mode"]
		delete(fields, "mode")
		require.Len(t, fields, 1)
		for id, count := range fields {
			require.Equal(t, "1", count)
			require.Equal(t, strings.HasSuffix(id, ":write"), mode == "write")
			holders = append(holders, id)
		}
		require.Positive(t, lut.rdb.PTTL(t.Context(), name).Val())
	}
	return holders
}

// vanish removes the keys of a lock, as FLUSHALL does. Nobody is told.
func (lut *lockUnderTest) deleteKeys(t testing.TB) {
	t.Helper()
	for _, name := range lut.parts {
		require.NoError(t, lut.rdb.Del(t.Context(), name).Err())
	}
}

// trace is what is left of the lock in Redis; tokens are remembered.
func (lut *lockUnderTest) remainingKeys(t testing.TB) []string {
	t.Helper()
	return slices.DeleteFunc(lut.keysWith(t, lut.name), func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token") })
}

func (lut *lockUnderTest) requireNoKeys(t testing.TB) {
	t.Helper()
	require.Empty(t, lut.remainingKeys(t))
}

// holdRaw takes the lock as a client of another language would; free gives it back in silence. A ttl of 0 sets none.
func (lut *lockUnderTest) writeHold(t testing.TB, ttl time.Duration) (free func()) {
	t.Helper()
	for _, name := range lut.parts {
		fields := []any{"another:1", 1}
		if lut.kind == "write" || lut.kind == "read" {
			fields = []any{"mode", "write", "another:1:write", 1}
		}
		_, err := lut.rdb.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
			pipe.HSet(t.Context(), name, fields...)
			if ttl > 0 {
				pipe.PExpire(t.Context(), name, ttl)
			}
			return nil
		})
		require.NoError(t, err)
	}
	return func() { lut.deleteKeys(t) }
}

// contender is a process that waits for the lock, of which is known how often it has asked for it.
type waiter struct {
	anyMutex
	count *commandCounter
}

func (lut *lockUnderTest) newWaiter(t testing.TB, of func(*redislock.Client, ...redislock.LockOption) anyMutex) waiter {
	t.Helper()
	c, count := newCountedClient(t, lut.connect(t))
	return waiter{of(c), count}
}

// begun is a call for a lock under way.
type asyncCall struct {
	lock *redislock.Lock
	err  error
	at   time.Time
	done chan struct{}
}

func callAsync(f func() (*redislock.Lock, error)) *asyncCall {
	b := &asyncCall{done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.lock, b.err = f()
		b.at = time.Now()
	}()
	return b
}

func (b *asyncCall) await(t testing.TB) *redislock.Lock {
	t.Helper()
	<-b.done
	require.NoError(t, b.err)
	return b.lock
}

// start calls Lock and returns once it has looked twice, before and after its subscription, and sleeps.
func (c waiter) startWaiting(t testing.TB, ctx context.Context) *asyncCall {
	t.Helper()
	before := c.count.scriptCalls()
	b := callAsync(func() (*redislock.Lock, error) { return c.Lock(ctx) })
	poll(t, func() bool { return c.count.scriptCalls() >= before+2 || isClosed(b.done) })
	require.False(t, isClosed(b.done), "it had to wait: %v", b.err)
	return b
}

// requireWoken checks that those who wait are told: three times in a row it takes less than three looks, none of which comes
// within a second of the last. A round returns how long it took from the release.
func requireWokenWithoutPoll(t testing.TB, round func() time.Duration) {
	t.Helper()
	var took time.Duration
	for range 3 {
		took += round()
	}
	require.Less(t, took, 2500*time.Millisecond)
}
