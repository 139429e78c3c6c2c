package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/usercode"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// noDial keeps a PubSub from connecting again: a context that has ended makes the dial fail, and has no other effect.
// At the first error of a link, run replaces the link, after a pause.
var noDial = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// link is one subscription connection. All code that talks to the server is in this file.
type link struct {
	ps     *redis.PubSub
	ctx    context.Context // of connecting
	cancel context.CancelFunc
	heard  atomic.Bool // something arrived since the last check
	up     atomic.Bool // connected; set under Hub.mu

	// Guarded by Hub.mu.
	sent     map[string]bool // channels of SUBSCRIBE commands; true once confirmed
	dirty    []string        // channels whose topic was added or removed
	flushing bool            // a flush runs, or is about to, that will read dirty
	check    wheel.Timer     // of the next checkup
	pinged   bool            // the last checkup sent a PING
}

// close ends the connection or the attempt to make one. A nil link is none.
func (l *link) close() {
	if l == nil {
		return
	}
	l.cancel()
	// While it connects, PubSub holds its lock, and Close would wait for it. The end of ctx makes the attempt fail, and
	// then serve closes ps.
	if l.up.Load() {
		_ = l.ps.Close()
	}
}

// run connects and receives until no topic is left. It needs the wheel for pauses: if the wheel has stopped, run ends
// for good.
func (h *Hub) run() {
	defer h.gate.Leave()
	for attempt := 0; ; attempt++ {
		l := h.newLink()
		if l == nil {
			return
		}
		if confirmed := h.serve(l); confirmed {
			attempt = 0
		} else if cluster, ok := h.rdb.(reloader); ok {
			cluster.ReloadState(h.ctx) // the node may have lost its slots
		}
		if h.broken != nil {
			h.broken()
		}
		if err := wheelentry.Sleep(h.ctx, h.wheel, backoff(attempt)); err != nil { // the wheel has stopped, or the hub
			h.mu.Lock()
			defer h.mu.Unlock()
			h.gate.Close()
			h.running = false
			return
		}
	}
}

// reloader is a cluster client. Without ReloadState, it may dial a dead master for a minute before it asks for the
// state of the cluster again.
type reloader interface{ ReloadState(ctx context.Context) }

// backoff returns the pause before connection attempt n+1. It is random, so that the clients of a restarted server do
// not all connect at once.
func backoff(n int) time.Duration {
	d := min(minBackoff<<min(n, 16), maxBackoff)
	return d/2 + rand.N(d/2)
}

// newLink returns a new link, with every topic in dirty, or nil if run has to end.
func (h *Hub) newLink() *link {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate.Closed() || !h.wants() {
		h.running = false
		return nil
	}
	l := &link{
		ps:       h.rdb.Subscribe(h.ctx), // without channels it does not connect
		sent:     make(map[string]bool, len(h.topics)),
		flushing: true,
	}
	l.ctx, l.cancel = context.WithCancel(h.ctx)
	for channel := range h.topics {
		l.dirty = append(l.dirty, channel)
	}
	h.link = l
	return l
}

// wants reports whether any channel is to be subscribed. mu is held.
func (h *Hub) wants() bool {
	for _, t := range h.topics {
		if !t.refused {
			return true
		}
	}
	return false
}

// serve connects, subscribes and receives until the link breaks or is no longer needed. It reports whether the server
// confirmed a subscription.
func (h *Hub) serve(l *link) (confirmed bool) {
	defer h.end(l)
	timeout, err := wheelentry.AfterFunc(h.wheel, connectTimeout, func(error) { l.cancel() })
	if err != nil {
		return false
	}
	err = h.flush(l.ctx, l)
	timeout.Stop()
	if err != nil || !h.connected(l) {
		return false
	}
	for {
		msg, err := l.receive()
		if err != nil {
			if redisconn.Permanent(err) {
				h.refuseOptional(l)
			}
			return confirmed
		}
		l.heard.Store(true)
		switch m := msg.(type) {
		case *redis.Subscription:
			switch m.Kind {
			case "subscribe", "ssubscribe":
				confirmed = true
				h.confirm(l, m.Channel)
			case "sunsubscribe":
				if h.expelled(l, m.Channel) {
					return confirmed
				}
			}
		case *redis.Message:
			h.deliver(m.Channel, m.Payload)
		}
	}
}

// receive waits for the next message. go-redis panics on a reply that does not belong to a subscription, as from a
// proxy that confuses replies. receive returns the panic as an error, which breaks the link.
func (l *link) receive() (msg any, err error) {
	usercode.Here(func() { msg, err = l.ps.Receive(noDial) }, func(f *usercode.Failure) { err = failed(f) })
	return msg, err
}

// apart calls f, which may call hooks of the redis client, apart. It returns a failure of one as an error.
func apart(f func() error) (err error) {
	usercode.Apart(func() { err = f() }, func(f *usercode.Failure) { err = failed(f) })
	return err
}

func failed(f *usercode.Failure) error { return fmt.Errorf("pubsub: a hook or go-redis %w", f) }

