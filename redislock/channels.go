package redislock

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/notify"
	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// channels is how those who wait hear of releases: on ordinary channels, or in a cluster, if it has them, on sharded ones, which
// do not burden every node with every message. Redisson, since 3.22, decides in the same way.
type channels struct {
	hub     *notify.Hub
	shards  *notify.Shards // nil outside of clusters
	cluster *redis.ClusterClient
	sharded atomic.Int32
}

const (
	undecided int32 = iota
	ordinary
	sharded
)

func newChannels(rdb redis.UniversalClient, w *wheel.Wheel, choice int32) *channels {
	c := &channels{hub: notify.New(rdb, w)}
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		choice = ordinary
	} else {
		c.cluster, c.shards = cluster, notify.NewShards(cluster, w)
	}
	c.sharded.Store(choice)
	return c
}

// decide asks the cluster whether it has sharded channels, until it has answered. It blocks for a round trip.
func (c *channels) decide() {
	switch err := c.cluster.PubSubShardNumSub(context.Background(), "0").Err(); {
	case err == nil:
		c.sharded.CompareAndSwap(undecided, sharded)
	case refused(err) && !passing(err): // before Redis 7
		c.sharded.CompareAndSwap(undecided, ordinary)
	}
}

func (c *channels) decided() bool { return c.sharded.Load() != undecided }

// verb is the command that wakes those who wait.
func (c *channels) verb() string {
	if c.sharded.Load() == sharded {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// listen has kick called when there may be reason to look.
func (c *channels) listen(channel string, kick func()) (stop func()) {
	if c.sharded.Load() == sharded {
		return c.shards.Subscribe(channel, kick).Close
	}
	return waitqueue.Hub(c.hub, func(string) string { return channel })(channel, kick)
}

func (c *channels) close(ctx context.Context) error {
	err := c.hub.Close(ctx)
	if c.shards != nil {
		if e := c.shards.Close(ctx); err == nil {
			err = e
		}
	}
	return err
}
