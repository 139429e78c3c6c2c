package semaphore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// lateCopy is when a release is repeated for the first time because an unanswered request may take effect after it: by then the server,
	// which has answered since, has read what was in its sockets. A copy may be later still, held up by the network, so the
	// pause before each further release is twice as long as the one before.
	lateCopy = time.Second

	// latest is how long an unanswered request is reckoned with at least.
	latest = 15 * time.Second
)

// leftover is what may be left in Redis of permits that nobody holds. Without ids it is a fair semaphore whose free permits
// are to be assigned.
type leftover struct {
	name  string
	fair  bool
	ids   []string
	until time.Time     // by then it has gone by itself
	copy  time.Duration // before the release that follows one that succeeds; 0: none follows
	pause time.Duration // before the last retry
	timer wheel.Timer
}

// leftover is what a request for permits, or a grant, may have left: for the time of a lease, for that of a place in a fair queue, and
// where a copy of the request may still be under way for as long as that is reckoned with.
func (c *Client) leftover(name string, fair bool, ids []string, lease time.Duration, doubt bool) *leftover {
	x := &leftover{name: name, fair: fair, ids: ids}
	lasts := lease
	if fair {
		lasts = max(lasts, c.fairAlive())
	}
	if doubt {
		lasts = max(lasts, latest)
		x.copy = lateCopy
	}
	x.until = time.Now().Add(lasts)
	return x
}

// late sends releases that nobody waits for, and retries those that fail. Those of one semaphore share scripts.
//
// Ground rules. mu guards every field. Whatever is pending has a wheel entry or a call under way.
type late struct {
	client *Client

	mu      sync.Mutex
	pending map[*leftover]struct{}
	closed  bool
}

// add releases x in d from now.
func (l *late) add(x *leftover, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending[x] = struct{}{}
	if l.closed {
		return
	}
	if d <= 0 && l.client.gate.Enter() {
		l.send(x)
		return
	}
	// Without a wheel the permits end with their lease.
	x.timer, _ = l.client.wheel.AfterFunc(max(d, 0), func() {
		if l.client.gate.Enter() { // otherwise Close sends it
			l.send(x)
		}
	})
}

// send queues x; the gate has been entered.
func (l *late) send(x *leftover) {
	c := l.client
	c.queueOf(x.fair).WaitFunc(context.Background(), x.name, &giving{ids: x.ids}, func(_ *giving, err error) {
		defer c.gate.Leave()
		l.done(x, err)
	})
}

// done decides what has to be sent once more.
func (l *late) done(x *leftover, err error) {
	l.mu.Lock()
	delete(l.pending, x)
	l.mu.Unlock()
	switch {
	case err != nil && calls.Final(err):
		l.client.logger.LogAttrs(context.Background(), slog.LevelWarn, "release refused, permits end with their lease",
			slog.String("name", x.name), slog.Any("error", err))
	case time.Now().After(x.until):
	case err != nil:
		x.pause = min(max(2*x.pause, 250*time.Millisecond), 5*time.Second)
		l.add(x, x.pause)
	case x.copy > 0:
		pause := x.copy
		x.copy *= 2
		l.add(x, pause)
	}
}

// close sends everything that is pending once, due or not, and drops what fails. The gate is closed and idle.
func (l *late) close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	pending := make([]*leftover, 0, len(l.pending))
	for x := range l.pending {
		x.timer.Stop()
		pending = append(pending, x)
	}
	clear(l.pending)
	l.mu.Unlock()
	var calls sync.WaitGroup
	errs := make([]error, len(pending))
	for i, x := range pending {
		calls.Add(1)
		l.client.queueOf(x.fair).WaitFunc(ctx, x.name, &giving{ids: x.ids}, func(_ *giving, err error) {
			defer calls.Done()
			errs[i] = err
		})
	}
	calls.Wait()
	left := 0
	var last error
	for _, err := range errs {
		if err != nil {
			left, last = left+1, err
		}
	}
	if left > 0 {
		return fmt.Errorf("%d grants could not be released and end with their lease: %w", left, last)
	}
	return nil
}
