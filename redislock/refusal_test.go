package redislock_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// outcomes counts the calls of a client that matter here, by what became of them.
type scriptOutcomes struct{ failed, answered atomic.Int32 }

func (o *scriptOutcomes) DialHook(next redis.DialHook) redis.DialHook { return next }
func (o *scriptOutcomes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (o *scriptOutcomes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "eval") {
			if err != nil {
				o.failed.Add(1)
			} else {
				o.answered.Add(1)
			}
		}
		return err
	}
}

// Whoever waits for a fair lock through an outage keeps his place and is still woken.
func TestFairMutex_KeepsItsPlaceInAnOutage(t *testing.T) {
	t.Parallel()
	server, name := redistest.Start(t), redistest.Name(t)
	rdb := server.Client(t)
	held := mustLock(t, newClient(t, rdb).FairMutex(name, redislock.WithLease(time.Minute)))
	dialer, calls := &redistest.FaultDialer{Timeout: 100 * time.Millisecond}, &scriptOutcomes{}
	own := server.Client(t, func(o *redis.Options) {
		o.MaxRetries, o.ReadTimeout = -1, 200*time.Millisecond
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dialer.Dial(ctx, network, addr)
		}
	})
	own.AddHook(calls)
	first := callAsync(func() (*redislock.Lock, error) { return newClient(t, own).FairMutex(name).Lock(within(t, patience)) })
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 1 })
	place := fairQueue(t, rdb, name)
	second := callAsync(func() (*redislock.Lock, error) { return newClient(t, rdb).FairMutex(name).Lock(within(t, patience)) })
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 2 })

	failed := calls.failed.Load()
	dialer.Set(redistest.BlackholeUp)
	poll(t, func() bool { return calls.failed.Load() > failed })
	dialer.Set(redistest.Pass)
	answered := calls.answered.Load()
	poll(t, func() bool { return calls.answered.Load() > answered })
	require.Equal(t, place[0], fairQueue(t, rdb, name)[0])
	require.Len(t, fairQueue(t, rdb, name), 2)
	mustUnlock(t, held)
	mustUnlock(t, first.await(t))
	mustUnlock(t, second.await(t))
	poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
	requireNoFairKeys(t, rdb, name)
}

// What a server refuses for the moment is tried again: a release until it succeeds, a wait until it is over.
func TestMutex_RefusedForTheMoment(t *testing.T) {
	t.Parallel()
	for reason, states := range map[string]struct {
		begin, end func(t *testing.T, server *redistest.Server)
	}{
		"for lack of replicas": {
			func(t *testing.T, server *redistest.Server) {
				require.NoError(t, server.Client(t).ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
			},
			func(t *testing.T, server *redistest.Server) {
				require.NoError(t, server.Client(t).ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
			},
		},
		"because a script is slow": {
			func(t *testing.T, server *redistest.Server) {
				rdb := server.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
				require.NoError(t, rdb.ConfigSet(t.Context(), "busy-reply-threshold", "1").Err())
				go rdb.Eval(context.Background(), "while true do end", nil)
				poll(t, func() bool { return redis.HasErrorPrefix(rdb.Ping(t.Context()).Err(), "BUSY") })
			},
			func(t *testing.T, server *redistest.Server) {
				require.NoError(t, server.Client(t).ScriptKill(t.Context()).Err())
			},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			server, name := redistest.Start(t), redistest.Name(t)
			rdb := server.Client(t)
			c, other := newClient(t, rdb), newClient(t, server.Client(t))
			held := mustLock(t, c.Mutex(name, redislock.WithLease(time.Hour)))
			waits := mustLock(t, c.Mutex(name+":2", redislock.WithLease(time.Second), redislock.WithoutRenewal()))
			next := callAsync(func() (*redislock.Lock, error) { return other.Mutex(name + ":2").Lock(within(t, patience)) })
			awaitSubscription(t, rdb, name+":2")
			states.begin(t, server)
			require.Error(t, held.Unlock(t.Context()))
			<-waits.Done() // whoever waits for it looks now, and in vain
			require.NoError(t, newWheel(t).Sleep(t.Context(), time.Second))
			states.end(t, server)
			poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
			mustUnlock(t, next.await(t))
		})
	}
}
