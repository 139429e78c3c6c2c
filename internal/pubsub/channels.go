package pubsub

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Sharding says on which channels waiters are woken.
type Sharding int32

// The channels of a cluster. Outside of one they are ordinary, so that all clients of one server hear each other.
const (
	Detect   Sharding = iota // sharded if the cluster has sharded channels, as Redisson decides since 3.22
	Ordinary                 // every node hears every message
	Sharded                  // the node of the slot does; Redis 7
)

// Channels lets waiters hear of releases. It is safe for concurrent use.
type Channels struct {
	hub     *Hub
	shards  *Shards // nil unless the client is a ClusterClient
	cluster *redis.ClusterClient
	choice  atomic.Int32
	detects bool
	nodes   bool // the channels are ordinary, and each is that of the node of its slot
}

// NewChannels returns the channels of a client. They cost nothing until Listen is used.
func NewChannels(rdb redis.UniversalClient, w *wheel.Wheel, choice Sharding) *Channels {
	c := &Channels{hub: New(rdb, w)}
	cluster, ok := rdb.(*redis.ClusterClient)
	if ok {
		c.nodes = redisconn.HasOwnSlots(cluster)
		c.cluster, c.shards = cluster, NewShards(cluster, w, !c.nodes)
	}
	if !ok || c.nodes {
		choice = Ordinary
	}
	c.choice.Store(int32(choice))
	c.detects = choice == Detect
	return c
}

// Decide asks the cluster for its kind of channels unless it has answered before. It blocks for one round
// trip if it asks. A hook of the client may fail.
func (c *Channels) Decide() {
	if !c.Decided() {
		usercode.Apart(c.ask, func(*usercode.Failure) {})
	}
}

func (c *Channels) ask() {
	switch err := c.cluster.PubSubShardNumSub(context.Background(), "0").Err(); {
	case err == nil:
		c.choice.CompareAndSwap(int32(Detect), int32(Sharded))
	case redisconn.Permanent(err): // before Redis 7
		c.choice.CompareAndSwap(int32(Detect), int32(Ordinary))
	}
}

// Decided reports whether Decide would do nothing.
func (c *Channels) Decided() bool { return c.sharding() != Detect }

func (c *Channels) sharding() Sharding { return Sharding(c.choice.Load()) }

// Detects reports whether it is the cluster that decides on the kind of channels.
func (c *Channels) Detects() bool { return c.detects }

// Verb returns the command that wakes waiters, as an argument of scripts. Until the cluster has answered it is that
// of ordinary channels.
func (c *Channels) Verb() any {
	if c.sharding() == Sharded {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// Listen returns a Config's Listen. channel names the channel of a key. It may have to Decide.
func Listen[K comparable](c *Channels, channel func(key K) string) func(key K, kick func()) (stop func()) {
	ordinary := Listener(c.hub, channel)
	return func(key K, kick func()) func() {
		if c.Decide(); c.nodes || c.sharding() == Sharded {
			return c.shards.Subscribe(channel(key), kick).Close
		}
		return ordinary(key, kick)
	}
}

// Listener returns a Config's Listen that subscribes to the channel of a key.
func Listener[K comparable](hub *Hub, channel func(key K) string) func(key K, kick func()) (stop func()) {
	return func(key K, kick func()) func() {
		sub := hub.Subscribe(channel(key), kick)
		select {
		case <-sub.Ready():
			// The channel was subscribed before, so no confirmation follows. A message that was published
			// between the last attempt and now was not heard.
			kick()
		default:
		}
		return sub.Close
	}
}

// Receive has receive called with each message on a channel, and with "" whenever messages may have been missed,
// until stop is called. It may block on the network: in a cluster it may have to Decide.
func (c *Channels) Receive(channel string, receive func(message string)) (stop func()) {
	if c.Decide(); c.nodes || c.sharding() == Sharded {
		return c.shards.Receive(channel, receive).Close
	}
	return c.hub.Receive(channel, receive).Close
}

// Close ends all subscriptions.
func (c *Channels) Close(ctx context.Context) error {
	err := c.hub.Close(ctx)
	if c.shards != nil {
		err = conventions.Join(err, c.shards.Close(ctx))
	}
	return err
}
