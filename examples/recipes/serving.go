package recipes

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// PerTenant limits the requests of each tenant by the plan that it has now.
func PerTenant(
	api *ratelimit.Limiter, tenant func(*http.Request) (id string, plan ratelimit.Limit),
) httplimit.Middleware {
	return httplimit.NewPerKey(api,
		func(r *http.Request) (key string, limit ratelimit.Limit, limited bool) {
			id, plan := tenant(r)
			return id, plan, true
		},
		httplimit.WithFailed(func(w http.ResponseWriter, _ *http.Request, _ error) { // Redis is down, for example
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the limit cannot be checked now", http.StatusServiceUnavailable)
		}),
	)
}

// CloseWhenIdle returns conn with an idle timeout: it is closed when nothing has been read or written for d.
func CloseWhenIdle(w *wheel.Wheel, conn net.Conn, d time.Duration) (net.Conn, error) {
	timer, err := w.AfterFunc(d, func() { _ = conn.Close() })
	if err != nil {
		return nil, err
	}
	return &idleConn{Conn: conn, timer: timer, idle: d}, nil
}

type idleConn struct {
	net.Conn
	timer wheel.Timer
	idle  time.Duration
}

func (c *idleConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.timer.Reschedule(c.idle) // does nothing after Close
	return n, err
}

func (c *idleConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.timer.Reschedule(c.idle)
	return n, err
}

func (c *idleConn) Close() error {
	c.timer.Stop()
	return c.Conn.Close()
}

// Serve serves until ctx ends, and then stops what it started, the wheel last. w has the timers of CloseWhenIdle alone:
// others would run too early.
func Serve(ctx context.Context, server *http.Server, listener net.Listener, w *wheel.Wheel) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := server.Shutdown(within) // no new requests; those that run may end
	left, stopped := w.Stop(within)
	for _, entry := range left {
		entry.Func() // closes a connection of CloseWhenIdle
	}
	return errors.Join(err, stopped)
}
