package calls_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// user makes calls one after the other under a context that may end.
type user struct {
	rdb    *redis.Client
	sender *calls.Sender
	server *redistest.Server
	open   atomic.Int32           // connections
	dial   atomic.Pointer[func()] // runs before a connection is made
	key    string
	n      int
}

// counted is an open connection of a user.
type counted struct {
	*net.TCPConn
	open *atomic.Int32
	end  atomic.Bool
}

func (c *counted) Close() error {
	if c.end.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return c.TCPConn.Close()
}

func newUser(t *testing.T) *user {
	t.Helper()
	u := &user{server: redistest.Start(t), key: redistest.Name(t)}
	rdb := u.server.Client(t, func(o *redis.Options) {
		o.MaxRetries, o.ReadTimeout = -1, 20*time.Second
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if before := u.dial.Load(); before != nil {
				(*before)()
			}
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			u.open.Add(1)
			return &counted{TCPConn: conn.(*net.TCPConn), open: &u.open}, nil
		}
	})
	u.rdb, u.sender = rdb, newSender(t, rdb)
	u.sender.Retries = 3
	return u
}

// do makes a call, and reports whether it was answered before ctx ended. What comes later goes to late.
func (u *user) do(ctx context.Context, late chan redisconn.Reply) (r redisconn.Reply, answered bool) {
	u.n++
	request := take(fmt.Sprint(u.key, ":", u.n), "id")
	request.Late = func(r redisconn.Reply) { late <- r }
	return u.sender.Do(ctx, request)
}

// warm makes calls until the user's goroutine sends them.
func (u *user) warm(t *testing.T) {
	t.Helper()
	redistest.Poll(t, func() bool {
		before := u.sender.Solos()
		for range 2 * calls.SoloAfter {
			r, answered := u.do(t.Context(), nil)
			require.True(t, answered)
			got, err := r.Integers(2)
			require.NoError(t, err)
			require.EqualValues(t, 1, got[0])
		}
		return u.sender.Solos() > before
	})
}

// solo warms u and calls f, until the call in f was one that the user's goroutine has sent.
func (u *user) solo(t *testing.T, f func() (alone bool)) {
	t.Helper()
	redistest.Poll(t, func() bool {
		u.warm(t)
		return f()
	})
}

func TestSolo_AUserWhoCallsAloneSendsItself(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	for range calls.SoloAfter {
		_, answered := u.do(t.Context(), nil)
		require.True(t, answered)
	}
	require.Zero(t, u.sender.Solos(), "a few calls are worth no connection")
	require.EqualValues(t, 1, u.open.Load())
	u.warm(t)
	u.warm(t)
	require.EqualValues(t, 2, u.open.Load(), "one connection serves them all")
}

func TestSolo_ClientsWithoutOne(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	for _, c := range []redis.UniversalClient{sentinel, cluster, struct{ *redis.Client }{rdb}} {
		require.False(t, calls.HasSolo(c), "%T", c)
	}
	require.True(t, calls.HasSolo(rdb))
	require.NoError(t, sentinel.Close())
	require.NoError(t, cluster.Close())
}

// The user returns at the end of the context, and its call goes on.
func TestSolo_EndsWithTheContextWhileRedisHangs(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.solo(t, func() bool {
		before, late := u.sender.Solos(), make(chan redisconn.Reply, 1)
		u.server.Pause()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, answered := u.do(ctx, late)
		require.False(t, answered)
		require.Less(t, time.Since(began), 10*time.Second, "as long as go-redis waits is 20 s")
		u.server.Resume()
		r := <-late
		got, err := r.Integers(2)
		require.NoError(t, err)
		require.EqualValues(t, 1, got[0], "the same call, sent once more, is granted")
		alone := u.sender.Solos() > before
		require.Equal(t, alone, r.Ambiguous, "a copy of it may still execute")
		return alone
	})
	before, began := u.sender.Solos(), time.Now()
	for range 2 * calls.SoloAfter {
		_, answered := u.do(t.Context(), nil)
		require.True(t, answered)
	}
	if time.Since(began) < calls.SoloRest/2 {
		require.Equal(t, before, u.sender.Solos(), "contexts that end cost no connection each")
	}
}

func TestSolo_EndsWithTheContextWhileItDials(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	admin := u.server.Client(t)
	u.warm(t)
	late, hangs := make(chan redisconn.Reply, 100), make(chan struct{})
	dial := func() { <-hangs }
	u.dial.Store(&dial)
	require.NoError(t, admin.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err())
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		began := time.Now()
		_, answered := u.do(ctx, late)
		cancel()
		require.False(t, answered)
		require.Less(t, time.Since(began), 3*time.Second)
	}
	u.dial.Store(nil)
	close(hangs)
	u.warm(t)
}

// Close takes the call from the user's goroutine, and closes the connection.
func TestSolo_EndsWithTheSender(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.warm(t)
	before := u.sender.Solos()
	u.server.Pause()
	answer := make(chan redisconn.Reply)
	go func() {
		r, _ := u.do(t.Context(), nil)
		answer <- r
	}()
	_ = u.sender.Wheel.Sleep(t.Context(), 20*time.Millisecond) // whether or not it was sent, and by whom
	u.sender.Gate.Close()
	u.resumeLater()
	r := <-answer
	require.NoError(t, r.Err())
	require.Equal(t, r.Ambiguous, u.sender.Solos() > before)
	require.NoError(t, u.sender.Gate.Wait(t.Context()))
	for range calls.SoloAfter + 1 {
		_, answered := u.do(t.Context(), nil)
		require.True(t, answered)
	}
	redistest.Poll(t, func() bool { return u.open.Load() == 1 })
}

