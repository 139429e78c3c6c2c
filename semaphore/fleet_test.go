package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// This file has the tests of many processes, here Clients, that wait for one semaphore.

// newWoken returns a semaphore of a new Client whose waiters ask only when they are woken.
func (k kind) newWoken(t testing.TB, rdb redis.UniversalClient, name string) anySemaphore {
	t.Helper()
	return k.newAny(newClient(t, rdb, semaphore.WithPoll(time.Hour)), name)
}

// granted returns what the calls are granted, in whichever order: a process that does not take within 50 ms what is kept
// for it is passed over.
func granted(waiting []chan releaseFunc) chan releaseFunc {
	all := make(chan releaseFunc, len(waiting))
	for _, got := range waiting {
		go func() { all <- <-got }()
	}
	return all
}

// startWaiting waits for n permits, and sends their release to got.
func startWaiting(t testing.TB, s anySemaphore, n int64) (got chan releaseFunc, cancel func()) {
	t.Helper()
	got = make(chan releaseFunc, 1)
	cancel = s.acquireFunc(within(t, testTimeout), n, func(release releaseFunc, err error) {
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		got <- release
	})
	return got, cancel
}

// A grant costs three scripts if others wait, whatever their number: an ask that is refused, one that is granted, and a
// release. The first one in the line asks once more, when it listens to services in Java.
// Guarantees: S30.
func TestFleet_AGrantCostsTheSameHoweverManyWait(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		for _, processes := range []int{4, 24} {
			t.Run(fmt.Sprint(processes), func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				rdb, grants := server.Client(t), atomic.Int64{}
				k.newWoken(t, rdb, "permits").setPermits(t, 2)
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				for range processes {
					s := k.newWoken(t, server.Client(t), "permits")
					running.Go(func() {
						for ctx.Err() == nil {
							release, err := s.acquire(ctx, 1)
							if err != nil {
								return
							}
							busyWait(time.Millisecond)
							if err := release(context.Background()); err != nil {
								t.Error(err)
							}
							grants.Add(1)
						}
					})
				}
				poll(t, func() bool { return grants.Load() > int64(3*processes) }) // by then all are in the line
				began, before := grants.Load(), scriptCalls(t, rdb)
				poll(t, func() bool { return grants.Load() > began+10*int64(processes) })
				cost := float64(scriptCalls(t, rdb)-before) / float64(grants.Load()-began)
				stop()
				running.Wait()
				t.Logf("%.2f scripts a grant", cost)
				require.Less(t, cost, 5.0)
				require.GreaterOrEqual(t, cost, 1.9)
			})
		}
	})
}

