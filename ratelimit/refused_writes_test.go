package ratelimit_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// writeRefusals make a server refuse writes, or accept them again, while it answers reads.
var writeRefusals = map[string]func(t *testing.T, s *redistest.Server, admin *redis.Client, refuse bool){
	"OOM":        configured("maxmemory", "1", "0"),
	"NOREPLICAS": configured("min-replicas-to-write", "1", "0"),
	"READONLY": func(t *testing.T, _ *redistest.Server, admin *redis.Client, refuse bool) {
		t.Helper()
		args := []any{"REPLICAOF", "NO", "ONE"}
		if refuse {
			args = []any{"REPLICAOF", "127.0.0.1", "1"}
		}
		require.NoError(t, admin.Do(t.Context(), args...).Err())
	},
	"MISCONF": func(t *testing.T, s *redistest.Server, admin *redis.Client, refuse bool) {
		t.Helper()
		obstacle, status := filepath.Join(s.Dir(), "dump.rdb"), "ok" // a directory in place of the snapshot
		require.NoError(t, os.RemoveAll(obstacle))
		if refuse {
			require.NoError(t, os.Mkdir(obstacle, 0o700))
			status = "err"
		}
		require.NoError(t, admin.ConfigSet(t.Context(), "save", "3600 1").Err())
		require.NoError(t, admin.BgSave(t.Context()).Err())
		await(t, "the snapshot", func() bool {
			info, err := admin.Info(t.Context(), "persistence").Result()
			return err == nil && strings.Contains(info, "rdb_last_bgsave_status:"+status+"\r\n") &&
				strings.Contains(info, "rdb_bgsave_in_progress:0\r\n")
		})
	},
}

func configured(setting, refusing, accepting string) func(*testing.T, *redistest.Server, *redis.Client, bool) {
	return func(t *testing.T, _ *redistest.Server, admin *redis.Client, refuse bool) {
		t.Helper()
		value := accepting
		if refuse {
			value = refusing
		}
		require.NoError(t, admin.ConfigSet(t.Context(), setting, value).Err())
	}
}

// sharedLimit returns none of its permits during a test, and a test does not spend them all: a denial writes nothing, so
// a Redis that refuses writes answers it.
var sharedLimit = ratelimit.Limit{Rate: 1000, Per: 100 * 24 * time.Hour, Burst: 1000}

// sharedLimiters are limiters of every algorithm.
var sharedLimiters = map[string]func(t *testing.T, c *ratelimit.Client) (allow, peek func(context.Context) (ratelimit.Result, error)){
	"GCRA": func(_ *testing.T, c *ratelimit.Client) (allow, peek func(context.Context) (ratelimit.Result, error)) {
		return ofKey(c.Limiter("k", sharedLimit))
	},
	"FixedWindow": func(_ *testing.T, c *ratelimit.Client) (allow, peek func(context.Context) (ratelimit.Result, error)) {
		return ofKey(c.Limiter("k", sharedLimit, ratelimit.WithAlgorithm(ratelimit.FixedWindow)))
	},
	"SlidingWindow": func(_ *testing.T, c *ratelimit.Client) (allow, peek func(context.Context) (ratelimit.Result, error)) {
		return ofKey(c.Limiter("k", sharedLimit, bySliding))
	},
	"sliding log": func(t *testing.T, c *ratelimit.Client) (allow, peek func(context.Context) (ratelimit.Result, error)) {
		require.NoError(t, c.StoredLimiter("l").SetRate(t.Context(), sharedLimit))
		return c.StoredLimiter("l").Allow, c.StoredLimiter("l").Peek
	},
	"All of GCRA": func(_ *testing.T, c *ratelimit.Client) (allow, peek func(context.Context) (ratelimit.Result, error)) {
		all := c.All(c.Limiter("k", sharedLimit).Part("a"), c.Limiter("k", sharedLimit).Part("b"))
		return all.Allow, all.Peek
	},
	"All of every algorithm": func(t *testing.T, c *ratelimit.Client) (allow, peek func(context.Context) (ratelimit.Result, error)) {
		window := c.Limiter("k", sharedLimit, ratelimit.WithAlgorithm(ratelimit.FixedWindow))
		all := c.All(c.Limiter("k", sharedLimit).Part("a"), window.Part("b"), c.Limiter("k", sharedLimit, bySliding).Part("c"))
		return all.Allow, all.Peek
	},
}