// Hooks may block, so a client with hooks has no calls that go solo, from a second after they were added at most.
func TestSolo_EndsWithTheFirstHook(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	require.False(t, calls.HasHooks(u.rdb))
	u.warm(t)
	withHook(t, u.rdb)
	require.True(t, calls.HasHooks(u.rdb))
	burst := func() (solos uint64) { // a call in quick succession finds out
		before := u.sender.Solos()
		for range 4 * calls.SoloAfter {
			_, answered := u.do(t.Context(), nil)
			require.True(t, answered)
		}
		return u.sender.Solos() - before
	}
	redistest.Poll(t, func() bool { return burst() == 0 && u.open.Load() == 1 })
	require.Zero(t, burst())
}

// After a failure the other connections are suspect. The next call does not find out at its expense.
func TestSolo_IsRenewedByACheck(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.warm(t)
	require.EqualValues(t, 2, u.open.Load())
	found := make(chan error, 1)
	require.True(t, u.sender.Check(u.key, redisconn.WriteQuestion(u.key), io.EOF, time.Second, func(err error) { found <- err }))
	require.NoError(t, <-found)
	redistest.Poll(t, func() bool { return u.open.Load() <= 1 })
	u.warm(t)
}

// A connection that the server has closed costs a caller nothing.
func TestSolo_OutlastsItsConnection(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	admin := u.server.Client(t)
	for range 3 {
		u.warm(t)
		require.NoError(t, admin.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes").Err())
		before := u.sender.Solos()
		r, answered := u.do(t.Context(), nil)
		require.True(t, answered)
		require.NoError(t, r.Err())
		if u.sender.Solos() > before {
			require.False(t, r.Ambiguous, "it was not sent over the old connection")
		}
	}
}

// counts is a Caller with a time limit. Its call must not execute twice.
type counts struct {
	key   string
	reply chan redisconn.Reply
}

func (c *counts) Build() (calls.Call, bool) {
	return calls.Call{Call: scripts.RateWindow.Call([]string{c.key}, 1_000_000, 60_000, 0, 1, 1, 1)}, true
}
func (c *counts) Wanted() bool            { return true }
func (c *counts) Apply(r redisconn.Reply) { c.reply <- r }

// count makes a call with a time limit.
func (u *user) count(ctx context.Context) *counts {
	c := &counts{key: u.key, reply: make(chan redisconn.Reply, 1)}
	u.sender.SubmitTimed(ctx, new(calls.Job), c, u.key)
	return c
}

// hang makes a call with a time limit while Redis does not answer, until end has been called, and returns its reply, or
// false if the user has not sent it himself.
func (u *user) hang(ctx context.Context, t *testing.T, end func(c *counts)) (r redisconn.Reply, alone bool) {
	t.Helper()
	redistest.Poll(t, func() bool {
		before := u.sender.Solos()
		for range 2 * calls.SoloAfter {
			r := <-u.count(context.Background()).reply
			require.NoError(t, r.Err())
		}
		return u.sender.Solos() > before
	})
	u.server.Pause()
	before, c := u.sender.Begun(), &counts{key: u.key, reply: make(chan redisconn.Reply, 1)}
	go u.sender.SubmitTimed(ctx, new(calls.Job), c, u.key)
	_ = u.sender.Wheel.Sleep(t.Context(), 20*time.Millisecond) // mostly it is sent by then
	alone = u.sender.Begun() > before
	end(c)
	if !alone {
		u.server.Resume()
	}
	r = <-c.reply
	u.server.Resume() // for those that end
	return r, alone
}

// resumeLater lets Redis answer after what would end a call has had its time.
func (u *user) resumeLater() {
	_ = u.sender.Wheel.Sleep(context.Background(), 20*time.Millisecond)
	u.server.Resume()
}

// A call that must not execute twice ends when its Caller says so, or with the context, and in no other way.
func TestSolo_ACallWithATimeLimit(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(u *user, c *counts, cancel context.CancelFunc) (ends bool){
		"its Caller ends it":  func(u *user, c *counts, _ context.CancelFunc) bool { u.sender.Interrupt(c); return true },
		"its context ends it": func(_ *user, _ *counts, cancel context.CancelFunc) bool { cancel(); return true },
		"another Caller does not": func(u *user, _ *counts, _ context.CancelFunc) bool {
			u.sender.Interrupt(new(counts))
			u.resumeLater()
			return false
		},
		"Close does not": func(u *user, _ *counts, _ context.CancelFunc) bool {
			u.sender.Gate.Close()
			u.resumeLater()
			return false
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			redistest.Poll(t, func() bool {
				u := newUser(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var ends bool
				r, alone := u.hang(ctx, t, func(c *counts) { ends = end(u, c, cancel) })
				if alone && ends {
					require.ErrorIs(t, r.Err(), calls.ErrInterrupted)
				} else {
					require.NoError(t, r.Err())
				}
				return alone
			})
		})
	}
}
