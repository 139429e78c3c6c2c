package redislock

import (
	"context"
	"errors"
	"fmt"
	"io"
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
func (c *Client) run(what call) reply {
	return c.retry(func() (*redis.Cmd, time.Time) { return c.senders.send(what) })
}

// retry is run for any way to send a call once, which also returns an instant before it was sent.
func (c *Client) retry(once func() (*redis.Cmd, time.Time)) (r reply) {
	for n := 0; ; n++ {
		r.Cmd, r.sentAt = once()
		err := r.Err()
		if err == nil {
			return r
		}
		unanswered := mayHaveBeenSent(err)
		r.doubt = r.doubt || unanswered
		if n >= c.retries || !unanswered && !passing(err) {
			return r
		}
		reload(c.rdb)
		pause := min(8*time.Millisecond<<n, 512*time.Millisecond)
		if c.wheel.Sleep(context.Background(), pause/2+rand.N(pause/2)) != nil {
			return r
		}
	}
}

// runReplicated asks for a lock and then, on the same connection, whether replicas have it too.
func (c *Client) runReplicated(req *request, want replicas) (r reply, missing error) {
	what := req.kind.acquire(req)
	r = c.retry(func() (*redis.Cmd, time.Time) {
		ctx, sentAt := context.Background(), time.Now()
		node, err := nodeOf(c.rdb, req.name)
		if err != nil {
			cmd := redis.NewCmd(ctx)
			cmd.SetErr(err)
			return cmd, sentAt
		}
		conn := node.Conn()
		defer conn.Close()
		cmd := what.script.RunOnce(ctx, conn, what.keys, what.args...)
		if g, err := readGrant(reply{Cmd: cmd}); err == nil && g.taken {
			got, err := conn.Wait(ctx, want.n, want.timeout).Result()
			switch {
			case err != nil:
				missing = fmt.Errorf("%w: %w", ErrReplicas, err)
			case got < int64(want.n):
				missing = fmt.Errorf("%w: %d of %d within %v", ErrReplicas, got, want.n, want.timeout)
			default:
				missing = nil
			}
		}
		return cmd, sentAt
	})
	return r, missing
}

// nodeOf returns the client of the node that a key lives on.
func nodeOf(rdb redis.UniversalClient, key string) (*redis.Client, error) {
	switch c := rdb.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(context.Background(), key)
	case *redis.Ring:
		return c.GetShardClientForKey(key)
	}
	return nil, &InvalidError{Field: "WithReplicas", Value: fmt.Sprintf("%T", rdb), Reason: "needs a client whose nodes are known"}
}

// reload makes a cluster client look for the masters anew. Otherwise it may go on dialing a dead one for a minute.
func reload(rdb redis.UniversalClient) {
	if c, ok := rdb.(*redis.ClusterClient); ok {
		c.ReloadState(context.Background())
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

// outage reports whether Redis could not be reached or says that it will be back, as in a failover.
func outage(err error) bool {
	var network net.Error
	return passing(err) || errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, redis.ErrPoolTimeout)
}

// await runs f and waits for it or for ended, whichever is first. In the second case it returns false, f goes on
// on its goroutine, which its own timeouts end, and late gets the result. A nil ended needs no goroutine.
func await[T any](c *Client, ended <-chan struct{}, f func() T, late func(T)) (result T, answered bool) {
	if ended == nil {
		return f(), true
	}
	done, gone := make(chan T), make(chan struct{})
	c.gate.enterInside()
	go func() {
		defer c.gate.leave()
		r := f()
		select {
		case done <- r:
		case <-gone:
			late(r)
		}
	}()
	select {
	case r := <-done:
		return r, true
	case <-ended:
		close(gone)
		return result, false
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