// refuseOptional handles the refusal of some channel of a link: it marks all optional channels that are not confirmed
// as refused.
func (h *Hub) refuseOptional(l *link) {
	var tell []func()
	h.mu.Lock()
	for channel, confirmed := range l.sent {
		t := h.topics[channel]
		if t == nil || !t.optional || confirmed {
			continue
		}
		t.refused = true
		for _, s := range t.subs {
			if s.refused != nil {
				tell = append(tell, s.refused)
			}
		}
	}
	h.mu.Unlock()
	for _, refused := range tell {
		refused()
	}
}

// errGone is the error of a flush of a link that the hub has given up.
var errGone = errors.New("pubsub: the connection was given up")

// flush subscribes and unsubscribes channels until the server has those that are wanted. The first flush of a link
// connects.
func (h *Hub) flush(ctx context.Context, l *link) error {
	for {
		add, remove, err := h.difference(l)
		if err != nil || len(add)+len(remove) == 0 {
			return err
		}
		if len(remove) > 0 {
			if err := h.send(ctx, l.ps.Unsubscribe, l.ps.SUnsubscribe, remove); err != nil {
				return err
			}
		}
		if len(add) > 0 {
			if err := h.send(ctx, l.ps.Subscribe, l.ps.SSubscribe, add); err != nil {
				return err
			}
		}
	}
}

// send sends one command for all channels, or one for each if they are sharded: a command must not span slots.
func (h *Hub) send(
	ctx context.Context, whole, sharded func(context.Context, ...string) error, channels []string,
) error {
	return apart(func() error {
		if !h.sharded {
			return whole(ctx, channels...)
		}
		for _, channel := range channels {
			if err := sharded(ctx, channel); err != nil {
				return err
			}
		}
		return nil
	})
}

// expelled reports whether the server has ended a subscription without a command of the hub, because the slot has moved
// to another node. After a command of the hub, the channel is absent from sent, or subscribed again and not confirmed.
func (h *Hub) expelled(l *link, channel string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return l.sent[channel]
}

// difference returns the channels to subscribe and to unsubscribe, and records them in sent. If there are none, the
// flush is over.
func (h *Hub) difference(l *link) (add, remove []string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link != l {
		return nil, nil, errGone
	}
	for _, channel := range l.dirty {
		t := h.topics[channel]
		wanted := t != nil && !t.refused
		_, sent := l.sent[channel]
		switch {
		case wanted && !sent:
			l.sent[channel] = false
			add = append(add, channel)
		case !wanted && sent:
			delete(l.sent, channel)
			remove = append(remove, channel)
		}
	}
	l.dirty = l.dirty[:0]
	l.flushing = len(add)+len(remove) > 0
	return add, remove, nil
}

// flushLater is flush on a goroutine of its own, for a caller that must not block. The goroutine lasts as long as a
// write to the socket.
func (h *Hub) flushLater(l *link) {
	defer h.gate.Leave()
	if err := h.flush(noDial, l); err != nil {
		l.close()
	}
}

// connected puts the link into service. It returns false if the hub has given the link up meanwhile.
func (h *Hub) connected(l *link) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link != l {
		return false
	}
	l.up.Store(true)
	return h.armCheck(l)
}

// armCheck schedules the next checkup. It returns false if the wheel is stopped. Then the caller gives the connection
// up, because without checkups nothing would notice its death. mu is held.
func (h *Hub) armCheck(l *link) bool {
	var err error
	l.check, err = wheelentry.AfterFunc(h.wheel, h.cfg.ping, func(stopped error) { h.checkup(l, stopped) })
	return err == nil
}

// checkup pings a connection that has been silent for an interval. It gives up a connection that was silent for another
// interval after the ping, and any connection if the wheel was stopped.
func (h *Hub) checkup(l *link, stopped error) {
	if stopped != nil {
		l.close()
		return
	}
	h.mu.Lock()
	if h.link != l {
		h.mu.Unlock()
		return
	}
	silent := !l.heard.Swap(false)
	dead := silent && l.pinged
	l.pinged = silent
	dead = dead || !h.armCheck(l)
	h.mu.Unlock()
	if dead || silent && apart(func() error { return l.ps.Ping(noDial) }) != nil {
		l.close()
	}
}

// end takes the link out of service. Its topics stay for the next link.
func (h *Hub) end(l *link) {
	h.mu.Lock()
	h.link = nil
	l.check.Stop()
	for _, t := range h.topics {
		if t.confirmed {
			t.confirmed, t.ready = false, make(chan struct{})
		}
	}
	h.mu.Unlock()
	l.cancel()
	_ = l.ps.Close()
}

// confirm records that the server has subscribed the channel. It wakes the subscribers, which may have missed messages
// until now.
func (h *Hub) confirm(l *link, channel string) {
	h.mu.Lock()
	if _, sent := l.sent[channel]; sent {
		l.sent[channel] = true
	}
	if t := h.topics[channel]; t != nil && h.link == l && !t.confirmed {
		t.confirm()
	}
	h.mu.Unlock()
	h.deliver(channel, "")
}

// deliver passes a message to the subscribers of a channel, without mu, so that they may use the hub. Only the
// goroutine of run calls it.
func (h *Hub) deliver(channel, message string) {
	h.mu.Lock()
	if t := h.topics[channel]; t != nil {
		h.waking = append(h.waking, t.subs...)
	}
	h.mu.Unlock()
	for _, s := range h.waking {
		s.receive(message)
	}
	clear(h.waking)
	h.waking = h.waking[:0]
}
