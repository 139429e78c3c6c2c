package ratelimit

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

// cut reports whether a call failed because its connection was closed.
func cut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// logins finds out why a server closes connections. A server with a password closes the connections of clients
// that send large commands before the password: that is no outage. So a PING on another connection decides.
type logins struct {
	client *Client

	mu      sync.Mutex
	pending map[node][]func(refused error)
}

// check calls told with the reason why the connection of a call for a key was closed: err, or that the server
// refuses the client. Calls that fail together share a PING. It reports whether it will call told.
func (l *logins) check(s *keyState, err error, told func(error)) bool {
	c := l.client
	if !c.gate.Enter() {
		return false
	}
	n := c.breakers.nodeOf(s)
	tell := func(refused error) {
		defer c.gate.Leave()
		if refused != nil {
			err = refused
		}
		told(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	asking := l.pending[n] != nil
	if l.pending == nil {
		l.pending = make(map[node][]func(error))
	}
	l.pending[n] = append(l.pending[n], tell)
	if !asking {
		c.gate.Workers.Go(func() { l.ask(n, s.algorithm.route(s.id.key)) })
	}
	return true
}

// ask asks the node of a key, and gives the reason to the waiting calls.
func (l *logins) ask(n node, key string) {
	var refused error
	defer func() {
		l.mu.Lock()
		waiting := l.pending[n]
		delete(l.pending, n)
		l.mu.Unlock()
		for _, tell := range waiting {
			tell(refused)
		}
	}()
	of, err := redisconn.Node(l.client.base, key)
	if err != nil {
		return
	}
	opt := redisconn.OwnOptions(of, 1)
	opt.DialerRetries = 1
	own := redis.NewClient(&opt)
	defer func() { _ = own.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), l.client.timeout)
	defer cancel()
	// A user without the right to PING is not refused.
	if err := own.Ping(ctx).Err(); redisconn.IsLoginRefused(err) {
		refused = err
	}
}
