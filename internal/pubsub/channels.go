package pubsub

import (
	"context"
	"sync/atomic"
	"time"

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
	ring    bool // there are no messages
}

// NewChannels returns the channels of a client. They cost nothing until Listen is used.
func NewChannels(rdb redis.UniversalClient, w *wheel.Wheel, choice Sharding) *Channels {
	c := &Channels{hub: New(rdb, w)}
	_, c.ring = rdb.(*redis.Ring)
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

// Counted reports whether the reply to Verb is the number of all subscribers of a channel. On ordinary channels of a
// cluster each node counts its own, and a Ring has none.
func (c *Channels) Counted() bool {
	return !c.ring && (c.cluster == nil || c.nodes || c.sharding() == Sharded)
}

// Listen returns a Config's Listen. channel names the channel of a key. It may have to Decide.
func Listen[K comparable](
	c *Channels, channel func(key K) string,
) func(key K, wake func(in time.Duration)) (stop func()) {
	return func(key K, wake func(time.Duration)) func() {
		return c.Subscribe(channel(key), func(string) { wake(0) }, false)
	}
}

// Subscribe is Receive for a subscriber that cannot do without the messages. A brief subscription ends in Redis as soon
// as it is stopped; others linger.
func (c *Channels) Subscribe(channel string, receive func(message string), brief bool) (stop func()) {
	if c.Decide(); c.nodes || c.sharding() == Sharded {
		sub := c.shards.Receive(channel, receive, nil)
		sub.brief = brief
		return sub.Close
	}
	sub := c.hub.follow(channel, receive, false, nil)
	sub.brief = brief
	return sub.Close
}

// Receive has receive called with each message on a channel, and with "" whenever messages may have been missed, also
// at once if the channel is subscribed already, until stop is called. It may block on the network: in a cluster it may
// have to Decide. See [Hub.Receive].
func (c *Channels) Receive(channel string, receive func(message string), refused func()) (stop func()) {
	if c.Decide(); c.nodes || c.sharding() == Sharded {
		return c.shards.Receive(channel, receive, refused).Close
	}
	return c.hub.follow(channel, receive, true, refused).Close
}

// Subscribed reports whether the channel is subscribed, or still is from its last use.
func (c *Channels) Subscribed(channel string) bool {
	if c.shards != nil && c.shards.subscribed(channel) {
		return true
	}
	return c.hub.subscribed(channel)
}

// Idle reports whether no other channel than one is subscribed.
func (c *Channels) Idle(but string) bool {
	return c.hub.idle(but) && (c.shards == nil || c.shards.idle(but))
}

// Close ends all subscriptions.
func (c *Channels) Close(ctx context.Context) error {
	err := c.hub.Close(ctx)
	if c.shards != nil {
		err = conventions.Join(err, c.shards.Close(ctx))
	}
	return err
}
