package semaphore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// Whatever messages are lost, no waiter waits beyond its poll while a permit is free.
// Guarantees: S6.
func TestWaiting_SurvivesLostMessages(t *testing.T) {
	forEachKind(t, func(t *testing.T, k kind) {
		t.Run("every message is lost", func(t *testing.T) {
			redistest.SkipIfShort(t)
			t.Parallel()
			const interval = 700 * time.Millisecond
			server := redistest.Start(t)
			rdb := server.Client(t)
			noMessages := server.Client(t, func(o *redis.Options) { o.Dialer = dialWithoutSubscribe })
			waiter := k.newAny(newClient(t, noMessages, semaphore.WithPoll(interval)), "permits")
			holder := k.newAny(newClient(t, rdb, semaphore.WithPoll(interval)), "permits")
			holder.setPermits(t, 1)
			for range 3 {
				release, err := holder.acquire(within(t, testTimeout), 1)
				require.NoError(t, err)
				asked := scriptCalls(t, rdb)
				w := startCall(func() error {
					again, err := waiter.acquire(within(t, testTimeout), 1)
					if err != nil {
						return err
					}
					return again(t.Context())
				})
				poll(t, func() bool { return scriptCalls(t, rdb) > asked })
				began := time.Now()
				require.NoError(t, release(t.Context()))
				require.NoError(t, w.wait(t))
				require.Less(t, time.Since(began), interval+10*time.Second)
				subscribed, err := rdb.PubSubChannels(t.Context(), "*").Result()
				require.NoError(t, err)
				require.Empty(t, subscribed, "no client is subscribed")
			}
		})

		t.Run("one is lost with the connection of the subscriber", func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			rdb := server.Client(t)
			hourly := semaphore.WithPoll(time.Hour)
			waiter := k.newAny(newClient(t, server.Client(t), hourly), "permits")
			holder := k.newAny(newClient(t, rdb, hourly), "permits")
			holder.setPermits(t, 1)
			_, err := holder.acquire(t.Context(), 1)
			require.NoError(t, err)
			w := startCall(func() error { _, err := waiter.acquire(within(t, testTimeout), 1); return err })
			k.awaitWaiting(t, rdb, "permits", 1)
			release := k.rawRelease(t, rdb, "permits")
			// In one transaction, so that no client is subscribed when the permit is announced.
			_, err = rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
				p.Do(t.Context(), "client", "kill", "type", "pubsub")
				release(p)
				return nil
			})
			require.NoError(t, err)
			began := time.Now()
			require.NoError(t, w.wait(t))
			require.Less(t, time.Since(began), 10*time.Second, "woken by the new subscription, long before the poll")
		})

		t.Run("one is published between the look and the subscription", func(t *testing.T) {
			t.Parallel()
			server := redistest.Shared(t)
			name, hourly := redistest.Name(t), semaphore.WithPoll(time.Hour)
			holder := k.newAny(newClient(t, server.Client(t), hourly), name)
			holder.setPermits(t, 1)
			hook := &afterScript{}
			own := server.Client(t)
			own.AddHook(hook)
			waiter := k.newAny(newClient(t, own, hourly), name)
			for range 3 { // from the second round on, the subscription is open already
				release, err := holder.acquire(within(t, testTimeout), 1)
				require.NoError(t, err)
				hook.arm(func() error { return release(context.WithoutCancel(t.Context())) })
				w := startCall(func() error {
					again, err := waiter.acquire(within(t, testTimeout), 1)
					if err != nil {
						return err
					}
					return again(t.Context())
				})
				require.NoError(t, w.wait(t))
				require.Less(t, w.took, 10*time.Second)
				require.NoError(t, hook.err)
			}
		})
	})
}

// noSubscribeConn is a connection on which SUBSCRIBE fails.
type noSubscribeConn struct{ net.Conn }

func dialWithoutSubscribe(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return noSubscribeConn{conn}, err
}

func (c noSubscribeConn) Write(p []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(p), []byte("subscribe")) {
		return 0, errors.New("no SUBSCRIBE on this connection")
	}
	return c.Conn.Write(p)
}

// scriptCalls returns the number of scripts that the server has executed.
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

// rawRelease returns the release of the only permit as one command.
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
			p.EvalSha(ctx, scripts.SemRelease.SHA(), []string{name, part("sequence")},
				1000, "PUBLISH", scripts.SemChannel(name), 0, "", 1, 1, 0, 0)
		}
	case "semaphore":
		id := only(part("timeout"))
		return func(p redis.Pipeliner) {
			p.EvalSha(ctx, scripts.PermitRelease.SHA(), []string{name, part("timeout")},
				"PUBLISH", scripts.SemChannel(name), 0, 0, id)
		}
	default:
		id := only(part("fair:leases"))
		return func(p redis.Pipeliner) {
			p.EvalSha(ctx, scripts.PermitRelease.SHA(), []string{part("fair:permits"), part("fair:leases")},
				"PUBLISH", scripts.PrefixName("cogwheel_fair", name), 0, 0, id)
		}
	}
}

// afterScript is a hook that calls a function after the next script.
type afterScript struct {
	scriptCounter
	do  func() error
	err error
}

func (h *afterScript) arm(do func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.do = do
}

func (h *afterScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
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
