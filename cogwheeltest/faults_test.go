package cogwheeltest_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	inBubbles(t, map[string]func(*testing.T, *world){
		"a call whose reply is lost is executed":               replyLost,
		"a lost reply in a pipeline cuts off what follows":     replyLostInPipeline,
		"a call that is refused is not executed":               refused,
		"a fault for a name leaves others alone":               faultsOfNames,
		"faults that were not met show":                        pendingFaults,
		"a server that hangs executes later what came":         hangs,
		"a lock is lost while the server hangs":                lostWhileHanging,
		"a stopped server refuses connections, and comes back": stops,
		"Disconnect breaks connections once":                   disconnects,
		"connections that broke while idle fail no call":       idleBroke,
		"Isolate cuts one client off":                          isolates,
		"leases end while the server is stopped":               leasesEndWhileStopped,
		"Flush removes the data":                               flushes,
	})
}

// once returns a client that sends each command once.
func once(w *world) *redis.Client {
	return w.NewClient(func(o *redis.Options) { o.MaxRetries = -1 })
}

func replyLost(t *testing.T, w *world) {
	rdb := once(w)
	w.DropReplies(2)
	require.ErrorIs(t, rdb.Incr(w.ctx, "n").Err(), io.EOF)
	require.ErrorIs(t, rdb.Incr(w.ctx, "n").Err(), io.EOF)
	require.EqualValues(t, 3, rdb.Incr(w.ctx, "n").Val())
	w.DropReplies(1)
	require.EqualValues(t, 5, w.Client().Incr(w.ctx, "n").Val(), "go-redis repeats what it has no answer to")
}

func replyLostInPipeline(t *testing.T, w *world) {
	w.DropReplies(1, "b")
	pipe := once(w).Pipeline()
	for _, key := range []string{"a", "b", "c"} {
		pipe.Incr(w.ctx, key)
	}
	_, err := pipe.Exec(w.ctx)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []any{"1", "1", nil}, w.Client().MGet(w.ctx, "a", "b", "c").Val())
}

func idleBroke(t *testing.T, w *world) {
	rdb := once(w)
	pool := make([]*redis.Conn, 5)
	for i := range pool {
		pool[i] = rdb.Conn()
		require.NoError(t, pool[i].Ping(w.ctx).Err())
	}
	for _, conn := range pool {
		require.NoError(t, conn.Close())
	}
	require.EqualValues(t, len(pool), rdb.PoolStats().IdleConns)
	w.Stop()
	w.Restart()
	require.NoError(t, rdb.Ping(w.ctx).Err())
}

func refused(t *testing.T, w *world) {
	rdb := once(w)
	w.Refuse(cogwheeltest.ReadOnly, 1)
	w.Refuse(cogwheeltest.OutOfMemory, 2)
	for _, want := range []string{"READONLY", "OOM", "OOM"} {
		require.ErrorContains(t, rdb.Incr(w.ctx, "n").Err(), want)
	}
	require.EqualValues(t, 1, rdb.Incr(w.ctx, "n").Val())
	w.Refuse(cogwheeltest.NoPermission, cogwheeltest.Always)
	for range 3 {
		_, err := w.locks[0].Mutex("n").TryLock(w.ctx)
		require.ErrorContains(t, err, "NOPERM")
	}
	w.ClearFaults()
	require.NoError(t, rdb.Incr(w.ctx, "n").Err())
}

func faultsOfNames(t *testing.T, w *world) {
	w.Refuse(cogwheeltest.NoPermission, cogwheeltest.Always, "order:7", "ann")
	mustLock(t, w, w.locks[0].FairMutex("order:8"))
	_, err := w.locks[0].FairMutex("order:7").TryLock(w.ctx)
	require.ErrorContains(t, err, "NOPERM")
	k := w.limits[0].Limiter("api", ratelimit.PerSecond(5))
	_, err = k.Allow(w.ctx, "bob")
	require.NoError(t, err)
	_, err = k.Allow(w.ctx, "ann")
	require.ErrorIs(t, err, ratelimit.ErrMisconfigured)
}

