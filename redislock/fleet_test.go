package redislock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// This file has the tests of many processes, here Clients, on one name.

func scriptsRun(t testing.TB, rdb *redis.Client) int {
	t.Helper()
	return serverCalls(t, rdb, "evalsha") + serverCalls(t, rdb, "eval")
}

// onlyWoken makes a Client whose waiters ask only when they are woken.
func onlyWoken() redislock.Option { return redislock.WithPoll(time.Hour) }

// A hand-over between processes costs three scripts, whatever their number: an ask that is refused, one that is granted,
// and a release.
// Guarantees: L36.
func TestFleet_AHandOverCostsThreeScripts(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"plain", "write"} {
		for _, processes := range []int{4, 24} {
			t.Run(fmt.Sprintf("%s, %d processes", kind, processes), func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				rdb, sections := server.Client(t), atomic.Int64{}
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				for range processes {
					m := newMutex(newClient(t, server.Client(t), onlyWoken()), kind, "n")
					running.Go(func() {
						for ctx.Err() == nil {
							l, err := m.Lock(ctx)
							if err != nil {
								return
							}
							time.Sleep(time.Millisecond)
							_ = l.Unlock(context.Background())
							sections.Add(1)
						}
					})
				}
				least := int64(3 * processes) // by then all are in the line
				poll(t, func() bool { return sections.Load() > least })
				began, before := sections.Load(), scriptsRun(t, rdb)
				poll(t, func() bool { return sections.Load() > began+10*int64(processes) })
				cost := float64(scriptsRun(t, rdb)-before) / float64(sections.Load()-began)
				stop()
				running.Wait()
				t.Logf("%.2f scripts a section", cost)
				require.Less(t, cost, 4.0, "three, and asks of guards while the machine stands still")
				require.Greater(t, cost, 2.0)
			})
		}
	}
}

// Waiters of different processes are served in the order in which they came, and callers that come later do not overtake
// them.
// Guarantees: L55.
func TestFleet_ServesInOrderOfArrival(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"plain", "write"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const processes = 8
			c, rdb, name := onSharedServer(t)
			first := mustLock(t, newMutex(c, kind, name))
			order := make(chan int, processes+1)
			var holds []*asyncCall
			wait := func(i int, m anyMutex) {
				holds = append(holds, callAsync(func() (*redislock.Lock, error) {
					l, err := m.Lock(within(t, patience))
					order <- i
					if err == nil {
						err = l.Unlock(t.Context())
					}
					return l, err
				}))
			}
			for i := range processes {
				wait(i, newMutex(newClient(t, rdb, onlyWoken()), kind, name))
				awaitLine(t, rdb, name, i+1)
			}
			redistest.AwaitWaited(t, rdb, redistest.LineKey(name), redistest.Overtaken)
			stalled := stalls(t)
			mustUnlock(t, first)
			wait(processes, newMutex(c, kind, name))
			freed := time.Now()
			for next := []int{0, 1, 2, 3, 4, 5, 6, 7, 8}; len(next) > 0; {
				got := <-order
				if got != next[0] { // that waiter had 50 ms to take the lock
					require.Greater(t, time.Since(freed)+stalled(), 40*time.Millisecond, "%d before %d", got, next[0])
				}
				freed, next = time.Now(), slices.DeleteFunc(next, func(i int) bool { return i == got })
			}
			for _, h := range holds {
				<-h.done
				require.NoError(t, h.err)
			}
			require.Empty(t, lineOf(t, rdb, name))
		})
	}
}

// ghost enters the line of a name as a process that does not answer. If it hears, its connection is alive.
func ghost(t testing.TB, rdb *redis.Client, name string, hears bool) {
	t.Helper()
	channel := ""
	if hears {
		channel = scripts.LockChannel(name)
	}
	ghostAt(t, rdb, name, channel, 1)
}

// ghostAt is ghost. It hears on a channel, unless that is "", and came at an instant, in ms.
func ghostAt(t testing.TB, rdb *redis.Client, name, channel string, came float64) {
	t.Helper()
	line := redistest.LineKey(name)
	require.NoError(t, rdb.ZAdd(t.Context(), line, redis.Z{Score: came, Member: "ghost:1"}).Err())
	require.NoError(t, rdb.PExpire(t.Context(), line, patience).Err())
	if channel != "" {
		sub := rdb.Subscribe(t.Context(), channel+":ghost")
		t.Cleanup(func() { _ = sub.Close() })
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)
	}
}