// Waiters of different processes are served in the order in which they came, and callers that come later do not overtake
// them, unless one of them takes too late what is kept for it: then that has expired, and nothing else here does.
// Guarantees: S28.
func TestFleet_ServesInOrderOfArrival(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		const processes, name = 8, "permits"
		rdb := redistest.Start(t).Client(t)
		s := k.newWoken(t, rdb, name)
		s.setPermits(t, 1)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		order := make(chan int, processes+1)
		var waiting sync.WaitGroup
		wait := func(i int, s anySemaphore) {
			waiting.Go(func() {
				release, err := s.acquire(within(t, testTimeout), 1)
				if err != nil {
					t.Error(err)
					return
				}
				order <- i
				if err := release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		for i := range processes {
			wait(i, k.newWoken(t, rdb, name))
			k.awaitLine(t, rdb, name, i+1)
		}
		k.awaitWaited(t, rdb, name)
		expired := expiredKeys(t, rdb)
		require.NoError(t, release(t.Context()))
		wait(processes, s)
		waiting.Wait()
		close(order)
		var served []int
		for i := range order {
			served = append(served, i)
		}
		require.Len(t, served, processes+1)
		if !slices.IsSorted(served) {
			require.Greater(t, expiredKeys(t, rdb), expired, "%v, although each took what was kept for it", served)
		}
		require.Empty(t, k.lineOf(t, rdb, name))
		require.EqualValues(t, 1, available(t, s))
	})
}

// expiredKeys returns how many keys have expired on a server.
func expiredKeys(t testing.TB, rdb *redis.Client) (n int) {
	t.Helper()
	stats, err := rdb.InfoMap(t.Context(), "stats").Result()
	require.NoError(t, err)
	n, err = strconv.Atoi(stats["Stats"]["expired_keys"])
	require.NoError(t, err)
	return n
}

// As many processes are woken as there are free permits, by one release.
func TestFleet_AReleaseWakesAsManyAsItMayServe(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newWoken(t, rdb, name)
		s.setPermits(t, 5)
		release, err := s.acquire(t.Context(), 5)
		require.NoError(t, err)
		got := make(chan releaseFunc, 7) // which of them get it first depends on the machine: each has 50 ms to take it
		for i := range 7 {
			g, _ := startWaiting(t, k.newWoken(t, rdb, name), 1)
			go func() { got <- <-g }()
			k.awaitLine(t, rdb, name, i+1)
		}
		k.awaitWaited(t, rdb, name)
		require.NoError(t, release(t.Context()))
		var releases []releaseFunc
		for range 5 {
			releases = append(releases, <-got)
		}
		require.Empty(t, got)
		require.Zero(t, available(t, s))
		for _, r := range releases {
			require.NoError(t, r(t.Context()))
		}
		for range 2 {
			require.NoError(t, (<-got)(t.Context()))
		}
		require.EqualValues(t, 5, available(t, s))
	})
}

// What is kept for a waiter that was woken is not granted to a caller that comes then, and is free again soon if the
// waiter does not take it.
// Guarantees: S28.
func TestFleet_PermitsAreKeptForAMoment(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newAny(newClient(t, rdb), name)
		s.setPermits(t, 2)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		now := rdb.Time(t.Context()).Val().UnixMilli()
		kept := k.key(name, "kept")
		require.NoError(t, rdb.Set(t.Context(), kept, fmt.Sprintf("%d 1 1 ghost:1", now+3_600_000), time.Hour).Err())
		_, err = s.tryAcquire(t.Context(), 1)
		require.ErrorIs(t, err, semaphore.ErrNoPermits, "the free one is kept")
		require.EqualValues(t, 1, available(t, s))
		require.NoError(t, rdb.Set(t.Context(), kept, fmt.Sprintf("%d 1 1 ghost:1", now-1), time.Hour).Err())
		other, err := s.tryAcquire(t.Context(), 1)
		require.NoError(t, err, "no longer")
		require.NoError(t, errors.Join(release(t.Context()), other(t.Context())))

		k.ghost(t, rdb, name, 1, true)
		release, err = s.acquire(t.Context(), 2)
		require.NoError(t, err)
		require.NoError(t, release(t.Context()))
		require.LessOrEqual(t, rdb.PTTL(t.Context(), kept).Val(), 50*time.Millisecond)
		poll(t, func() bool {
			release, err := s.tryAcquire(t.Context(), 2)
			return err == nil && release(t.Context()) == nil
		})
	})
}

// ghost enters the line as a process that does not answer. If it hears, its connection is alive.
func (k kind) ghost(t testing.TB, rdb *redis.Client, name string, n int, hears bool) {
	t.Helper()
	line, score := k.key(name, "waiting"), fmt.Sprintf("1.%03d", n)
	require.NoError(t, rdb.Do(t.Context(), "zadd", line, score, "ghost:1").Err())
	require.NoError(t, rdb.PExpire(t.Context(), line, testTimeout).Err())
	if hears {
		sub := rdb.Subscribe(t.Context(), scripts.PrefixName(k.channel, name)+":ghost")
		t.Cleanup(func() { _ = sub.Close() })
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)
	}
}

