package redislock

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file keeps calls to Redis within bounds. go-redis does not look at the cancellation of a context while it waits for a
// reply, nor at its deadline unless told to, and repeats a call after a lost reply without saying so. A lock has to know
// both: when to give up, and whether an earlier copy of a call may still execute.

// retriesOf is how often the client is meant to retry a call.
func retriesOf(rdb redis.UniversalClient) int {
	switch c := rdb.(type) {
	case *redis.Client:
		return c.Options().MaxRetries
	case *redis.Ring:
		return c.Options().MaxRetries
	default: // a cluster client counts redirections instead
		return 3
	}
}

// dedicated returns a client with a few connections of its own to the same servers, which neither repeats calls nor
// outlasts their deadlines, and a function that closes it. A client of another type is shared.
func dedicated(rdb redis.UniversalClient) (redis.UniversalClient, func() error) {
	const poolSize = 8 // four renewals and a release at a time, and room for a connection that hangs
	switch c := rdb.(type) {
	case *redis.Client:
		opt := *c.WithTimeout(c.Options().ReadTimeout).Options()
		opt.ContextTimeoutEnabled, opt.MaxRetries = true, -1
		opt.PoolSize, opt.MinIdleConns, opt.MaxActiveConns = poolSize, 0, 0
		opt.ClientSideCacheConfig = nil
		opt.PushNotificationProcessor = nil // the clone's is registered with the caller's client
		own := redis.NewClient(&opt)
		return own, own.Close
	case *redis.ClusterClient:
		opt := *c.Options()
		opt.ContextTimeoutEnabled = true
		opt.PoolSize, opt.MinIdleConns, opt.MaxActiveConns = poolSize, 0, 0
		own := redis.NewClusterClient(&opt)
		return own, own.Close
	case *redis.Ring:
		opt := *c.Options()
		opt.ContextTimeoutEnabled, opt.MaxRetries = true, -1
		opt.PoolSize, opt.MinIdleConns, opt.MaxActiveConns = poolSize, 0, 0
		own := redis.NewRing(&opt)
		return own, own.Close
	default:
		return rdb, func() error { return nil }
	}
}

// reply is the outcome of run.
type reply struct {
	*redis.Cmd
	sentAt time.Time // before the last attempt was sent; what it did on the server was not done earlier
	doubt  bool      // a copy of the call was sent and not answered: it may have executed, or may yet
}

// run executes a script that is idempotent on its id, and retries what may succeed on a second try as often as the client's
// options say. It blocks until an answer or the last failure, each attempt within the client's own timeouts.
func (c *Client) run(what call) (r reply) {
	for n := 0; ; n++ {
		r.sentAt = time.Now()
		r.Cmd = what.script.RunOnce(context.Background(), c.rdb, what.keys, what.args...)
		err := r.Err()
		if err == nil {
			return r
		}
		unanswered := mayHaveBeenSent(err)
		r.doubt = r.doubt || unanswered
		if n >= c.retries || !unanswered && !passing(err) {
			return r
		}
		pause := min(8*time.Millisecond<<n, 512*time.Millisecond)
		if c.wheel.Sleep(context.Background(), pause/2+rand.N(pause/2)) != nil {
			return r
		}
	}
}

// mayHaveBeenSent reports whether a failed call may have reached the server all the same.
func mayHaveBeenSent(err error) bool {
	var op *net.OpError
	switch {
	case refused(err):
		return false
	case errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return false
	case errors.As(err, &op) && op.Op == "dial":
		return false
	}
	return true
}

// refused reports whether the error is an answer of the server.
func refused(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// passing reports whether the server refused a call for a reason that tends to pass within a second, such as a failover.
func passing(err error) bool {
	_, moved := redis.IsMovedError(err)
	return moved || redis.IsLoadingError(err) || redis.IsReadOnlyError(err) || redis.IsMasterDownError(err) ||
		redis.IsClusterDownError(err) || redis.IsTryAgainError(err) || redis.IsMaxClientsError(err)
}

// await runs f and waits for it or for ended, whichever is first. In the second case it returns false, f goes on
// on its goroutine, which its own timeouts end, and late gets the result. A nil ended needs no goroutine.
func (c *Client) await(ended <-chan struct{}, f func() reply, late func(reply)) (reply, bool) {
	if ended == nil {
		return f(), true
	}
	result, gone := make(chan reply), make(chan struct{})
	c.gate.enterInside()
	go func() {
		defer c.gate.leave()
		r := f()
		select {
		case result <- r:
		case <-gone:
			late(r)
		}
	}()
	select {
	case r := <-result:
		return r, true
	case <-ended:
		close(gone)
		return reply{}, false
	}
}

// ended is why ctx is over.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return errors.Join(err, cause)
	}
	return err
}

// millis rounds up: the server must not end a lease before its holder expects it.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
