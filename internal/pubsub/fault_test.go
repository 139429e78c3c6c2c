package pubsub_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func killPubSub(t *testing.T, rdb *redis.Client) {
	t.Helper()
	require.NoError(t, rdb.ClientKillByFilter(context.Background(), "TYPE", "pubsub").Err())
}

// Guarantees: L16.
func TestHub_Reconnects(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("and wakes after CLIENT KILL, for what was published meanwhile is lost", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Start(t).Client(t)
		h := newHub(t, rdb)
		wake, woken := waker()
		sub := h.Subscribe("a", wake)
		defer sub.Close()
		for range 5 {
			await(t, woken, "the confirmation")
			killPubSub(t, rdb)
		}
		await(t, woken, "the confirmation")
		require.Equal(t, int64(1), rdb.Publish(ctx, "a", "0").Val())
		await(t, woken, "the message")
	})

	t.Run("and wakes after a restart of the server", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		h := newHub(t, s.Client(t))
		wake, woken := waker()
		sub := h.Subscribe("a", wake)
		defer sub.Close()
		await(t, woken, "the confirmation")
		s.Kill()
		s.Restart(t)
		await(t, woken, "the confirmation")
	})

	t.Run("a subscriber that comes while there is no connection gets the next", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		h := newHub(t, s.Client(t))
		wakeA, wokenA := waker()
		a := h.Subscribe("a", wakeA)
		defer a.Close()
		await(t, wokenA, "the confirmation")
		s.Kill()
		wakeB, wokenB := waker()
		b := h.Subscribe("b", wakeB)
		defer b.Close()
		s.Restart(t)
		await(t, b.Ready(), "ready")
		await(t, wokenA, "the confirmation")
		await(t, wokenB, "the confirmation")
	})

	for name, fault := range map[string]redistest.Fault{
		"refused":                redistest.Refuse,
		"swallowed by a network": redistest.BlackholeUp | redistest.BlackholeDown,
	} {
		t.Run("Subscribe does not wait for Redis, "+name, func(t *testing.T) {
			t.Parallel()
			d := &redistest.FaultDialer{}
			d.Set(fault)
			h := newHub(t, redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = d.Dial }))
			wake, woken := waker()
			stalled, begin := redistest.Stalls(t), time.Now()
			for range 100 {
				defer h.Subscribe(redistest.Name(t), wake).Close()
			}
			require.Less(t, time.Since(begin)-stalled(), time.Second)
			require.Empty(t, woken)
			d.Set(redistest.Pass)
			await(t, woken, "the confirmation")
		})
	}

	t.Run("when the connection has died in silence", func(t *testing.T) {
		t.Parallel()
		d := &redistest.FaultDialer{}
		rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = d.Dial })
		h := newHub(t, rdb, pubsub.WithPing(20*time.Millisecond))
		wake, woken := waker()
		sub := h.Subscribe(redistest.Name(t), wake)
		defer sub.Close()
		await(t, woken, "the confirmation")
		d.Set(redistest.BlackholeUp | redistest.BlackholeDown)
		until(t, "the connection is given up", func() bool { return d.Conns() == 0 })
		d.Set(redistest.Pass)
		await(t, woken, "the confirmation")
	})

	t.Run("not while the server answers pings", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Start(t).Client(t)
		h := newHub(t, rdb, pubsub.WithPing(250*time.Millisecond))
		wake, woken := waker()
		sub := h.Subscribe("a", wake)
		defer sub.Close()
		await(t, woken, "the confirmation")
		until(t, "three pings", func() bool { return calls(t, rdb, "ping") >= 4 }) // one made the server ready
		require.Equal(t, 1, calls(t, rdb, "subscribe"))
	})
}

