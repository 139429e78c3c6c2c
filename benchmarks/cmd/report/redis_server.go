//go:build unix

package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisServer is a redis-server process on a free port of loopback.
type redisServer struct {
	process *os.Process
	addr    string
	wait    func() error
}

func startRedis() (*redisServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := listener.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	_ = listener.Close()
	command := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--loglevel", "warning")
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		return nil, err
	}
	server := &redisServer{command.Process, addr, command.Wait}
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer rdb.Close()
	for range 500 {
		if rdb.Ping(context.Background()).Err() == nil {
			return server, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	server.stop()
	return nil, errors.New("redis-server did not start")
}

// stop ends the server, also if it is stopped by a signal.
func (s *redisServer) stop() {
	_ = s.process.Kill()
	_ = s.wait()
}

// hang stops the server from answering until resume.
func (s *redisServer) hang() error   { return s.process.Signal(syscall.SIGSTOP) }
func (s *redisServer) resume() error { return s.process.Signal(syscall.SIGCONT) }
