package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/testsize"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// A renewal may be in flight during Unlock. After Unlock has returned, the renewal must not prolong anything, and its
// reply tells the former holder nothing. Every second renewal reaches the server when another has the lock already;
// the others race with Unlock.
func TestUnlock_WhileARenewalIsInFlight(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	instants := testsize.Of(15, 40)
	renewals := map[string]*firstRenewal{}
	var names []string
	for range instants {
		names = append(names, redistest.Name(t))
		renewals[names[len(names)-1]] = &firstRenewal{
			sent: make(chan struct{}), passes: make(chan struct{}), over: make(chan struct{}),
		}
	}
	server := redistest.Shared(t)
	c := newClient(t, server.Client(t, func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &renewingConn{Conn: conn, renewals: renewals}, err
		}
	}))
	rdb := server.Client(t)
	other, w, ctx := newClient(t, rdb), newWheel(t), within(t, patience)
	wait := func(event <-chan struct{}) error {
		select {
		case <-event:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// Not in subtests, which would wait for their turn among those of other tests.
	redistest.Each(t, instants, func(i int) error {
		name, renewal := names[i], renewals[names[i]]
		letPass := sync.OnceFunc(func() { close(renewal.passes) })
		defer letPass()
		l, err := c.Mutex(name, redislock.WithLease(safeLease)).Lock(ctx)
		if err != nil {
			return err
		}
		if err := wait(renewal.sent); err != nil {
			return fmt.Errorf("the renewal was not sent: %w", err)
		}
		if i%2 == 1 {
			letPass()
			if err := w.Sleep(ctx, time.Duration(i)*5*time.Millisecond/time.Duration(instants)); err != nil {
				return err
			}
		}
		if err := l.Unlock(ctx); err != nil {
			return err
		}
		// Without renewal, and shorter than the lease that the late renewal asks for.
		next, err := other.Mutex(name, redislock.WithLease(safeLease/2), redislock.WithoutRenewal()).TryLock(ctx)
		if err != nil {
			return err
		}
		letPass()
		if err := wait(renewal.over); err != nil {
			return fmt.Errorf("the renewal has no end: %w", err)
		}
		if pttl, err := rdb.PTTL(ctx, name).Result(); err != nil || pttl > safeLease/2 {
			return fmt.Errorf("the next hold lasts for %v: %v", pttl, err) //nolint:errorlint // it may be nil
		}
		if err := l.Err(); !errors.Is(err, redislock.ErrNotHeld) {
			return fmt.Errorf("after Unlock: %v", err) //nolint:errorlint // it may be nil
		}
		_ = next.Unlock(ctx) // a stall may have outlasted it
		return nil
	})
	require.Zero(t, c.Stats().Lost)
}

// firstRenewal is the first renewal of a lock. It is sent when passes is closed.
type firstRenewal struct {
	sent, passes, over chan struct{}
	ended              sync.Once
	begun              sync.Once
}

// renewingConn delays the renewals that it carries until they may pass.
type renewingConn struct {
	net.Conn
	renewals map[string]*firstRenewal

	mu       sync.Mutex
	inFlight []*firstRenewal
}

func (c *renewingConn) Write(p []byte) (int, error) {
	var carried []*firstRenewal
	if isRenewal(p) {
		for name, r := range c.renewals {
			if bytes.Contains(p, []byte("\r\n"+name+"\r\n")) {
				carried = append(carried, r)
				r.begun.Do(func() { close(r.sent) })
			}
		}
		for _, r := range carried {
			<-r.passes
		}
	}
	c.mu.Lock()
	c.inFlight = append(c.inFlight, carried...)
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// isRenewal tells renewals by their lease from calls of their script that only ask who holds a lock.
func isRenewal(call []byte) bool {
	lease := fmt.Appendf(nil, "\r\n%d\r\n", safeLease.Milliseconds())
	return bytes.Contains(call, []byte(scripts.LockRenew.SHA())) && bytes.Contains(call, lease)
}

func (c *renewingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.end()
	return n, err
}

func (c *renewingConn) Close() error {
	c.end()
	return c.Conn.Close()
}

func (c *renewingConn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.inFlight {
		r.ended.Do(func() { close(r.over) })
	}
	c.inFlight = nil
}
