package main

import (
	"context"
	"log/slog"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Main runs the program.
func Main() { main() }

// Service opens a service to tests.
type Service struct{ s *service }

// Start starts a service on free ports.
func Start(ctx context.Context, redis string) (Service, error) {
	s, err := start(ctx, config{
		redis: redis, listen: "127.0.0.1:0", ops: "127.0.0.1:0", logger: slog.New(slog.DiscardHandler),
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