func ofKey(k *ratelimit.Limiter) (allow, peek func(context.Context) (ratelimit.Result, error)) {
	return func(ctx context.Context) (ratelimit.Result, error) { return k.Allow(ctx, "u") },
		func(ctx context.Context) (ratelimit.Result, error) { return k.Peek(ctx, "u") }
}

// refusedClient is a client of a server that refuses writes now and then.
type refusedClient struct {
	client          *ratelimit.Client
	allow, peek     func(context.Context) (ratelimit.Result, error)
	trips           atomic.Int64 // scripts
	ups             atomic.Int64
	byRedis, shared int64 // permits granted
}

func newRefusedClient(
	t *testing.T, server *redistest.Server, limiter string, policy ratelimit.Policy, opts ...func(*redis.Options),
) *refusedClient {
	t.Helper()
	c := &refusedClient{}
	rdb := server.Client(t, append(opts, func(o *redis.Options) { o.Dialer = c.dialer(o.Dialer) })...)
	c.client = newClient(t, rdb, ratelimit.WithPolicy(policy), ratelimit.WithBreaker(2, 5*time.Millisecond),
		ratelimit.WithHooks(ratelimit.Hooks{Up: func(ratelimit.Event) { c.ups.Add(1) }}))
	c.allow, c.peek = sharedLimiters[limiter](t, c.client)
	c.call(t, 1)
	require.EqualValues(t, 1, c.byRedis)
	return c
}

// dialer counts the scripts on the connections of dial: hooks do not see probes.
func (c *refusedClient) dialer(
	dial func(ctx context.Context, network, addr string) (net.Conn, error),
) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &editedConn{Conn: conn, edit: func(p []byte) []byte {
			if bytes.Contains(p, []byte("eval")) {
				c.trips.Add(1)
			}
			return p
		}}, err
	}
}

// editedConn edits what a client sends, one call a write.
type editedConn struct {
	net.Conn
	edit func([]byte) []byte
}

func (c *editedConn) Write(p []byte) (int, error) {
	_, err := c.Conn.Write(c.edit(p))
	return len(p), err
}

// call asks for permits, and counts those granted, until so many commands were sent. While the circuit is open those
// are probes.
func (c *refusedClient) call(t *testing.T, commands int64) {
	t.Helper()
	w := newWheel(t)
	for until := c.trips.Load() + commands; c.trips.Load() < until; {
		r, err := c.allow(t.Context())
		switch {
		case err != nil:
			require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		case r.Source == ratelimit.SourceDegraded:
			c.shared += r.Granted
		default:
			c.byRedis += r.Granted
		}
		require.NoError(t, w.Sleep(t.Context(), time.Millisecond))
	}
}

// back waits until Redis decides again.
func (c *refusedClient) back(t *testing.T) {
	t.Helper()
	await(t, "the circuit to close", func() bool { return !c.client.Stats().Down })
	before := c.byRedis
	c.call(t, 1)
	require.Greater(t, c.byRedis, before)
}

// While Redis answers reads and refuses writes, the circuit stays open, and LocalShare grants no more than its share,
// in one outage or in many.
// Guarantees: Q20, Q29.
func TestBreaker_StaysOpenWhileRedisRefusesWrites(t *testing.T) {
	t.Parallel()
	for name, refusal := range writeRefusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for limiter := range sharedLimiters {
				t.Run(limiter, func(t *testing.T) {
					t.Parallel()
					server := redistest.Start(t)
					admin := server.Client(t)
					refuse := func(refuse bool) { refusal(t, server, admin, refuse) }
					c := newRefusedClient(t, server, limiter, ratelimit.LocalShare(100))
					before, share := state(t, admin), int64(10)
					for range 3 {
						refuse(true)
						ups := c.ups.Load()
						c.call(t, 20)
						require.True(t, c.client.Stats().Down)
						require.Equal(t, ups, c.ups.Load(), "the circuit closed")
						require.LessOrEqual(t, c.shared, share)
						require.Equal(t, before, state(t, admin), "probes change nothing")
						refuse(false)
						c.back(t)
						require.LessOrEqual(t, c.shared, share)
						before = state(t, admin)
					}
					require.Equal(t, share, c.shared, "the share is used up (check)")
					r, err := c.peek(t.Context())
					require.NoError(t, err)
					require.Equal(t, sharedLimit.Burst-c.byRedis, r.Remaining, "probes charge nothing")
				})
			}
		})
	}
}

