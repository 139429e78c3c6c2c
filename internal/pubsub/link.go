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
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// noDial keeps a PubSub from connecting again by itself: a context that has
// ended fails the dial and harms nothing else. A link is given up on its first
// error and replaced by run, which knows about backing off.
var noDial = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// link is one subscription connection. Everything that talks to the server is in
// this file.
type link struct {
	ps     *redis.PubSub
	ctx    context.Context // of connecting
	cancel context.CancelFunc
	heard  atomic.Bool // something arrived since the last check
	up     atomic.Bool // connected; set under Hub.mu

	// Guarded by Hub.mu.
	sent     map[string]bool // channels told to the server; true once confirmed
	dirty    []string        // channels whose topic came or went
	flushing bool            // a flush that will look at dirty is due
	check    wheel.Timer
	pinged   bool
}

// close ends the connection or the attempt to make one. A nil link is none.
func (l *link) close() {
	if l == nil {
		return
	}
	l.cancel()
	// While connecting, PubSub holds its lock and Close would wait for it; the
	// end of ctx makes that fail and serve closes then.
	if l.up.Load() {
		_ = l.ps.Close()
	}
}

// run connects and receives until no topic is left. Without a wheel to pause on
// it ends: for good if the wheel has stopped, until the next Subscribe if the wheel
// is full.
func (h *Hub) run() {
	defer h.gate.Leave()
	for attempt := 0; ; attempt++ {
		l := h.begin()
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
		if err := h.wheel.Sleep(h.ctx, backoff(attempt)); err != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			if errors.Is(err, wheel.ErrStopped) {
				h.gate.Close()
			}
			h.running = false
			return
		}
	}
}

// A reloader is a cluster client. It goes on dialing a dead master until it looks
// at the cluster's state again, which may take a minute unless it is told to.
type reloader interface{ ReloadState(ctx context.Context) }

// backoff returns the pause before connection attempt n+1, spread at random so
// that clients of a restarted server do not come all at once.
func backoff(n int) time.Duration {
	d := min(minBackoff<<min(n, 16), maxBackoff)
	return d/2 + rand.N(d/2)
}

// begin returns a new link on which every topic is still to be subscribed, or
// nil if run has to end.
func (h *Hub) begin() *link {
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

// wants reports whether there is a channel to subscribe. mu is held.
func (h *Hub) wants() bool {
	for _, t := range h.topics {
		if !t.refused {
			return true
		}
	}
	return false
}

// serve connects, subscribes and receives until the link breaks or is not needed
// any more. It reports whether the server confirmed a subscription.
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

// receive waits for the next message. go-redis panics on a reply that is none to a subscription, as from a proxy
// that confuses replies; that breaks the link.
func (l *link) receive() (msg any, err error) {
	err = recovered(func() (err error) {
		msg, err = l.ps.Receive(noDial)
		return err
	})
	return msg, err
}

// recovered calls f, and makes a panic, as of a hook of the redis client, an error: it breaks the link.
func recovered(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("pubsub: panic: %v", v)
		}
	}()
	return f()
}

// refuseOptional gives up the optional channels that were asked for on a link and not confirmed, after the server
// has refused one of its channels.
func (h *Hub) refuseOptional(l *link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for channel, confirmed := range l.sent {
		if t := h.topics[channel]; t != nil && t.optional && !confirmed {
			t.refused = true
		}
	}
}

// errGone ends work on a link that is not the hub's any more.
var errGone = errors.New("pubsub: the connection was given up")

// flush tells the server which channels are wanted until it is up to date. The
// first flush of a link connects.
func (h *Hub) flush(ctx context.Context, l *link) error {
	for {
		add, remove, err := h.difference(l)
		if err != nil || len(add)+len(remove) == 0 {
			return err
		}
		if len(remove) > 0 {
			if err := h.tell(ctx, l.ps.Unsubscribe, l.ps.SUnsubscribe, remove); err != nil {
				return err
			}
		}
		if len(add) > 0 {
			if err := h.tell(ctx, l.ps.Subscribe, l.ps.SSubscribe, add); err != nil {
				return err
			}
		}
	}
}

// tell sends one command for all channels, or one for each if they are sharded: a
// command must not span slots.
func (h *Hub) tell(
	ctx context.Context, whole, sharded func(context.Context, ...string) error, channels []string,
) error {
	return recovered(func() error {
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

// expelled reports whether the server has ended a subscription by itself, because
// the slot has left it. The end of one that the hub asked for finds it not told or
// not confirmed again.
func (h *Hub) expelled(l *link, channel string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return l.sent[channel]
}

// difference returns what the server has to be told and assumes it told. If that
// is nothing, the flush is over.
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

// flushLater writes for a caller that must not block, in a goroutine that lives
// for the length of a socket write.
func (h *Hub) flushLater(l *link) {
	defer h.gate.Leave()
	if err := h.flush(noDial, l); err != nil {
		l.close()
	}
}

// connected admits the link to service, unless it was given up meanwhile.
func (h *Hub) connected(l *link) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link != l {
		return false
	}
	l.up.Store(true)
	return h.armCheck(l)
}

// armCheck schedules the next checkup. It returns false if the wheel is stopped or
// full: nothing would notice the death of a connection without checkups, so the
// caller gives it up. mu is held.
func (h *Hub) armCheck(l *link) bool {
	var err error
	l.check, err = wheelentry.AfterFunc(h.wheel, h.cfg.ping, func(stopped error) { h.checkup(l, stopped) })
	return err == nil
}

// checkup pings a connection that has been silent for an interval and gives it up
// when that brought no answer within the next. It also gives it up when the wheel
// was stopped.
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
	if dead || silent && recovered(func() error { return l.ps.Ping(noDial) }) != nil {
		l.close()
	}
}

// end takes the link out of service. Its topics stay and wait for the next one.
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

// confirm notes that the server has subscribed the channel and wakes its
// subscribers, who may have missed messages until now.
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

// deliver calls the subscribers of a channel without mu, so they may use the hub.
// Only run calls it.
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
