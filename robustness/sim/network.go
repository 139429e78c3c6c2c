package sim

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// network connects the processes of a fleet with the server. One mutex guards all of it; nothing waits while
// holding it.
type network struct {
	mu    sync.Mutex
	seed  uint64
	least time.Duration // of a message on its way
	most  time.Duration
	serve func(c net.Conn, of *conn)
	conns int
	hangs time.Time // the server reads nothing before
	down  bool      // the server accepts no connection
	hides bool      // a proxy hides the addresses of servers
	links []*link
}

// link is the network as one process sees it.
type link struct {
	net    *network
	number int
	conns  map[*conn]struct{}

	frozen       time.Time // the process does not run before
	cut          time.Time // nothing passes before
	dead         bool      // the process was killed
	lostCalls    loss
	lostReply    loss
	late         loss        // requests that arrive after their connection was given up
	lostMessages loss        // of subscriptions
	unheard      []time.Time // when it wrote to a silent connection
	slow         time.Duration
	slowBefore   time.Time
}

// loss is a fault of the next messages.
type loss struct {
	left  int
	after time.Duration
	met   func()
}

// take counts a message, and reports whether it meets the fault.
func (l *loss) take() bool {
	if l.left == 0 {
		return false
	}
	l.left--
	l.met()
	return true
}

// conn is a connection: up are the bytes on their way to the server, and down those on their way to the client.
type conn struct {
	link     *link
	number   int
	to       address // of a server, as it was dialed
	up, down stream
	messages uint64
	open     bool // at the client
	deafUp   bool // what the client sends is lost
	deafDown bool
}

// stream is one direction. What is written can be read after its delay.
type stream struct {
	mu       *sync.Mutex
	changed  sync.Cond
	segments []segment
	end      error            // after the segments; nil while the stream is open
	waits    func() time.Time // nothing is read before: a process or a server stands still
	deadline time.Time
	alarm    *time.Timer
}

type segment struct {
	at   time.Time
	data []byte
}

func (s *stream) init(mu *sync.Mutex, waits func() time.Time) {
	s.mu, s.changed.L, s.waits = mu, mu, waits
}

// addLocked puts data on its way. Bytes do not overtake each other.
func (s *stream) addLocked(at time.Time, data []byte) {
	if s.end != nil {
		return
	}
	if n := len(s.segments); n > 0 && at.Before(s.segments[n-1].at) {
		at = s.segments[n-1].at
	}
	s.segments = append(s.segments, segment{at, bytes.Clone(data)})
	s.changed.Broadcast()
}

func (s *stream) endLocked(err error) {
	if s.end == nil {
		s.end = err
	}
	s.changed.Broadcast()
}

func (s *stream) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		now := time.Now()
		var until time.Time
		switch waits := s.waits(); {
		case now.Before(waits):
			until = waits
		case !s.deadline.IsZero() && !now.Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(s.segments) > 0 && !now.Before(s.segments[0].at):
			first := &s.segments[0]
			n := copy(p, first.data)
			if first.data = first.data[n:]; len(first.data) == 0 {
				s.segments = s.segments[1:]
			}
			return n, nil
		case len(s.segments) == 0 && s.end != nil:
			return 0, s.end
		default:
			until = s.deadline
			if len(s.segments) > 0 && (until.IsZero() || s.segments[0].at.Before(until)) {
				until = s.segments[0].at
			}
		}
		s.alarmLocked(now, until)
		s.changed.Wait()
	}
}

// alarmLocked has the reader look again at an instant.
func (s *stream) alarmLocked(now, at time.Time) {
	if s.alarm != nil {
		s.alarm.Stop()
		s.alarm = nil
	}
	if !at.IsZero() {
		s.alarm = time.AfterFunc(at.Sub(now), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed.Broadcast()
		})
	}
}

var (
	errReset   = &net.OpError{Op: "read", Net: "sim", Addr: serverAddr, Err: syscall.ECONNRESET}
	errRefused = &net.OpError{Op: "dial", Net: "sim", Addr: serverAddr, Err: syscall.ECONNREFUSED}
)

func newNetwork(seed uint64, least, most time.Duration) *network {
	return &network{seed: seed, least: least, most: most}
}

