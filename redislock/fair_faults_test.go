package redislock_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// scriptOutcomes counts the script calls of a client that failed and that were answered.
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

// A waiter of a FairMutex keeps its queue position through an outage and is still woken.
// Guarantees: L24.
func TestFairMutex_WaiterKeepsItsQueuePositionInAnOutage(t *testing.T) {
	skipIfShort(t)
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
	first := callAsync(func() (*redislock.Lock, error) {
		return newClient(t, own).FairMutex(name).Lock(within(t, patience))
	})
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 1 })
	queueBefore := fairQueue(t, rdb, name)
	second := callAsync(func() (*redislock.Lock, error) {
		return newClient(t, rdb).FairMutex(name).Lock(within(t, patience))
	})
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 2 })

	failed := calls.failed.Load()
	dialer.Set(redistest.BlackholeUp)
	poll(t, func() bool { return calls.failed.Load() > failed })
	dialer.Set(redistest.Pass)
	answered := calls.answered.Load()
	poll(t, func() bool { return calls.answered.Load() > answered })
	require.Equal(t, queueBefore[0], fairQueue(t, rdb, name)[0])
	require.Len(t, fairQueue(t, rdb, name), 2)
	mustUnlock(t, held)
	mustUnlock(t, first.await(t))
	mustUnlock(t, second.await(t))
	poll(t, func() bool { return rdb.Exists(t.Context(), name).Val() == 0 })
	requireNoFairKeys(t, rdb, name)
}

// Waiters give up during an outage that is longer than their leases. Their queue entries must not delay
// others once the lock is free.
// Guarantees: L25.
func TestFairMutex_WaitersThatGiveUpInAnOutageLeaveTheQueue(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{20 * time.Millisecond, 300 * time.Millisecond} {
		t.Run(lease.String(), func(t *testing.T) {
			t.Parallel()
			c, dialer, rdb := newFaultyClient(t, func(o *redis.Options) { o.ReadTimeout = 400 * time.Millisecond })
			dialer.Timeout = 100 * time.Millisecond
			name := redistest.Name(t)
			holder := mustLock(t, newClient(t, rdb).Mutex(name, redislock.WithLease(time.Minute)))
			m := c.FairMutex(name, redislock.WithLease(lease))
			var waiting []*asyncCall
			ctx, giveUp := context.WithCancel(t.Context())
			for range 5 {
				waiting = append(waiting, callAsync(func() (*redislock.Lock, error) { return m.Lock(ctx) }))
			}
			poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 5 })
			dialer.Set(redistest.BlackholeUp)
			giveUp()
			for _, w := range waiting {
				<-w.done
				require.ErrorIs(t, w.err, context.Canceled)
			}
			gaveUp, lost := time.Now(), dialer.Effects()
			// What takes them out of the queue has been lost, and sent again.
			poll(t, func() bool { return dialer.Effects() > lost+1 && time.Since(gaveUp) > lease })
			dialer.Set(redistest.Pass)
			dialer.Reset()
			began := time.Now()
			mustUnlock(t, holder)
			mustUnlock(t, mustLock(t, newClient(t, rdb).FairMutex(name)))
			require.Less(t, time.Since(began), 8*time.Second, "a queue entry left behind would block for 15 s")
			poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 0 })
		})
	}
}

// A waiter that is cancelled while Redis hangs is removed from the queue once Redis answers.
func TestFairMutex_WaiterCancelledWhileRedisHangsLeavesTheQueue(t *testing.T) {
	t.Parallel()
	server, name := redistest.Start(t), redistest.Name(t)
	rdb := server.Client(t)
	held := mustLock(t, newClient(t, rdb).FairMutex(name, redislock.WithLease(time.Minute)))
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := callAsync(func() (*redislock.Lock, error) {
		return newClient(t, server.Client(t)).FairMutex(name).Lock(ctx)
	})
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 1 })
	server.Pause()
	cancel()
	<-cancelled.done
	require.ErrorIs(t, cancelled.err, context.Canceled)
	server.Resume()
	poll(t, func() bool { return len(fairQueue(t, rdb, name)) == 0 })
	mustUnlock(t, held)
	requireNoFairKeys(t, rdb, name)
}

// Leases near the shortest that the wheel allows expire in flight and are requested again. The queue is empty
// once all callers have left.
// Guarantees: L25.
func TestFairMutex_ShortLeasesLeaveTheQueueEmpty(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	server := redistest.Start(t)
	rdb := server.Client(t)
	name := redistest.Name(t)
	end := time.Now().Add(3 * time.Second)
	var all sync.WaitGroup
	for i := range 12 {
		c := newClient(t, server.Client(t))
		m := c.FairMutex(name, redislock.WithLease(time.Duration(10+2*i)*time.Millisecond)) // short: losses are borne
		all.Go(func() {
			for time.Now().Before(end) {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				if l, err := m.Lock(ctx); err == nil {
					_ = l.Unlock(t.Context())
				}
				cancel()
			}
		})
	}
	all.Wait()
	left := time.Now()
	poll(t, func() bool { return rdb.DBSize(t.Context()).Val() == 0 })
	require.Less(t, time.Since(left), 10*time.Second, "entries left behind would stay for 15 s")
}

// A reply that is lost after the script ran costs neither the queue position nor the lock.
// Guarantees: L23.
func TestFairMutex_LostReply(t *testing.T) {
	t.Parallel()
	onEachDeployment(t, lostReplyKeepsQueuePosition)
}

func lostReplyKeepsQueuePosition(t *testing.T, dep *deployment) {
	lut := newLockUnderTest(t, dep, "fair")
	c, d := lut.newFaultyClient(t)
	plain, name := lut.rdb, lut.name
	lost := d.LoseReply("EVALSHA", 1, redistest.Swallow)
	held := mustLock(t, c.FairMutex(name))
	<-lost
	requireHeldOnce(t, plain, name)

	lost = d.LoseReply(release, 1, redistest.Cut)
	next := callAsync(func() (*redislock.Lock, error) { return c.FairMutex(name).Lock(within(t, patience)) })
	<-lost
	poll(t, func() bool { return len(fairQueue(t, plain, name)) > 0 })
	require.Len(t, fairQueue(t, plain, name), 1, "it is queued once")

	lost = d.LoseReply(release, 1, redistest.Swallow)
	mustUnlock(t, held)
	<-lost
	mustUnlock(t, next.await(t))
	poll(t, func() bool { return len(lut.remainingKeys(t)) == 0 })
}
