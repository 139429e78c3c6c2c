package main_test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	cogwheel "github.com/cogwheel-go/cogwheel/cmd/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// listed returns the names that list prints.
func listed(t *testing.T, url string, args ...string) (names []string) {
	t.Helper()
	var held []struct {
		Name    string
		Objects []struct{ Kind string }
	}
	require.NoError(t, json.Unmarshal([]byte(must(t, url, append([]string{"list", "--json"}, args...)...)), &held))
	for _, h := range held {
		require.Len(t, h.Objects, 1, h.Name)
		names = append(names, h.Name)
	}
	return names
}

func TestList_ShowsWhatIsHeld(t *testing.T) {
	t.Parallel()
	s := startService(t)
	for _, command := range []string{
		"HSET user:7 email a@b mode dark", "HSET smtp:old rate 7", "ZADD jobs:timeout 1 x", "SET text x", "HSET {user}:timeout a b",
	} {
		var words []any
		for w := range strings.FieldsSeq(command) {
			words = append(words, w)
		}
		require.NoError(t, s.rdb.Do(t.Context(), words...).Err())
	}
	tagged := s.newLocks(t).Mutex("shop:{7}:stock")
	_, err := tagged.TryLock(t.Context())
	require.NoError(t, err)
	c, err := semaphore.New(s.rdb, semaphore.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	for _, name := range []string{"shop:{7}:exports", "idle"} {
		sem := c.Semaphore(name, 0, semaphore.WithLease(ever), semaphore.WithoutRenewal())
		_, err = sem.TrySetPermits(t.Context(), 2)
		require.NoError(t, err)
		g, err := sem.Acquire(t.Context(), 1)
		require.NoError(t, err)
		if name == "idle" {
			require.NoError(t, g.Release(t.Context()))
		}
	}
	all := []string{
		"account:7", "account:9", "catalogue", "exports", "orders", "prices", "report", "shop:{7}:exports", "shop:{7}:stock", "stock:42", "uploads",
	}
	require.Equal(t, all, listed(t, s.url))
	require.Equal(t, []string{"shop:{7}:exports", "shop:{7}:stock"}, listed(t, s.url, "shop:*"))
	require.Equal(t, []string{"account:7", "account:9"}, listed(t, s.url, "account:[79]"))
	require.Equal(t, []string{"exports"}, listed(t, s.url, "exports"))
}

// Without tasks, nothing is left of a queue.
func TestList_ShowsQueuesWithTasks(t *testing.T) {
	t.Parallel()
	s := startService(t)
	ids := []string{"c8595da4-3359-43d5-8f3f-cae419f95f6e:1", "second"} // the first one could be that of a hold
	for name, id := range map[string]string{"mails": ids[0], "shop:{7}:mails": ids[1], "idle": "none"} {
		require.NoError(t, newQueue(t, s.rdb, name).Schedule(t.Context(), id, 0, nil))
	}
	_, err := newQueue(t, s.rdb, "idle").Cancel(t.Context(), "none")
	require.NoError(t, err)
	text := must(t, s.url, "list")
	require.Regexp(t, `\nmails +queue +1 pending \(1 overdue\), 0 claimed, 0 failed\n`, text)
	require.Regexp(t, `\norders +queue +2 pending, 1 claimed, 1 failed\n`, text)
	require.NotContains(t, text, "idle")
	require.NotContains(t, text, ":delay:")
	require.Equal(t, []string{"mails"}, listed(t, s.url, "mai*"))
	require.Equal(t, []string{"shop:{7}:mails"}, listed(t, s.url, "shop:*"))
	require.Equal(t, []string{"shop:{7}:mails"}, listed(t, s.url, "shop:{7}:mails"))
}

// The user of docs/tool.md for the commands that read may list, and nothing changes.
func TestList_OnlyReads(t *testing.T) {
	t.Parallel()
	s := startService(t)
	s.server.User(t, "looker", redistest.DocumentedRights(t, "looker", "app:")...)
	before := dump(t, s.rdb)
	require.NotEmpty(t, listed(t, strings.Replace(s.url, "redis://", "redis://looker:secret@", 1)))
	require.Equal(t, before, dump(t, s.rdb))
}

func TestList_SaysThatItIsNotComplete(t *testing.T) {
	t.Parallel()
	s := startService(t)
	pipe := s.rdb.Pipeline()
	for i := range 5000 {
		pipe.Set(t.Context(), fmt.Sprint("filler:", i), "x", 0)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	require.Contains(t, run(t, s.url, "list", "--scan", "1500").stderr, "the list is not complete: there are more than 1500 keys")
	require.Len(t, listed(t, s.url, "--scan", "10000"), 9)
}

func TestList_AsksAllMastersOfACluster(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	c, err := redislock.New(cluster.Client(t), redislock.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	prefix := redistest.Name(t)
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprint(prefix, ":", i))
		_, err := c.Mutex(names[i], redislock.WithLease(ever)).TryLock(t.Context())
		require.NoError(t, err)
	}
	names = append(names, prefix+":tasks")
	require.NoError(t, newQueue(t, cluster.Client(t), prefix+":tasks").Schedule(t.Context(), "first", ever, nil))
	url := "redis://" + cluster.Masters[0].Addr() + "?addr=" + cluster.Masters[1].Addr()
	require.Equal(t, names, listed(t, url, prefix+":*"))
}

// However many keys there are, the timeout is that of a page of them.
func TestList_MayTakeLongerThanItsTimeout(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	var network redistest.FaultDialer
	rdb := redistest.Start(t).Client(t, func(o *redis.Options) {
		o.Dialer, o.ReadTimeout, o.ContextTimeoutEnabled = network.Dial, redistest.Patience, true
	})
	pipe := rdb.Pipeline()
	for i := range 3000 {
		pipe.Set(t.Context(), fmt.Sprint("filler:", i), "x", 0)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	const timeout = 4 * time.Second
	network.Delay(0, timeout/10) // of each of more than ten pages
	began := time.Now()
	require.ErrorContains(t, cogwheel.List(t.Context(), rdb, timeout), "no lock or permit is held")
	require.Greater(t, time.Since(began), timeout)
}

func TestVersion(t *testing.T) {
	t.Parallel()
	require.Regexp(t, `^cogwheel \S+ go1\.\d+\S* \w+/\w+\n$`, must(t, "", "version"))
	require.Contains(t, must(t, "", "version", "--json"), `"version": `)
}

// A wrong URL has an error that says what is wrong with it.
func TestConnect_WrongURL(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	r := run(t, "redis://"+sentinel.Sentinels[0].Addr()+"?master_name=other", "inspect", "--timeout", "3s", "a")
	require.Equal(t, 3, r.status)
	require.Contains(t, r.stderr, "the Sentinels do not know the master_name of REDIS_URL")

	secure, err := net.Listen("tcp", "127.0.0.1:0") // as a server that takes TLS alone: it closes connections that do not greet
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = secure.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			conn, err := secure.Accept()
			if err != nil {
				return
			}
			_ = conn.SetReadDeadline(time.Now().Add(redistest.Patience))
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
	}()
	r = run(t, "redis://"+secure.Addr().String(), "inspect", "a")
	require.Equal(t, 3, r.status)
	require.Contains(t, r.stderr, "use rediss:// if its port takes TLS alone")
}

// What is read from a replica may be old, which the tool says; a write says that it needs the primary.
func TestReplica(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	s := startService(t)
	_, port, _ := net.SplitHostPort(s.server.Addr())
	replica := redistest.Start(t, "--replicaof", "127.0.0.1", port)
	rdb := replica.Client(t)
	redistest.Poll(t, func() bool { return rdb.Exists(t.Context(), "stock:42").Val() == 1 })
	r := run(t, "redis://"+replica.Addr(), "inspect", "stock:42")
	require.Zero(t, r.status)
	require.Contains(t, r.stderr, "this is read from a replica")
	r = run(t, "redis://"+replica.Addr(), "unlock", "--force", "stock:42")
	require.Equal(t, 3, r.status)
	require.Contains(t, r.stderr, "the server is a replica: REDIS_URL has to name the primary")
}
