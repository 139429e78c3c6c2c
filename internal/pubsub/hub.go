package pubsub

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Hub shares one subscription connection among all subscribers of one client.
// It is safe for concurrent use.
//
// Ground rules. mu guards every field of Hub, topic and link below it. No network
// call, no wake function and no PubSub method runs under mu. The goroutine of run is
// the only one that connects and receives. Commands on an established connection are
// written by at most one flush at a time, which takes what to write from the
// difference between topics (wanted) and link.sent (told the server), so the order
// in which callers come and go does not matter, only where they end up.
type Hub struct {
	rdb   redis.UniversalClient
	wheel *wheel.Wheel
	cfg   config

	sharded bool   // the channels are; one node has all their slots
	broken  func() // called when a connection has ended, unless nil

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	gate   gate.Gate // entered by the hub's goroutines; entered and closed under mu

	mu      sync.Mutex
	topics  map[string]*topic
	link    *link // the connection in use or being made, nil between two
	running bool  // run is alive

	waking []*Subscription // scratch of run alone
}

// topic is a channel that is wanted: used now, or lingering.
type topic struct {
	channel   string
	subs      []*Subscription
	ready     chan struct{}
	confirmed bool // ready is closed
	optional  bool // its refusal must not end the connection again
	refused   bool // by the server; only an optional one is

	linger    wheel.Timer
	lingering bool // linger is pending
	used      bool // since linger was armed
	expire    func(error)
}

// Subscription is one subscriber's interest in a channel.
type Subscription struct {
	hub     *Hub
	receive func(message string) // gets "" after a confirmation
	ready   <-chan struct{}

	topic *topic // nil once closed; guarded by hub.mu
	index int    // in topic.subs
}

