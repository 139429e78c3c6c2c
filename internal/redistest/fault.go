package redistest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Fault is a set of things a FaultDialer does to the network.
type Fault uint8

const (
	// Pass lets everything through.
	Pass Fault = 0
	// BlackholeUp loses what the client sends: requests never reach the
	// server. Dialing hangs.
	BlackholeUp Fault = 1 << iota
	// BlackholeDown loses what the server sends, its closing of a connection
	// included: requests execute, replies do not come. Dialing hangs.
	BlackholeDown
	// Refuse makes dialing fail at once. Open connections are left alone.
	Refuse
)

// Loss says how the client observes a lost reply.
type Loss int

const (
	// Swallow keeps the connection open and silent, so the client times out.
	Swallow Loss = iota
	// Cut resets the connection in place of the reply.
	Cut
)

// FaultDialer connects like a plain dialer and injects faults into the
// connections it made. Its Dial method goes into redis.Options.Dialer. The zero
// value passes everything. It keeps no goroutine and no timer of its own, and its
// methods are safe for concurrent use.
//
// A connection that has lost bytes in a blackhole stays deaf in that direction
// after the fault is lifted, as half a command must not be followed by the next
// one; connections that were idle go on.
type FaultDialer struct {
	// Timeout bounds a dial that hangs in a blackhole; 0 means 5 s.
	Timeout time.Duration

	effects atomic.Int64

	mu         sync.Mutex
	conditions conditions
	rules      []*rule
	conns      map[*faultConn]struct{}
	resets     int
	changed    chan struct{} // closed when faults change
}

// conditions are those of the network.
type conditions struct {
	faults   Fault
	up, down time.Duration // of delay
	slice    int           // the most bytes that pass at once; 0 means any
	answer   *answer       // to calls in the place of the server; nil if there is none
}

// rule loses one future call, or its reply.
type rule struct {
	match []byte
	left  int // matching calls until the rule applies
	loss  Loss
	lost  chan struct{}
	call  chan []byte // gets the bytes of a lost call; nil if the reply is lost
}

// Set replaces the current faults, for new and open connections.
func (d *FaultDialer) Set(faults Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conditions.faults = faults
	if d.changed != nil {
		close(d.changed)
		d.changed = nil
	}
}

// Delay holds back each write by up and what each read returns by down. Keep up
// below the client's write timeout, within which the write must happen.
func (d *FaultDialer) Delay(up, down time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conditions.up, d.conditions.down = up, down
}

// Slice splits what connections send into writes of at most n bytes, and lets each read return at most n bytes.
// 0 ends it.
func (d *FaultDialer) Slice(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conditions.slice = n
}

// Effects returns how many writes, reads, dials and connections the faults have changed so far.
func (d *FaultDialer) Effects() int { return int(d.effects.Load()) }

// LoseReply makes the client miss the reply of the nth call from now, n >= 1,
// whose bytes contain match (letter case does not matter). A call is one write
// of the client: a command, or a whole pipeline. The server receives and
// executes it. The reply is lost when it arrives, or when the connection ends
// before. Then the returned channel is closed.
func (d *FaultDialer) LoseReply(match string, n int, loss Loss) (lost <-chan struct{}) {
	r := &rule{match: bytes.ToLower([]byte(match)), left: n, loss: loss, lost: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules = append(d.rules, r)
	return r.lost
}

// LoseCall makes the server miss the nth call from now, n >= 1, whose bytes contain match; letter case does
// not matter. The returned channel gets the bytes of the call, for a test to [Server.Deliver] later, as a
// network may. From then on the connection is silent, so the client times out.
func (d *FaultDialer) LoseCall(match string, n int) (call <-chan []byte) {
	r := &rule{match: bytes.ToLower([]byte(match)), left: n, call: make(chan []byte, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules = append(d.rules, r)
	return r.call
}

// Reset cuts every open connection with a TCP reset, and those that are being made.
func (d *FaultDialer) Reset() {
	d.mu.Lock()
	d.resets++
	conns := make([]*faultConn, 0, len(d.conns))
	for c := range d.conns {
		conns = append(conns, c)
	}
	d.mu.Unlock()
	for _, c := range conns {
		d.effects.Add(1)
		c.cut()
	}
}

// Silence makes every open connection deaf in both directions, as one that a middlebox has forgotten. New ones pass.
func (d *FaultDialer) Silence() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		d.effects.Add(1)
		c.mu.Lock()
		c.deafUp, c.deafDown = true, true
		c.mu.Unlock()
	}
}

// Conns returns how many connections are open.
func (d *FaultDialer) Conns() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.conns)
}

