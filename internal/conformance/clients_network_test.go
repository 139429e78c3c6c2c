package conformance_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// A reach is how a client reaches its servers.
type reach string

const (
	direct reach = "directly"
	socks  reach = "through SOCKS" // the address of each connection is the proxy's
	ssh    reach = "through SSH"   // the address of each connection is 0.0.0.0:0
)

var reaches = []reach{direct, socks, ssh}

// network connects clients to servers.
type network struct {
	proxy  net.Listener
	spared []string // addresses, the connections to which have no faults

	mu     sync.Mutex
	names  map[string]string      // where new connections to an address lead, as DNS or a balancer says
	dialer *redistest.FaultDialer // of new connections
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &network{proxy: proxy, names: map[string]string{}, dialer: &redistest.FaultDialer{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := proxy.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { tunnel(conn) })
		}
	})
	t.Cleanup(func() { // after all clients were closed
		_ = proxy.Close()
		serving.Wait()
	})
	return n
}

// tunnel connects a client of the proxy to the address that it names in a line.
func tunnel(client net.Conn) {
	defer client.Close()
	from := bufio.NewReader(client)
	addr, err := from.ReadString('\n')
	if err != nil {
		return
	}
	server, err := net.Dial("tcp", strings.TrimSpace(addr))
	if err != nil {
		return
	}
	var down sync.WaitGroup
	down.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	_, _ = io.Copy(server, from)
	_ = server.Close()
	down.Wait()
}

// lead makes new connections to an address lead to a server. Open ones stay where they are.
func (n *network) lead(addr string, to *redistest.Server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[addr] = to.Addr()
}

// reset cuts all open connections.
func (n *network) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dialer.Reset()
}

// forget loses what is sent on the open connections, as a balancer that has forgotten them.
func (n *network) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dialer.Set(redistest.BlackholeUp)
	n.dialer = &redistest.FaultDialer{}
}

// dial returns a Dialer for the options of redis clients.
func (n *network) dial(r reach) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.mu.Lock()
		dialer := n.dialer
		if to := n.names[addr]; to != "" {
			addr = to
		}
		n.mu.Unlock()
		if slices.Contains(n.spared, addr) {
			dialer = &redistest.FaultDialer{}
		}
		if r == direct {
			return dialer.Dial(ctx, network, addr)
		}
		conn, err := dialer.Dial(ctx, network, n.proxy.Addr().String())
		if err != nil {
			return nil, err
		}
		if _, err := fmt.Fprintln(conn, addr); err != nil {
			_ = conn.Close()
			return nil, err
		}
		if r == ssh {
			return nowhere{conn}, nil
		}
		return conn, nil
	}
}

// nowhere is a connection whose addresses are not known, as of a channel of SSH.
type nowhere struct{ net.Conn }

func (nowhere) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4zero} }
func (nowhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero} }
