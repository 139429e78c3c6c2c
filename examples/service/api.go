package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// requestTimeout is how long a request may take, with its waits.
const requestTimeout = 2 * time.Second

// apiHandler is what the public sees.
func (s *service) apiHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/ship", s.shipOrder)
	mux.HandleFunc("POST /reports", s.requestReport)

	perAddress := s.limits.Limiter("api", ratelimit.PerSecond(5).WithBurst(10))
	limited := httplimit.New(perAddress, httplimit.ByRemoteAddr)
	return limited(s.withTimeout(mux))
}

// withTimeout ends the context of each request after requestTimeout. The deadline is an entry on the wheel,
// which costs no timer of the runtime, and none of it is left when the request ends.
func (s *service) withTimeout(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := s.wheel.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// shipOrder changes an order while no other request, of any process, changes it.
func (s *service) shipOrder(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	err := s.locks.Mutex("order:"+id).Do(r.Context(), func(ctx context.Context) error {
		return s.wheel.Sleep(ctx, 200*time.Millisecond) // the work; ctx ends if the lock is lost
	})
	switch {
	case err == nil:
		_, _ = fmt.Fprintf(w, "order %s is on its way\n", id)
	case errors.Is(err, redislock.ErrLocked): // until the deadline of the request
		http.Error(w, "the order is being changed, try again", http.StatusConflict)
	default:
		s.logger.WarnContext(r.Context(), "order not shipped", "order", id, "error", err)
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	}
}

// requestReport leaves a report to the workers. It waits in memory: a crash of the process loses it, SIGTERM does
// not.
func (s *service) requestReport(w http.ResponseWriter, _ *http.Request) {
	r, ok := s.jobs.add()
	if !ok {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "too many reports are waiting", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	_, _ = fmt.Fprintf(w, "report %d will be made\n", r.id)
}
