package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cogwheel-go/cogwheel/contrib/cogwheelprom"
	"github.com/cogwheel-go/cogwheel/contrib/statusz"
)

// opsHandler is what operators see.
func (s *service) opsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		cogwheelprom.NewWheelCollector(s.wheel, "service"),
		cogwheelprom.NewLockCollector(s.locks, "service"),
		cogwheelprom.NewLimitCollector(s.limits, "service"),
		cogwheelprom.NewSemaphoreCollector(s.semaphores, "service"),
	)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /debug/cogwheel", statusz.Handler(
		statusz.Wheel("service", s.wheel),
		statusz.Locks("service", s.locks),
		statusz.Limits("service", s.limits),
		statusz.Semaphores("service", s.semaphores),
	))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	return mux
}
