package cogwheeltest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// closeTimeout bounds the Close of a client of the library at the end of the test.
	closeTimeout = 30 * time.Second

	// poolSize is more than the connections that a test needs. A full pool would make callers wait on timers
	// that go-redis shares between all clients, which is not allowed across bubbles.
	poolSize = 1000

	// lingering is how long goroutines of go-redis may outlast their pool.
	lingering = 5 * time.Second
)

// Server is a Redis server in the memory of the test, made by Start. Its methods are safe for concurrent use. They
// return no errors: Start and the methods fail the test if they cannot do their work, for example because of a bad
// argument. Start, Addr, Locks, Limits, Semaphores and Delays do so by Fatal, and belong on the goroutine of the
// test; all others by Error.
type Server struct {
	tb        testing.TB
	config    config
	bubble    bool
	redis     *miniredis.Miniredis
	admin     *redis.Client // bypasses sessions, so faults do not affect it
	wheel     *wheel.Wheel
	client    *redis.Client
	advancing chan struct{} // holds a value during Advance; a mutex would stop a bubble's time

	mu       sync.Mutex // guards what follows
	clock    clock
	sessions map[string]*session
	nextID   int
	groups   map[*redis.Client]*group
	faults   faults
	hanging  bool
	stopped  bool
	closed   bool // the test has ended
	listener *listener
}

// Start starts a server that ends with the test, together with the clients that the server made. If it is
// called in a bubble of testing/synctest, the server belongs to the bubble and uses its time.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s := newServer()
	s.tb, s.bubble = tb, inBubble()
	for _, o := range opts {
		o.apply(&s.config)
	}
	wheelOptions := s.config.wheelOptions
	if c := s.config.clock; c != nil {
		s.clock = newClock(c.Now)
		wheelOptions = append([]wheel.Option{wheel.WithClock(c)}, wheelOptions...)
	}
	if err := s.start(wheelOptions); err != nil {
		tb.Fatalf("cogwheeltest: start: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.end(); err != nil {
			tb.Errorf("cogwheeltest: stop the wheel: %v", err)
		}
	})
	s.client = s.NewClient()
	return s
}

// Embed starts a server that belongs to no test, for programs that show something without a Redis, and for Examples.
// It is for trying out only: the data is in memory, and is lost with the process. Clients reach the server at addr, an
// address of the loopback interface, until stop is called. stop closes their connections; it may be called more than
// once. The server uses the time of the process. The error is that of listening at the address.
func Embed() (addr string, stop func(), err error) {
	s := newServer()
	if err := s.start(nil); err != nil {
		return "", nil, fmt.Errorf("cogwheeltest: embed: %w", err)
	}
	stop = func() { _ = s.end() } // it does not fail: nothing is scheduled on the wheel
	if addr, err = s.listen(); err != nil {
		stop()
		return "", nil, fmt.Errorf("cogwheeltest: embed: %w", err)
	}
	return addr, stop, nil
}

func newServer() *Server {
	return &Server{
		redis:     miniredis.NewMiniRedis(),
		clock:     newClock(time.Now),
		sessions:  make(map[string]*session),
		groups:    make(map[*redis.Client]*group),
		advancing: make(chan struct{}, 1),
	}
}

func (s *Server) start(wheelOptions []wheel.Option) (err error) {
	if s.wheel, err = wheel.New(wheelOptions...); err != nil {
		return err
	}
	s.setTimeLocked()
	s.redis.ClockTTL(true)
	conn, err := s.redis.Dial() // makes the server run without a listener
	if err != nil {
		return err
	}
	_ = conn.Close()
	if err := s.register(); err != nil {
		return err
	}
	s.admin = redis.NewClient(options(func(context.Context, string, string) (net.Conn, error) {
		return s.dialAdmin(), nil
	}))
	// The server must know the scripts, so that it executes each call at once: faults count calls, not the
	// answers that a script is unknown.
	load := s.admin.Pipeline()
	for _, script := range scripts.All() {
		load.ScriptLoad(context.Background(), script.Source())
	}
	_, err = load.Exec(context.Background())
	return err
}

