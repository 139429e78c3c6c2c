package semaphore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Whatever is lost, nobody waits beyond the poll while a permit is free.
func TestWaiting_SurvivesLostMessages(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		t.Run("every message", func(t *testing.T) {
			t.Parallel()
			const interval = 700 * time.Millisecond
			server := redistest.Start(t)
			rdb := server.Client(t)
			deaf := server.Client(t, func(o *redis.Options) { o.Dialer = dialDeaf })
			waiter := k.open(newClient(t, deaf, semaphore.WithPoll(interval)), "permits")
			holder := k.open(newClient(t, rdb, semaphore.WithPoll(interval)), "permits")
			holder.set(t, 1)
			for range 3 {
				giveBack, err := holder.take(within(t, patience), 1)
				require.NoError(t, err)
				asked := scriptCalls(t, rdb)
				w := start(func() error {
					again, err := waiter.take(within(t, patience), 1)
					if err != nil {
						return err
					}
					return again(t.Context())
				})
				poll(t, func() bool { return scriptCalls(t, rdb) > asked })
				began := time.Now()
				require.NoError(t, giveBack(t.Context()))
				require.NoError(t, w.wait(t))
				require.Less(t, time.Since(began), interval+2*time.Second)
				subscribed, err := rdb.PubSubChannels(t.Context(), "*").Result()
				require.NoError(t, err)
				require.Empty(t, subscribed, "nobody heard anything")
			}
		})

		t.Run("one, with the subscriber's connection", func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			rdb := server.Client(t)
			hourly := semaphore.WithPoll(time.Hour)
			waiter := k.open(newClient(t, server.Client(t), hourly), "permits")
			holder := k.open(newClient(t, rdb, hourly), "permits")
			holder.set(t, 1)
			_, err := holder.take(t.Context(), 1)
			require.NoError(t, err)
			w := start(func() error { _, err := waiter.take(within(t, patience), 1); return err })
			k.awaitWaiting(t, rdb, "permits", 1)
			release := k.rawRelease(t, rdb, "permits")
			// In one transaction, so that nobody is subscribed when the permit is announced.
			_, err = rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
				p.Do(t.Context(), "client", "kill", "type", "pubsub")
				release(p)
				return nil
			})
			require.NoError(t, err)
			began := time.Now()
			require.NoError(t, w.wait(t))
			require.Less(t, time.Since(began), 5*time.Second, "woken by the new subscription, long before the poll")
		})

		t.Run("one that came between the look and the subscription", func(t *testing.T) {
			t.Parallel()
			server := redistest.Shared(t)
			name, hourly := redistest.Name(t), semaphore.WithPoll(time.Hour)
			holder := k.open(newClient(t, server.Client(t), hourly), name)
			holder.set(t, 1)
			hook := &afterFirst{}
			own := server.Client(t)
			own.AddHook(hook)
			waiter := k.open(newClient(t, own, hourly), name)
			for range 3 { // from the second on the subscription lingers: its confirmation has been and gone
				giveBack, err := holder.take(within(t, patience), 1)
				require.NoError(t, err)
				hook.arm(func() error { return giveBack(context.WithoutCancel(t.Context())) })
				w := start(func() error {
					again, err := waiter.take(within(t, patience), 1)
					if err != nil {
						return err
					}
					return again(t.Context())
				})
				require.NoError(t, w.wait(t))
				require.Less(t, w.took, 5*time.Second)
				require.NoError(t, hook.err)
			}
		})
	})
}

// deafConn is a connection on which nobody can subscribe.
type deafConn struct{ net.Conn }

func dialDeaf(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return deafConn{conn}, err
}

func (c deafConn) Write(p []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(p), []byte("subscribe")) {
		return 0, errors.New("deaf")
	}
	return c.Conn.Write(p)
}

// scriptCalls is the number of scripts that the server has executed.
func scriptCalls(t testing.TB, rdb *redis.Client) (n int) {
	t.Helper()
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for line := range strings.Lines(stats) {
		for _, verb := range []string{"cmdstat_evalsha:calls=", "cmdstat_eval:calls="} {
			if rest, ok := strings.CutPrefix(line, verb); ok {
				var calls int
				_, err := fmt.Sscanf(rest, "%d,", &calls)
				require.NoError(t, err)
				n += calls
			}
		}
	}
	return n
}