// New returns a hub for the client. It starts nothing until the first
// Subscribe. It panics on an option out of range.
//
// The hub of a *redis.Ring is closed from the start, so that its subscribers live
// on polling alone: a ring has no server that hears of every channel, and go-redis
// cannot subscribe to several of them there at once.
func New(rdb redis.UniversalClient, w *wheel.Wheel, opts ...Option) *Hub {
	cfg := config{linger: defaultLinger, ping: defaultPing}
	for _, opt := range opts {
		opt.apply(&cfg)
	}
	if cfg.linger < 0 || cfg.ping <= 0 {
		panic(fmt.Sprintf("pubsub: linger %v or ping interval %v out of range", cfg.linger, cfg.ping))
	}
	h := &Hub{
		rdb:    rdb,
		wheel:  w,
		cfg:    cfg,
		topics: make(map[string]*topic),
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	if _, ring := rdb.(*redis.Ring); ring {
		_ = h.Close(h.ctx) // nothing runs yet, so this cannot fail
	}
	return h
}

// Subscribe makes the hub call wake for every message on the channel and after
// every confirmation of its subscription. It never blocks on the network: while
// Redis is out of reach the subscription is tried again in the background.
//
// wake runs on the hub's goroutine and must not block. It may use the hub. It
// may run once more while or just after Close returns. After the hub was closed,
// Subscribe returns a Subscription that never wakes.
func (h *Hub) Subscribe(channel string, wake func()) *Subscription {
	if wake == nil {
		panic("pubsub: nil wake function")
	}
	return h.subscribe(channel, func(string) { wake() }, false)
}

// Receive is Subscribe for a subscriber that reads the messages and can do without
// them. receive gets each message, and "" after every confirmation of the
// subscription. If the server refuses the channel, for want of a right say, it is
// not asked again, so that the other channels of the connection go on; the next
// Receive after the linger asks.
func (h *Hub) Receive(channel string, receive func(message string)) *Subscription {
	return h.subscribe(channel, receive, true)
}

func (h *Hub) subscribe(channel string, receive func(message string), optional bool) *Subscription {
	s := &Subscription{hub: h, receive: receive}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate.Closed() {
		return s
	}
	t := h.topics[channel]
	if t == nil {
		t = h.open(channel, optional)
	}
	s.topic, s.index, s.ready = t, len(t.subs), t.ready
	t.subs = append(t.subs, s)
	if !h.running && h.gate.Enter() {
		h.running = true
		go h.run()
	}
	return s
}

// open adds a topic and has it subscribed. mu is held.
func (h *Hub) open(channel string, optional bool) *topic {
	t := &topic{channel: channel, optional: optional, ready: make(chan struct{})}
	t.expire = func(error) { h.expire(t) }
	if h.link != nil && h.link.sent[channel] {
		t.confirm() // not yet unsubscribed since its last use
	}
	h.topics[channel] = t
	h.changed(channel)
	return t
}

// Ready returns a channel that is closed once the server has confirmed the
// subscription: messages published later arrive unless the connection breaks. It
// stays open as long as Redis is out of reach, so wait on it with a bound.
func (s *Subscription) Ready() <-chan struct{} { return s.ready }

// Close ends the interest. The channel itself lingers. Close does not block on
// the network, may be called more than once, and must be called for the
// connection to be closed one day.
func (s *Subscription) Close() {
	h := s.hub
	h.mu.Lock()
	t := s.topic
	if t == nil {
		h.mu.Unlock()
		return
	}
	s.topic = nil
	last := len(t.subs) - 1
	t.subs[s.index] = t.subs[last]
	t.subs[s.index].index = s.index
	t.subs[last] = nil
	t.subs = t.subs[:last]
	var idle *link
	if last == 0 {
		idle = h.unused(t)
	}
	h.mu.Unlock()
	idle.close()
}

// unused lets a topic without subscribers linger. A hot channel is used and
// left again and again: only the first time arms an entry, which then notes that
// the topic was used meanwhile and goes round once more. mu is held.
func (h *Hub) unused(t *topic) (idle *link) {
	if h.gate.Closed() {
		return nil
	}
	if t.lingering {
		t.used = true
		return nil
	}
	return h.arm(t)
}

// arm starts the linger, or drops the topic where there is none. mu is held.
func (h *Hub) arm(t *topic) (idle *link) {
	t.lingering, t.used = false, false
	if h.cfg.linger == 0 {
		return h.drop(t)
	}
	timer, err := wheelentry.AfterFunc(h.wheel, h.cfg.linger, t.expire)
	if err != nil {
		return h.drop(t)
	}
	t.linger, t.lingering = timer, true
	return nil
}

// expire is the end of a linger.
func (h *Hub) expire(t *topic) {
	h.mu.Lock()
	var idle *link
	switch {
	case h.gate.Closed():
	case len(t.subs) > 0:
		t.lingering = false
	case t.used:
		idle = h.arm(t)
	default:
		idle = h.drop(t)
	}
	h.mu.Unlock()
	idle.close()
}

// drop removes a topic. After the last one it returns the connection, which the
// caller closes once it has let go of mu; run then ends. mu is held.
func (h *Hub) drop(t *topic) (idle *link) {
	delete(h.topics, t.channel)
	if h.wants() {
		h.changed(t.channel)
		return nil
	}
	idle, h.link = h.link, nil
	return idle
}

// changed has the server told about a channel that is wanted or not wanted any
// more. Without a connection there is nothing to do: a new one starts with all
// topics. mu is held.
func (h *Hub) changed(channel string) {
	l := h.link
	if l == nil {
		return
	}
	l.dirty = append(l.dirty, channel)
	if !l.flushing && h.gate.Enter() {
		l.flushing = true
		go h.flushLater(l)
	}
}

// confirm closes ready.
func (t *topic) confirm() {
	t.confirmed = true
	close(t.ready)
}

// Close ends the connection and the goroutine, and waits for the latter as long
// as ctx allows; a connection attempt under way may take its timeout. No
// subscriber is woken. Later calls of Subscribe return subscriptions that never wake.
func (h *Hub) Close(ctx context.Context) error {
	h.mu.Lock()
	var last *link
	h.cancel()
	if h.gate.Close() {
		for _, t := range h.topics {
			t.linger.Stop()
		}
		last, h.link = h.link, nil
	}
	h.mu.Unlock()
	last.close()
	if err := h.gate.Wait(ctx); err != nil {
		return fmt.Errorf("pubsub: close: %w", err)
	}
	return nil
}
