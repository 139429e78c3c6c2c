package calls_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const patience = 30 * time.Second

func newSender(t *testing.T, rdb redis.UniversalClient) *calls.Sender {
	t.Helper()
	w, err := wheel.New()
	require.NoError(t, err)
	s := calls.New(calls.Config{
		Client: rdb, Base: redisconn.Base(rdb), Wheel: w, Workers: gate.NewWorkers(w), Gate: new(gate.Gate),
	})
	t.Cleanup(func() {
		s.Gate.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, s.Gate.Wait(ctx))
		s.Workers.Close()
		_, err := w.Stop(ctx)
		require.NoError(t, err)
	})
	return s
}

// take locks a key for a minute.
func take(key, id string) calls.Request {
	return calls.Request{
		Key:   key,
		Build: func() scripts.Call { return scripts.LockAcquire.Call([]string{key}, id, 60_000) },
	}
}

func mustTake(t *testing.T, s *calls.Sender, key string) {
	t.Helper()
	r, answered := s.Do(t.Context(), take(key, "id"))
	require.True(t, answered)
	require.NoError(t, r.Err())
}

// hook lets the commands of a client through until it is told otherwise.
type hook struct {
	before atomic.Pointer[func()]
	values sync.Map // the values of contexts that it saw
}

func (h *hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.saw(ctx)
		return next(ctx, cmd)
	}
}

func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.saw(ctx)
		return next(ctx, cmds)
	}
}

func (h *hook) saw(ctx context.Context) {
	if v := ctx.Value(h); v != nil {
		h.values.Store(v, true)
	}
	if before := h.before.Load(); before != nil {
		(*before)()
	}
}

func (h *hook) set(before func()) { h.before.Store(&before) }

func withHook(t *testing.T, rdb *redis.Client) *hook {
	t.Helper()
	h := new(hook)
	rdb.AddHook(h)
	return h
}

func TestSender_AnswersAreNotMixedUp(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	s := newSender(t, rdb)
	name := redistest.Name(t)
	var callers sync.WaitGroup
	for i := range 64 {
		callers.Go(func() {
			for n := range 50 {
				key, id := fmt.Sprintf("%s:%d:%d", name, i, n), fmt.Sprintf("id:%d:%d", i, n)
				r, answered := s.Do(t.Context(), take(key, id))
				got, err := r.Integers(2)
				if !answered || err != nil || got[0] != 1 {
					t.Errorf("%s: %v %v %v", key, answered, got, err)
				}
				r, answered = s.Do(t.Context(), take(key, "another")) // is refused
				if got, err = r.Integers(2); !answered || err != nil || got[0] != 0 {
					t.Errorf("%s: %v %v %v", key, answered, got, err)
				}
			}
		})
	}
	callers.Wait()
}

// What a user has given up before it was sent is never sent. A release is.
func TestSender_WhatIsGivenUp(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	h, s, name := withHook(t, rdb), newSender(t, rdb), redistest.Name(t)
	mustTake(t, s, name)
	hangs := make(chan struct{})
	var hanging atomic.Int32
	h.set(func() {
		hanging.Add(1)
		<-hangs
	})
	until := func(n int32) {
		for hanging.Load() < n {
			require.NoError(t, s.Wheel.Sleep(t.Context(), time.Millisecond))
		}
	}
	late := make(chan redisconn.Reply, calls.MostInFlight+1)
	ctx, cancel := context.WithCancel(t.Context())
	var users sync.WaitGroup
	start := func(key string, must bool) {
		request := take(key, "id")
		request.Must, request.Late = must, func(r redisconn.Reply) { late <- r }
		users.Go(func() {
			_, answered := s.Do(ctx, request)
			if answered {
				t.Errorf("%s was answered", key)
			}
		})
	}
	start(name+":sent:1", false)
	until(1)
	start(name+":sent:2", false)
	until(2)
	for i := range int32(calls.MostInFlight - 2) { // so that the next ones wait
		start(fmt.Sprint(name, ":fill:", i), false)
		until(3 + i)
	}
	for range 100 {
		start(name+":never", false)
	}
	start(name+":release", true)
	require.NoError(t, s.Wheel.Sleep(t.Context(), 100*time.Millisecond))
	cancel()
	users.Wait()
	h.set(func() {})
	close(hangs)
	for range calls.MostInFlight + 1 {
		require.NoError(t, (<-late).Err())
	}
	require.NoError(t, s.Gate.Wait(t.Context()))
	require.EqualValues(t, 1, rdb.Exists(t.Context(), name+":release").Val())
	require.EqualValues(t, 2, rdb.Exists(t.Context(), name+":sent:1", name+":sent:2").Val())
	require.Zero(t, rdb.Exists(t.Context(), name+":never").Val())
}