// A process that has died or is stopped does not hold up the others, which are not woken by anything else here.
// Guarantees: L54.
func TestFleet_AWaiterThatDoesNotAnswerIsPassedOver(t *testing.T) {
	t.Parallel()
	for what, hears := range map[string]bool{"its connection is gone": false, "it is stopped": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, rdb, name := onSharedServer(t)
			first := mustLock(t, c.Mutex(name))
			ghost(t, rdb, name, hears)
			var waiting []*asyncCall
			for i := range 3 {
				m := newClient(t, rdb, onlyWoken()).Mutex(name)
				waiting = append(waiting, callAsync(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) }))
				awaitLine(t, rdb, name, i+2)
			}
			mustUnlock(t, first)
			var all sync.WaitGroup
			for _, w := range waiting { // one that does not take within 50 ms what is kept for it is passed over
				all.Go(func() {
					if <-w.done; w.err != nil {
						t.Error(w.err)
					} else if err := w.lock.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			require.Empty(t, lineOf(t, rdb, name))
		})
	}
}

// A holder that has waited in the line dies, and the next waiter is stopped. Then the waiter behind that one asks when the
// lease has ended.
// Guarantees: L54.
func TestFleet_AHolderDiesBeforeOneThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	type locks interface {
		Lock(ctx context.Context) (*redislock.Lock, error)
	}
	for what, k := range map[string]struct {
		of      func(*redislock.Client, string, ...redislock.LockOption) locks
		channel func(name string) string
	}{
		"plain": {
			func(c *redislock.Client, name string, o ...redislock.LockOption) locks { return c.Mutex(name, o...) },
			scripts.LockChannel,
		},
		"write": {
			func(c *redislock.Client, name string, o ...redislock.LockOption) locks { return c.RWMutex(name, o...) },
			scripts.RWChannel,
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, rdb, name := onSharedServer(t)
			first, err := k.of(c, name).Lock(t.Context())
			require.NoError(t, err)
			waits := func(o ...redislock.LockOption) *asyncCall {
				m := k.of(newClient(t, rdb, onlyWoken()), name, o...)
				return callAsync(func() (*redislock.Lock, error) { return m.Lock(within(t, patience)) })
			}
			dies := waits(redislock.WithLease(time.Second), redislock.WithoutRenewal()) // short: its end is awaited
			awaitLine(t, rdb, name, 1)
			line := rdb.ZRangeWithScores(t.Context(), redistest.LineKey(name), 0, 0).Val()
			ghostAt(t, rdb, name, k.channel(name), line[0].Score)
			behind := waits()
			awaitLine(t, rdb, name, 3)
			mustUnlock(t, first)
			<-dies.done
			require.NoError(t, dies.err)
			mustUnlock(t, behind.await(t))
		})
	}
}

// A waiter that gives up leaves the line, and the line leaves with the last one.
func TestFleet_AWaiterThatGivesUpLeavesTheLine(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	first := mustLock(t, c.Mutex(name))
	other := newClient(t, rdb, onlyWoken())
	ctx, giveUp := context.WithCancel(t.Context())
	given := callAsync(func() (*redislock.Lock, error) { return other.Mutex(name).Lock(ctx) })
	awaitLine(t, rdb, name, 1)
	stays := callAsync(func() (*redislock.Lock, error) {
		return newClient(t, rdb, onlyWoken()).Mutex(name).Lock(within(t, patience))
	})
	awaitLine(t, rdb, name, 2)
	giveUp()
	<-given.done
	require.ErrorIs(t, given.err, context.Canceled)
	awaitLine(t, rdb, name, 1)
	mustUnlock(t, first)
	mustUnlock(t, stays.await(t))
	require.Empty(t, lineOf(t, rdb, name))
}