// Waiters look at a key only when they are woken, and its writer only publishes.
// The server keeps breaking the connection. If one change went by unnoticed, a
// waiter would stay for ever.
// Guarantees: L16.
func TestHub_StrandsNobody(t *testing.T) {
	t.Parallel()
	const waiters, changes = 4, 300
	ctx, cancel := context.WithTimeout(t.Context(), 3*within)
	defer cancel()
	rdb := redistest.Start(t).Client(t)
	h := newHub(t, rdb, pubsub.WithLinger(time.Millisecond))

	var finished sync.WaitGroup
	seen := make(chan struct{}, waiters)
	for range waiters {
		finished.Go(func() {
			wake, woken := waker()
			for n := 1; n <= changes; n++ {
				sub := h.Subscribe("changes", wake)
				for {
					// Look only when woken: by the confirmation at the latest, or
					// because the channel was ready before.
					select {
					case <-sub.Ready():
					case <-woken:
					case <-ctx.Done():
						return
					}
					got, err := rdb.Get(ctx, "value").Int()
					if err == nil && got >= n {
						break
					}
					select {
					case <-woken:
					case <-ctx.Done():
						return
					}
				}
				sub.Close()
				if n%3 == 0 { // let the linger end now and then
					<-time.After(rand.N(3 * time.Millisecond))
				}
				seen <- struct{}{}
			}
		})
	}

	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for kill := time.NewTicker(7 * time.Millisecond); ; {
			select {
			case <-kill.C:
				_ = rdb.ClientKillByFilter(context.Background(), "TYPE", "pubsub").Err()
			case <-stop:
				kill.Stop()
				return
			}
		}
	})
	for n := 1; n <= changes; n++ {
		require.NoError(t, rdb.Set(ctx, "value", strconv.Itoa(n), 0).Err())
		require.NoError(t, rdb.Publish(ctx, "changes", "0").Err())
		for range waiters {
			select {
			case <-seen:
			case <-ctx.Done():
				require.Fail(t, "a waiter was stranded", "change %d", n)
			}
		}
	}
	close(stop)
	killer.Wait()
	finished.Wait()
	require.Greater(t, calls(t, rdb, "subscribe"), 5, "the connection broke often enough")
}

func TestHub_Close(t *testing.T) {
	t.Parallel()

	t.Run("amid everything ends all of it", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Shared(t).Client(t)
		w := newWheel(t)
		for round := range 30 {
			h := pubsub.New(rdb, w, pubsub.WithLinger(time.Duration(round%3)*time.Millisecond))
			name := redistest.Name(t)
			var users sync.WaitGroup
			for u := range 4 {
				users.Go(func() {
					for i := range 50 {
						sub := h.Subscribe(name+strconv.Itoa((u+i)%3), func() {})
						if i%5 == u {
							select {
							case <-sub.Ready():
							case <-time.After(time.Millisecond):
							}
						}
						sub.Close()
					}
				})
			}
			<-time.After(rand.N(2 * time.Millisecond))
			ctx, cancel := context.WithTimeout(t.Context(), within)
			require.NoError(t, h.Close(ctx))
			cancel()
			users.Wait()
		}
		require.Zero(t, w.Len(), "entries left on the wheel")
	})

	t.Run("while Redis is out of reach returns soon", func(t *testing.T) {
		t.Parallel()
		d := &redistest.FaultDialer{Timeout: time.Hour}
		d.Set(redistest.BlackholeUp)
		rdb := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = d.Dial })
		h := pubsub.New(rdb, newWheel(t))
		h.Subscribe(redistest.Name(t), func() {})
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		require.NoError(t, h.Close(ctx))
	})

	t.Run("gives up waiting when ctx ends", func(t *testing.T) {
		t.Parallel()
		entered, leave := make(chan struct{}), make(chan struct{})
		h := pubsub.New(redistest.Shared(t).Client(t), newWheel(t))
		h.Subscribe(redistest.Name(t), func() {
			close(entered)
			<-leave
		})
		await(t, entered, "the confirmation")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, h.Close(ctx), context.Canceled)
		close(leave)
		require.NoError(t, h.Close(t.Context()))
	})

	t.Run("the end of the wheel is the end of the hub", func(t *testing.T) {
		t.Parallel()
		w, err := wheel.New()
		require.NoError(t, err)
		h := pubsub.New(redistest.Shared(t).Client(t), w)
		sub := h.Subscribe(redistest.Name(t), func() {})
		await(t, sub.Ready(), "ready")
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
		until(t, "the goroutine ends", func() bool { return !h.Running() })
		later := h.Subscribe(redistest.Name(t), func() {})
		require.Nil(t, later.Ready(), "a subscription that never wakes, as after Close")
		later.Close()
		sub.Close()
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		require.NoError(t, h.Close(ctx))
	})
}
