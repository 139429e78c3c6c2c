package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/delay"
)

// A queue with one task. To set it is to schedule the task, to free it by force is to cancel the task, and a hold of it
// is an attempt. That of 2 is one of a process that dies.
var _ = register("delayed task", func(_ *clients, name string) object {
	o := object{
		set: func(ctx context.Context, _ int64) (bool, error) {
			_, q, err := newQueue(name)
			if err != nil {
				return false, err
			}
			return true, q.Schedule(ctx, "task", 0, nil)
		},
		force: func(ctx context.Context) (bool, error) {
			_, q, err := newQueue(name)
			if err != nil {
				return false, err
			}
			return q.Cancel(ctx, "task")
		},
		state: func(ctx context.Context) (string, error) {
			_, q, err := newQueue(name)
			if err != nil {
				return "", err
			}
			s, err := q.State(ctx, "task")
			return fmt.Sprintf("%q after %d losses", s.Phase, s.Losses), err
		},
	}
	o.acquire = func(ctx context.Context, n int64, _ bool) (hold, error) {
		own, q, err := newQueue(name)
		if err != nil {
			return nil, err
		}
		a := &taskAttempt{began: make(chan struct{}), served: make(chan error, 1)}
		ctx, a.stop = context.WithCancel(ctx)
		go func() { a.served <- q.Serve(ctx, 1, a.handle) }()
		<-a.began
		if n == 2 {
			own.cut()
		}
		return a, nil
	}
	return o
})

// newQueue returns the queue of a name, from a client of its own, and the network of that.
func newQueue(name string) (*network, *delay.Queue, error) {
	n := &network{}
	c, err := delay.New(redis.NewClient(&redis.Options{Addr: flag.Lookup("addr").Value.String(), Dialer: n.dial}))
	if err != nil {
		return nil, nil, err
	}
	return n, c.Queue(name, delay.WithLease(lease)), nil
}

// network has the connections of a client.
type network struct {
	mu    sync.Mutex
	conns []net.Conn
	isCut bool
}

var errCut = errors.New("the network is cut")

func (n *network) dial(ctx context.Context, kind, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, kind, addr)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil && n.isCut {
		return nil, errors.Join(errCut, conn.Close())
	}
	n.conns = append(n.conns, conn)
	return conn, err
}

func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isCut = true
	for _, conn := range n.conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// taskAttempt is an attempt that a handler has begun.
type taskAttempt struct {
	began    chan struct{}
	served   chan error // what Serve returned
	stop     func()
	released atomic.Bool
	ctx      context.Context //nolint:containedctx // of the handler
	task     *delay.Task
	at       time.Time
}

func (a *taskAttempt) handle(ctx context.Context, t *delay.Task) error {
	a.ctx, a.task, a.at = ctx, t, time.Now()
	close(a.began)
	<-ctx.Done() // by release, or with the lease
	if a.released.Load() {
		return nil
	}
	return ctx.Err()
}

func (a *taskAttempt) Deadline() time.Time   { return a.at.Add(lease) }
func (a *taskAttempt) Done() <-chan struct{} { return a.ctx.Done() }
func (a *taskAttempt) Valid() bool           { return a.ctx.Err() == nil }
func (a *taskAttempt) Token() int64          { return a.task.Token }

func (a *taskAttempt) release(context.Context) error {
	a.released.Store(true)
	a.stop()
	return <-a.served
}