// rawRelease is the release of the only permit as one command.
func (k kind) rawRelease(t testing.TB, rdb *redis.Client, name string) func(redis.Pipeliner) {
	t.Helper()
	ctx := t.Context()
	for _, s := range scripts.All() {
		require.NoError(t, rdb.ScriptLoad(ctx, s.Source()).Err())
	}
	part := func(s string) string { return scripts.SuffixName(name, s) }
	only := func(key string) string {
		held, err := rdb.ZRange(ctx, key, 0, -1).Result()
		require.NoError(t, err)
		require.Len(t, held, 1)
		return held[0]
	}
	switch k.name {
	case "counting":
		return func(p redis.Pipeliner) {
			p.EvalSha(ctx, scripts.SemRelease.SHA(), []string{name, part("lane"), scripts.SemChannel(name)}, 1000, "PUBLISH", 1, 1, 0, 0)
		}
	case "leased":
		id := only(part("timeout"))
		return func(p redis.Pipeliner) {
			p.EvalSha(ctx, scripts.PermitRelease.SHA(), []string{name, part("timeout"), scripts.SemChannel(name)}, "PUBLISH", 0, id)
		}
	default:
		id := only(part("fair:leases"))
		keys := []string{part("fair:permits"), part("fair:leases"), part("fair:queue"), part("fair:alive"), part("fair:needs"), part("fair:fence")}
		return func(p redis.Pipeliner) {
			p.EvalSha(ctx, scripts.FairStep.SHA(), keys, "PUBLISH", scripts.PrefixName("cogwheel_fair", name), 60_000, strings.Repeat("0", 32), 1000, 1, id)
		}
	}
}

// afterFirst does something right after the first script once it is armed.
type afterFirst struct {
	counter
	do  func() error
	err error
}

func (h *afterFirst) arm(do func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.do = do
}

func (h *afterFirst) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil || !strings.HasPrefix(cmd.Name(), "eval") {
			return err
		}
		h.mu.Lock()
		do := h.do
		h.do = nil
		h.mu.Unlock()
		if do != nil {
			h.err = do()
		}
		return err
	}
}

func TestWaiting_OneScriptServesTen(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		rdb := redistest.Shared(t).Client(t)
		c, count := counted(t, rdb, semaphore.WithPoll(time.Hour))
		name := redistest.Name(t)
		s, other := k.open(c, name), k.open(newClient(t, redistest.Shared(t).Client(t), semaphore.WithPoll(time.Hour)), name)
		other.set(t, 10)
		giveBack, err := other.take(t.Context(), 10)
		require.NoError(t, err)

		got := make(chan back, 10)
		ctx := within(t, patience)
		done := func(b back, err error) {
			if err != nil {
				t.Error(err)
			}
			got <- b
		}
		// The first is refused when it comes, and again when its subscription has begun. The others stand behind it, of the fair kind also in Redis.
		s.takeFunc(ctx, 1, done)
		poll(t, func() bool { return count.scripts() == 2 })
		for range 9 {
			s.takeFunc(ctx, 1, done)
		}
		k.awaitQueued(t, rdb, name, 10)
		poll(t, func() bool { return count.underWay() == 0 })
		before := count.scripts()
		require.NoError(t, giveBack(t.Context()))
		var all []back
		for range 10 {
			b := <-got
			require.NotNil(t, b)
			all = append(all, b)
		}
		require.Equal(t, 1, count.scripts()-before)
		for _, b := range all {
			require.NoError(t, b(t.Context()))
		}
		require.EqualValues(t, 10, available(t, s))
	})
}

// A waiter cancelled at any instant around its grant either has the permit or has not; none is lost, and the next waiter gets it.
func TestWaiting_CancelledAtTheInstantOfTheGrant(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		const rounds = 60
		server, name := redistest.Shared(t), redistest.Name(t)
		hourly := semaphore.WithPoll(time.Hour) // nobody is saved by a poll
		c, count := counted(t, server.Client(t), hourly)
		s, other := k.open(c, name), k.open(newClient(t, server.Client(t), hourly), name)
		s.set(t, 1)
		granted := 0
		for i := range rounds {
			giveBack, err := other.take(within(t, patience), 1)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			var mine back
			looks := count.scripts()
			first := start(func() (err error) { mine, err = s.take(ctx, 1); return err })
			second := start(func() error {
				b, err := s.take(within(t, patience), 1)
				if err != nil {
					return err
				}
				return b(context.WithoutCancel(t.Context()))
			})
			poll(t, func() bool { return count.scripts() > looks }) // they were refused
			released := start(func() error { return giveBack(t.Context()) })
			spin(time.Duration(i%12) * 400 * time.Microsecond) // the instant is what is varied
			cancel()
			require.NoError(t, released.wait(t))
			if err := first.wait(t); err == nil {
				granted++
				require.NoError(t, mine(t.Context()))
			} else {
				require.ErrorIs(t, err, context.Canceled)
			}
			require.NoError(t, second.wait(t), "the permit reaches the next")
		}
		poll(t, func() bool { return available(t, s) == 1 })
		t.Logf("granted %d times of %d", granted, rounds)
	})
}