func pendingFaults(t *testing.T, w *world) {
	w.DropReplies(2, "n")
	w.Refuse(cogwheeltest.Loading, 1, "other")
	require.Equal(t, 2, w.PendingFaults())
	require.NoError(t, w.Client().Incr(w.ctx, "n").Err()) // and once more, by go-redis
	require.Equal(t, 1, w.PendingFaults())
	require.NoError(t, w.Client().Ping(w.ctx).Err())
	w.ClearFaults()
	require.Zero(t, w.PendingFaults())
}

func hangs(t *testing.T, w *world) {
	rdb := once(w)
	require.NoError(t, rdb.Ping(w.ctx).Err()) // else the call would wait for its connection
	w.Hang()
	began := time.Now()
	require.ErrorIs(t, rdb.Incr(w.ctx, "n").Err(), os.ErrDeadlineExceeded)
	require.Equal(t, rdb.Options().ReadTimeout, time.Since(began))
	require.Zero(t, rdb.Exists(w.ctx, "n").Val())
	w.Advance(time.Minute)
	w.Resume()
	w.Advance(time.Second)
	require.Equal(t, "1", w.Client().Get(w.ctx, "n").Val(), "the late copy")
}

func lostWhileHanging(t *testing.T, w *world) {
	l := mustLock(t, w, w.locks[0].Mutex("n"))
	w.Hang()
	w.Advance(10 * time.Second)
	require.NoError(t, l.Err())
	w.Advance(redislock.DefaultLease)
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
	w.Resume()
	w.Advance(time.Minute)
	mustLock(t, w, w.locks[1].Mutex("n"))
}

func stops(t *testing.T, w *world) {
	l := mustLock(t, w, w.locks[0].Mutex("n"))
	w.Stop()
	_, err := w.locks[1].Mutex("n").TryLock(w.ctx)
	var dial *net.OpError
	require.ErrorAs(t, err, &dial)
	require.Equal(t, "dial", dial.Op)
	w.Advance(5 * time.Second)
	w.Restart()
	w.Advance(time.Minute)
	require.NoError(t, l.Err())
	require.NoError(t, l.Unlock(w.ctx))
}

func disconnects(t *testing.T, w *world) {
	rdb := once(w)
	used := rdb.Conn()
	require.NoError(t, used.Ping(w.ctx).Err())
	w.Disconnect()
	require.Error(t, used.Ping(w.ctx).Err())
	require.NoError(t, used.Close())
	require.NoError(t, rdb.Ping(w.ctx).Err())
	l := mustLock(t, w, w.locks[0].Mutex("n"))
	next := waitFor(w, w.locks[1].Mutex("n"))
	requireWaiting(t, next)
	w.Disconnect() // the subscription too
	w.Advance(time.Second)
	require.NoError(t, l.Unlock(w.ctx))
	requireDone(t, next)
}

func isolates(t *testing.T, w *world) {
	first, second := once(w), once(w)
	require.NoError(t, first.Ping(w.ctx).Err())
	w.Isolate(first)
	require.Error(t, first.Ping(w.ctx).Err())
	require.Error(t, first.Ping(w.ctx).Err())
	require.NoError(t, second.Ping(w.ctx).Err())
	w.Rejoin(first)
	require.NoError(t, first.Ping(w.ctx).Err())
}

func leasesEndWhileStopped(t *testing.T, w *world) {
	w.Steal("n", time.Minute)
	w.Stop()
	w.Advance(time.Minute)
	w.Restart()
	mustLock(t, w, w.locks[0].Mutex("n"))
}

func flushes(t *testing.T, w *world) {
	l := mustLock(t, w, w.locks[0].Mutex("n"))
	w.Flush()
	mustLock(t, w, w.locks[1].Mutex("n"))
	w.Advance(redislock.DefaultLease / 2)
	require.ErrorIs(t, l.Err(), redislock.ErrLost)
}

