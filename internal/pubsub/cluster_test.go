package pubsub_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestHub_InACluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	h := newHub(t, rdb)

	// Three channels of three masters, on one connection.
	channels := []string{"{a}", "{b}", "{c}"}
	woken := make([]chan struct{}, len(channels))
	for i, channel := range channels {
		wake, c := waker()
		woken[i] = c
		sub := h.Subscribe(channel, wake)
		defer sub.Close()
		await(t, sub.Ready(), "ready")
		await(t, c, "the confirmation")
	}
	for i, channel := range channels {
		require.NoError(t, rdb.Publish(ctx, channel, "0").Err())
		await(t, woken[i], "the message")
	}

	// A hub of one channel subscribes on that channel's master. When it dies,
	// the hub follows the slot to the replica.
	alone := newHub(t, c.Client(t))
	wake, again := waker()
	sub := alone.Subscribe(channels[0], wake)
	defer sub.Close()
	await(t, again, "the confirmation")
	c.Owner(t, channels[0]).Kill()
	await(t, again, "the confirmation elsewhere")
}