// A process that has died or is stopped does not hold up the others, which are not woken by anything else here, also if
// it wanted many permits.
// Guarantees: S29.
func TestFleet_AWaiterThatDoesNotAnswerIsPassedOver(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		for what, hears := range map[string]bool{"its connection is gone": false, "it is stopped": true} {
			for _, wants := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s, it wants %d", what, wants), func(t *testing.T) {
					t.Parallel()
					rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
					s := k.newWoken(t, rdb, name)
					s.setPermits(t, 1)
					release, err := s.acquire(t.Context(), 1)
					require.NoError(t, err)
					k.ghost(t, rdb, name, wants, hears)
					var waiting []chan releaseFunc
					for i := range 3 {
						got, _ := startWaiting(t, k.newWoken(t, rdb, name), 1)
						waiting = append(waiting, got)
						k.awaitLine(t, rdb, name, i+2)
					}
					require.NoError(t, release(t.Context()))
					for got := granted(waiting); len(waiting) > 0; waiting = waiting[1:] {
						require.NoError(t, (<-got)(t.Context()))
					}
					require.Empty(t, k.lineOf(t, rdb, name))
				})
			}
		}
	})
}

// A waiter that gives up leaves the line, what was kept for it goes to the next one, and the line leaves with the last.
// Guarantees: S29.
func TestFleet_AWaiterThatGivesUpLeavesTheLine(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newWoken(t, rdb, name)
		s.setPermits(t, 2)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		large, cancel := startWaiting(t, k.newWoken(t, rdb, name), 2)
		k.awaitLine(t, rdb, name, 1)
		small, _ := startWaiting(t, k.newWoken(t, rdb, name), 1)
		k.awaitLine(t, rdb, name, 2)
		require.Empty(t, small, "one permit is free, and kept for the large request")
		cancel()
		require.Nil(t, <-large)
		require.NoError(t, (<-small)(t.Context()))
		require.NoError(t, release(t.Context()))
		require.Empty(t, k.lineOf(t, rdb, name))
		require.EqualValues(t, 2, available(t, s))
	})
}

// A large request that is first in the line is not starved by small ones that come later, in the line or not.
// Guarantees: S28.
func TestFleet_ALargeRequestIsNotStarved(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		const permits = 3
		server := redistest.Start(t)
		rdb := server.Client(t)
		k.newWoken(t, rdb, "permits").setPermits(t, permits)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for range 3 * permits {
			s := k.newWoken(t, server.Client(t), "permits")
			running.Go(func() {
				for ctx.Err() == nil {
					if release, err := s.acquire(ctx, 1); err == nil {
						busyWait(time.Millisecond)
						_ = release(context.Background())
					}
				}
			})
		}
		large := k.newWoken(t, server.Client(t), "permits")
		for range 5 {
			release, err := large.acquire(within(t, testTimeout), permits)
			require.NoError(t, err)
			require.NoError(t, release(t.Context()))
		}
		stop()
		running.Wait()
		poll(t, func() bool { return available(t, large) == permits })
	})
}

