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
// Ground rules. mu guards the fields below it in Hub, topic and link. No network call, no wake function and no PubSub
// method runs under mu. Only the goroutine of run connects and receives. At most one flush at a time writes commands to
// an established connection. It writes the difference between topics (wanted channels) and link.sent (subscribed
// channels), so the order in which callers come and go does not matter.
type Hub struct {
	rdb   redis.UniversalClient
	wheel *wheel.Wheel
	cfg   config

	sharded bool   // the channels are sharded; one node has all their slots
	broken  func() // called when a connection has ended, unless nil

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	gate   gate.Gate // entered by the hub's goroutines; entered and closed under mu

	mu      sync.Mutex
	topics  map[string]*topic
	link    *link // the connection in use or being made; nil between two connections
	running bool  // there is a goroutine of run

	waking []*Subscription // scratch of run
}

// topic is a wanted channel: one with subscribers, or one that lingers.
type topic struct {
	channel   string
	subs      []*Subscription
	ready     chan struct{}
	confirmed bool // ready is closed
	optional  bool // made by Receive: a refusal of the channel must not end the connection again
	refused   bool // the server refused the channel, which is optional

	linger    wheel.Timer
	lingering bool // linger is pending
	used      bool // the topic had a subscriber since linger was armed
	expire    func(error)
}

// Subscription is one subscriber's interest in a channel.
type Subscription struct {
	hub     *Hub
	receive func(message string) // gets "" after a confirmation
	refused func()               // called when the server has refused the channel; may be nil
	brief   bool                 // the channel does not linger
	ready   <-chan struct{}

	topic *topic // nil once closed; guarded by hub.mu
	index int    // in topic.subs
}

// New returns a hub for the client. It starts nothing until the first
// Subscribe. It panics on an option out of range.
//
// The hub of a *redis.Ring is closed from the start, so that its subscribers only poll: no server of a ring receives
// the messages of every channel, and go-redis cannot subscribe to several of its servers at once.
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

// Subscribe makes the hub call wake for every message on the channel and after every confirmation of its subscription.
// It never blocks on the network: while Redis is out of reach, the hub goes on trying in the background.
//
// wake runs on the hub's goroutine and must not block. It may use the hub. It may run once more while
// Subscription.Close returns, or just after. On a closed hub, Subscribe returns a Subscription that never wakes.
func (h *Hub) Subscribe(channel string, wake func()) *Subscription {
	if wake == nil {
		panic("pubsub: nil wake function")
	}
	return h.subscribe(channel, func(string) { wake() }, false, nil)
}

// Receive is Subscribe for a subscriber that reads the messages and can do without them. receive gets each message, and
// "" after every confirmation of the subscription. If the server refuses the channel, for example for lack of a right,
// the hub calls refused, unless that is nil. It does not subscribe the channel again until the topic has ended, so that
// the other channels of the connection work.
func (h *Hub) Receive(channel string, receive func(message string), refused func()) *Subscription {
	return h.subscribe(channel, receive, true, refused)
}

func (h *Hub) subscribe(channel string, receive func(message string), optional bool, refused func()) *Subscription {
	s := &Subscription{hub: h, receive: receive, refused: refused}
	wasRefused := false
	defer func() {
		if wasRefused && refused != nil {
			refused()
		}
	}()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate.Closed() {
		return s
	}
	t := h.topics[channel]
	if t == nil {
		t = h.open(channel, optional)
	}
	s.topic, s.index, s.ready, wasRefused = t, len(t.subs), t.ready, t.refused
	t.subs = append(t.subs, s)
	if !h.running && h.gate.Enter() {
		h.running = true
		go h.run()
	}
	return s
}

// follow is subscribe, and calls receive with "" if the channel is subscribed already: no confirmation follows, and
// a message that was published just before was not heard.
func (h *Hub) follow(channel string, receive func(message string), optional bool, refused func()) *Subscription {
	s := h.subscribe(channel, receive, optional, refused)
	select {
	case <-s.Ready():
		receive("")
	default:
	}
	return s
}

// subscribed reports whether the server has confirmed the channel.
func (h *Hub) subscribed(channel string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	return t != nil && t.confirmed
}

func (h *Hub) idle(but string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.topics)
	return n == 0 || n == 1 && h.topics[but] != nil
}

// open adds a topic and starts its subscription. mu is held.
func (h *Hub) open(channel string, optional bool) *topic {
	t := &topic{channel: channel, optional: optional, ready: make(chan struct{})}
	t.expire = func(error) { h.expire(t) }
	if h.link != nil && h.link.sent[channel] {
		t.confirm() // the channel is still subscribed from its last use
	}
	h.topics[channel] = t
	h.changed(channel)
	return t
}

// Ready returns a channel that is closed once the server has confirmed the subscription. Messages published later
// arrive unless the connection breaks. The channel stays open while Redis is out of reach, so wait for it with a
// timeout.
func (s *Subscription) Ready() <-chan struct{} { return s.ready }

// Close ends the subscription. The channel lingers. Close does not block on the network and may be called more than
// once. The hub keeps its connection while any Subscription is not closed.
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
		idle = h.unused(t, s.brief)
	}
	h.mu.Unlock()
	idle.close()
}

// unused lets a topic without subscribers linger, unless the last one was brief. A channel in constant use gains and
// loses subscribers again and again: only the first time arms an entry, and the entry is armed again if the topic was
// used meanwhile. mu is held.
func (h *Hub) unused(t *topic, brief bool) (idle *link) {
	if h.gate.Closed() {
		return nil
	}
	if brief {
		t.linger.Stop()
		return h.drop(t)
	}
	if t.lingering {
		t.used = true
		return nil
	}
	return h.arm(t)
}

// arm starts the linger, or drops the topic if there is no linger. mu is held.
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

// drop removes a topic. If no topic is wanted any more, it returns the connection. The caller must close it after it
// has released mu; then run ends. mu is held.
func (h *Hub) drop(t *topic) (idle *link) {
	delete(h.topics, t.channel)
	if h.wants() {
		h.changed(t.channel)
		return nil
	}
	idle, h.link = h.link, nil
	return idle
}

// changed starts a flush for a channel that is wanted now, or not any more. Without a connection there is nothing to
// do: a new one starts with all topics. mu is held.
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

// confirm closes ready. mu is held.
func (t *topic) confirm() {
	t.confirmed = true
	close(t.ready)
}

// Close ends the connection and the goroutines. It waits for the goroutines until ctx ends; an attempt to connect may
// last until its timeout. Close wakes no subscriber. Later calls of Subscribe return subscriptions that never wake.
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
