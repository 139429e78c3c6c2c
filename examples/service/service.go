package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// grace is how long the service takes to stop at most. It is less than the 30 s that Kubernetes waits by default.
	grace = 25 * time.Second
	// working is the part of it in which requests and reports may end. The rest is for those that are given up, and
	// for closing the clients.
	working = 17 * time.Second
)

// config is what differs between processes.
type config struct {
	redis  string // URL, or "" for an embedded server
	listen string // address of the API
	ops    string // address of metrics, status page and health check; not for the public
	logger *slog.Logger
}

// service is one running process of the service.
type service struct {
	*clients
	logger *slog.Logger
	jobs   *jobs
	api    *server
	ops    *server
}

// start starts the service. Its errors leave nothing running.
func start(ctx context.Context, cfg config) (_ *service, err error) {
	s := &service{logger: cfg.logger}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop(context.WithoutCancel(ctx)))
		}
	}()
	if s.clients, err = connect(ctx, cfg.redis, cfg.logger); err != nil {
		return nil, err
	}
	s.jobs = startJobs(ctx, s.clients, cfg.logger)
	if s.ops, err = serve(cfg.ops, s.opsHandler()); err != nil {
		return nil, err
	}
	if s.api, err = serve(cfg.listen, s.apiHandler()); err != nil {
		return nil, err
	}
	cfg.logger.Info("serving", "api", s.api.addr, "ops", s.ops.addr)
	return s, nil
}

// stop stops the service in the reverse order within the grace period: first the requests, then the work in the
// background, then the clients, which release what is still held. The ops server answers until the end.
func (s *service) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	working, cancel := context.WithTimeout(ctx, working)
	defer cancel()
	return errors.Join(s.api.stop(working), s.jobs.stop(ctx, working), s.clients.close(ctx), s.ops.stop(ctx))
}

// server is an http.Server that listens.
type server struct {
	http *http.Server
	addr string
	done sync.WaitGroup
}

func serve(addr string, h http.Handler) (*server, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &server{
		http: &http.Server{Handler: h, ReadTimeout: 5 * time.Second},
		addr: listener.Addr().String(),
	}
	s.done.Go(func() { _ = s.http.Serve(listener) }) // until stop
	return s, nil
}

// stop waits for the requests in progress until ctx ends, and then cuts off their connections.
func (s *server) stop(ctx context.Context) error {
	if s == nil {
		return nil
	}
	defer s.done.Wait()
	defer s.http.Close()
	return s.http.Shutdown(ctx)
}
