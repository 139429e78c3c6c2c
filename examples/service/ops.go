package main

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/contrib/cogwheelprom"
	"github.com/cogwheel-go/cogwheel/contrib/statusz"
)

// opsHandler is what operators see. The status page shows names and metadata of locks, so it is served on the
// address for operators only, as the rest of this is. On a public address it belongs behind authentication.
func (s *service) opsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		cogwheelprom.NewWheelCollector("service", s.wheel),
		cogwheelprom.NewLockCollector("service", s.locks),
		cogwheelprom.NewLimitCollector("service", s.limits),
		cogwheelprom.NewSemaphoreCollector("service", s.semaphores),
	)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /debug/cogwheel", statusz.Handler(
		statusz.Wheel("service", s.wheel),
		statusz.Locks("service", s.locks),
		statusz.Limits("service", s.limits),
		statusz.Semaphores("service", s.semaphores),
	))
	mux.Handle("GET /healthz", s.health)
	return mux
}

const (
	pingEvery   = 2 * time.Second
	pingTimeout = time.Second
	failedPings = 3 // in a row, after which Redis counts as down: one slow ping changes nothing
)

// health is the health check of the process. It says whether Redis answers a PING, and not whether locks can be
// written there. The ping is sent in the background, so a request costs nothing and is answered at once, also while
// Redis hangs. Use it as a readiness probe: to restart the process, as for a liveness probe, mends no Redis.
type health struct {
	redis  redis.UniversalClient
	failed atomic.Int32 // pings in a row
}

func (h *health) ping() {
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	if h.redis.Ping(ctx).Err() == nil {
		h.failed.Store(0)
	} else {
		h.failed.Add(1)
	}
}

func (h *health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if h.failed.Load() >= failedPings {
		http.Error(w, "redis does not answer", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}
