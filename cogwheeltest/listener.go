package cogwheeltest

import (
	"io"
	"net"
	"sync"
)

// listener lets clients of other makes reach the server by an address.
type listener struct {
	net.Listener
	running sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	ended bool
}

// Addr returns an address of the loopback interface at which the server can be reached, for code that makes
// its client from an address. The server listens there from the first call on. In a bubble of
// testing/synctest, where a client has to use Options, Addr ends the test.
func (s *Server) Addr() string {
	s.tb.Helper()
	if s.bubble {
		s.tb.Fatal("cogwheeltest: Addr in a bubble: time stands still there while a socket is read; use Options")
	}
	addr, err := s.listen()
	if err != nil {
		s.tb.Fatalf("cogwheeltest: %v", err)
	}
	return addr
}

func (s *Server) listen() (addr string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		s.listener = &listener{Listener: l, conns: make(map[net.Conn]struct{})}
		s.listener.running.Go(func() { s.listener.accept(s) })
	}
	return s.listener.Addr().String(), nil
}

func (l *listener) accept(s *Server) {
	g := &group{}
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		to, err := s.dial(g)
		if err != nil || !l.add(conn) {
			_ = conn.Close()
			continue
		}
		l.running.Go(func() {
			_, _ = io.Copy(to, conn)
			_ = to.Close()
		})
		l.running.Go(func() {
			_, _ = io.Copy(conn, to)
			l.drop(conn)
		})
	}
}

// add keeps a connection, to be closed with the listener.
func (l *listener) add(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.conns[conn] = struct{}{}
	return true
}

func (l *listener) drop(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, conn)
	_ = conn.Close()
}

// close ends the listener and its connections. A nil listener is none.
func (l *listener) close() {
	if l == nil {
		return
	}
	_ = l.Close()
	l.mu.Lock()
	l.ended = true
	for conn := range l.conns {
		_ = conn.Close()
	}
	l.mu.Unlock()
	l.running.Wait()
}
