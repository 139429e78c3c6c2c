// Package trips counts the round trips of redis clients. It adds no hook: a client with hooks is not what most users
// have, and cogwheel sends its calls another way.
package trips

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Counter counts the writes to connections. go-redis writes a command or a pipeline at once, up to 32 KiB.
type Counter struct{ n atomic.Int64 }

// Load returns the number of round trips so far.
func (c *Counter) Load() int64 { return c.n.Load() }

// Count makes the client with the options count.
func (c *Counter) Count(o *redis.Options) {
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if tcp, ok := conn.(*net.TCPConn); ok {
			return &counted{TCPConn: tcp, n: &c.n}, nil
		}
		return conn, err
	}
}

// counted is a connection that go-redis can check like any other.
type counted struct {
	*net.TCPConn
	n *atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.n.Add(1)
	return c.TCPConn.Write(b)
}