// state is the value of every key.
func state(t *testing.T, rdb *redis.Client) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		value, err := rdb.Dump(t.Context(), key).Result()
		require.NoError(t, err)
		ttl := rdb.PTTL(t.Context(), key).Val()
		all[key] = fmt.Sprint(value, ttl > time.Hour, ttl < 0)
	}
	return all
}

// A Redis that accepts some writes and refuses others lets the circuit close and open again and again. The share of a
// period is granted once.
// Guarantees: Q29.
func TestLocalShare_IsGrantedOnceWhileTheCircuitFlaps(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	clients := map[string]*refusedClient{}
	for limiter := range sharedLimiters {
		db := func(o *redis.Options) { o.DB = len(clients) }
		clients[limiter] = newRefusedClient(t, server, limiter, ratelimit.LocalShare(100), db)
	}
	var flaps, calls sync.WaitGroup
	over, stop := context.WithCancel(t.Context())
	flaps.Go(func() {
		refuse, w := false, newWheel(t)
		for over.Err() == nil {
			refuse = !refuse
			writeRefusals["OOM"](t, server, admin, refuse)
			require.NoError(t, w.Sleep(t.Context(), 20*time.Millisecond))
		}
	})
	for _, c := range clients {
		calls.Go(func() {
			for c.ups.Load() < 10 {
				c.call(t, 1)
			}
		})
	}
	calls.Wait()
	stop()
	flaps.Wait()
	for limiter, c := range clients {
		require.EqualValues(t, 10, c.shared, limiter)
		require.Less(t, c.byRedis, sharedLimit.Burst)
	}
}

// No policy goes back to Redis because of a probe that could not write.
// Guarantees: Q20.
func TestBreaker_StaysOpenUnderEveryPolicy(t *testing.T) {
	t.Parallel()
	for what, policy := range map[string]ratelimit.Policy{"closed": ratelimit.FailClosed(), "open": ratelimit.FailOpen()} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			admin := server.Client(t)
			c := newRefusedClient(t, server, "GCRA", policy)
			writeRefusals["OOM"](t, server, admin, true)
			c.call(t, 20)
			require.Zero(t, c.ups.Load())
			require.Equal(t, what == "open", c.shared > 0)
			writeRefusals["OOM"](t, server, admin, false)
			c.back(t)
		})
	}
}

// A client that may not write is misconfigured: that ends the outage, and no policy grants.
// Guarantees: Q20.
func TestBreaker_ARightThatIsMissingIsNoOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	for limiter := range sharedLimiters {
		require.NoError(t, admin.FlushAll(t.Context()).Err())
		login := server.User(t, "limited", "~*", "+@all")
		c := newRefusedClient(t, server, limiter, ratelimit.LocalShare(100), login)
		for range 3 {
			writeRefusals["OOM"](t, server, admin, true)
			c.call(t, 5)
			require.True(t, c.client.Stats().Down)
			require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "limited", "-set").Err())
			writeRefusals["OOM"](t, server, admin, false)
			await(t, "the answer", func() bool { return !c.client.Stats().Down })
			for range 10 {
				_, err := c.allow(t.Context())
				require.ErrorIs(t, err, ratelimit.ErrMisconfigured)
			}
			require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "limited", "+set").Err())
			c.back(t)
		}
		require.LessOrEqual(t, c.shared, int64(10), limiter)
	}
}

