package recipes

import (
	"context"
	"errors"
	"io"
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

// OrderTimers serves POST /timer/{delay}?order=ID, which lets an order close after a delay such as 30m, and
// POST /paid?order=ID, which keeps it from closing, or says 409 if it is closed.
func OrderTimers(orders *wheel.Keyed[string, struct{}]) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /timer/{delay}", func(w http.ResponseWriter, r *http.Request) {
		order := r.FormValue("order")
		delay, err := time.ParseDuration(r.PathValue("delay"))
		if err != nil || delay <= 0 || order == "" {
			http.Error(w, "want a delay such as 30m, and an order", http.StatusBadRequest)
			return
		}
		if _, _, err := orders.Set(order, struct{}{}, delay); err != nil { // the wheel is stopped or full
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST /paid", func(w http.ResponseWriter, r *http.Request) {
		if _, open := orders.Remove(r.FormValue("order")); !open {
			http.Error(w, "the order is closed", http.StatusConflict)
		}
	})
	return mux
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

// Fetch returns the body of a page, or an error that matches context.DeadlineExceeded after d.
func Fetch(ctx context.Context, w *wheel.Wheel, client *http.Client, url string, d time.Duration) ([]byte, error) {
	ctx, cancel := w.WithTimeout(ctx, d) // for the body too
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// WithDeadline gives the context of each request that next handles a deadline.
func WithDeadline(w *wheel.Wheel, d time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctx, cancel := w.WithTimeout(r.Context(), d)
		defer cancel()
		next.ServeHTTP(rw, r.WithContext(ctx))
	})
}

// Serve serves until ctx ends, and then stops what it started, the wheel last.
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
		if entry.Func != nil {
			entry.Func() // closes a connection of CloseWhenIdle
		}
	}
	return errors.Join(err, stopped)
}