// The counterparts of what golang.org/x/sync/semaphore fixes by tests.
func TestWaiting_LikeXSync(t *testing.T) {
	eachKind(t, func(t *testing.T, k kind) {
		named := func(t *testing.T, n int64) (permits, string) {
			name := redistest.Name(t)
			s := k.open(newClient(t, redistest.Shared(t).Client(t)), name)
			s.set(t, n)
			return s, name
		}
		open := func(t *testing.T, n int64) permits {
			s, _ := named(t, n)
			return s
		}

		t.Run("a context that has ended acquires nothing", func(t *testing.T) {
			t.Parallel()
			s := open(t, 1)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := s.take(ctx, 1)
			require.ErrorIs(t, err, context.Canceled)
			_, err = s.try(ctx, 1)
			require.ErrorIs(t, err, context.Canceled)
			require.EqualValues(t, 1, available(t, s))
		})

		t.Run("a large request is not starved by small ones that come and go", func(t *testing.T) {
			t.Parallel()
			s := open(t, 3)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var all sync.WaitGroup
			for range 9 {
				all.Go(func() {
					for {
						b, err := s.take(ctx, 1)
						if err != nil {
							return
						}
						if err := b(context.WithoutCancel(ctx)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for range 3 {
				b, err := s.take(within(t, patience), 3)
				require.NoError(t, err)
				require.NoError(t, b(t.Context()))
			}
			cancel()
			all.Wait()
			poll(t, func() bool { return available(t, s) == 3 })
		})

		t.Run("a cancelled head lets the rest go", func(t *testing.T) {
			t.Parallel()
			s, name := named(t, 3)
			b, err := s.take(t.Context(), 1)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			large := start(func() error { _, err := s.take(ctx, 3); return err })
			k.awaitWaiting(t, redistest.Shared(t).Client(t), name, 1)
			got := make(chan error, 2)
			var small [2]back
			for i := range small {
				s.takeFunc(within(t, patience), 1, func(b back, err error) { small[i] = b; got <- err })
			}
			free, err := s.try(t.Context(), 1)
			require.NoError(t, err)
			require.Nil(t, free, "nobody overtakes the head, though two permits are free")
			require.False(t, large.ended())
			cancel()
			require.ErrorIs(t, large.wait(t), context.Canceled)
			for range small {
				require.NoError(t, <-got)
			}
			for _, b := range append(small[:], b) {
				require.NoError(t, b(t.Context()))
			}
			require.EqualValues(t, 3, available(t, s))
		})
	})

	t.Run("a request for more than there are does not hold up others", func(t *testing.T) {
		t.Parallel()
		c, _, name := shared(t)
		for _, s := range []permits{
			counting{c.Semaphore(name+":1", semaphore.WithMax(2))}, leasing{c.Leased(name + ":2")}, leasing{c.Leased(name+":3", semaphore.WithFair())},
		} {
			s.set(t, 2)
			b, err := s.take(t.Context(), 2)
			require.NoError(t, err)
			w := start(func() error { _, err := s.take(within(t, patience), 2); return err })
			_, err = s.take(within(t, patience), 3)
			require.ErrorIs(t, err, semaphore.ErrExceedsPermits)
			require.NoError(t, b(t.Context()))
			require.NoError(t, w.wait(t))
		}
	})
}

// Across processes too, where that is promised.
func TestFair_LargeRequestsAreNotStarvedByOtherProcesses(t *testing.T) {
	t.Parallel()
	server, name := redistest.Shared(t), redistest.Name(t)
	large := newClient(t, server.Client(t)).Leased(name, semaphore.WithFair())
	setLeased(t, large, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for range 6 {
		l := newClient(t, server.Client(t)).Leased(name, semaphore.WithFair())
		all.Go(func() {
			for {
				g, err := l.Acquire(ctx, 1)
				if err != nil {
					return
				}
				if err := g.Release(context.WithoutCancel(ctx)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5 {
		g := mustAcquire(t, large, 3)
		require.NoError(t, g.Release(t.Context()))
	}
	cancel()
	all.Wait()
	poll(t, func() bool { return available(t, large) == 3 })
}