// end is called at the end of the test, after the cleanups of everything that was made later.
func (s *Server) end() error {
	s.heal()
	s.mu.Lock()
	s.closed = true
	s.disconnectLocked(func(*session) bool { return true })
	listener := s.listener
	clients := []*redis.Client{s.admin}
	for rdb := range s.groups {
		clients = append(clients, rdb)
	}
	s.mu.Unlock()
	listener.close()
	_, err := s.wheel.Stop(context.Background())
	for _, rdb := range clients {
		_ = rdb.Close() // the test may have closed it
	}
	s.redis.Close()
	if s.bubble {
		time.Sleep(lingering) // of the bubble's time, which stops with the test
	}
	return err
}

// options returns the options of all clients in memory.
func options(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *redis.Options {
	return &redis.Options{
		Addr:            address{}.String(),
		Dialer:          dial,
		PoolSize:        poolSize,
		DisableIdentity: true,
		// NewClient would look up the server's name.
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled, EndpointType: maintnotifications.EndpointTypeNone,
		},
	}
}

// Client returns the server's first client, always the same.
func (s *Server) Client() *redis.Client { return s.client }

// NewClient returns another client, which is closed with the test. Isolate treats each client as a separate process.
// Each of opts may change the options of the client, which otherwise are those of Options.
func (s *Server) NewClient(opts ...func(*redis.Options)) *redis.Client {
	o, g := s.options()
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClient(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[rdb] = g
	return rdb
}

// Options returns options for code that makes its own client: the defaults of go-redis, connected to this
// server through memory.
func (s *Server) Options() *redis.Options {
	o, _ := s.options()
	return o
}

func (s *Server) options() (*redis.Options, *group) {
	g := &group{}
	return options(func(context.Context, string, string) (net.Conn, error) { return s.dial(g) }), g
}

// Wheel returns the server's wheel, which uses the server's time and stops with the test.
func (s *Server) Wheel() *wheel.Wheel { return s.wheel }

// Locks returns a new client for locks on Client and Wheel. It is closed with the test.
func (s *Server) Locks(opts ...redislock.Option) *redislock.Client {
	s.tb.Helper()
	c, err := redislock.New(s.client, append([]redislock.Option{redislock.WithWheel(s.wheel)}, opts...)...)
	return closing(s, c, err)
}

// Limits returns a new client for rate limits on Client and Wheel. It is closed with the test.
func (s *Server) Limits(opts ...ratelimit.Option) *ratelimit.Client {
	s.tb.Helper()
	c, err := ratelimit.New(s.client, append([]ratelimit.Option{ratelimit.WithWheel(s.wheel)}, opts...)...)
	return closing(s, c, err)
}

// Semaphores returns a new client for semaphores on Client and Wheel. It is closed with the test.
func (s *Server) Semaphores(opts ...semaphore.Option) *semaphore.Client {
	s.tb.Helper()
	c, err := semaphore.New(s.client, append([]semaphore.Option{semaphore.WithWheel(s.wheel)}, opts...)...)
	return closing(s, c, err)
}

// Delays returns a new client for delayed tasks on Client and Wheel. It is closed with the test.
func (s *Server) Delays(opts ...delay.Option) *delay.Client {
	s.tb.Helper()
	c, err := delay.New(s.client, append([]delay.Option{delay.WithWheel(s.wheel)}, opts...)...)
	return closing(s, c, err)
}

// closing closes a client of the library when the test ends.
func closing[C interface{ Close(context.Context) error }](s *Server, c C, err error) C {
	s.tb.Helper()
	if err != nil {
		s.tb.Fatalf("cogwheeltest: %v", err)
	}
	s.tb.Cleanup(func() {
		s.heal()
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			s.tb.Errorf("cogwheeltest: %v", err)
		}
	})
	return c
}
