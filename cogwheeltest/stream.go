package cogwheeltest

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// stream is one direction of a connection in memory. It has room for everything that is written, so a writer never
// waits for a reader: a server that publishes under its lock must not wait for a client. A reader waits on a condition
// variable, which lets the time of a synctest bubble go on.
type stream struct {
	mu       sync.Mutex
	changed  sync.Cond // on mu
	data     []byte
	closed   bool // nothing more is written; what is there can be read
	deadline time.Time
	alarm    *time.Timer // announces the deadline
}

func newStream() *stream {
	s := &stream{}
	s.changed.L = &s.mu
	return s
}

func (s *stream) write(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	s.data = append(s.data, p...)
	s.changed.Broadcast()
	return nil
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case !s.deadline.IsZero() && !time.Now().Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(s.data) > 0:
			n := copy(p, s.data)
			s.data = s.data[n:]
			return n, nil
		case s.closed:
			return 0, io.EOF
		}
		s.changed.Wait()
	}
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stopAlarmLocked()
	s.changed.Broadcast()
}

func (s *stream) setDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopAlarmLocked()
	s.deadline = t
	if !t.IsZero() && !s.closed {
		s.alarm = time.AfterFunc(time.Until(t), s.wake)
	}
	s.changed.Broadcast()
}

// wake makes a reader check the deadline. It takes the lock, because a reader that holds the lock has checked the
// deadline and does not wait yet.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

func (s *stream) stopAlarmLocked() {
	if s.alarm != nil {
		s.alarm.Stop()
		s.alarm = nil
	}
}

// end is one end of a connection in memory. One goroutine may read while another writes, as with any
// net.Conn. A write never blocks.
type end struct {
	in    *stream
	write func(p []byte) error
	close func()
	addr  net.Addr
}

func (e *end) Read(p []byte) (int, error) { return e.in.read(p) }

func (e *end) Write(p []byte) (int, error) {
	if err := e.write(p); err != nil {
		return 0, &net.OpError{Op: "write", Net: e.addr.Network(), Addr: e.addr, Err: err}
	}
	return len(p), nil
}

func (e *end) Close() error {
	e.close()
	return nil
}

func (e *end) LocalAddr() net.Addr               { return e.addr }
func (e *end) RemoteAddr() net.Addr              { return e.addr }
func (e *end) SetDeadline(t time.Time) error     { return e.SetReadDeadline(t) }
func (e *end) SetReadDeadline(t time.Time) error { e.in.setDeadline(t); return nil }
func (e *end) SetWriteDeadline(time.Time) error  { return nil }

// SyscallConn fails if the connection was closed. Except on Windows, go-redis calls it before it takes a connection
// from its pool. So it drops the connections that broke while they were idle.
func (e *end) SyscallConn() (syscall.RawConn, error) {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	if e.in.closed {
		return nil, io.EOF
	}
	return rawConn{}, nil
}

// rawConn stands for the descriptor of a connection that is open.
type rawConn struct{}

func (rawConn) Control(func(fd uintptr)) error    { return nil }
func (rawConn) Read(func(fd uintptr) bool) error  { return nil }
func (rawConn) Write(func(fd uintptr) bool) error { return nil }

// address is that of a server in memory.
type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "cogwheeltest" }
