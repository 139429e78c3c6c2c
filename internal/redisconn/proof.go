package redisconn

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/usercode"
)

// Proof is the knowledge that a client talks to one server without a proxy in between, so that one script may take
// keys of any names. A proxy that routes scripts by their first key would execute such a script on a server that does
// not have the other keys.
//
// The client asks the server, by CLIENT INFO, for the address of the client's socket. If that is the address that the
// client itself sees, there is no proxy. If the server refuses the question, or the addresses differ, as behind some
// address translation, there is no proof. Proof is safe for concurrent use.
type Proof struct {
	Client redis.UniversalClient

	state atomic.Int32
}

const (
	notAsked int32 = iota
	asking
	proven
	refuted
)

const proofTimeout = 2 * time.Second

// Holds reports whether there is proof. The first call starts the question to the server. start runs a function in the
// background, or returns false.
func (p *Proof) Holds(start func(ask func()) bool) bool {
	switch p.state.Load() {
	case proven:
		return true
	case notAsked:
		c, single := p.Client.(*redis.Client)
		if !p.state.CompareAndSwap(notAsked, asking) {
			return false
		}
		if !single {
			p.Refute()
			return false
		}
		if !start(func() { p.ask(c) }) {
			p.state.Store(notAsked)
		}
	}
	return false
}

// Refute records for good that there is no proof.
func (p *Proof) Refute() { p.state.Store(refuted) }

func (p *Proof) ask(c *redis.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), proofTimeout)
	defer cancel()
	var direct bool
	var err error
	usercode.Apart(func() { direct, err = isDirect(ctx, c) }, func(f *usercode.Failure) { err = f })
	switch {
	case err != nil && (!Refused(err) || Transient(err) || IsLoginRefused(err)):
		p.state.CompareAndSwap(asking, notAsked) // Redis is away
	case direct:
		p.state.CompareAndSwap(asking, proven)
	default:
		p.state.CompareAndSwap(asking, refuted)
	}
}

// isDirect reports whether the server of a client names the socket of a new connection as the client itself does.
func isDirect(ctx context.Context, c *redis.Client) (bool, error) {
	opt := OwnOptions(c, 1)
	var mu sync.Mutex
	var own []string // addresses of sockets
	dial := opt.Dialer
	opt.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			own = append(own, socketName(conn))
		}
		return conn, err
	}
	asks := redis.NewClient(&opt)
	defer asks.Close()
	info, err := asks.Do(ctx, "client", "info").Text()
	if err != nil {
		return false, err
	}
	mu.Lock()
	defer mu.Unlock()
	for field := range strings.FieldsSeq(info) {
		if addr, ok := strings.CutPrefix(field, "addr="); ok {
			return len(own) == 1 && own[0] != "" && own[0] == addr, nil
		}
	}
	return false, nil
}

// socketName returns the name that a server without a proxy in between has for the client's socket of a connection.
func socketName(conn net.Conn) string {
	switch addr := conn.LocalAddr().(type) {
	case *net.TCPAddr:
		return addr.String()
	case *net.UnixAddr:
		return conn.RemoteAddr().String() + ":0"
	}
	return ""
}
