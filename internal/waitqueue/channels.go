package waitqueue

import (
	"context"
	"sync/atomic"

	"github.com/cogwheel-go/cogwheel/internal/joined"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/notify"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Sharding says on which channels waiters are woken.
type Sharding int32

// The channels of a cluster. Outside of one they are ordinary.
const (
	FindOut  Sharding = iota // sharded if the cluster has sharded channels, as Redisson decides since 3.22
	Ordinary                 // every node hears every message
	Sharded                  // the node of the slot does; Redis 7
)

// Channels is how those who wait hear of releases. It is safe for concurrent use.
type Channels struct {
	hub     *notify.Hub
	shards  *notify.Shards // nil outside of clusters
	cluster *redis.ClusterClient
	choice  atomic.Int32
}

// NewChannels returns the channels of a client. They cost nothing until somebody listens.
func NewChannels(rdb redis.UniversalClient, w *wheel.Wheel, choice Sharding) *Channels {
	c := &Channels{hub: notify.New(rdb, w)}
	cluster, ok := rdb.(*redis.ClusterClient)
	if ok {
		c.cluster, c.shards = cluster, notify.NewShards(cluster, w)
	} else {
		choice = Ordinary
	}
	c.choice.Store(int32(choice))
	return c
}

// Decide asks the cluster for its kind of channels unless it has answered before. Only then it blocks, for a round trip.
func (c *Channels) Decide() {
	if c.sharding() != FindOut {
		return
	}
	switch err := c.cluster.PubSubShardNumSub(context.Background(), "0").Err(); {
	case err == nil:
		c.choice.CompareAndSwap(int32(FindOut), int32(Sharded))
	case calls.Final(err): // before Redis 7
		c.choice.CompareAndSwap(int32(FindOut), int32(Ordinary))
	}
}

func (c *Channels) sharding() Sharding { return Sharding(c.choice.Load()) }

// Verb is the command that wakes those who wait. As long as nothing is decided it is that of ordinary channels.
func (c *Channels) Verb() string {
	if c.sharding() == Sharded {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// Listen returns a Config's Listen for the channels of names. It may have to Decide.
func (c *Channels) Listen(channel func(name string) string) func(name string, kick func()) (stop func()) {
	ordinary := Hub(c.hub, channel)
	return func(name string, kick func()) func() {
		if c.Decide(); c.sharding() == Sharded {
			return c.shards.Subscribe(channel(name), kick).Close
		}
		return ordinary(name, kick)
	}
}

// Close ends all subscriptions.
func (c *Channels) Close(ctx context.Context) error {
	err := c.hub.Close(ctx)
	if c.shards != nil {
		err = joined.Errors(err, c.shards.Close(ctx))
	}
	return err
}