// newLink connects a process. The first one is past the faults of the server.
func (n *network) newLink() *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &link{net: n, number: len(n.links), conns: make(map[*conn]struct{})}
	n.links = append(n.links, l)
	return l
}

// delayLocked is how long a message travels: a function of the seed, and of which message of which connection
// of which process it is, so that it does not depend on what other processes send.
func (l *link) delayLocked(c *conn) time.Duration {
	c.messages++
	d := l.net.least
	if span := l.net.most - l.net.least; span > 0 {
		d += time.Duration(mix(l.net.seed, uint64(l.number), uint64(c.number), c.messages) % uint64(span))
	}
	if time.Now().Before(l.slowBefore) {
		d += l.slow
	}
	return d
}

// mix is a hash of some numbers.
func mix(numbers ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, n := range numbers {
		h ^= n
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// dial is the Dialer of a process. No fault but a stop of the process is about connections to a Sentinel: go-redis
// holds a mutex while it looks for another one.
func (l *link) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n, to := l.net, address(addr)
	for {
		n.mu.Lock()
		now := time.Now()
		until := l.frozen
		if l.cut.After(until) && to != sentinelAddr {
			until = l.cut
		}
		switch {
		case l.dead, n.down && l.number > 0 && to != sentinelAddr && !now.Before(until):
			n.mu.Unlock()
			return nil, errRefused
		case !now.Before(until):
			c := l.connectLocked(to)
			n.mu.Unlock()
			n.serve(serverEnd{c}, c)
			return clientEnd{c}, nil
		}
		n.mu.Unlock()
		timer := time.NewTimer(until.Sub(now))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, &net.OpError{Op: "dial", Net: "sim", Addr: to, Err: os.ErrDeadlineExceeded}
		}
	}
}

func (l *link) connectLocked(to address) *conn {
	n := l.net
	n.conns++
	c := &conn{link: l, number: n.conns, to: to, open: true}
	c.up.init(&n.mu, func() time.Time {
		if l.number == 0 || to == sentinelAddr {
			return time.Time{}
		}
		return n.hangs
	})
	c.down.init(&n.mu, func() time.Time { return l.frozen })
	l.conns[c] = struct{}{}
	return c
}

// clientEnd is the end of a connection at the process.
type clientEnd struct{ *conn }

func (e clientEnd) Read(p []byte) (int, error) { return e.down.Read(p) }

func (e clientEnd) Write(p []byte) (int, error) {
	n, l, c := e.link.net, e.link, e.conn
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	switch {
	case l.dead:
		return 0, errReset
	case c.up.end != nil:
		return 0, net.ErrClosed
	}
	if now.Before(l.frozen) {
		now = l.frozen // what the process would have done before it stood still
	}
	if now.Before(l.cut) && c.to != sentinelAddr {
		c.deafUp = true
	}
	if c.deafUp {
		l.unheard = append(l.unheard, now)
		return len(p), nil
	}
	at := now.Add(l.delayLocked(c))
	if isCall(p) && c.to != sentinelAddr {
		switch {
		case l.lostCalls.take():
			c.deafUp = true
			return len(p), nil
		case l.lostReply.take():
			c.deafDown = true
			if after := l.lostReply.after; after > 0 {
				time.AfterFunc(time.Until(at)+after, c.reset)
			}
		case l.late.take():
			c.up.addLocked(at.Add(l.late.after), p)
			c.deafDown = true
			c.resetLocked()
			return len(p), nil
		}
	}
	c.up.addLocked(at, p)
	return len(p), nil
}

// isCall reports whether the bytes are a call, and not of those that set a connection up.
func isCall(p []byte) bool {
	_, rest, ok := bytes.Cut(p[:min(len(p), 40)], []byte("\r\n"))
	if !ok {
		return false
	}
	_, rest, _ = bytes.Cut(rest, []byte("\r\n"))
	word, _, _ := bytes.Cut(rest, []byte("\r\n"))
	switch string(bytes.ToLower(word)) {
	case "hello", "client", "auth", "select", "ping", "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe":
		return false
	}
	return true
}

