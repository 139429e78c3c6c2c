package httplimit

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// Waiter is the limiter of a Transport; *ratelimit.Limiter implements it, *ratelimit.StoredLimiter, which has no keys,
// does not. It must be safe for concurrent use.
type Waiter interface {
	WaitN(ctx context.Context, key string, n int64) error
}

// maxPause is the longest time for which a server can pause a key.
const maxPause = time.Hour

// Transport is an http.RoundTripper that waits for a limit before it sends a request. It heeds Retry-After: after a
// response with status 429 or 503 that has the field, no request of the same key is sent until that time, at most for
// an hour. It is safe for concurrent use.
type Transport struct {
	limiter Waiter
	key     KeyFunc
	next    http.RoundTripper

	mu      sync.Mutex
	paused  map[string]time.Time // until when, by key
	sweepAt int                  // number of keys from which on those whose pauses have ended are dropped
}

// NewTransport returns a Transport that waits for one permit of the key of a request, and then has next send the
// request. A nil next is http.DefaultTransport. A request that is not limited is sent at once. key gets the request of
// the caller, whose URL.Host names the server. ByRemoteAddr and ByAddress are for requests that a server has received;
// of others ByRemoteAddr limits none. NewTransport panics with a *cogwheel.InvalidError if another argument is nil or
// the limiter has an invalid argument.
//
// A request whose wait fails is not sent. Its error matches that of the context if the context has ended,
// ratelimit.ErrWouldExceedDeadline if the permit or the end of a pause cannot come before the deadline, and otherwise
// the error of the limiter. During a pause the limiter is not asked: a permit that comes too late fails at its end.
// While Redis is down and the policy is FailClosed, requests wait until their contexts end; set a deadline, or the
// Timeout of the http.Client.
//
// A request is sent once: the response with status 429 or 503 is returned to the caller, who decides whether to repeat
// the request. Pauses are known to this Transport alone, not to other processes. They are entries of wheel.Default().
func NewTransport(l Waiter, key KeyFunc, next http.RoundTripper) *Transport {
	if l == nil {
		panic(argument.Nil("limiter"))
	}
	if key == nil {
		panic(argument.Nil("key function"))
	}
	if made, ok := l.(interface{ Err() error }); ok && made.Err() != nil {
		panic(made.Err())
	}
	if next == nil {
		next = http.DefaultTransport
	}
	return &Transport{limiter: l, key: key, next: next, paused: map[string]time.Time{}}
}

// RoundTrip implements http.RoundTripper. It blocks until the request may be sent and the response has come, or until
// the context of the request ends.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, limited := t.key(r)
	if !limited {
		return t.next.RoundTrip(r)
	}
	if err := t.wait(r.Context(), key); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as each RoundTripper has to
		}
		return nil, fmt.Errorf("httplimit: wait for the limit: %w", err)
	}
	response, err := t.next.RoundTrip(r)
	if err == nil {
		t.heed(key, response)
	}
	return response, err
}

// CloseIdleConnections closes those of the next RoundTripper, if it has such a method.
func (t *Transport) CloseIdleConnections() {
	if next, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

// wait returns when a request of the key may be sent. A permit that comes during a pause is not used: else all requests
// that waited would be sent at the end of the pause.
func (t *Transport) wait(ctx context.Context, key string) error {
	for {
		if err := t.waitPause(ctx, key); err != nil {
			return err
		}
		if err := t.limiter.WaitN(ctx, key, 1); err != nil {
			return err
		}
		if t.pause(key) <= 0 {
			return nil
		}
	}
}

// waitPause returns when the key is not paused.
func (t *Transport) waitPause(ctx context.Context, key string) error {
	for pause := t.pause(key); pause > 0; pause = t.pause(key) {
		if deadline, ok := ctx.Deadline(); ok && deadline.Sub(conventions.Now()) < pause {
			return fmt.Errorf("%w: the server has paused requests for %v", ratelimit.ErrWouldExceedDeadline,
				pause.Round(time.Second))
		}
		if err := wheelentry.Sleep(ctx, wheel.Default(), pause); err != nil {
			return err
		}
	}
	return nil
}

// pause returns for how long a key is paused; 0 or less if it is not.
func (t *Transport) pause(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.paused[key].Sub(wheel.Default().Now())
}

// heed pauses a key as a response demands. It drops the pauses that have ended when the keys have doubled.
func (t *Transport) heed(key string, r *http.Response) {
	if r.StatusCode != http.StatusTooManyRequests && r.StatusCode != http.StatusServiceUnavailable {
		return
	}
	now := wheel.Default().Now()
	pause := retryAfter(r.Header, now)
	if pause <= 0 {
		return
	}
	until := now.Add(pause)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.paused) >= t.sweepAt {
		maps.DeleteFunc(t.paused, func(_ string, end time.Time) bool { return !end.After(now) })
		t.sweepAt = 2*len(t.paused) + 1
	}
	if until.After(t.paused[key]) {
		t.paused[key] = until
	}
}

// retryAfter returns the time of the field Retry-After, at most maxPause, or 0 for none. A date counts from that of the
// response, so that the clocks need not agree, or if it has none, from now.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if s, err := strconv.ParseUint(text, 10, 64); err == nil || s > 0 { // s is the greatest number for a greater one
		return time.Duration(min(s, uint64(maxPause/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if sent, err := http.ParseTime(h.Get("Date")); err == nil {
		now = sent
	}
	return min(at.Sub(now), maxPause)
}
