package pubsub_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// Guarantees: L47.
func TestShards(t *testing.T) {
	redistest.SkipWithoutShardedChannels(t)
	t.Parallel()
	ctx := t.Context()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	h := pubsub.NewShards(rdb, newWheel(t), true)
	defer func() { require.NoError(t, h.Close(context.Background())) }()

	// Many channels, in slots of every master.
	const channels = 30
	var woken []chan struct{}
	name := func(i int) string { return fmt.Sprintf("channel:%d", i) }
	for i := range channels {
		wake, c := waker()
		woken = append(woken, c)
		sub := h.Subscribe(name(i), wake)
		defer sub.Close()
		await(t, c, "the confirmation")
	}
	publish := func() {
		for i := range channels {
			require.NoError(t, rdb.SPublish(ctx, name(i), "0").Err())
			await(t, woken[i], "the message")
		}
	}
	publish()
	wake, again := waker()
	second := h.Subscribe(name(0), wake)
	await(t, again, "the hint to look, as the channel was subscribed before")
	require.NoError(t, rdb.SPublish(ctx, name(0), "0").Err())
	await(t, again, "the message")
	await(t, woken[0], "the message")
	second.Close()

	// Every connection is cut, and the hub is on all of its channels again.
	for _, node := range c.Nodes() {
		require.NoError(t, node.Client(t).Do(ctx, "client", "kill", "type", "pubsub").Err())
	}
	for i := range channels {
		await(t, woken[i], "the confirmation after the cut")
	}
	publish()

	// A master dies, and its channels follow their slots to the replica.
	dead := c.Owner(t, name(0))
	dead.Kill()
	await(t, woken[0], "the confirmation at the new master")
	for i := range channels {
		if c.Owner(t, name(i)) == c.Owner(t, name(0)) && i > 0 {
			await(t, woken[i], "the confirmation at the new master")
		}
	}
	publish()
}
