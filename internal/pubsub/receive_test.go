package pubsub_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestHub_Receive(t *testing.T) {
	t.Parallel()

	t.Run("gets each message, and an empty one after each confirmation", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Start(t).Client(t)
		h := newHub(t, rdb)
		heard := make(chan string, 10)
		next := func() string {
			t.Helper()
			select {
			case message := <-heard:
				return message
			case <-time.After(within):
				require.Fail(t, "no message")
				return ""
			}
		}
		sub := h.Receive("a", func(message string) { heard <- message }, nil)
		defer sub.Close()
		for range 2 {
			require.Empty(t, next())
			for i := range 3 {
				require.Equal(t, int64(1), rdb.Publish(t.Context(), "a", "m "+strconv.Itoa(i)).Val())
				require.Equal(t, "m "+strconv.Itoa(i), next())
			}
			killPubSub(t, rdb)
		}
		require.Empty(t, next())
	})

	t.Run("a refused channel is given up, and the others of the connection go on", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		rdb := server.Client(t)
		h := newHub(t, server.Client(t, server.User(t, "app", "~*", "+@all", "&a")), pubsub.WithLinger(0))
		refused := func() string {
			stats, err := rdb.InfoMap(t.Context(), "commandstats").Result()
			require.NoError(t, err)
			_, n, _ := strings.Cut(stats["Commandstats"]["cmdstat_subscribe"], "rejected_calls=")
			n, _, _ = strings.Cut(n, ",")
			return n
		}
		never := func(string) { t.Error("a message on a channel that was refused") }
		first := h.Receive("b", never, nil)
		until(t, "the refusal", func() bool { return refused() == "1" })
		until(t, "the hub has nothing to do", func() bool { return !h.Running() })
		wake, woken := waker()
		a := h.Subscribe("a", wake)
		await(t, woken, "the confirmation")
		for range 3 {
			killPubSub(t, rdb)
			await(t, woken, "the confirmation after a cut")
			require.Equal(t, int64(1), rdb.Publish(t.Context(), "a", "0").Val())
			await(t, woken, "the message")
		}
		require.Equal(t, "1", refused(), "it was not asked for again")

		first.Close() // there is no linger
		second := h.Receive("b", never, nil)
		until(t, "the second refusal", func() bool { return refused() == "2" })
		await(t, woken, "the confirmation without it")
		a.Close()
		until(t, "the connection ends", func() bool { return pubsubs(t, rdb) == 0 })
		second.Close()
		require.Equal(t, "2", refused())
	})
}