// A line that is lost, as after a failover, costs a poll.
// Guarantees: L16.
func TestFleet_ALineThatIsLostCostsAPoll(t *testing.T) {
	t.Parallel()
	c, rdb, name := onSharedServer(t)
	first := mustLock(t, c.Mutex(name))
	waiting := callAsync(func() (*redislock.Lock, error) {
		return newClient(t, rdb, redislock.WithPoll(100*time.Millisecond)).Mutex(name).Lock(within(t, patience))
	})
	awaitLine(t, rdb, name, 1)
	for range 3 { // it enters again with its poll
		require.NoError(t, rdb.Del(t.Context(), redistest.LineKey(name)).Err())
		awaitLine(t, rdb, name, 1)
	}
	require.NoError(t, rdb.Del(t.Context(), redistest.LineKey(name)).Err())
	mustUnlock(t, first)
	mustUnlock(t, waiting.await(t))
}

// Without a right to the line or to its channel, a waiter is woken by the channel of the name.
func TestFleet_WithoutTheRights(t *testing.T) {
	t.Parallel()
	for what, rights := range map[string][]string{
		"no line":           {"~*", "&*", "+@all", "-zadd"},
		"no expiry of it":   {"~n", "&*", "+@all"},
		"no channel for it": {"~*", "&redisson_lock__channel:{n}", "+@all"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			user := server.User(t, "app", rights...)
			holder, waiter := newClient(t, server.Client(t, user)), newClient(t, server.Client(t, user), onlyWoken())
			for range 3 {
				l := mustLock(t, holder.Mutex("n"))
				waiting := callAsync(func() (*redislock.Lock, error) { return waiter.Mutex("n").Lock(within(t, patience)) })
				awaitSubscription(t, server.Client(t), "n")
				mustUnlock(t, l)
				mustUnlock(t, waiting.await(t))
			}
		})
	}
}

// The end of the lease of a holder that has died costs a few scripts, however many processes wait.
func TestFleet_TheEndOfALeaseCostsAFewScripts(t *testing.T) {
	t.Parallel()
	const processes = 24
	server := redistest.Start(t)
	rdb := server.Client(t)
	require.NoError(t, rdb.HSet(t.Context(), "n", "dead:1", 0).Err()) // of this version
	require.NoError(t, rdb.PExpire(t.Context(), "n", patience).Err())
	got := make(chan *redislock.Lock, processes)
	for i := range processes {
		newClient(t, server.Client(t), onlyWoken()).Mutex("n").LockFunc(within(t, patience), func(l *redislock.Lock, err error) {
			if err == nil {
				got <- l
			}
		})
		awaitLine(t, rdb, "n", i+1)
	}
	require.NoError(t, rdb.PExpire(t.Context(), "n", 300*time.Millisecond).Err())
	require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
	first := lineOf(t, rdb, "n")[0]
	client, _, _ := strings.Cut(first, ":")
	require.NoError(t, rdb.Publish(t.Context(), scripts.LockChannel("n")+":"+client, "300 "+first).Err())
	l := <-got
	require.LessOrEqual(t, scriptsRun(t, rdb), processes/2, "not one for each")
	mustUnlock(t, l)
	for range processes - 1 {
		mustUnlock(t, <-got)
	}
}

// Readers that wait behind a writer are let in together, by one message.
// Guarantees: L36.
func TestFleet_ReadersAreLetInTogether(t *testing.T) {
	t.Parallel()
	const processes = 24
	server := redistest.Start(t)
	rdb := server.Client(t)
	w := mustWLock(t, newClient(t, server.Client(t)).RWMutex("n"))
	var readers []*asyncCall
	for range processes {
		rw := newClient(t, server.Client(t), onlyWoken()).RWMutex("n")
		readers = append(readers, callAsync(func() (*redislock.Lock, error) { return rw.RLock(within(t, patience)) }))
	}
	channel := scripts.RWChannel("n") + ":r"
	poll(t, func() bool { return rdb.PubSubNumSub(t.Context(), channel).Val()[channel] == processes })
	poll(t, func() bool { return scriptsRun(t, rdb) >= 1+2*processes })
	require.Equal(t, []string{"r"}, lineOf(t, rdb, "n"))
	sub := rdb.Subscribe(t.Context(), channel)
	defer sub.Close()
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	before := scriptsRun(t, rdb)
	mustUnlock(t, w)
	var locks []*redislock.Lock
	for _, r := range readers {
		locks = append(locks, r.await(t))
	}
	require.Equal(t, int64(processes+1), rdb.HLen(t.Context(), "n").Val(), "all hold it at the same time")
	require.Less(t, scriptsRun(t, rdb)-before, 2*processes, "one ask for each, and the release")
	mustUnlock(t, locks...)
	requireFree(t, rdb, "n")
	require.NoError(t, rdb.Publish(t.Context(), channel, "end").Err())
	for _, want := range []string{"0 r", "end"} {
		m, err := sub.ReceiveMessage(within(t, patience))
		require.NoError(t, err)
		require.Equal(t, want, m.Payload)
	}
}

