package pubsub_test

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// within bounds every wait of these tests; it says that a hint was lost, and no
// test gets near it.
const within = 20 * time.Second

var newWheel = redistest.Wheel

func newHub(t *testing.T, rdb redis.UniversalClient, opts ...pubsub.Option) *pubsub.Hub {
	t.Helper()
	h := pubsub.New(rdb, newWheel(t), opts...)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		require.NoError(t, h.Close(ctx))
	})
	return h
}

// waker returns a wake function and the channel it signals.
func waker() (func(), chan struct{}) {
	woken := make(chan struct{}, 1)
	return func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	}, woken
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(within):
		require.Fail(t, "never happened: "+what)
	}
}

// until polls for something only the server can tell.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	deadline := time.After(within)
	for !cond() {
		select {
		case <-poll.C:
		case <-deadline:
			require.Fail(t, "never happened: "+what)
		}
	}
}

func subscribers(t *testing.T, rdb redis.Cmdable, channel string) int64 {
	t.Helper()
	n, err := rdb.PubSubNumSub(context.Background(), channel).Result()
	require.NoError(t, err)
	return n[channel]
}

// pubsubs returns how many subscription connections the server has.
func pubsubs(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	list, err := rdb.Do(context.Background(), "client", "list", "type", "pubsub").Text()
	require.NoError(t, err)
	return strings.Count(list, "id=")
}

