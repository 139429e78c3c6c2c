package main

import (
	"context"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Main runs the program.
func Main() { main() }

const Grace = grace

// NewHealth returns a health check that nothing pings for.
func NewHealth(rdb redis.UniversalClient) *Health { return &Health{redis: rdb} }

type Health = health

func (h *Health) Ping() { h.ping() }

// Service opens a service to tests.
type Service struct{ s *service }

// Start starts a service on free ports.
func Start(ctx context.Context, redisURL string) (Service, error) {
	s, err := start(ctx, config{
		redis: redisURL, listen: "127.0.0.1:0", ops: "127.0.0.1:0", logger: slog.New(slog.DiscardHandler),
	})
	return Service{s}, err
}

func (s Service) Stop(ctx context.Context) error { return s.s.stop(ctx) }

func (s Service) API() string { return "http://" + s.s.api.addr }
func (s Service) Ops() string { return "http://" + s.s.ops.addr }

func (s Service) Wheel() *wheel.Wheel           { return s.s.wheel }
func (s Service) Locks() *redislock.Client      { return s.s.locks }
func (s Service) Limits() *ratelimit.Client     { return s.s.limits }
func (s Service) Semaphores() *semaphore.Client { return s.s.semaphores }