// Dial has the signature of redis.Options.Dialer.
func (d *FaultDialer) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	timeout := d.Timeout
	if timeout == 0 {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resets, err := d.awaitPassage(ctx, network)
	if err != nil {
		return nil, err
	}
	inner, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &faultConn{Conn: inner, d: d, done: make(chan struct{})}
	c.silence, c.silenceEnd = net.Pipe()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.resets != resets {
		_ = inner.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNRESET}
	}
	if d.conns == nil {
		d.conns = make(map[*faultConn]struct{})
	}
	d.conns[c] = struct{}{}
	return c, nil
}

// awaitPassage waits while a blackhole loses the handshake. It returns the number of resets by then.
func (d *FaultDialer) awaitPassage(ctx context.Context, network string) (resets int, err error) {
	for {
		d.mu.Lock()
		faults, resets := d.conditions.faults, d.resets
		if d.changed == nil {
			d.changed = make(chan struct{})
		}
		changed := d.changed
		d.mu.Unlock()
		switch {
		case faults&Refuse != 0:
			d.effects.Add(1)
			return 0, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		case faults&(BlackholeUp|BlackholeDown) == 0:
			return resets, nil
		}
		d.effects.Add(1)
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
		}
	}
}

// state returns the current conditions.
func (d *FaultDialer) state() conditions {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conditions
}

// matchRule counts a call against the rules and returns the rule whose turn it is, or nil.
func (d *FaultDialer) matchRule(call []byte) *rule {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.rules) == 0 {
		return nil
	}
	call = bytes.ToLower(call)
	var due *rule
	keep := d.rules[:0]
	for _, r := range d.rules {
		if bytes.Contains(call, r.match) {
			r.left--
		}
		if r.left <= 0 && due == nil {
			due = r
			continue
		}
		keep = append(keep, r)
	}
	d.rules = keep
	return due
}

// faultConn is a connection under a FaultDialer. One goroutine may read while
// another writes, as with any net.Conn.
type faultConn struct {
	net.Conn
	d *FaultDialer

	// silence is a pipe without a writer. Reading from it blocks until the deadline or Close, as in a
	// blackhole.
	silence, silenceEnd net.Conn
	done                chan struct{} // closed by Close
	closing             sync.Once

	mu       sync.Mutex
	deafUp   bool
	deafDown bool
	reset    bool
	due      *rule // loses the next reply
	readBy   time.Time
	held     []byte // bytes delayed past the deadline of their read, or of an Answer
	lost     int    // replies in whose places held has answers
}

func (c *faultConn) Write(p []byte) (int, error) {
	now := c.d.state()
	if now.up > 0 {
		c.d.effects.Add(1)
		if !c.wait(now.up, time.Time{}) {
			return 0, c.explain("write", net.ErrClosed)
		}
	}
	c.mu.Lock()
	if now.faults&BlackholeUp != 0 {
		c.deafUp = true
	}
	deaf := c.deafUp
	c.mu.Unlock()
	if deaf {
		c.d.effects.Add(1)
		return len(p), nil
	}
	if a := now.answer; a.matches(p) {
		c.answer(p, a)
		if !a.executed {
			return len(p), nil
		}
	}
	switch r := c.d.matchRule(p); {
	case r == nil:
	case r.call != nil:
		c.d.effects.Add(1)
		c.mu.Lock()
		c.deafUp = true
		c.mu.Unlock()
		r.call <- bytes.Clone(p)
		return len(p), nil
	default:
		c.mu.Lock()
		c.due = r
		c.mu.Unlock()
	}
	n, err := c.send(p, now.slice)
	return n, c.explain("write", err)
}