// calls returns how often the server executed a command.
func calls(t *testing.T, rdb redis.Cmdable, command string) int {
	t.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	require.NoError(t, err)
	found := regexp.MustCompile(`cmdstat_` + command + `:calls=(\d+)`).FindStringSubmatch(info)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

func TestHub_Subscribe(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := redistest.Shared(t).Client(t)

	t.Run("wakes at the confirmation and at every message", func(t *testing.T) {
		t.Parallel()
		h, channel := newHub(t, rdb), redistest.Name(t)
		wake, woken := waker()
		sub := h.Subscribe(channel, wake)
		defer sub.Close()
		await(t, sub.Ready(), "ready")
		await(t, woken, "the wake-up at the confirmation")
		for range 3 {
			require.Equal(t, int64(1), rdb.Publish(ctx, channel, "0").Val())
			await(t, woken, "the wake-up at a message")
		}
	})

	t.Run("wakes all subscribers of the channel and no others", func(t *testing.T) {
		t.Parallel()
		d := &redistest.FaultDialer{}
		d.Set(redistest.BlackholeUp) // the confirmation comes when all have subscribed
		h := newHub(t, redistest.Shared(t).Client(t, func(o *redis.Options) { o.Dialer = d.Dial }))
		channel := redistest.Name(t)
		var woken []chan struct{}
		for range 3 {
			wake, c := waker()
			sub := h.Subscribe(channel, wake)
			defer sub.Close()
			woken = append(woken, c)
		}
		wake, other := waker()
		sub := h.Subscribe(redistest.Name(t), wake)
		defer sub.Close()
		d.Set(redistest.Pass)
		for _, c := range append(woken, other) {
			await(t, c, "the confirmation")
		}
		require.Equal(t, int64(1), rdb.Publish(ctx, channel, "0").Val(), "subscribed once")
		for _, c := range woken {
			await(t, c, "the message")
		}
		require.Empty(t, other)
	})

	t.Run("one that has closed is not woken, and closing twice is harmless", func(t *testing.T) {
		t.Parallel()
		h, channel := newHub(t, rdb), redistest.Name(t)
		wakeGone, gone := waker()
		leave := h.Subscribe(channel, wakeGone)
		await(t, gone, "the confirmation")
		wake, woken := waker()
		stay := h.Subscribe(channel, wake) // no confirmation follows; a message wakes it after the first
		defer stay.Close()
		require.NoError(t, rdb.Publish(ctx, channel, "0").Err())
		await(t, gone, "the message")
		await(t, woken, "the message")
		leave.Close()
		leave.Close()
		require.NoError(t, rdb.Publish(ctx, channel, "0").Err())
		await(t, woken, "the message")
		require.Empty(t, gone)
	})

	t.Run("a channel that is subscribed already is ready at once", func(t *testing.T) {
		t.Parallel()
		h, channel := newHub(t, rdb), redistest.Name(t)
		wake, _ := waker()
		first := h.Subscribe(channel, wake)
		defer first.Close()
		await(t, first.Ready(), "ready")
		second := h.Subscribe(channel, wake)
		defer second.Close()
		select {
		case <-second.Ready():
		default:
			require.Fail(t, "not ready")
		}
	})

	t.Run("wake may use the hub", func(t *testing.T) {
		t.Parallel()
		h, channel := newHub(t, rdb), redistest.Name(t)
		done := make(chan struct{})
		var sub *pubsub.Subscription
		subscribed := make(chan struct{})
		sub = h.Subscribe(channel, func() {
			<-subscribed
			sub.Close()
			h.Subscribe(channel+":next", func() { close(done) })
		})
		close(subscribed)
		await(t, done, "the confirmation of a channel subscribed from wake")
	})

	t.Run("works with RESP2 and through an automatic pipeline", func(t *testing.T) {
		t.Parallel()
		resp2 := redistest.Shared(t).Client(t, func(o *redis.Options) { o.Protocol = 2 })
		piped, err := rdb.AutoPipeline()
		require.NoError(t, err)
		for _, client := range []redis.UniversalClient{resp2, piped} {
			h, channel := newHub(t, client, pubsub.WithPing(20*time.Millisecond)), redistest.Name(t)
			wake, woken := waker()
			sub := h.Subscribe(channel, wake)
			await(t, woken, "the confirmation")
			for range 20 {
				<-time.After(5 * time.Millisecond) // pings and messages mix
				require.NoError(t, rdb.Publish(ctx, channel, "0").Err())
				await(t, woken, "the message")
			}
			sub.Close()
		}
	})

	t.Run("of a ring is never ready and never wakes", func(t *testing.T) {
		t.Parallel()
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": redistest.Shared(t).Addr()}})
		defer ring.Close()
		h := newHub(t, ring)
		sub := h.Subscribe(redistest.Name(t), func() { panic("woken") })
		defer sub.Close()
		select {
		case <-sub.Ready():
			require.Fail(t, "ready")
		default:
		}
	})

	t.Run("after Close of the hub nothing happens any more", func(t *testing.T) {
		t.Parallel()
		h := pubsub.New(rdb, newWheel(t))
		require.NoError(t, h.Close(ctx))
		require.NoError(t, h.Close(ctx))
		sub := h.Subscribe(redistest.Name(t), func() { panic("woken") })
		sub.Close()
		select {
		case <-sub.Ready():
			require.Fail(t, "ready")
		default:
		}
	})
}

func TestHub_Linger(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("keeps one SUBSCRIBE for 100 quick uses", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Start(t).Client(t)
		h := newHub(t, rdb)
		wake, woken := waker()
		first := h.Subscribe("hot", wake)
		await(t, woken, "the confirmation") // one that closes before it may not be woken
		first.Close()
		for range 100 {
			sub := h.Subscribe("hot", wake)
			await(t, sub.Ready(), "ready")
			sub.Close()
		}
		require.Equal(t, 1, calls(t, rdb, "subscribe"))
		require.Equal(t, 0, calls(t, rdb, "unsubscribe"))
	})

	t.Run("unsubscribes when it is over and closes the connection after the last", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Start(t).Client(t)
		h := newHub(t, rdb, pubsub.WithLinger(20*time.Millisecond))
		wake, _ := waker()
		a, b := h.Subscribe("a", wake), h.Subscribe("b", wake)
		await(t, a.Ready(), "ready")
		await(t, b.Ready(), "ready")
		a.Close()
		until(t, "UNSUBSCRIBE a", func() bool { return subscribers(t, rdb, "a") == 0 })
		require.Equal(t, int64(1), subscribers(t, rdb, "b"))
		require.Equal(t, 1, pubsubs(t, rdb))
		b.Close()
		until(t, "the end of the connection", func() bool { return pubsubs(t, rdb) == 0 })
		// And it comes back.
		c := h.Subscribe("a", wake)
		defer c.Close()
		await(t, c.Ready(), "ready")
	})

	t.Run("one use while it runs makes it go round again", func(t *testing.T) {
		t.Parallel()
		const linger = 200 * time.Millisecond
		rdb := redistest.Start(t).Client(t)
		h := newHub(t, rdb, pubsub.WithLinger(linger))
		wake, _ := waker()
		h.Subscribe("a", wake).Close()
		<-time.After(linger / 2) // the linger is half over when the next use comes
		sub := h.Subscribe("a", wake)
		await(t, sub.Ready(), "ready")
		begin := time.Now()
		sub.Close()
		until(t, "the end of the connection", func() bool { return pubsubs(t, rdb) == 0 })
		require.GreaterOrEqual(t, time.Since(begin), linger)
	})

	for _, others := range []bool{false, true} {
		t.Run(fmt.Sprintf("of nothing: subscribing right after the last close, others=%v", others), func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Shared(t).Client(t)
			h, channel := newHub(t, rdb, pubsub.WithLinger(0)), redistest.Name(t)
			wake, woken := waker()
			if others {
				stay := h.Subscribe(channel+":other", wake)
				defer stay.Close()
				await(t, stay.Ready(), "ready")
			}
			for i := range 300 {
				sub := h.Subscribe(channel, wake)
				if i%3 > 0 { // sometimes leave before it is confirmed
					await(t, sub.Ready(), "ready")
					select {
					case <-woken:
					default:
					}
					require.NoError(t, rdb.Publish(ctx, channel, "0").Err())
					await(t, woken, "the message")
				}
				sub.Close()
			}
		})
	}
}

func TestHub_Goroutines(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	h := newHub(t, rdb, pubsub.WithLinger(0))
	require.Zero(t, hubGoroutines())

	wake, _ := waker()
	subs := make([]*pubsub.Subscription, 200)
	for i := range subs {
		subs[i] = h.Subscribe(redistest.Name(t), wake)
	}
	for _, sub := range subs {
		await(t, sub.Ready(), "ready")
	}
	until(t, "one goroutine for 200 channels", func() bool { return hubGoroutines() == 1 })
	for _, sub := range subs {
		sub.Close()
	}
	until(t, "none when idle", func() bool { return hubGoroutines() == 0 })
}

// hubGoroutines counts the goroutines that a hub started.
func hubGoroutines() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return strings.Count(string(stacks), "created by github.com/cogwheel-go/cogwheel/internal/pubsub.")
}