// While a large request is first, small ones wait behind it, and are served before it when it is gone.
// Guarantees: S28.
func TestFleet_ALargeRequestBlocksSmallOnes(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newAny(newClient(t, rdb), name)
		s.setPermits(t, 3)
		var releases []releaseFunc
		for range 3 {
			release, err := s.acquire(t.Context(), 1)
			require.NoError(t, err)
			releases = append(releases, release)
		}
		large, _ := startWaiting(t, k.newWoken(t, rdb, name), 3)
		k.awaitLine(t, rdb, name, 1)
		// A waiter that comes again says how long it has waited: its place is as exact as its messages are fast.
		redistest.AwaitWaited(t, rdb, k.key(name, "waiting"), 200*time.Millisecond)
		small, _ := startWaiting(t, k.newWoken(t, rdb, name), 1)
		k.awaitLine(t, rdb, name, 2)
		k.awaitWaited(t, rdb, name)
		stalled := redistest.Stalls(t)
		for i, release := range releases[:2] {
			require.NoError(t, release(t.Context()))
			poll(t, func() bool { // the first has asked, and is first again
				if len(small) > 0 && stalled() > 10*time.Millisecond { // the large one had 50 ms to ask
					return true
				}
				line := k.lineOf(t, rdb, name)
				kept := rdb.Get(t.Context(), k.key(name, "kept")).Val()
				return len(line) == 2 && strings.Contains(kept, fmt.Sprintf(" %d 3 %s", i+1, line[0])) &&
					rdb.PTTL(t.Context(), k.key(name, "kept")).Val() > time.Second
			})
			if len(small) > 0 && stalled() > 10*time.Millisecond {
				t.Skip("the machine has stalled")
			}
			_, err := s.tryAcquire(t.Context(), 1)
			require.ErrorIs(t, err, semaphore.ErrNoPermits)
		}
		require.Empty(t, small)
		require.NoError(t, releases[2](t.Context()))
		all := <-large
		require.Empty(t, small)
		require.NoError(t, all(t.Context()))
		require.NoError(t, (<-small)(t.Context()))
		require.EqualValues(t, 3, available(t, s))
	})
}

// A process that has died first in the line, and was to get more than was free, keeps nothing from others.
func TestFleet_WhatIsKeptForTheDeadIsFreeForTheNext(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newWoken(t, rdb, name)
		s.setPermits(t, 3)
		large, err := s.acquire(t.Context(), 2)
		require.NoError(t, err)
		k.ghost(t, rdb, name, 3, false)
		now := rdb.Time(t.Context()).Val().UnixMilli()
		kept := fmt.Sprintf("%d 1 3 ghost:1", now+3_600_000)
		require.NoError(t, rdb.Set(t.Context(), k.key(name, "kept"), kept, time.Hour).Err())
		release, err := k.newWoken(t, rdb, name).acquire(within(t, testTimeout), 1)
		require.NoError(t, err)
		require.NoError(t, release(t.Context()))
		require.NoError(t, large(t.Context()))
		require.Empty(t, k.lineOf(t, rdb, name))
	})
}

// A process that was woken as the only one, and has died, keeps nothing for longer than a moment from who comes then.
func TestFleet_WhatWasKeptIsTakenByWhoComesThen(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newWoken(t, rdb, name)
		s.setPermits(t, 1)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		k.ghost(t, rdb, name, 1, true)
		require.NoError(t, release(t.Context()))
		release, err = k.newWoken(t, rdb, name).acquire(within(t, testTimeout), 1)
		require.NoError(t, err)
		require.NoError(t, release(t.Context()))
	})
}

// A line that is lost, as after a failover, costs a poll.
func TestFleet_ALineThatIsLostCostsAPoll(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newWoken(t, rdb, name)
		s.setPermits(t, 1)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		got, _ := startWaiting(t, k.newAny(newClient(t, rdb, semaphore.WithPoll(100*time.Millisecond)), name), 1)
		line := k.key(name, "waiting")
		for range 3 { // it enters again with its poll
			k.awaitLine(t, rdb, name, 1)
			require.NoError(t, rdb.Del(t.Context(), line).Err())
		}
		require.NoError(t, rdb.Del(t.Context(), line).Err())
		require.NoError(t, release(t.Context()))
		require.NoError(t, (<-got)(t.Context()))
	})
}