// The check of the other tests finds a probe that writes nothing.
func TestBreaker_AProbeThatWritesNothingIsFound(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var probes atomic.Int64
	withoutWrite := func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &editedConn{Conn: conn, edit: func(p []byte) []byte {
				if bytes.HasPrefix(p, []byte("*9\r\n")) && bytes.HasSuffix(p, []byte("\r\n$1\r\n0\r\n")) {
					probes.Add(1)
					return []byte("*1\r\n$4\r\nPING\r\n")
				}
				return p
			}}, err
		}
	}
	c := newRefusedClient(t, server, "GCRA", ratelimit.LocalShare(100), withoutWrite)
	writeRefusals["OOM"](t, server, server.Client(t), true)
	c.call(t, 20)
	require.Positive(t, probes.Load())
	require.Positive(t, c.ups.Load(), "the circuit closed although Redis refuses writes")
	require.EqualValues(t, 10, c.shared, "even so, the share is granted once")
}

// Probes need no rights beyond the printed ones.
// Guarantees: Q20.
func TestBreaker_ProbesWithThePrintedRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client(t)
	commands := slices.DeleteFunc(redistest.DocumentedRights(t, "ratelimit", "app:"), func(right string) bool { return right[0] != '+' })
	login := server.User(t, "limits", append(commands, "~*")...)
	for limiter := range sharedLimiters {
		require.NoError(t, admin.FlushAll(t.Context()).Err())
		c := newRefusedClient(t, server, limiter, ratelimit.LocalShare(100), login,
			func(o *redis.Options) { o.DisableIdentity = true })
		writeRefusals["OOM"](t, server, admin, true)
		c.call(t, 5)
		writeRefusals["OOM"](t, server, admin, false)
		c.back(t)
	}
	refused, err := admin.ACLLog(t.Context(), 100).Result()
	require.NoError(t, err)
	for _, r := range refused {
		require.Contains(t, []string{"client|maint_notifications", "client"}, r.Object, "of go-redis: %+v", r)
	}
}

// What LocalShare remembers of a key ends with its share, not with the outage, and nothing is left on the wheel.
// Guarantees: Q29.
func TestLocalShare_IsForgottenWhenItIsWholeAgain(t *testing.T) {
	answered(t, "!OOM_command_not_allowed", func(c *ratelimit.Client) {
		ctx := context.Background()
		short, long := c.Limiter("short", ratelimit.PerMinute(10)), c.Limiter("long", ratelimit.PerHour(10))
		for _, k := range []*ratelimit.Limiter{short, long} {
			for i := range 10 {
				r, err := k.Allow(ctx, "u")
				require.NoError(t, err)
				require.Equal(t, i < 5, r.Allowed)
			}
		}
		require.Equal(t, 2, ratelimit.Shares(c))
		time.Sleep(10 * time.Minute)
		require.Equal(t, 1, ratelimit.Shares(c))
		r, err := long.AllowN(ctx, "u", 2)
		require.NoError(t, err)
		require.False(t, r.Allowed)
		time.Sleep(2 * time.Hour)
		require.Zero(t, ratelimit.Shares(c))
		r, err = long.Allow(ctx, "u")
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}, ratelimit.WithPolicy(ratelimit.LocalShare(2)), ratelimit.WithBreaker(1, time.Second))
}

// In a pipeline some decisions may fail for another reason than an outage: the probe is not one of those.
// Guarantees: Q20.
func TestBreaker_ProbesTheDecisionThatFailed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin, d := server.Client(t), &redistest.FaultDialer{}
	c := newRefusedClient(t, server, "GCRA", ratelimit.LocalShare(100), func(o *redis.Options) { o.Dialer = d.Dial })
	k := c.client.Limiter("k", sharedLimit)
	for i := range 40 {
		require.NoError(t, admin.LPush(t.Context(), fmt.Sprintf("k:{%d}", 2*i), "another kind of key").Err())
	}
	d.Delay(0, 10*time.Millisecond) // so that calls travel together
	for range 8 {
		writeRefusals["OOM"](t, server, admin, true)
		ups := c.ups.Load()
		for !c.client.Stats().Down {
			each(80, func(i int) { _, _ = k.Allow(t.Context(), fmt.Sprint(i)) })
		}
		c.call(t, 3)
		require.Equal(t, ups, c.ups.Load(), "the circuit closed")
		writeRefusals["OOM"](t, server, admin, false)
		await(t, "the circuit to close", func() bool { return !c.client.Stats().Down })
	}
}