func TestSender_ManyCallsAtOnceFailNone(t *testing.T) {
	t.Parallel()
	const users = 50_000
	rdb := redistest.Start(t).Client(t, func(o *redis.Options) { o.ReadTimeout = 2 * time.Second })
	s := newSender(t, rdb)
	var failed atomic.Int64
	var all sync.WaitGroup
	for i := range users {
		all.Go(func() {
			if r, _ := s.Do(t.Context(), take(fmt.Sprint("name:", i), "id")); r.Err() != nil {
				failed.Add(1)
			}
		})
	}
	all.Wait()
	require.Zero(t, failed.Load())
}

// While Redis hangs, the goroutines of the Sender are few, whatever the number of calls.
func TestSender_GoroutinesWhileRedisHangs(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t, func(o *redis.Options) { o.MaxRetries, o.PoolSize = -1, 100 })
	s := newSender(t, rdb)
	mustTake(t, s, "first")
	server.Pause()
	before := runtime.NumGoroutine()
	var replies sync.WaitGroup
	for i := range 20_000 {
		request := take(fmt.Sprint("name:", i), "id")
		replies.Add(1)
		request.Late = func(redisconn.Reply) { replies.Done() }
		s.Go(t.Context(), request)
		if i%1000 == 0 {
			_ = s.Wheel.Sleep(t.Context(), 25*time.Millisecond)
		}
	}
	grown := runtime.NumGoroutine() - before
	server.Resume()
	require.LessOrEqual(t, grown, 24)
	require.GreaterOrEqual(t, grown, 2)
	replies.Wait()
}

// The connections of a client have gone dead, and new ones are well.
func TestSender_DeadConnectionsHoldUpNobodyForLong(t *testing.T) {
	t.Parallel()
	var dialer redistest.FaultDialer
	rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer, o.MaxRetries = dialer.Dial, -1 })
	s, name := newSender(t, rdb), redistest.Name(t)
	var users sync.WaitGroup
	for i := range 64 { // several connections
		users.Go(func() {
			for range 20 {
				_, _ = s.Do(t.Context(), take(fmt.Sprintf("%s:%d", name, i), "id"))
			}
		})
	}
	users.Wait()
	dialer.Set(redistest.BlackholeUp)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for range 2 { // which touches the idle ones, as far as calls get
		_, _ = s.Do(ctx, take(name+":lost", "id"))
	}
	dialer.Set(redistest.Pass)
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, answered := s.Do(ctx, take(name+":new", "id"))
	require.True(t, answered)
	require.NoError(t, r.Err())
	require.Less(t, time.Since(began), 2*time.Second, "go-redis waits for 3 s")
}

// Hooks of the redis client that panic or end their goroutine fail the calls that they saw, and no others.
func TestSender_HooksThatMisbehave(t *testing.T) {
	t.Parallel()
	for name, misbehave := range map[string]func(){
		"panic":  func() { panic("a hook panics") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Shared(t).Client(t)
			h, s, key := withHook(t, rdb), newSender(t, rdb), redistest.Name(t)
			h.set(misbehave)
			for i := range 8 {
				ctx := t.Context() // which may end
				if i%2 == 1 && name == "panic" {
					ctx = context.WithoutCancel(ctx) // the user's own goroutine sends
				}
				r, answered := s.Do(ctx, take(fmt.Sprint(key, i), "id"))
				require.True(t, answered)
				require.ErrorContains(t, r.Err(), "hook")
				require.True(t, r.Ambiguous)
			}
			var users sync.WaitGroup
			for i := range 100 {
				users.Go(func() {
					if r, _ := s.Do(t.Context(), take(fmt.Sprint(key, i), "id")); r.Err() == nil {
						t.Error("no error")
					}
				})
			}
			users.Wait()
			h.set(func() {})
			mustTake(t, s, key)
		})
	}
}

