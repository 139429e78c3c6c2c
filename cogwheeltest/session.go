package cogwheeltest

import (
	"errors"
	"net"
	"regexp"
	"strconv"
	"sync"
	"syscall"

	"github.com/alicebob/miniredis/v2/server"
)

// Commands of the embedded server that clients do not send. A session sends them between those of its client,
// so that they take effect when the server gets there.
const (
	refuseCommand = "COGWHEELTEST.REFUSE" // answers with an error
	deafenCommand = "COGWHEELTEST.DEAFEN" // from here on the client hears nothing; it has no reply
	cutCommand    = "COGWHEELTEST.CUT"    // ends the connection; it has no reply
)

// session is one connection of a client. Everything that the client sends goes through it.
type session struct {
	server *Server
	group  *group
	id     string
	up     *stream // to the server
	down   *stream // to the client

	// Guarded by server.mu.
	partial []byte    // of a command that is not whole yet
	waiting []request // sent while the server hangs
	lost    bool      // what the client sends is lost
	closed  bool

	mu   sync.Mutex
	deaf bool // what the server sends is lost
}

// group is the connections of one client, which share a fate.
type group struct {
	isolated bool // guarded by Server.mu
}

var errRefused = &net.OpError{Op: "dial", Net: address{}.Network(), Addr: address{}, Err: syscall.ECONNREFUSED}

// dial connects a client of the group.
func (s *Server) dial(g *group) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.closed || g.isolated {
		return nil, errRefused
	}
	s.nextID++
	c := &session{server: s, group: g, id: strconv.Itoa(s.nextID), up: newStream(), down: newStream()}
	s.sessions[c.id] = c
	s.redis.Server().ServeConn(&end{in: c.up, write: c.fromServer, close: c.close, addr: address{}})
	return &end{in: c.down, write: c.fromClient, close: c.closeByClient, addr: address{}}, nil
}

// dialAdmin connects past all faults.
func (s *Server) dialAdmin() net.Conn {
	up, down := newStream(), newStream()
	closeBoth := func() {
		up.close()
		down.close()
	}
	s.redis.Server().ServeConn(&end{in: up, write: down.write, close: closeBoth, addr: address{}})
	return &end{in: down, write: up.write, close: closeBoth, addr: address{}}
}

// fromClient takes what the client has written.
func (c *session) fromClient(p []byte) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.closed {
		return syscall.EPIPE
	}
	c.partial = append(c.partial, p...)
	for {
		r, rest, ok := cutRequest(c.partial)
		if !ok {
			return nil
		}
		c.partial = rest
		if c.server.hanging {
			c.waiting = append(c.waiting, r)
		} else {
			c.forwardLocked(r)
		}
	}
}

// forwardLocked sends a command on to the server, or does to it what a fault wants.
func (c *session) forwardLocked(r request) {
	if c.lost {
		return
	}
	send := func(r request) { _ = c.up.write(r.raw) } // to a connection that was cut it is lost
	c.server.setTimeLocked()
	f := c.server.faults.take(&r)
	switch {
	case f == nil:
		send(r)
	case f.reply != "":
		send(newRequest(refuseCommand, f.reply))
	default:
		send(newRequest(deafenCommand, c.id))
		send(r)
		send(newRequest(cutCommand, c.id))
		c.lost = true
	}
}

// fromServer takes what the server has written.
func (c *session) fromServer(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf {
		return nil
	}
	return c.down.write(plainError(p))
}

// scriptError is how the embedded server tells that a command of a script failed: as an error of its own. A
// real one begins with the error code of the command.
var scriptError = regexp.MustCompile(
	`^-ERR Error compiling script \(new function\): :\d+: ([A-Z]+ .*?)( stack traceback: .*)?\r\n$`)

// plainError turns such a reply into that of a real server.
func plainError(reply []byte) []byte {
	if len(reply) == 0 || reply[0] != '-' {
		return reply
	}
	return scriptError.ReplaceAll(reply, []byte("-$1\r\n"))
}

func (c *session) deafen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf = true
}

// resumeLocked sends on what came while the server hung. A server executes it even if the client has gone
// meanwhile.
func (c *session) resumeLocked() {
	for _, r := range c.waiting {
		c.forwardLocked(r)
	}
	c.waiting = nil
	if c.closed {
		c.up.close()
		delete(c.server.sessions, c.id)
	}
}

// closeByClient ends the connection for the client. What it sent to a server that hangs stays there.
func (c *session) closeByClient() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.down.close()
	if c.closed = true; len(c.waiting) > 0 {
		return
	}
	c.up.close()
	delete(c.server.sessions, c.id)
}

// close ends the connection at once, with what was on its way.
func (c *session) close() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.closeLocked()
}

func (c *session) closeLocked() {
	c.closed, c.lost, c.waiting = true, true, nil
	c.up.close()
	c.down.close()
	delete(c.server.sessions, c.id)
}

// register adds the commands of sessions to the server.
func (s *Server) register() error {
	find := func(args []string) *session {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.sessions[args[0]]
	}
	return errors.Join(
		s.redis.Server().Register(refuseCommand, func(p *server.Peer, _ string, args []string) {
			p.WriteError(args[0])
		}),
		s.redis.Server().Register(deafenCommand, func(_ *server.Peer, _ string, args []string) {
			if c := find(args); c != nil {
				c.deafen()
			}
		}),
		s.redis.Server().Register(cutCommand, func(_ *server.Peer, _ string, args []string) {
			if c := find(args); c != nil {
				c.close()
			}
		}),
	)
}