// Writers and readers of different processes take turns: neither side waits for the other to stop.
func TestFleet_ReadersAndWritersTakeTurns(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx, stop := context.WithCancel(t.Context())
	var reads, writes atomic.Int64
	var running sync.WaitGroup
	for range 4 {
		rw := newClient(t, server.Client(t), onlyWoken()).RWMutex("n")
		loop := func(lock func(context.Context) (*redislock.Lock, error), done *atomic.Int64) {
			for ctx.Err() == nil {
				if l, err := lock(ctx); err == nil {
					time.Sleep(time.Millisecond)
					_ = l.Unlock(context.Background())
					done.Add(1)
				}
			}
		}
		running.Go(func() { loop(rw.Lock, &writes) })
		running.Go(func() { loop(rw.RLock, &reads) })
	}
	poll(t, func() bool { return reads.Load() > 40 && writes.Load() > 40 })
	stop()
	running.Wait()
}

// old is a process of a version without lines, which hears and publishes on the channel of the name alone.
type old struct {
	rdb  *redis.Client
	id   string
	wake <-chan *redis.Message
}

func newOld(t testing.TB, server *redistest.Server, name string, i int) *old {
	t.Helper()
	rdb := server.Client(t)
	sub := rdb.Subscribe(t.Context(), scripts.LockChannel(name))
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	return &old{rdb, fmt.Sprintf("old-%d:1", i), sub.Channel()}
}

// section takes the lock once, and gives it back.
func (o *old) section(ctx context.Context, name string, f func()) {
	const acquire = `if redis.call('HLEN', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], 30000)
  return -3
end
return redis.call('PTTL', KEYS[1])`
	const release = `if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then redis.call('PUBLISH', ARGV[2], '0') end return 1`
	for {
		left, err := o.rdb.Eval(ctx, acquire, []string{name}, o.id).Int()
		switch {
		case err != nil:
			return
		case left == -3:
			f()
			_ = o.rdb.Eval(context.Background(), release, []string{name}, o.id, scripts.LockChannel(name)).Err()
			return
		}
		select {
		case <-o.wake:
		case <-time.After(time.Duration(max(left, 1)) * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// Processes of this version and others share a lock: neither side starves. Their exact shares depend on who answers a message
// faster.
func TestFleet_SharesWithVersionsWithoutLines(t *testing.T) {
	t.Parallel()
	for _, n := range []struct{ old, new, callers int }{{1, 8, 1}, {8, 1, 1}, {4, 4, 1}, {1, 1, 16}} {
		t.Run(fmt.Sprintf("%d old, %d new with %d callers", n.old, n.new, n.callers), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			ctx, stop := context.WithCancel(t.Context())
			var olds, news atomic.Int64
			var running sync.WaitGroup
			work := func(done *atomic.Int64) func() {
				return func() { time.Sleep(time.Millisecond); done.Add(1) }
			}
			for i := range n.old {
				o := newOld(t, server, "n", i)
				running.Go(func() {
					for ctx.Err() == nil {
						o.section(ctx, "n", work(&olds))
					}
				})
			}
			for range n.new {
				m := newClient(t, server.Client(t)).Mutex("n")
				for range n.callers {
					running.Go(func() {
						for ctx.Err() == nil {
							if l, err := m.Lock(ctx); err == nil {
								work(&news)()
								_ = l.Unlock(context.Background())
							}
						}
					})
				}
			}
			poll(t, func() bool { return olds.Load() >= 30 && news.Load() >= 30 })
			stop()
			running.Wait()
			t.Logf("old %d, new %d", olds.Load(), news.Load())
		})
	}
}
