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
type place struct {
	rdb     redis.UniversalClient
	nodes   []*redis.Client // replicas too
	options redis.UniversalOptions
}

func newPlace(t testing.TB, protocol int, servers ...*redistest.Server) *place {
	t.Helper()
	p := &place{options: redis.UniversalOptions{Protocol: protocol, IsClusterMode: len(servers) > 1}}
	for _, s := range servers {
		p.options.Addrs = append(p.options.Addrs, s.Addr())
		p.nodes = append(p.nodes, s.Client(t))
	}
	p.rdb = p.connect(t)
	return p
}

// oneServer and aCluster are shared by all tests: they are neither stopped nor flushed, nor are their scripts.
func oneServer(t testing.TB) *place { return newPlace(t, 3, redistest.Shared(t)) }
func aCluster(t testing.TB) *place  { return newPlace(t, 3, redistest.SharedCluster(t).Nodes()...) }

var places = map[string]func(testing.TB) *place{
	"a single server": oneServer,
	"a cluster":       aCluster,
}

// everywhere runs a test in each place.
func everywhere(t *testing.T, f func(*testing.T, *place)) {
	t.Helper()
	for name, where := range places {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, where(t))
		})
	}
}

// connect returns a client that is closed with the test.
func (p *place) connect(t testing.TB, change ...func(*redis.UniversalOptions)) redis.UniversalClient {
	t.Helper()
	o := p.options
	for _, f := range change {
		f(&o)
	}
	rdb := redis.NewUniversalClient(&o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// onMasters calls f for each master.
func (p *place) onMasters(t testing.TB, f func(context.Context, *redis.Client) error) {
	t.Helper()
	if cluster, ok := p.rdb.(*redis.ClusterClient); ok {
		require.NoError(t, cluster.ForEachMaster(t.Context(), f))
		return
	}
	require.NoError(t, f(t.Context(), p.nodes[0]))
}

// keys are those in whose names part occurs.
func (p *place) keys(t testing.TB, part string) (keys []string) {
	t.Helper()
	var mu sync.Mutex
	p.onMasters(t, func(ctx context.Context, rdb *redis.Client) error {
		found, err := rdb.Keys(ctx, "*"+part+"*").Result()
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, found...)
		return err
	})
	return keys
}

// verb is how those who wait are told.
func (p *place) verb() string {
	if p.options.IsClusterMode {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// channels are those somebody is subscribed to in whose names part occurs.
func (p *place) channels(t testing.TB, part string) (channels []string) {
	t.Helper()
	for _, node := range p.nodes {
		for _, found := range []*redis.StringSliceCmd{
			node.PubSubChannels(t.Context(), "*"+part+"*"), node.PubSubShardChannels(t.Context(), "*"+part+"*"),
		} {
			require.NoError(t, found.Err())
			channels = append(channels, found.Val()...)
		}
	}
	return channels
}

func (p *place) awaitSubscribed(t testing.TB, channel string) {
	t.Helper()
	poll(t, func() bool { return slices.Contains(p.channels(t, channel), channel) })
}

// hear returns a channel that gets the next message on a channel of Redis, as a service in Java would.
func (p *place) hear(t testing.TB, channel string) <-chan string {
	t.Helper()
	subscribe := p.rdb.Subscribe
	if p.options.IsClusterMode {
		subscribe = p.rdb.SSubscribe
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
type locker interface {
	Lock(context.Context) (*redislock.Lock, error)
	TryLock(context.Context) (*redislock.Lock, error)
	Do(context.Context, func(context.Context) error) error
}

// subject is a lock of some kind in some place, with a name of its own.
type subject struct {
	*place
	kind  string // plain, fair, read, write or multi
	name  string
	parts []string // the names of a multi lock, else the name
}

func newSubject(t testing.TB, p *place, kind string) *subject {
	t.Helper()
	s := &subject{place: p, kind: kind, name: redistest.Name(t)}
	s.parts = []string{s.name}
	if kind == "multi" {
		s.parts = []string{s.name + ":a", s.name + ":b", s.name + ":c"}
	}
	return s
}

// client is that of a process of its own, on shared connections.
func (s *subject) client(t testing.TB) *redislock.Client { return newClient(t, s.rdb) }

// of is the lock.
func (s *subject) of(c *redislock.Client, opts ...redislock.LockOption) locker {
	if s.kind == "multi" {
		return c.MultiMutex(s.parts, opts...)
	}
	return mutexOf(c, s.kind, s.name, opts...)
}

// rivalOf is what cannot be had beside the lock.
func (s *subject) rivalOf(c *redislock.Client, opts ...redislock.LockOption) locker {
	if s.kind == "read" {
		return mutexOf(c, "write", s.name, opts...)
	}
	return s.of(c, opts...)
}

// mutexOf returns the lock of a kind as a Mutex, a part of those that are made of several.
func (s *subject) mutexOf(c *redislock.Client) *redislock.Mutex {
	return mutexOf(c, s.kind, s.parts[len(s.parts)-1])
}

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

// take has a process of its own take the lock, which is free.
func (s *subject) take(t testing.TB, opts ...redislock.LockOption) *redislock.Lock {
	t.Helper()
	return mustTry(t, s.of(s.client(t), opts...))
}

func mustTry(t testing.TB, m locker) *redislock.Lock {
	t.Helper()
	l, err := m.TryLock(within(t, patience))
	require.NoError(t, err)
	return l
}

func mustWait(t testing.TB, m locker) *redislock.Lock {
	t.Helper()
	l, err := m.Lock(within(t, patience))
	require.NoError(t, err)
	return l
}

// holders are the ids in Redis, and requireHeld checks that there is one, counted once, with a lease.
func (s *subject) requireHeld(t testing.TB) (holders []string) {
	t.Helper()
	for _, name := range s.parts {
		fields, err := s.rdb.HGetAll(t.Context(), name).Result()
		require.NoError(t, err)
		mode := fields["mode"]
		delete(fields, "mode")
		require.Len(t, fields, 1)
		for id, count := range fields {
			require.Equal(t, "1", count)
			require.Equal(t, strings.HasSuffix(id, ":write"), mode == "write")
			holders = append(holders, id)
		}
		require.Positive(t, s.rdb.PTTL(t.Context(), name).Val())
	}
	return holders
}

// vanish removes the keys of a lock, as FLUSHALL does. Nobody is told.
func (s *subject) vanish(t testing.TB) {
	t.Helper()
	for _, name := range s.parts {
		require.NoError(t, s.rdb.Del(t.Context(), name).Err())
	}
}

// trace is what is left of the lock in Redis; tokens are remembered.
func (s *subject) trace(t testing.TB) []string {
	t.Helper()
	return slices.DeleteFunc(s.keys(t, s.name), func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token") })
}

func (s *subject) requireNoTrace(t testing.TB) {
	t.Helper()
	require.Empty(t, s.trace(t))
}

// holdRaw takes the lock as a client of another language would; free gives it back in silence. A ttl of 0 sets none.
func (s *subject) holdRaw(t testing.TB, ttl time.Duration) (free func()) {
	t.Helper()
	for _, name := range s.parts {
		fields := []any{"another:1", 1}
		if s.kind == "write" || s.kind == "read" {
			fields = []any{"mode", "write", "another:1:write", 1}
		}
		_, err := s.rdb.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
			pipe.HSet(t.Context(), name, fields...)
			if ttl > 0 {
				pipe.PExpire(t.Context(), name, ttl)
			}
			return nil
		})
		require.NoError(t, err)
	}
	return func() { s.vanish(t) }
}

// contender is a process that waits for the lock, of which is known how often it has asked for it.
type contender struct {
	locker
	count *counter
}

func (s *subject) contender(t testing.TB, of func(*redislock.Client, ...redislock.LockOption) locker) contender {
	t.Helper()
	c, count := counted(t, s.connect(t))
	return contender{of(c), count}
}

// begun is a call for a lock under way.
type begun struct {
	lock *redislock.Lock
	err  error
	at   time.Time
	done chan struct{}
}

func begin(f func() (*redislock.Lock, error)) *begun {
	b := &begun{done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.lock, b.err = f()
		b.at = time.Now()
	}()
	return b
}

func (b *begun) wait(t testing.TB) *redislock.Lock {
	t.Helper()
	<-b.done
	require.NoError(t, b.err)
	return b.lock
}

// start calls Lock and returns once it has looked twice, before and after its subscription, and sleeps.
func (c contender) start(t testing.TB, ctx context.Context) *begun {
	t.Helper()
	before := c.count.looks()
	b := begin(func() (*redislock.Lock, error) { return c.Lock(ctx) })
	poll(t, func() bool { return c.count.looks() >= before+2 || isClosed(b.done) })
	require.False(t, isClosed(b.done), "it had to wait: %v", b.err)
	return b
}

// requireWoken checks that those who wait are told: three times in a row it takes less than three looks, none of which comes
// within a second of the last. A round returns how long it took from the release.
func requireWoken(t testing.TB, round func() time.Duration) {
	t.Helper()
	var took time.Duration
	for range 3 {
		took += round()
	}
	require.Less(t, took, 2500*time.Millisecond)
}
