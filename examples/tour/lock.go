package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// lease is how long Redis keeps the lock of a holder that it does not hear of. The default of the library is 30 s, too long for
// a demonstration.
const lease = 3 * time.Second

// network is what lies between a client and Redis. It can hang: then nothing that the client writes arrives.
type network struct{ hangs atomic.Bool }

type connection struct {
	net.Conn

	network *network
}

// under makes a client connect through the network.
func (n *network) under(opts *redis.Options) {
	dial := redis.NewDialer(opts) // with TLS, if the options say so
	opts.Dialer = func(ctx context.Context, kind, addr string) (net.Conn, error) {
		conn, err := dial(ctx, kind, addr)
		if err != nil {
			return nil, err
		}
		return &connection{conn, n}, nil
	}
}

func (c *connection) Write(p []byte) (int, error) {
	if c.network.hangs.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// loseLock shows a holder whose network hangs: its context ends before the lock passes on.
func loseLock(ctx context.Context, t *tour) error {
	first, second, broken := t.connect(), t.connect(), &network{}
	broken.under(first)
	t.out.say("worker 1 locks; the lease in Redis is %v, and the watchdog renews it", lease)
	locks, done, err := t.locks(first)
	if err != nil {
		return err
	}
	defer done()
	lock, err := locks.Mutex(t.name, redislock.WithLease(lease)).Lock(ctx)
	if err != nil {
		return err
	}
	held := lock.Context(ctx) // for all that worker 1 does under the lock

	others, done, err := t.locks(second)
	if err != nil {
		return err
	}
	defer done()
	t.out.say("worker 2 waits for the lock")
	taken := make(chan error, 1)
	go func() { taken <- others.Mutex(t.name, redislock.WithLease(lease)).Do(ctx, t.holdShortly) }()

	if err := t.wheel.Sleep(ctx, 2*lease); err != nil {
		return err
	}
	t.out.say("worker 1 has held the lock for two leases: it was renewed. Now its network hangs")
	broken.hangs.Store(true)
	select {
	case <-held.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	t.out.say("worker 1: its context has ended, so it has stopped working")
	return <-taken
}

// holdShortly is the work of worker 2.
func (t *tour) holdShortly(ctx context.Context) error {
	t.out.say("worker 2 holds the lock")
	return t.wheel.Sleep(ctx, 300*time.Millisecond)
}

// locks returns a client for locks, and what closes it.
func (t *tour) locks(opts *redis.Options) (locks *redislock.Client, done func(), err error) {
	rdb := redis.NewClient(opts)
	if locks, err = redislock.New(rdb, redislock.WithWheel(t.wheel), redislock.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	return locks, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = locks.Close(ctx) // the network of worker 1 hangs
		_ = rdb.Close()
	}, nil
}