// Outside of a bubble the server lives by the time of the process.
func TestStart_InRealTime(t *testing.T) {
	t.Parallel()
	srv := cogwheeltest.Start(t)
	ctx := t.Context()
	l, err := srv.Locks().Mutex("n", redislock.WithLease(5*time.Second)).Lock(ctx)
	require.NoError(t, err)
	srv.ExpireLock("n")
	<-l.Done() // at the next renewal
	require.ErrorIs(t, l.Err(), redislock.ErrLost)

	srv.Steal("n", time.Hour)
	srv.Advance(time.Hour)
	_, err = srv.Locks().Mutex("n").TryLock(ctx)
	require.NoError(t, err)

	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1})
	defer rdb.Close()
	require.NoError(t, rdb.Set(ctx, "by address", 1, 0).Err())
	srv.DropReplies(1)
	require.Error(t, rdb.Incr(ctx, "by address").Err())
	require.Equal(t, "2", srv.Client().Get(ctx, "by address").Val())
	srv.Stop()
	require.Error(t, rdb.Ping(ctx).Err())
}

// recorder keeps what a test is told.
type recorder struct {
	testing.TB
	told []string
}

func (*recorder) Helper()                        {}
func (r *recorder) Error(args ...any)            { r.told = append(r.told, fmt.Sprint(args...)) }
func (r *recorder) Errorf(f string, args ...any) { r.told = append(r.told, fmt.Sprintf(f, args...)) }
func (r *recorder) Fatal(args ...any)            { r.Error(args...); panic(r) }
func (r *recorder) Fatalf(f string, args ...any) { r.Errorf(f, args...); panic(r) }

// A fault that hits nothing fails the test: it would prove nothing.
func TestServer_TellsOfMisuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		srv := cogwheeltest.Start(r)
		k := srv.Limits().Limiter("api", ratelimit.PerSecond(1))
		open := srv.Limits(ratelimit.WithPolicy(ratelimit.FailOpen())).Limiter("open", ratelimit.PerSecond(1))
		for want, misuse := range map[string]func(){
			`no process holds the lock: "n"`:  func() { srv.ExpireLock("n") },
			`no process holds a permit: "n"`:  func() { srv.ExpirePermits("n") },
			`"xyz" is not the id of a permit`: func() { srv.ExpirePermits("n", "xyz") },
			"a fault for 0 calls":             func() { srv.DropReplies(0) },
			"a fault for -2 calls":            func() { srv.Refuse(cogwheeltest.ReadOnly, -2) },
			"without an error to answer":      func() { srv.Refuse("", 1) },
			"time does not go back by 1s":     func() { srv.Advance(-time.Second) },
			"not one of Client or NewClient":  func() { srv.Isolate(cogwheeltest.Start(t).Client()) },
			"redis unavailable":               func() { srv.Stop(); srv.Exhaust(k, "user"); srv.Restart() },
			"the policy decided":              func() { srv.Stop(); srv.Exhaust(open, "user"); srv.Restart() },
			"Addr in a bubble":                func() { require.Panics(t, func() { srv.Addr() }) },
		} {
			r.told = nil
			misuse()
			require.Len(t, r.told, 1, want)
			require.Contains(t, r.told[0], "cogwheeltest: ")
			require.Contains(t, r.told[0], want)
		}
	})
}

func TestRequests(t *testing.T) {
	t.Parallel()
	sent := []byte("*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n")
	want := [][]string{{"GET", "a\r\nb"}, {"PING"}, {"GET", ""}}
	for i := range sent {
		for j := i; j < len(sent); j++ {
			words, raw := cogwheeltest.Requests(sent[:i], sent[i:j], sent[j:])
			require.Equal(t, want, words)
			require.Equal(t, sent, raw)
		}
	}
	_, raw := cogwheeltest.Requests([]byte("PING\r\n"))
	require.Equal(t, "PING\r\n", string(raw), "what is not a command goes to the server as it is")
}

func TestPlainError(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		"+OK\r\n":                   "+OK\r\n",
		"-NOSCRIPT No matching\r\n": "-NOSCRIPT No matching\r\n",
		"-ERR Error compiling script (new function): :20: WRONGTYPE Operation stack traceback:  [G]\r\n": "-WRONGTYPE Operation\r\n",
		"-ERR Error compiling script (new function): :7: attempt to call a nil value\r\n":                "-ERR Error compiling script (new function): :7: attempt to call a nil value\r\n",
	} {
		require.Equal(t, want, cogwheeltest.PlainError(reply))
	}
}
