package pubsub

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// moveAfter is the time from the end of a connection until its channels move to their masters.
const moveAfter = 100 * time.Millisecond

// Shards is a Hub for the sharded channels of a cluster, or for the channels of servers that are no cluster although
// their client is a ClusterClient. It has one Hub per master, on the client of that node, and subscribes each channel
// at the master of its slot. When a connection breaks, or a slot moves, it asks for the masters again and moves the
// channels. A ClusterClient cannot be used for this: after a break, go-redis would subscribe channels of different
// slots in one command, which a cluster refuses.
//
// Ground rules. mu guards every field below it and those of ShardSubscription. It is taken before the mu of a node's
// Hub, never after: a Hub calls broken without its mu.
type Shards struct {
	cluster *redis.ClusterClient
	sharded bool // the channels are sharded
	wheel   *wheel.Wheel
	opts    []Option
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu     sync.Mutex
	closed bool
	nodes  map[string]*Hub // of the present nodes, by address
	hubs   []*Hub          // of all nodes there ever were
	subs   map[*ShardSubscription]struct{}
	timer  wheel.Timer // of the next placeAll
}

// ShardSubscription is one subscriber's interest in a sharded channel.
type ShardSubscription struct {
	shards  *Shards
	channel string
	receive func(message string)
	refused func()
	brief   bool
	inner   *Subscription // nil while the channel's master is not known
}

// NewShards returns a Shards for sharded or ordinary channels. It starts nothing until the first Subscribe.
func NewShards(cluster *redis.ClusterClient, w *wheel.Wheel, sharded bool, opts ...Option) *Shards {
	s := &Shards{
		cluster: cluster, sharded: sharded, wheel: w, opts: opts,
		nodes: make(map[string]*Hub), subs: make(map[*ShardSubscription]struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Subscribe is like [Hub.Subscribe]. It blocks on the network if the client does not know the state of the cluster yet.
// If the channel is subscribed already, Subscribe calls wake before it returns.
func (s *Shards) Subscribe(channel string, wake func()) *ShardSubscription {
	return s.Receive(channel, func(string) { wake() }, nil)
}

// Receive is like [Hub.Receive], and blocks as Subscribe does.
func (s *Shards) Receive(channel string, receive func(message string), refused func()) *ShardSubscription {
	sub := &ShardSubscription{shards: s, channel: channel, receive: receive, refused: refused}
	s.mu.Lock()
	if !s.closed {
		s.subs[sub] = struct{}{}
	}
	s.mu.Unlock()
	s.place(sub)
	return sub
}

// Close ends the subscription.
func (sub *ShardSubscription) Close() {
	s := sub.shards
	s.mu.Lock()
	delete(s.subs, sub)
	inner := sub.inner
	sub.inner = nil
	s.mu.Unlock()
	if inner != nil {
		inner.brief = sub.brief
		inner.Close()
	}
}

// place subscribes the channel at its master, unless it is subscribed there already.
func (s *Shards) place(sub *ShardSubscription) {
	node, err := s.cluster.MasterForKey(s.ctx, sub.channel)
	s.mu.Lock()
	if _, wanted := s.subs[sub]; !wanted {
		s.mu.Unlock()
		return
	}
	if err != nil {
		s.placeAllLater()
		s.mu.Unlock()
		return
	}
	hub, old := s.hubOf(node), sub.inner
	if old != nil && old.hub == hub {
		s.mu.Unlock()
		return
	}
	sub.inner = hub.Receive(sub.channel, sub.receive, sub.refused)
	ready := sub.inner.Ready()
	s.mu.Unlock()
	if old != nil {
		old.Close()
	}
	select {
	case <-ready: // the channel was subscribed already: messages published before now did not reach sub
		sub.receive("")
	default:
	}
}

// subscribed reports whether a node has confirmed the channel.
func (s *Shards) subscribed(channel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, hub := range s.nodes {
		if hub.subscribed(channel) {
			return true
		}
	}
	return false
}

func (s *Shards) idle(but string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, hub := range s.nodes {
		if !hub.idle(but) {
			return false
		}
	}
	return true
}

// hubOf returns the Hub of a node. mu is held.
func (s *Shards) hubOf(node *redis.Client) *Hub {
	addr := node.Options().Addr
	hub := s.nodes[addr]
	if hub == nil || hub.rdb != redis.UniversalClient(node) { // a node that came back has a new client
		hub = New(node, s.wheel, s.opts...)
		hub.sharded, hub.broken = s.sharded, s.broken
		s.nodes[addr] = hub
		s.hubs = append(s.hubs, hub)
	}
	return hub
}

// broken is called when the connection of a node's Hub has ended.
func (s *Shards) broken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.placeAllLater()
}

// placeAllLater makes the client ask for the masters, and schedules placeAll. mu is held.
func (s *Shards) placeAllLater() {
	if s.closed || s.timer.Pending() {
		return
	}
	s.cluster.ReloadState(s.ctx)
	// If the wheel is stopped, subscribers only poll.
	s.timer, _ = wheelentry.AfterFunc(s.wheel, moveAfter, s.placeAll)
}

// placeAll places every subscription.
func (s *Shards) placeAll(stopped error) {
	if stopped != nil {
		return
	}
	s.mu.Lock()
	subs := make([]*ShardSubscription, 0, len(s.subs))
	for sub := range s.subs {
		subs = append(subs, sub)
	}
	s.mu.Unlock()
	for _, sub := range subs {
		s.place(sub)
	}
}

// Close is like [Hub.Close].
func (s *Shards) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	s.timer.Stop()
	clear(s.subs)
	hubs := s.hubs
	s.mu.Unlock()
	var errs []error
	for _, hub := range hubs {
		errs = append(errs, hub.Close(ctx))
	}
	return errors.Join(errs...)
}