// Without a right to the line or to its channel, a waiter is woken by the channel of the name. A fair semaphore refuses
// who may not see its line.
// Guarantees: S7.
func TestFleet_WithoutTheRights(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		for what, rights := range map[string][]string{
			"no line":           {"~permits", "~{permits}:call:*", "~" + k.key("permits", "[^w]*"), "&*", "+@all"},
			"no channel for it": {"~*", "&" + scripts.PrefixName(k.channel, "permits"), "+@all"},
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				rdb, user := server.Client(t), server.User(t, "app", rights...)
				holder, waiter := k.newWoken(t, server.Client(t, user), "permits"), k.newWoken(t, server.Client(t, user), "permits")
				holder.setPermits(t, 1)
				for range 3 {
					release, err := holder.acquire(t.Context(), 1)
					if k.name == fairKind.name && what == "no line" {
						require.Error(t, err)
						require.Regexp(t, "can't access|[Nn]o permissions to access", err.Error()) // up to Redis 7.0, and from 7.2 on
						return
					}
					require.NoError(t, err)
					got, _ := startWaiting(t, waiter, 1)
					awaitListeners(t, rdb, scripts.PrefixName(k.channel, "permits"), 1)
					require.NoError(t, release(t.Context()))
					require.NoError(t, (<-got)(t.Context()))
				}
			})
		}
	})
}

// The end of the leases of a holder that has died costs a few scripts, however many processes wait.
// Guarantees: S30.
func TestFleet_TheEndOfALeaseCostsAFewScripts(t *testing.T) {
	forEachLeasedKind(t, func(t *testing.T, k leasedKind) {
		const processes = 24
		server := redistest.Start(t)
		rdb := server.Client(t)
		dead := k.newSemaphore(newClient(t, server.Client(t)), "permits", 0, semaphore.WithLease(5*time.Second), semaphore.WithoutRenewal())
		mustSetPermits(t, dead, 1)
		mustAcquire(t, dead, 1)
		got := make(chan releaseFunc, processes)
		for range processes {
			k.newWoken(t, server.Client(t), "permits").acquireFunc(within(t, testTimeout), 1, func(r releaseFunc, err error) {
				if err == nil {
					got <- r
				}
			})
		}
		k.awaitLine(t, rdb, "permits", processes)
		before := scriptCalls(t, rdb)
		release := <-got
		require.LessOrEqual(t, scriptCalls(t, rdb)-before, processes/2, "not one for each")
		require.NoError(t, release(t.Context()))
		for range processes - 1 {
			require.NoError(t, (<-got)(t.Context()))
		}
	})
}

// Java's release wakes nobody in the line, but the first one listens for it, also one that has come to the front.
func TestFleet_JavasReleaseWakesTheFirst(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		if k.name == fairKind.name {
			t.Skip("Java has no such semaphore")
		}
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newAny(newClient(t, rdb), name)
		s.setPermits(t, 1)
		release, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		var waiting []chan releaseFunc
		for i := range 4 {
			got, _ := startWaiting(t, k.newWoken(t, rdb, name), 1)
			waiting = append(waiting, got)
			k.awaitLine(t, rdb, name, i+1)
		}
		require.NoError(t, release(t.Context()))
		got := granted(waiting)
		for range 3 {
			<-got // its holder does not release it: a service in Java adds one instead
			awaitListeners(t, rdb, scripts.PrefixName(k.channel, name), 1)
			_, err = rdb.TxPipelined(t.Context(), func(tx redis.Pipeliner) error { // atomically, as Java's script
				tx.Incr(t.Context(), name)
				tx.Publish(t.Context(), scripts.SemChannel(name), "1")
				return nil
			})
			require.NoError(t, err)
		}
		<-got
	})
}

// Delete wakes all processes, not only the first.
// Guarantees: S30.
func TestFleet_DeleteWakesAll(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newWoken(t, rdb, name)
		s.setPermits(t, 1)
		_, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		var waiting []*asyncCall
		for i := range 5 {
			other := k.newWoken(t, rdb, name)
			waiting = append(waiting, startCall(func() error {
				_, err := other.acquire(within(t, testTimeout), 1)
				return err
			}))
			k.awaitLine(t, rdb, name, i+1)
		}
		existed, err := s.(deleter).Delete(t.Context())
		require.NoError(t, err)
		require.True(t, existed)
		for _, w := range waiting {
			require.ErrorIs(t, w.wait(t), semaphore.ErrNotSet)
		}
		require.Empty(t, k.lineOf(t, rdb, name))
	})
}

