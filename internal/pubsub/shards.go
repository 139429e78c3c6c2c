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

// rehomeAfter is how long after a connection broke its channels look for their masters.
const rehomeAfter = 100 * time.Millisecond

// Shards is a Hub for the sharded channels of a cluster: one Hub per master, on that node's own client. Each
// channel is subscribed where its slot is. When that connection breaks, or the slot leaves, its channels look
// for their master again and move. go-redis would subscribe channels of different slots again in one command,
// which a cluster refuses.
//
// Ground rules. mu guards every field below it and those of ShardSubscription. It is taken before the mu of a
// node's Hub, never after: nodes call back without theirs.
type Shards struct {
	cluster *redis.ClusterClient
	wheel   *wheel.Wheel
	opts    []Option
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu     sync.Mutex
	closed bool
	nodes  map[string]*Hub // by address, the present ones
	hubs   []*Hub          // all of them
	subs   map[*ShardSubscription]struct{}
	timer  wheel.Timer // of the next look for masters
}

// ShardSubscription is one subscriber's interest in a sharded channel.
type ShardSubscription struct {
	shards  *Shards
	channel string
	receive func(message string)
	inner   *Subscription // nil while the channel's master is not known
}

// NewShards returns Shards that start nothing until the first Subscribe.
func NewShards(cluster *redis.ClusterClient, w *wheel.Wheel, opts ...Option) *Shards {
	s := &Shards{
		cluster: cluster, wheel: w, opts: opts,
		nodes: make(map[string]*Hub), subs: make(map[*ShardSubscription]struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Subscribe is as [Hub.Subscribe]. It blocks on the network if the client does not know the cluster's state
// yet. If the channel was subscribed before, wake is called at once.
func (s *Shards) Subscribe(channel string, wake func()) *ShardSubscription {
	return s.Receive(channel, func(string) { wake() })
}

// Receive is as [Hub.Receive], and blocks as Subscribe does.
func (s *Shards) Receive(channel string, receive func(message string)) *ShardSubscription {
	sub := &ShardSubscription{shards: s, channel: channel, receive: receive}
	s.mu.Lock()
	if !s.closed {
		s.subs[sub] = struct{}{}
	}
	s.mu.Unlock()
	s.place(sub)
	return sub
}

// Close ends the interest.
func (sub *ShardSubscription) Close() {
	s := sub.shards
	s.mu.Lock()
	delete(s.subs, sub)
	inner := sub.inner
	sub.inner = nil
	s.mu.Unlock()
	if inner != nil {
		inner.Close()
	}
}

// place subscribes at the channel's master, if it is not there already.
func (s *Shards) place(sub *ShardSubscription) {
	node, err := s.cluster.MasterForKey(s.ctx, sub.channel)
	s.mu.Lock()
	if _, wanted := s.subs[sub]; !wanted {
		s.mu.Unlock()
		return
	}
	if err != nil {
		s.lookLater()
		s.mu.Unlock()
		return
	}
	hub, old := s.at(node), sub.inner
	if old != nil && old.hub == hub {
		s.mu.Unlock()
		return
	}
	sub.inner = hub.Receive(sub.channel, sub.receive)
	ready := sub.inner.Ready()
	s.mu.Unlock()
	if old != nil {
		old.Close()
	}
	select {
	case <-ready: // by another's subscription: what was published before this one was not heard
		sub.receive("")
	default:
	}
}

// at returns the Hub of a node. mu is held.
func (s *Shards) at(node *redis.Client) *Hub {
	addr := node.Options().Addr
	hub := s.nodes[addr]
	if hub == nil || hub.rdb != redis.UniversalClient(node) { // a node that came back has a new client
		hub = New(node, s.wheel, s.opts...)
		hub.sharded, hub.broken = true, s.broken
		s.nodes[addr] = hub
		s.hubs = append(s.hubs, hub)
	}
	return hub
}

// broken is called by a node's Hub whose connection has ended.
func (s *Shards) broken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookLater()
}

// lookLater has the masters looked for soon. mu is held.
func (s *Shards) lookLater() {
	if s.closed || s.timer.Pending() {
		return
	}
	s.cluster.ReloadState(s.ctx)
	// Without a wheel subscribers live on polling.
	s.timer, _ = wheelentry.AfterFunc(s.wheel, rehomeAfter, s.look)
}

func (s *Shards) look(stopped error) {
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

// Close is as [Hub.Close].
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