// A hook that ends the goroutine of a user ends the call: it is not repeated, as nobody would learn of what it takes.
func TestSender_AHookThatEndsTheGoroutineOfTheUser(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	h, s, key := withHook(t, rdb), newSender(t, rdb), redistest.Name(t)
	s.Retries = 3
	var once sync.Once
	h.set(func() { once.Do(runtime.Goexit) })
	late := make(chan redisconn.Reply, 1)
	request := take(key, "id")
	request.Late = func(r redisconn.Reply) { late <- r }
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Do(context.WithoutCancel(t.Context()), request)
		t.Error("Do has returned")
	}()
	<-ended
	select {
	case r := <-late:
		require.ErrorContains(t, r.Err(), "a hook of the redis client has ended its goroutine")
	case <-redistest.Within(t, patience).Done():
		require.FailNow(t, "nobody learns of the reply")
	}
	r, answered := s.Do(t.Context(), take(key, "another"))
	got, err := r.Integers(2)
	require.True(t, answered)
	require.NoError(t, err)
	require.EqualValues(t, 1, got[0], "nobody has taken it")
}

// Hooks see the values of the context of a call that travels alone.
func TestSender_ValuesOfContexts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	h, s, name := withHook(t, rdb), newSender(t, rdb), redistest.Name(t)
	ctx := context.WithValue(t.Context(), h, "alone")
	_, answered := s.Do(ctx, take(name, "id"))
	require.True(t, answered)
	_, seen := h.values.Load("alone")
	require.True(t, seen)
}

// proxy passes everything between clients and a server, as a proxy does that was put in between.
func proxy(t *testing.T, to string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var copies sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		copies.Wait()
	})
	copies.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				_ = down.Close()
				return
			}
			pass := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_ = to.Close()
			}
			copies.Go(func() { pass(up, down) })
			copies.Go(func() { pass(down, up) })
		}
	})
	return l.Addr().String()
}

// Calls share scripts only if it is proven that one server has all keys.
func TestSender_SharesScriptsWithProofOnly(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rights := []string{"allkeys", "+@scripting", "+@hash", "+@keyspace", "+hello"}
	for name, tt := range map[string]struct {
		rdb    func(t *testing.T) redis.UniversalClient
		shares bool
	}{
		"a server": {func(t *testing.T) redis.UniversalClient { return server.Client(t) }, true},
		"a server, with the right to ask": {func(t *testing.T) redis.UniversalClient {
			return server.Client(t, server.User(t, "asks", append(rights, "+client|info")...))
		}, true},
		"a server, without the right to ask": {func(t *testing.T) redis.UniversalClient {
			return server.Client(t, server.User(t, "mute", rights...))
		}, false},
		"a proxy": {func(t *testing.T) redis.UniversalClient {
			addr := proxy(t, server.Addr())
			return server.Client(t, func(o *redis.Options) { o.Addr = addr })
		}, false},
		"a cluster": {func(t *testing.T) redis.UniversalClient { return redistest.SharedCluster(t).Client(t) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSender(t, tt.rdb(t))
			s.Shares()
			require.NoError(t, s.Gate.Wait(t.Context())) // until the server has answered
			require.Equal(t, tt.shares, s.Shares())
		})
	}
}

func TestSender_AStoppedWheelHoldsUpNothing(t *testing.T) {
	t.Parallel()
	w, err := wheel.New()
	require.NoError(t, err)
	_, err = w.Stop(t.Context())
	require.NoError(t, err)
	rdb := redistest.Shared(t).Client(t)
	s := calls.New(calls.Config{
		Client: rdb, Base: rdb, Retries: 3, Wheel: w, Workers: gate.NewWorkers(w), Gate: new(gate.Gate),
	})
	defer s.Workers.Close()
	var users sync.WaitGroup
	var failed atomic.Pointer[error]
	for i := range 200 {
		users.Go(func() {
			if r, _ := s.Do(t.Context(), take(fmt.Sprint(redistest.Name(t), i), "id")); r.Err() != nil {
				err := r.Err()
				failed.Store(&err)
			}
		})
	}
	users.Wait()
	require.Nil(t, failed.Load())
	require.NoError(t, s.Gate.Wait(t.Context()))
}