// A number that is raised wakes as many as it may serve.
func TestFleet_AddPermitsWakesTheLine(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
		s := k.newWoken(t, rdb, name)
		s.setPermits(t, 1)
		_, err := s.acquire(t.Context(), 1)
		require.NoError(t, err)
		var waiting []chan releaseFunc
		for i := range 3 {
			got, _ := startWaiting(t, k.newWoken(t, rdb, name), 1)
			waiting = append(waiting, got)
			k.awaitLine(t, rdb, name, i+1)
		}
		require.NoError(t, s.(interface {
			AddPermits(ctx context.Context, n int64) error
		}).AddPermits(t.Context(), 2))
		got := granted(waiting)
		release := <-got
		<-got
		require.NotNil(t, release)
		require.Empty(t, got)
		require.NoError(t, release(t.Context()))
		<-got
	})
}

// old is a process of a version without lines, which hears and publishes on the channel of the name alone.
type old struct {
	rdb  *redis.Client
	wake <-chan *redis.Message
}

func newOld(t testing.TB, server *redistest.Server, name string) *old {
	t.Helper()
	rdb := server.Client(t)
	sub := rdb.Subscribe(t.Context(), scripts.SemChannel(name))
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	return &old{rdb, sub.Channel()}
}

// section takes a permit once, and gives it back.
func (o *old) section(ctx context.Context, name string, f func()) {
	const acquire = `if tonumber(redis.call('GET', KEYS[1])) > 0 then redis.call('DECR', KEYS[1]) return 1 end return 0`
	const release = `redis.call('PUBLISH', ARGV[1], redis.call('INCR', KEYS[1])) return 1`
	for {
		got, err := o.rdb.Eval(ctx, acquire, []string{name}).Int()
		switch {
		case err != nil:
			return
		case got == 1:
			f()
			_ = o.rdb.Eval(context.Background(), release, []string{name}, scripts.SemChannel(name)).Err()
			return
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return
		}
	}
}

// Processes of this version and others share a semaphore: neither side starves.
func TestFleet_SharesWithVersionsWithoutLines(t *testing.T) {
	t.Parallel()
	for _, n := range []struct{ old, new int }{{1, 8}, {8, 1}, {4, 4}} {
		t.Run(fmt.Sprintf("%d old, %d new", n.old, n.new), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			rdb := server.Client(t)
			countingKind.newWoken(t, rdb, "permits").setPermits(t, 2)
			ctx, stop := context.WithCancel(t.Context())
			var olds, news atomic.Int64
			var running sync.WaitGroup
			for range n.old {
				o := newOld(t, server, "permits")
				running.Go(func() {
					for ctx.Err() == nil {
						o.section(ctx, "permits", func() { busyWait(time.Millisecond); olds.Add(1) })
					}
				})
			}
			for range n.new {
				s := countingKind.newAny(newClient(t, server.Client(t)), "permits")
				running.Go(func() {
					for ctx.Err() == nil {
						if release, err := s.acquire(ctx, 1); err == nil {
							busyWait(time.Millisecond)
							news.Add(1)
							_ = release(context.Background())
						}
					}
				})
			}
			poll(t, func() bool { return olds.Load()+news.Load() > 600 })
			stop()
			running.Wait()
			a, b := olds.Load(), news.Load()
			t.Logf("old %d, new %d", a, b)
			poll(t, func() bool { return rdb.Get(t.Context(), "permits").Val() == "2" })
			share := float64(a+b) / float64(n.old+n.new)
			require.Greater(t, float64(a), share*float64(n.old)/10)
			require.Greater(t, float64(b), share*float64(n.new)/10)
		})
	}
}