// isMessage reports whether the bytes are a message of a subscription.
func isMessage(p []byte) bool {
	const of3 = "3\r\n$7\r\nmessage\r\n"
	return bytes.HasPrefix(p, []byte(">"+of3)) || bytes.HasPrefix(p, []byte("*"+of3))
}

// Close ends the connection. What was sent before arrives.
func (e clientEnd) Close() error {
	n, c := e.link.net, e.conn
	n.mu.Lock()
	defer n.mu.Unlock()
	c.down.segments = nil
	c.down.endLocked(net.ErrClosed)
	c.up.endLocked(io.EOF)
	c.open = false
	return nil
}

func (e clientEnd) SetDeadline(t time.Time) error { return e.SetReadDeadline(t) }

func (e clientEnd) SetReadDeadline(t time.Time) error {
	e.link.net.mu.Lock()
	defer e.link.net.mu.Unlock()
	e.down.deadline = t
	e.down.changed.Broadcast()
	return nil
}

func (e clientEnd) SetWriteDeadline(time.Time) error { return nil }
func (e clientEnd) LocalAddr() net.Addr              { return hiddenAddr }

func (e clientEnd) RemoteAddr() net.Addr {
	if e.link.net.hides {
		return hiddenAddr
	}
	return e.to
}

// serverEnd is the end of a connection at the server.
type serverEnd struct{ *conn }

func (e serverEnd) Read(p []byte) (int, error) { return e.up.Read(p) }

func (e serverEnd) Write(p []byte) (int, error) {
	n, l, c := e.link.net, e.link, e.conn
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if now.Before(l.cut) && c.to != sentinelAddr {
		c.deafDown = true
	}
	if isMessage(p) && l.lostMessages.take() {
		return len(p), nil
	}
	if !c.deafDown {
		c.down.addLocked(now.Add(l.delayLocked(c)), plainError(p))
	}
	return len(p), nil
}

func (e serverEnd) Close() error {
	e.link.net.mu.Lock()
	defer e.link.net.mu.Unlock()
	e.down.endLocked(io.EOF)
	e.up.endLocked(io.EOF)
	return nil
}

func (serverEnd) SetDeadline(time.Time) error      { return nil }
func (serverEnd) SetReadDeadline(time.Time) error  { return nil }
func (serverEnd) SetWriteDeadline(time.Time) error { return nil }
func (serverEnd) LocalAddr() net.Addr              { return hiddenAddr }
func (serverEnd) RemoteAddr() net.Addr             { return hiddenAddr }

// reset resets the connection, as both of its ends see it. Requests on their way arrive.
func (c *conn) reset() {
	c.link.net.mu.Lock()
	defer c.link.net.mu.Unlock()
	c.resetLocked()
}

func (c *conn) resetLocked() {
	c.down.segments = nil
	c.down.endLocked(errReset)
	c.up.endLocked(io.EOF)
}

// reset resets the connections of a process, and returns how many there were.
func (l *link) reset() int {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	return l.resetLocked()
}

func (l *link) resetLocked() (reset int) {
	for c := range l.conns {
		if c.open && c.to != sentinelAddr {
			c.resetLocked()
			reset++
		}
	}
	return reset
}

// silence makes the present connections lose everything from now on, as a NAT does that has forgotten them.
func (l *link) silence() (silenced int) {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	for c := range l.conns {
		if c.open && c.to != sentinelAddr {
			c.deafUp, c.deafDown = true, true
			silenced++
		}
	}
	return silenced
}

// wake has all readers look again, after a change of what they wait for.
func (n *network) wakeLocked() {
	for _, l := range n.links {
		for c := range l.conns {
			c.up.changed.Broadcast()
			c.down.changed.Broadcast()
		}
	}
}

// address is that of a server.
type address string

func (address) Network() string  { return "sim" }
func (a address) String() string { return string(a) }

// The addresses that are dialed, and what a proxy says is the address of each.
const (
	serverAddr   address = "server"         // of the primary
	primaryAddr  address = "node-1:6379"    // of the first primary
	promotedAddr address = "node-2:6379"    // of the one that replaces it
	replicaAddr  address = "node-3:6379"    // of a replica, which is asked for nothing
	sentinelAddr address = "sentinel:26379" // of a Sentinel
	hiddenAddr   address = "0.0.0.0:0"
)