// send writes p in slices of at most so many bytes, or at once for 0.
func (c *faultConn) send(p []byte, slice int) (sent int, err error) {
	if slice == 0 || slice >= len(p) {
		return c.Conn.Write(p)
	}
	c.d.effects.Add(1)
	for part := range slices.Chunk(p, slice) {
		n, err := c.Conn.Write(part)
		sent += n
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

func (c *faultConn) Read(p []byte) (int, error) {
	if slice := c.d.state().slice; slice > 0 && slice < len(p) {
		c.d.effects.Add(1)
		p = p[:slice]
	}
	if err := c.loseReplies(); err != nil {
		return 0, c.explain("read", err)
	}
	c.mu.Lock()
	n := copy(p, c.held)
	c.held = c.held[n:]
	deaf, readBy := c.deafDown, c.readBy
	c.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	if deaf {
		return c.readSilence(p)
	}
	n, err := c.Conn.Read(p)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, err
	}
	now := c.d.state()
	if now.faults&BlackholeDown != 0 {
		c.d.effects.Add(1)
		return c.deafen(p)
	}
	if r := c.takeDue(); r != nil {
		c.d.effects.Add(1)
		if n > 0 && r.loss == Cut {
			defer close(r.lost)
			c.drain()
			c.cut()
			return 0, c.explain("read", net.ErrClosed)
		}
		close(r.lost)
		if n > 0 {
			return c.deafen(p)
		}
	}
	if now.down > 0 && n > 0 {
		c.d.effects.Add(1)
		if !c.wait(now.down, readBy) {
			c.mu.Lock()
			c.held = append(c.held, p[:n]...)
			c.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
	}
	return n, c.explain("read", err)
}

// drain waits until the server has read all that was sent, and lets its replies go. A server reads a long pipeline in
// parts and answers each before it reads the next, so the first reply is no sign that it has the last call.
func (c *faultConn) drain() {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, c.Conn)
	}
}

// deafen loses the bytes just read and all that follow.
func (c *faultConn) deafen(p []byte) (int, error) {
	c.mu.Lock()
	c.deafDown = true
	c.mu.Unlock()
	return c.readSilence(p)
}

func (c *faultConn) readSilence(p []byte) (int, error) {
	_, err := c.silence.Read(p)
	return 0, c.explain("read", err)
}

func (c *faultConn) takeDue() *rule {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.due
	c.due = nil
	return r
}

// wait returns false if the deadline passed or the connection closed before d.
func (c *faultConn) wait(d time.Duration, deadline time.Time) bool {
	inTime := deadline.IsZero() || time.Until(deadline) > d
	if !inTime {
		d = time.Until(deadline)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return inTime
	case <-c.done:
		return false
	}
}

// explain turns the error of a cut connection into a connection reset.
func (c *faultConn) explain(op string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && c.reset {
		return &net.OpError{Op: op, Net: "tcp", Err: syscall.ECONNRESET}
	}
	return err
}

func (c *faultConn) cut() {
	c.mu.Lock()
	c.reset = true
	c.mu.Unlock()
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.shut()
}

// Close succeeds on a connection that was cut: the other side's reset does not
// close the owner's socket.
func (c *faultConn) Close() error {
	c.mu.Lock()
	reset := c.reset
	c.mu.Unlock()
	if err := c.shut(); !reset {
		return err
	}
	return nil
}

func (c *faultConn) shut() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		c.d.mu.Lock()
		delete(c.d.conns, c)
		c.d.mu.Unlock()
		if r := c.takeDue(); r != nil {
			close(r.lost)
		}
		close(c.done)
		_ = c.silence.Close()
		_ = c.silenceEnd.Close()
		err = c.Conn.Close()
	})
	return err
}

func (c *faultConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *faultConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.readBy = t
	c.mu.Unlock()
	_ = c.silence.SetReadDeadline(t)
	return c.Conn.SetReadDeadline(t)
}
